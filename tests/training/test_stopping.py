"""Runs that end before their last round: by patience, by their caller, and after a kill in between."""

import json
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.core.validation import validation_split
from coterie.errors import ConfigError
from coterie.training.stopping import Watch
from tests.methods.test_ifca import START, population

COMMON = {"learner": "linear", "clusters": 2, "lr": 0.1, "local_steps": 1, "seed": 4}


def timeless(result):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in result.records]


def plain_stop(values, patience, first=0):
    """The round in which a run with these figures stops, and the best round; a plain loop over the definition."""
    best, best_round, waited = float("inf"), None, 0
    for t, value in enumerate(values):
        if t < first or value is None:
            continue
        if best_round is None or value < best - 1e-4 * abs(best):
            best, best_round, waited = value, t, 0
        else:
            waited += 1
        if waited == patience:
            return t, best_round
    return None, best_round


# ---- the watch -----------------------------------------------------------------------------------------------


def watched(values, patience, first=0):
    watch = Watch("loss", patience, first)
    for t, value in enumerate(values):
        watch.see({"round": t, "loss": value})
        if watch.exhausted:
            return t, watch.best_round
    return None, watch.best_round


@pytest.mark.parametrize(
    ("values", "patience", "stop", "best"),
    [
        ([3, 2, 1, 1, 1, 1], 2, 4, 2),
        ([3, 2, 1, 1, 0.5, 1, 1], 2, 6, 4),  # an improvement starts the count anew
        ([1, 0.99995, 0.9999, 0.9998], 3, None, 3),  # 0.9998 is more than 0.01 % below 1, the others are not
        ([1, 0.99995, 0.9999, 0.99985], 2, 2, 0),
        ([3, 2, 1], 1, None, 2),
        ([-1, -1.00005, -1.0002], 2, None, 2),  # below zero lower is better, too
        ([0, 0, 0], 2, 2, 0),
    ],
)
def test_a_watch_stops_after_several_figures_without_improvement(values, patience, stop, best):
    assert watched(values, patience) == (stop, best)
    assert plain_stop(values, patience) == (stop, best)


def test_infinite_figures_are_not_an_improvement():
    assert watched([None, 1, None, None], 2) == (3, 1)
    assert watched([None, None], 2) == (1, None)


def test_rounds_before_the_first_one_do_not_count():
    assert watched([0.1, 0.1, 0.1, 3, 2, 2, 2], 2, first=3) == (6, 4)


def test_a_record_without_the_figure_is_skipped():
    watch = Watch("validation_loss", 2)
    for t, record in enumerate([{"validation_loss": 1.0}, {}, {}, {"validation_loss": 1.0}, {}]):
        watch.see({"round": t, **record})
    assert not watch.exhausted
    watch.see({"round": 5, "validation_loss": 1.0})
    assert watch.exhausted


# ---- patience on the training loss ---------------------------------------------------------------------------


def test_patience_stops_when_the_training_loss_of_a_long_run_stands_still():
    long = coterie.fit(population(), "ifca", init=START, rounds=200, **COMMON)
    stop, _ = plain_stop([record["loss"] for record in long.records], 3)
    assert 3 < stop < 199, "the data of the test must make it stop"
    short = coterie.fit(population(), "ifca", init=START, rounds=200, patience=3, **COMMON)
    assert len(short.records) == short.metrics["rounds"] == stop + 1
    assert short.metrics["stopped"] == short.records[-1]["stopped"] == "patience"
    assert "best_rounds" not in short.metrics, "the models are those of the last round"
    same = coterie.fit(population(), "ifca", init=START, rounds=stop + 1, **COMMON)
    assert "stopped" not in same.metrics
    for a, b in zip(short.models, same.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])


def test_a_run_that_reaches_its_last_round_has_not_stopped_early():
    result = coterie.fit(population(), "ifca", init=START, rounds=4, patience=1, **COMMON | {"lr": 1e-9})
    assert len(result.records) == 2
    result = coterie.fit(population(), "ifca", init=START, rounds=2, patience=1, **COMMON | {"lr": 1e-9})
    assert len(result.records) == 2
    assert "stopped" not in result.metrics


