"""Defaults of a run: learning rate, local training, restarts, number of rounds, divergence."""

import warnings

import numpy as np
import pytest

import coterie
from coterie.errors import ConfigError, DivergenceWarning
from coterie.learners import AutoTraining, FullBatch, MiniBatch
from coterie.learners.local_training import MINI_BATCHES
from coterie.methods import IFCA
from coterie.methods.initializers import RandomInit
from coterie.methods.rates import best_rate
from coterie.options import from_options
from coterie.training.planning import prepare
from coterie.training.stopping import Settling

QUIET = {"rounds": 2, "evaluate_every": 2}


def clients(task="linear", scale=(1.0, 1.0, 1.0), count=6, n=30):
    random = np.random.default_rng(5)
    found = {}
    for i in range(count):
        x = random.standard_normal((n, 3))
        mean = x @ np.array([1.0, 2.0, -1.0]) * (-1) ** i
        found[f"c{i}"] = (x * scale, mean if task == "linear" else (mean > 0).astype(int))
    return coterie.from_arrays(found)


# ---- the learning rate ---------------------------------------------------------------------------------------------


def test_the_largest_rate_with_a_loss_near_the_lowest_is_chosen():
    """From 2.0 the loss falls to 1.0 at best, so up to 1.1 is near it; the last one fell for too few clients."""
    after = np.array([1.9, 1.5, 1.05, 1.0, 1.09, 1.3, 1.0])
    worse = np.array([0.0, 0, 0, 0, 0.1, 0, 0.2])
    assert best_rate(2.0, after, worse) == 4
    assert best_rate(2.0, np.array([2.0, 2.5, np.inf]), np.array([0.5, 1, 1])) is None


@pytest.mark.parametrize(
    ("learner", "bound"), [("linear", 1.0), ("linear:half=false", 2.0), ("logistic:bias=false", 0.25)]
)
def test_full_batches_of_linear_and_logistic_models_use_the_largest_curvature(learner, bound):
    task = learner.partition(":")[0]
    data = clients(task)
    result = coterie.fit(data, "fedavg", learner=learner, **QUIET)
    x = data.train.x.numpy().reshape(6, 30, 3)
    largest = max(np.linalg.eigvalsh(own.T @ own / 30)[-1] for own in x)
    found = result.metrics["learning_rate"]
    assert found["rule"] == "curvature"
    assert result.config["lr"] == found["lr"] == pytest.approx(0.9 / (bound * largest))


def test_momentum_shortens_the_rate_and_adam_has_its_own():
    data = clients()
    plain, heavy, adam = (
        coterie.fit(data, "fedavg", **QUIET, **more).config["lr"]
        for more in ({}, {"optimizer": "sgd:momentum=0.9"}, {"optimizer": "adam"})
    )
    assert heavy == pytest.approx(plain / 10)
    assert adam == 0.001


@pytest.mark.parametrize("learner", ["linear", "mlp:hidden=4"])
def test_every_engine_finds_the_same_rate_at_the_same_cost(learner):
    one, other = (
        coterie.fit(clients(), "ifca", learner=learner, engine=engine, **QUIET).metrics["learning_rate"]
        for engine in ("simulated", "sequential")
    )
    assert one["lr"] == pytest.approx(other["lr"], rel=1e-12)
    for name in ("rule", "exchanges", "bytes_up", "bytes_down"):
        assert one[name] == other[name]
    assert one["rule"] == ("curvature" if learner == "linear" else "range-test")


def test_a_resumed_run_keeps_the_rate(tmp_path):
    options = {"learner": "mlp:hidden=4", "rounds": 4, "checkpoint_every": 1}
    whole = coterie.fit(clients(), "fedavg", **options)

    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(clients(), "fedavg", out=tmp_path / "run", callbacks=[stop], **options)
    resumed = coterie.resume(tmp_path / "run", clients())
    assert resumed.config["lr"] == whole.config["lr"]
    assert resumed.metrics["learning_rate"] == whole.metrics["learning_rate"]
    for name, value in whole.models[0].items():
        assert np.array_equal(value, resumed.models[0][name])


