"""The certainty of an assignment: arithmetic by hand, corrections, and a small version of the benchmark."""

from __future__ import annotations

import math

import numpy as np
import pytest

import coterie
from coterie.errors import InputError
from coterie.evaluate.certainty import (
    NATS_NEEDED,
    UNMEASURED_WEIGHT,
    Calibration,
    Evidence,
    calibrate,
    differences,
    probabilities,
    samples_needed,
)

PLAIN = Calibration(prior=(0.75, 0.25), scale=1.0, held_out=1.0, training=1.0, parameters=0.0)


def evidence(own, samples, training, held_out=None, losses=None, half=None, **others) -> Evidence:
    m, zeros = len(own), np.zeros(len(own))
    training = np.array(training, dtype=float)
    none = np.zeros_like(training)
    rows = dict.fromkeys(("pairs", "pairs_variance", "spread"), zeros) | {"compared": np.array(samples)}
    return Evidence(
        np.arange(m),
        np.array(own),
        np.array(samples),
        zeros if held_out is None else np.array(held_out, dtype=float),
        training,
        none if losses is None else np.array(losses, dtype=float),
        none if half is None else np.array(half, dtype=float),
        **rows | {name: np.array(value) for name, value in others.items() if name != "score"},
        score=others.get("score", {}),
    )


def test_probabilities_by_hand():
    # two training samples of mean loss 1 and 0.5: nats 2 and 1; one held-out sample: 0.5 and 2. Sums 2.5 and 3
    found = probabilities(evidence([0], [2], [[1, 0.5]], [1], [[0.5, 2]]), PLAIN)
    first, second = 0.75 * math.exp(-2.5), 0.25 * math.exp(-3)
    assert found[0].tolist() == pytest.approx([first / (first + second), second / (first + second)], rel=1e-12)


def test_a_model_is_charged_for_the_samples_it_was_trained_on():
    # own cluster 0 has 2 + 6 samples; 4 parameters save client 0 a share of 2 / 8: one nat, of uncertain size
    by = Calibration((0.5, 0.5), 1.0, 1.0, 1.0, parameters=4.0)
    found = probabilities(evidence([0, 0], [2, 6], [[1, 1], [1, 9]]), by)
    odds = math.exp(1 / math.sqrt(1 + 1))
    assert found[0].tolist() == pytest.approx([1 / (1 + odds), odds / (1 + odds)], rel=1e-12)
    # client 1 saves three nats
    assert found[1, 1] == pytest.approx(1 / (1 + math.exp((6 * 8 - 3) / math.sqrt(1 + 3))), rel=1e-12)


def test_the_effective_number_of_parameters_is_at_most_the_number_of_parameters():
    losses = [[1.05, 9.0], [9.0, 1.05]]
    found = calibrate(evidence([0, 1], [100, 100], [[1.0, 9.0], [9.0, 1.0]], [20, 20], losses, losses), False, 3)
    assert found is not None
    assert found.parameters == 3


def test_a_cluster_that_a_mixture_gives_all_clients_is_not_likely_for_that():
    # both models are nearly the same, the second is slightly better for everyone; the mixture named the first
    losses = np.tile([1.01, 1.0], (20, 1))
    found = calibrate(evidence([0] * 20, [40] * 20, losses, [10] * 20, losses, losses), False, 2)
    assert found is not None
    assert found.prior == (0.5 / 21, 20.5 / 21)


def test_weights_and_scale():
    by = Calibration((0.5, 0.5), scale=2.0, held_out=0.5, training=0.25, parameters=0.0)
    # training: 4 samples, losses 0 and 1: 8 nats * 0.25 = 2. Held out: 1 sample, losses 3 and 0: 6 nats * 0.5 = 3
    found = probabilities(evidence([0], [4], [[0, 1]], [1], [[3, 0]]), by)
    assert found[0, 0] == pytest.approx(1 / (1 + math.exp(3 - 2)), rel=1e-12)
    assert by.of_sums(np.array([3.0, 0.0]))[0] == pytest.approx(1 / (1 + math.exp(3)), rel=1e-12)


def test_a_calibration_survives_json():
    assert Calibration.from_json(PLAIN.to_json()) == PLAIN


def test_the_scale_of_squared_errors_does_not_matter():
    random = np.random.default_rng(0)
    training, losses, half = random.exponential(size=(3, 8, 2))
    given = ([0, 1] * 4, [20] * 8), [10.0] * 8
    one = evidence(*given[0], training, given[1], losses, half)
    other = evidence(*given[0], 100 * training, given[1], 100 * losses, 100 * half)
    found = [probabilities(each, calibrate(each, True, 2)) for each in (one, other)]
    np.testing.assert_allclose(*found)