def test_rounds_of_a_race_do_not_count():
    options = COMMON | {"lr": 1e-9, "restarts": 2, "rounds": 20, "patience": 2}
    assert len(coterie.fit(population(), "ifca", **options).records) == 3
    assert len(coterie.fit(population(), "ifca", race=5, race_share=1.0, **options).records) == 5 + 3


@pytest.mark.parametrize("method", ["local", "fedavg", "fedprox", "ifca", "oracle"])
def test_every_method_can_be_stopped(method):
    settings = {"learner": "linear", "rounds": 9, "patience": 2, "lr": 1e-9, "validation": 0.3}
    result = coterie.fit(population(), method, **settings)
    assert (len(result.records), result.metrics["best_rounds"]) == (3, 1)


# ---- validation ----------------------------------------------------------------------------------------------


def test_with_validation_a_run_trains_on_the_rest_and_scores_the_part_held_out():
    data = population()
    held = validation_split(data, 0.3, COMMON["seed"])
    result = coterie.fit(data, "ifca", init=START, rounds=5, validation=0.3, **COMMON)
    by_hand = coterie.fit(replace(held, test=None), "ifca", init=START, rounds=5, **COMMON)
    judged = coterie.fit(held, "ifca", init=START, rounds=5, **COMMON)
    for a, b in zip(result.models, by_hand.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])
    assert [r["validation_rmse"] for r in result.records] == [r["rmse"] for r in judged.records]
    x, y = held.test.x.numpy(), held.test.y.numpy()
    losses, squares = [], []
    for row, a, b in zip(result.clients, held.test.starts, held.test.stops, strict=True):
        gap = x[a:b] @ result.models[row["cluster"]]["weight"] - y[a:b]
        squares.append(np.sqrt(np.mean(gap**2)))
        losses.append(np.mean(gap**2) / 2)
        assert row["n"] == held.train.sizes[data.clients.index(row["id"])]
    assert result.metrics["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert result.metrics["validation_rmse"] == pytest.approx(np.mean(squares), rel=1e-12)
    assert result.metrics["rmse"] == result.metrics["validation_rmse"], "for want of test data"
    assert result.metrics["evaluated_on"] == "validation samples"


def test_test_data_is_scored_in_addition_to_validation_and_changes_nothing_else():
    data = coterie.scenario("mixed-regression", clients=9, dimension=3)
    other = replace(data, test=replace(data.test, y=-5 * data.test.y))
    options = {"validation": 0.25, "patience": 2, "rounds": 40, "restarts": 2}
    one, two = coterie.fit(data, "ifca", **options), coterie.fit(other, "ifca", **options)
    assert one.metrics["rmse"] != two.metrics["rmse"]
    assert one.metrics["evaluated_on"] == "held-out data"
    assert [r["validation_loss"] for r in one.records] == [r["validation_loss"] for r in two.records]
    for a, b in zip(one.models, two.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])


def test_a_client_with_a_single_sample_trains_and_has_no_score(tmp_path):
    data = population(sizes=(1, 8, 20, 5, 1, 30, 2, 9))
    result = coterie.fit(data, "ifca", rounds=3, validation=0.3, **COMMON)
    rows = {row["id"]: row for row in result.clients}
    assert set(rows) == set(data.clients)
    assert [rows[c]["score"] is None for c in data.clients] == [True, False, False, False, True, False, False, False]
    assert result.metrics["clients"] == 8
    assert "c0" in result.assignments
    assert "stopped early" not in coterie.write_report(result, tmp_path / "report.html").read_text()