def test_a_feature_in_another_scale_is_named():
    with pytest.warns(UserWarning, match=r"feature 1 is .* times as large as the median feature"):
        coterie.fit(clients(scale=(1, 1000.0, 1)), "fedavg", **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coterie.fit(clients(scale=(1, 50.0, 1)), "fedavg", **QUIET)


# ---- local training and restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "given", "expected"),
    [
        ("linear", {}, FullBatch(steps=10)),
        ("mlp", {}, MINI_BATCHES),
        ("mlp", {"local_steps": 3}, FullBatch(steps=3)),
        ("mlp", {"local_epochs": 5}, MiniBatch(batch_size=20, epochs=5)),
        ("mlp", {"batch_size": 7}, MiniBatch(batch_size=7, epochs=2)),
        ("linear", {"batch_size": 7}, MiniBatch(batch_size=7, steps=10)),
    ],
)
def test_local_training_suits_the_learner(learner, given, expected):
    method = prepare(clients(), "ifca", learner, given).method
    assert method.local == expected
    assert from_options(IFCA, method.to_options()).local == expected, "as a resumed run reads them"


def test_undecided_local_training_takes_no_steps():
    with pytest.raises(ConfigError, match="depends on the learner"):
        AutoTraining().batch_size_for(3)


def test_restarts_race_if_there_are_enough_rounds():
    def decided(**given):
        method = prepare(clients(count=40), "ifca", "linear", {"clusters": 2, **given}).method
        return method.init.restarts, method.race, method.race_share

    assert decided() == (5, 5, 0.5)  # 10 clients for each of 2 clusters, of 40
    assert decided(clusters=1) == (1, 0, "auto")
    assert decided(rounds=19) == (1, 0, "auto")
    assert decided(restarts=3) == (3, 0, "auto")
    assert decided(init="odcl") == (1, 0, "auto")
    typed = prepare(clients(), IFCA(clusters=2, init=RandomInit(restarts=2)), "linear", {}).method
    assert typed.init.restarts == 2


# ---- the number of rounds ------------------------------------------------------------------------------------------


def test_a_loss_settles_when_ten_rounds_bring_less_than_a_hundredth_of_the_decrease():
    """Losses 1, 1/2, 1/4, ...: the means of rounds 0-9 and 10-19 differ by about 0.2, of 10-19 and 20-29 by 2e-4."""
    watch, ended = Settling(20), []
    for round_ in range(40):
        watch.see({"round": round_, "loss": 0.5**round_})
        ended.append(watch.reached)
    means = [sum(0.5 ** (end - k) for k in range(10)) / 10 for end in range(40)]
    first = next(end for end in range(19, 40) if means[end - 10] - means[end] <= 0.01 * (1 - means[end]))
    assert ended.index(True) == first


def test_a_change_of_the_clusters_starts_a_new_comparison():
    watch = Settling(20)
    for round_ in range(37):
        watch.see({"round": round_, "loss": 1.0, "events": ["split"] if round_ == 18 else []})
    assert not watch.reached, "19 rounds with the one of the split"
    watch.see({"round": 37, "loss": 1.0})
    assert watch.reached


def test_rounds_end_when_the_loss_settles_and_given_ones_are_exact():
    settled = coterie.fit(clients(), "fedavg", evaluate_every=200)
    assert settled.metrics.stopped == "settled"
    assert 20 <= settled.metrics.rounds < 100
    assert coterie.fit(clients(), "fedavg", rounds=30, evaluate_every=30).metrics.rounds == 30
    assert prepare(clients(), "fedavg", None, {"schedule": "cosine"}).rounds == 50


# ---- divergence ----------------------------------------------------------------------------------------------------


def test_an_explicit_rate_that_diverges_ends_the_run_early(tmp_path):
    with pytest.warns(DivergenceWarning, match=r"lower lr \(now 1000\)"):
        result = coterie.fit(clients(), "fedavg", lr=1000.0, rounds=60, out=tmp_path / "run")
    assert result.metrics.diverged
    assert result.metrics.rounds < 10
    assert coterie.load(tmp_path / "run").metrics.diverged


def test_an_automatic_rate_that_diverges_is_lowered(monkeypatch, tmp_path):
    """With a bound of the curvature that is 30 times too low the rate is lowered by 8, and by 8 again."""
    monkeypatch.setattr("coterie.methods.rates.STABLE", 27.0)
    with pytest.warns(DivergenceWarning, match="starts again with"):
        result = coterie.fit(clients(), "fedavg", rounds=12, out=tmp_path / "run")
    found = result.metrics["learning_rate"]
    first = 27.0 / found["curvature"]
    assert found["diverged_with"] == pytest.approx([first, first / 8][: len(found["diverged_with"])])
    assert result.config["lr"] == found["lr"] == pytest.approx(first / 8 ** len(found["diverged_with"]))
    assert not result.metrics.diverged
    assert [record["round"] for record in result.records] == list(range(12))
    assert found["exchanges"] > 1, "the rounds that were given up are counted"
    assert coterie.load(tmp_path / "run").metrics["learning_rate"] == found