def test_without_held_out_samples_training_samples_count_by_half_if_they_are_many():
    few = evidence([0, 1], [9, 10], [[1, 2], [2, 1]])
    assert calibrate(few, False, 2) is None  # 19 samples, 2 clusters of 2 parameters: 20 are needed
    many = evidence([0, 1], [10, 10], [[1, 2], [2, 1]])
    found = calibrate(many, False, 2)
    assert found is not None
    assert (found.training, found.held_out, found.parameters) == (UNMEASURED_WEIGHT, UNMEASURED_WEIGHT, 2.0)
    assert found.prior == (0.5, 0.5)


def test_effective_parameters_are_measured_by_held_out_samples():
    # each cluster trained on 100 samples; held-out loss higher by 0.05 nats than training loss: 5 parameters
    training = [[1.0, 9.0], [9.0, 1.0]]
    losses = [[1.05, 9.0], [9.0, 1.05]]
    found = calibrate(evidence([0, 1], [100, 100], training, [20, 20], losses, losses), False, 1000)
    assert found is not None
    assert found.parameters == pytest.approx(5)


def test_training_losses_that_predict_nothing_get_little_weight():
    random = np.random.default_rng(1)
    m = 200
    own = random.integers(0, 2, m)
    flattered = np.where(np.arange(2) == own[:, None], 0.1, 2.0)  # interpolated: each loves its own model
    noise = 1 + random.normal(size=(m, 2)) / 3
    found = calibrate(evidence(own, [10] * m, flattered, [20] * m, noise, noise), False, 10)
    assert found is not None
    assert found.training < 0.2
    assert abs(np.median(probabilities(evidence(own, [10] * m, flattered), found)[np.arange(m), own]) - 0.5) < 0.4


def test_losses_that_are_not_finite_or_zero():
    training = [[1.0, np.inf], [np.nan, 1.0], [1.0, 2.0]]
    found = calibrate(evidence([0, 1, 0], [50] * 3, training), True, 1)
    assert found is not None
    shares = probabilities(evidence([0, 1, 0], [50] * 3, training), found)
    assert shares[0].tolist() == [1, 0]
    assert shares[1].tolist() == [0, 1]
    nothing = evidence([0, 1], [50, 50], np.zeros((2, 2)))
    np.testing.assert_allclose(probabilities(nothing, Calibration((0.5, 0.5), 0.0, 1.0, 1.0, 0.0)), 0.5)
    assert calibrate(nothing, True, 1).scale == 0


def test_samples_needed_by_hand():
    # cluster 0: its clients' held-out losses are lower by 0.5 and 2 than under the others; the nearest counts
    losses = [[1.0, 1.5, 3.0], [2.0, 1.0, 3.0], [1.0, 1.0, 1.0]]
    by = Calibration((1 / 3,) * 3, 1.0, 0.5, 1.0, 0.0)
    found = samples_needed(evidence([0, 1, 2], [1] * 3, np.zeros((3, 3)), [30] * 3, losses), by)
    assert found.tolist() == [math.ceil(NATS_NEEDED / 0.25), math.ceil(NATS_NEEDED / 0.5), math.inf]


def scored(groups, m=20, n=30, seed=0) -> Evidence:
    """Clients whose scores have one of these means each, in turn, and unit variance."""
    random = np.random.default_rng(seed)
    psi = [random.normal(size=(n, 2)) + groups[i % len(groups)] for i in range(m)]
    grams = [each @ each.T for each in psi]
    off = [gram - np.diag(np.diag(gram)) for gram in grams]
    return evidence(
        [0] * m,
        [n] * m,
        np.zeros((m, 2)),
        pairs=[each.sum() for each in off],
        pairs_variance=[2 * (each**2).sum() for each in off],
        spread=[np.trace(gram) for gram in grams],
        score={0: sum(each.sum(axis=0) for each in psi)},
    )


def test_differences_by_hand():
    # two clients with scores (1, 1) and (-1, -1), one dimension. pairs 2 each, variance 2 * 2 = 4, spread 2, sum 0
    found = evidence([0, 0], [2, 2], np.zeros((2, 2)), pairs=[2, 2], pairs_variance=[4, 4], spread=[2, 2],
                     score={0: np.zeros(1)})  # fmt: skip
    # pairs / n add up to 2; any two of the 4 scores: (0 - 4) / (4 * 3) = -1/3, of which 4 - 2 are taken off: 8/3
    # variance 2 * 4 / 4 = 2; the largest difference 2 * (1 * 2 / 2) = 2
    assert differences(found, 0).statistic == pytest.approx(8 / 3 / math.sqrt(2))
    assert differences(found, 0).share == pytest.approx(4 / 3)
    assert differences(found, 1).statistic == 0  # no client is there