@pytest.mark.parametrize("participation", [0.13, 0.5])
def test_rounds_without_validation_samples_have_no_figure(participation):
    """With one client asked at a time the first ones may be those with a single sample."""
    data = population(sizes=(1, 1, 1, 1, 1, 1, 1, 9))
    result = coterie.fit(data, "fedavg", learner="linear", rounds=12, validation=0.3, participation=participation)
    known = np.cumsum([record["answered"] for record in result.records])
    assert all("validation_loss" in record for record, m in zip(result.records, known, strict=True) if m > 7 * 12)
    assert "validation_loss" in result.metrics


def test_engines_agree_on_validation_figures():
    data = population(sizes=(1, 8, 20, 5, 11, 30, 2, 9))
    fast, slow = (
        coterie.fit(data, "ifca", rounds=6, validation=0.3, engine=engine, **COMMON)
        for engine in ("simulated", "sequential")
    )
    for a, b in zip(fast.records, slow.records, strict=True):
        assert a["validation_loss"] == pytest.approx(b["validation_loss"], rel=1e-9)


# more parameters than samples and much noise: the validation loss falls, then rises
OVERFIT = {"learner": "linear:degree=2", "rounds": 60, "lr": 0.05, "local_steps": 1, "seed": 1, "validation": 0.4}


def overfitting():
    return population(sizes=(9, 8, 10, 7, 9, 8, 7, 9), noise=1.0)


def test_with_validation_the_models_of_the_best_round_are_kept(tmp_path):
    long = coterie.fit(overfitting(), "local", evaluate_every=1, **OVERFIT)
    stop, best = plain_stop([record["validation_loss"] for record in long.records], 4)
    assert 0 < best < stop < 59, "the data of the test must make it overfit"
    short = coterie.fit(overfitting(), "local", patience=4, **OVERFIT)
    assert (short.metrics["rounds"], short.metrics["best_rounds"]) == (stop + 1, best + 1)
    same = coterie.fit(overfitting(), "local", **OVERFIT | {"rounds": best + 1})
    for a, b in zip(short.models, same.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])
    assert short.metrics["validation_loss"] == same.metrics["validation_loss"]
    page = coterie.write_report(short, tmp_path / "report.html").read_text()
    words = f"stopped early and kept the models with the lowest validation loss: after {stop + 1} of 60 rounds (seed 1)"
    assert words in page


def test_patience_counts_evaluations_if_not_every_round_is_evaluated():
    long = coterie.fit(overfitting(), "local", evaluate_every=3, **OVERFIT)
    stop, best = plain_stop([record.get("validation_loss") for record in long.records], 2)
    short = coterie.fit(overfitting(), "local", evaluate_every=3, patience=2, **OVERFIT)
    assert (len(short.records), short.metrics["best_rounds"]) == (stop + 1, best + 1)
    assert len(short.records) % 3 == 0


# ---- interrupted ---------------------------------------------------------------------------------------------


class KilledError(Exception):
    """Simulates a kill."""


def kill_in(round_):
    def kill(record):
        if record["round"] == round_:
            raise KilledError

    return kill


RACED = COMMON | {"rounds": 99, "restarts": 3, "race": 3, "lr": 0.5, "patience": 3}


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize(("method", "options"), [("local", OVERFIT | {"patience": 4}), ("ifca", RACED)])
def test_interrupted_anywhere_a_run_stops_in_the_same_round_with_the_same_models(tmp_path, method, options, every):
    settings = options | {"checkpoint_every": every}
    whole = coterie.fit(overfitting(), method, **settings)
    assert whole.metrics["stopped"] == "patience"
    assert 8 < len(whole.records) < 40
    for killed in {*range(0, len(whole.records), 4), len(whole.records) - 1}:
        folder = tmp_path / str(killed)
        with pytest.raises(KilledError):
            coterie.fit(overfitting(), method, out=folder, callbacks=[kill_in(killed)], **settings)
        resumed = coterie.resume(folder, overfitting())
        assert timeless(resumed) == timeless(whole)
        for name in ("stopped", "best_rounds", "rounds", "loss"):
            assert resumed.metrics.get(name) == whole.metrics.get(name)
        for a, b in zip(resumed.models, whole.models, strict=True):
            assert np.array_equal(a["weight"], b["weight"])


