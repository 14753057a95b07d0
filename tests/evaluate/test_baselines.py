"""The comparison with alternatives: hand-computed figures, and the candidates against plain predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coterie
from coterie.errors import ColumnWarning
from coterie.evaluate.baselines import (
    ALONE,
    KEYS,
    MIXED,
    POOLED,
    RUN,
    SITE,
    TUNED,
    Baselines,
    area,
    difference,
    summarise,
)
from coterie.evaluate.mixed_model import mixed_model_rmse, pooled_rmse
from coterie.evaluate.site_models import SiteModel


def test_a_difference_of_log_losses_by_hand():
    """Five clients of one sample: losses 3, 2, 3, 2, 5 against 1. The mean difference is 2; deviations 0, -1, 0, -1, 2.

    Variance of the mean: 5/4 (0 + 1 + 0 + 1 + 4) / 25 = 0.3. Student's t with 4 degrees of freedom: 2.776445.
    """
    found = difference("pooled", np.array([3.0, 2, 3, 2, 5]), np.ones(5), np.ones(5), classification=True)
    half = 2.776445 * np.sqrt(0.3)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-5)
    assert found.verdict == "better"


def test_a_difference_of_rmse_by_hand():
    """Mean squares 4 and 1 give 2 - 1. Client i deviates by (a_i - 4)/(2*2*5) - (b_i - 1)/(2*1*5).

    a = 6, 2, 4, 4, 4 and b = 1: 0.1, -0.1, 0, 0, 0. Variance 5/4 * 0.02 = 0.025.
    """
    found = difference("pooled", np.array([6.0, 2, 4, 4, 4]), np.ones(5), np.ones(5), classification=False)
    assert found.value == pytest.approx(1)
    assert found.high - found.value == pytest.approx(2.776445 * np.sqrt(0.025), abs=1e-5)


def test_clients_count_by_their_samples():
    """A client of 8 samples counts as 8 do that agree, but as one unit for the interval."""
    found = difference("pooled", np.array([16.0, 1, 1, 1, 1]), np.zeros(5), np.array([8.0, 1, 1, 1, 1]), True)
    assert found.value == pytest.approx(20 / 12)


def test_few_clients_have_no_interval():
    found = difference("pooled", np.ones(4), np.zeros(4), np.ones(4), classification=True)
    assert (found.low, found.high, found.verdict) == (None, None, "same")


def test_the_area_by_hand():
    """Two samples outside in bins 0 and 1, two inside in bins 1 and 2: of four pairs three are right, one is even."""
    bins = np.array([[[1.0, 1, 0], [0, 1, 1]]])
    assert area(bins) == 3.5 / 4
    assert area(np.array([[[2.0, 0], [0, 0]]])) is None, "no sample is inside"


def three_groups(classes: bool, seed: int = 0):
    """Forty clients of 6 to 60 rows in two groups of opposite slopes."""
    random = np.random.default_rng(seed)
    slopes = np.array([[2.0, 0.5], [-2.0, 0.5]])
    site, x, y = [], [], []
    for i in range(40):
        n = int(random.integers(6, 60))
        rows = random.standard_normal((n, 2)) * [1.0, 10.0] + [0.0, 50.0]
        output = rows @ (slopes[i % 2] * [1.0, 0.1]) - 2.5 + random.standard_normal(n)
        site += [f"site {i}"] * n
        x.append(rows)
        y.append(np.where(output > 0, "yes", "no") if classes else output)
    a, b = np.concatenate(x).T
    table = {"site": np.array(site), "a": a, "b": b, "y": np.concatenate(y)}
    return coterie.from_table(table, client="site", target="y")


@pytest.fixture(scope="module")
def fitted():
    data = three_groups(classes=False)
    return data, coterie.fit(data, "ifca", clusters=2, restarts=3, rounds=40)


def test_the_candidates_of_a_regression_are_what_they_say(fitted):
    data, result = fitted
    found = result.baselines()
    assert [each.key for each in found.candidates] == [key for key in KEYS if key != TUNED]
    own = np.array([client.score for client in result.clients])
    np.testing.assert_allclose([row[0] for row in found.scores], own, rtol=1e-9)
    np.testing.assert_allclose([row[KEYS.index(POOLED)] for row in found.scores], pooled_rmse(data), rtol=1e-6)
    np.testing.assert_allclose([row[KEYS.index(MIXED)] for row in found.scores], mixed_model_rmse(data), rtol=1e-3)
    squares = (np.array(found.held_out) * own**2).sum() / sum(found.held_out)
    assert found.candidate(RUN).rmse == pytest.approx(np.sqrt(squares))
    assert found.candidate(RUN).r2 == pytest.approx(1 - squares / found.candidates[1].loss)
    assert found.alone < 40, "sites with fewer than nine training rows have none alone"


def test_a_model_alone_is_least_squares_or_the_pooled_one(fitted):
    data, result = fitted
    found, place = result.baselines(), KEYS.index(ALONE)
    train, test = data.train, data.test
    for i, row in enumerate(found.scores):
        x, y = train.x[train.starts[i] : train.stops[i]].numpy(), train.y[train.starts[i] : train.stops[i]].numpy()
        if len(y) < 9:
            assert row[place] == pytest.approx(row[KEYS.index(POOLED)])
            continue
        theta = np.linalg.lstsq(np.column_stack([x, np.ones(len(y))]), y, rcond=None)[0]
        held = slice(test.starts[i], test.stops[i])
        errors = test.x[held].numpy() @ theta[:2] + theta[2] - test.y[held].numpy()
        assert row[place] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)


@pytest.mark.parametrize("classes", [False, True])
def test_fine_tuned_models_are_one_of_the_candidates(classes):
    result = coterie.fit(three_groups(classes), "fedavg", finetune=30, rounds=20)
    found = result.baselines()
    tuned = found.candidates[-1]
    assert (tuned.key, tuned.name) == (TUNED, "this run, fine-tuned")
    own = np.array([client["finetuned"] for client in result.clients])
    np.testing.assert_allclose([row[-1] for row in found.scores], own, rtol=1e-9)
    assert found.difference(TUNED).verdict == "worse", "one model does not fit clients of opposite slopes"
    loss = "log loss" if classes else "RMSE"
    text = f"The fine-tuned model of each client predicts better than the model of this run: {loss}"
    assert any(line.startswith(text) for line in found.sentences())
    assert Baselines.from_json(found.to_json()) == found


def test_the_sentences_say_what_matters(fitted):
    first, *rest = fitted[1].baselines().sentences()
    assert first.startswith("The clusters predict better than one model for all: RMSE ")
    assert "95 % interval" in first
    assert len(rest) <= 1


def test_a_comparison_survives_json_and_frames(fitted, tmp_path):
    result = fitted[1]
    found = result.baselines()
    assert Baselines.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert coterie.load(result.save(tmp_path / "run")).baselines() == found
    frame = found.to_frame()
    assert frame.loc["one model for all", "rmse"] == found.candidate(POOLED).rmse
    assert frame.loc["one model for all", "low"] == found.difference(POOLED).low


def test_a_classification_has_auc_log_loss_and_base_rate():
    from sklearn.metrics import log_loss, roc_auc_score

    data = three_groups(classes=True)
    result = coterie.fit(data, "ifca", clusters=2, restarts=3, rounds=40)
    found = result.baselines()
    x, y = data.test.x.double().numpy(), data.test.y.numpy()
    owner = np.repeat(np.arange(40), data.test.sizes)
    theta = [np.append(m["weight"], m["bias"]) for m in result.models]
    logits = np.array([np.append(row, 1) @ theta[result.clients[i].cluster] for row, i in zip(x, owner, strict=True)])
    p = 1 / (1 + np.exp(-logits))
    mine = found.candidate(RUN)
    assert mine.loss == pytest.approx(log_loss(y, p), rel=1e-6)
    assert mine.auc == pytest.approx(roc_auc_score(y, p), abs=2e-3)
    assert mine.accuracy == pytest.approx(((p > 0.5) == y).mean())
    share = data.train.y.double().mean().item()
    assert found.base_rate == pytest.approx(max(share, 1 - share), abs=1e-3)
    assert found.difference(SITE).verdict == "better"


def test_a_run_without_held_out_samples_or_of_networks_has_none():
    x = np.random.default_rng(0).standard_normal((10, 2))
    data = coterie.from_arrays([(x, x[:, 0])] * 4)
    for learner in ("linear", "mlp"):
        with pytest.raises(coterie.InputError, match="no comparison with other models"):
            coterie.fit(data, "ifca", clusters=2, rounds=1, learner=learner).baselines()


def test_clients_that_keep_weights_are_compared_by_their_mixtures():
    data = three_groups(classes=False)
    result = coterie.fit(data, "fedem", clusters=2, rounds=3)
    found = result.baselines()
    np.testing.assert_allclose([row[0] for row in found.scores], [c.score for c in result.clients], rtol=1e-6)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_feature_that_holds_the_target_is_warned_of(kind):
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    y = x + random.normal(0, 0.5, 400)
    table = {"site": [f"s{i % 8}" for i in range(400)], "x": x, "y": y, "copy": 2 * y + 1}
    if kind == "classes":
        table |= {"y": np.where(y > 0, "yes", "no"), "copy": np.where(y > 0, "dead", "alive")}
    with pytest.warns(ColumnWarning, match="may be a copy of the target 'y'"):
        data = coterie.from_table(table, client="site", target="y")
    assert "a feature probably contains the target" in coterie.diagnose(data).warnings[0]
    leaked = coterie.fit(data, "fedavg", rounds=60).baselines()
    assert "probably a feature holds the target" in leaked.sentences()[0]
    assert kind == "classes" or leaked.difference(POOLED).verdict in ("same", "worse")
    del table["copy"]
    plain = coterie.fit(coterie.from_table(table, client="site", target="y"), "fedavg", rounds=20).baselines()
    assert plain.caution == ""


@pytest.mark.parametrize(("other", "small"), [(1.019, True), (1.021, False)])
def test_a_difference_below_one_per_cent_hardly_matters(other, small):
    """Mean squares of 1 and 1.019: the RMSE differ by 0.93 % of the larger one; with 1.021 by 1.03 %."""
    random = np.random.default_rng(0)
    mine = 1 + 1e-4 * random.normal(size=20)
    mine /= mine.mean()
    squares = np.column_stack([mine, np.full(20, 4.0), *[mine * other] * 4])
    rows = {"held_out": np.ones(20), "squares": squares, "alone": np.ones(20)}
    site = SiteModel(np.zeros((2, 1)), np.zeros((20, 1)))
    found = summarise([str(i) for i in range(20)], rows, None, clustered=True, mixed=site, constant=site)
    assert found.difference(POOLED).verdict == "better"
    assert ("hardly matters" in found.sentences()[0]) == small


def test_rounding_errors_are_no_difference():
    found = difference("pooled", np.full(6, 1e-28), np.full(6, 1e-30), np.ones(6), classification=False)
    assert found.verdict == "better"
    assert found.widened(1e-9).verdict == "same"