def test_a_common_mean_is_no_difference_and_two_groups_are():
    common = [differences(scored([0.5], seed=seed), 0).statistic for seed in range(60)]
    assert abs(np.mean(common)) < 0.5
    assert np.mean(np.array(common) >= 3) <= 0.05
    assert differences(scored([0.5, -0.5]), 0).hides_groups


# ---- runs --------------------------------------------------------------------------------------------------------


def clients(truth, sizes, theta, seed, tests=True):
    random = np.random.default_rng(seed)

    def samples(g, n):
        x = random.normal(size=(n, theta.shape[1]))
        return x, x @ theta[g] + random.normal(size=n)

    train = [samples(g, n) for g, n in zip(truth, sizes, strict=True)]
    test = [samples(g, max(1, n // 3)) for g, n in zip(truth, sizes, strict=True)] if tests else None
    return coterie.from_arrays(train, test=test, truth=list(truth)), samples


def test_stated_certainty_is_right_about_as_often_as_stated():
    stated, right = [], []
    theta = np.array([[0.8, 0.0, 0.3], [0.0, 0.8, 0.3]])
    for seed in range(6):
        truth = np.arange(60) % 2
        data, _ = clients(truth, np.tile([2, 4, 8, 16, 32], 12), theta, seed)
        result = coterie.fit(data, "ifca", clusters=2, rounds=10, restarts=3, lr=0.2, seed=seed)
        groups = [row.cluster for row in result.clients]
        mapping = [np.bincount(truth[np.array(groups) == k], minlength=2).argmax() for k in range(2)]
        stated += [row.certainty for row in result.clients]
        right += [mapping[k] == g for k, g in zip(groups, truth, strict=True)]
    p, hit = np.array(stated), np.array(right, dtype=float)
    for low, high in ((0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        inside = (p >= low) & (p < high)
        assert abs(p[inside].mean() - hit[inside].mean()) < 0.1
    assert 0.2 < np.mean(p >= 0.95) < 0.95


def test_two_groups_in_one_cluster_give_a_warning_and_right_clusters_none():
    theta = np.array([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])
    data, _ = clients(np.arange(24) % 3, [20] * 24, theta, 0)
    right = coterie.fit(data, "ifca", clusters=3, rounds=15, restarts=5, lr=0.2)
    assert right.metrics["ari"] == 1
    assert "mixed" not in right.metrics
    assert right.metrics["sure"] == 24
    fewer = coterie.fit(data, "ifca", clusters=2, rounds=15, restarts=5, lr=0.2)
    assert len(fewer.metrics["mixed"]) == 1


def test_a_new_client_has_probabilities_and_a_tiny_client_says_what_it_needs(tmp_path):
    theta = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    data, samples = clients(np.arange(20) % 2, [1, 1, *[40] * 18], theta, 0)
    result = coterie.fit(data, "ifca", clusters=2, rounds=15, restarts=3, lr=0.2)
    for each in (result, coterie.load(result.save(tmp_path / "run"))):
        shares = each.certainty(*samples(0, 60))
        assert shares.sum() == pytest.approx(1)
        assert shares.argmax() == result.clients[2].cluster
        assert shares.max() > 0.95
        assert each.certainty(np.zeros((1, 3)), np.zeros(1)).min() > 0.05  # such a sample tells nothing
    assert result.posterior().shape == (20, 2)
    assert result.clients[5].certainty == max(result.clients[5]["posterior"])
    unsure = [row for row in result.clients if row.certainty < 0.95]
    assert all(row["samples_needed"] > 2 for row in unsure if max(row["posterior"]) < 0.95)


@pytest.mark.parametrize(("method", "options"), [("fedavg", {}), ("local", {}), ("oracle", {})])
def test_methods_that_look_for_no_groups_have_no_certainty(method, options):
    data, samples = clients(np.arange(6) % 2, [10] * 6, np.eye(2, 3), 0)
    result = coterie.fit(data, method, rounds=2, **options)
    assert "sure" not in result.metrics
    assert all(row.certainty is None and "certainty" not in row for row in result.clients)
    with pytest.raises(InputError, match="has no probabilities of clusters"):
        result.certainty(*samples(0, 3))