def test_a_run_killed_between_its_last_record_and_its_result_does_not_continue(tmp_path):
    settings = OVERFIT | {"patience": 4, "checkpoint_every": 50, "out": tmp_path / "run"}
    whole = coterie.fit(overfitting(), "local", **settings)
    for name in ("result.json", "models.safetensors"):
        (tmp_path / "run" / name).unlink()
    seen = []
    resumed = coterie.resume(tmp_path / "run", overfitting(), callbacks=[seen.append])
    assert seen == []
    assert {k: v for k, v in resumed.metrics.items() if k != "seconds"} == {
        k: v for k, v in whole.metrics.items() if k != "seconds"
    }
    for a, b in zip(resumed.models, whole.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])


def test_a_damaged_checkpoint_does_not_lose_the_best_models(tmp_path):
    settings = OVERFIT | {"patience": 4, "checkpoint_every": 2}
    whole = coterie.fit(overfitting(), "local", **settings)
    with pytest.raises(KilledError):
        coterie.fit(
            overfitting(), "local", out=tmp_path / "cut", callbacks=[kill_in(len(whole.records) - 1)], **settings
        )
    newest = sorted((tmp_path / "cut" / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(b"")
    resumed = coterie.resume(tmp_path / "cut", overfitting(), warn=lambda text: None)
    assert resumed.metrics["best_rounds"] == whole.metrics["best_rounds"]
    assert np.array_equal(resumed.models[3]["weight"], whole.models[3]["weight"])


# ---- callbacks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yes", [True, np.bool_(True)])
def test_a_callback_that_returns_true_ends_the_run_and_finishes_the_folder(tmp_path, yes):
    def enough(record):
        return yes if record["round"] == 3 else None

    options = {"init": START, "checkpoint_every": 50, **COMMON}
    stopped = coterie.fit(population(), "ifca", rounds=50, out=tmp_path / "run", callbacks=[enough], **options)
    same = coterie.fit(population(), "ifca", rounds=4, **options)
    assert len(stopped.records) == 4
    assert stopped.metrics["stopped"] == stopped.records[-1]["stopped"] == "on_round"
    assert np.array_equal(stopped.models[0]["weight"], same.models[0]["weight"])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["stopped"] == "on_round"
    assert coterie.load(tmp_path / "run").records == stopped.records
    (tmp_path / "run" / "result.json").unlink()
    assert timeless(coterie.resume(tmp_path / "run", population())) == timeless(stopped), "it does not go on"


@pytest.mark.parametrize("answer", [False, 0, 1, "no", [1]])
def test_only_true_ends_a_run(answer):
    result = coterie.fit(population(), "ifca", rounds=3, callbacks=[lambda record: answer], **COMMON)
    assert len(result.records) == 3


def test_an_exception_in_a_callback_leaves_a_folder_that_can_be_resumed(tmp_path):
    def broken(record):
        if record["round"] == 5:
            raise ZeroDivisionError("a mistake in the callback")

    options = {"init": START, "rounds": 9, "checkpoint_every": 2, **COMMON}
    whole = coterie.fit(population(), "ifca", **options)
    with pytest.raises(ZeroDivisionError, match="a mistake in the callback"):
        coterie.fit(population(), "ifca", out=tmp_path / "run", callbacks=[broken], **options)
    assert not (tmp_path / "run" / "result.json").exists()
    resumed = coterie.resume(tmp_path / "run", population())
    assert timeless(resumed) == timeless(whole)
    assert np.array_equal(resumed.models[0]["weight"], whole.models[0]["weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience must be a whole number at least 1, got 0"),
        ({"validation": 0.0}, "validation must be a number above 0 and at most 0.9, got 0.0"),
        ({"validation": 1}, "at most 0.9, got 1.0"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        coterie.fit(population(), "ifca", rounds=2, **COMMON, **options)
