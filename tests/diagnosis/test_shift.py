"""Tests of the aspects: p-values, effects and the table of kinds."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.client.aspects import DOUBTS
from coterie.data import from_arrays
from coterie.diagnosis.diagnose import federation_of
from coterie.diagnosis.pooled import pooled_fit
from coterie.diagnosis.session import Session
from coterie.diagnosis.shift import ask_scores, kind_of_shift, p_value, variance_between

NONE = {"model": 0.5, "relation": 0.5, "features": 0.5, "labels": 0.5, "conditional": 0.5}


@pytest.mark.parametrize(
    ("small", "kind"),
    [
        ((), "none"),
        (("labels",), "labels"),
        (("labels", "features", "model"), "labels"),
        (("features",), "features"),
        (("features", "labels", "conditional"), "features"),
        (("relation", "model", "conditional"), "relation"),
        (("relation", "model", "conditional", "labels"), "relation"),
        (("model", "conditional"), "relation"),
        (("relation", "features", "conditional"), "several"),
        (("model", "features", "conditional"), "several"),
    ],
)
def test_kinds(small, kind):
    assert kind_of_shift(NONE | dict.fromkeys(small, 0.001), slopes=0.2) == kind


def test_large_differences_of_the_slopes_are_not_explained_by_the_labels():
    found = NONE | dict.fromkeys(("labels", "model", "relation"), 0.001)
    assert kind_of_shift(found, slopes=0.2) == "labels"
    assert kind_of_shift(found, slopes=0.5) == "relation"
    assert kind_of_shift(found | {"features": 0.001}, slopes=0.5) == "several"
    assert kind_of_shift(found | {"relation": 0.5}, slopes=0.5) == "labels"


@pytest.mark.parametrize("offset", [2.0, 5.0, 20.0])
def test_opposite_slopes_far_from_the_origin_are_a_difference_of_the_relation(offset):
    """The targets of the two groups do not overlap, so that p(x|y) cannot be compared between them."""
    random = np.random.default_rng(0)
    clients = {}
    for i in range(12):
        x = random.uniform(offset - 2, offset + 2, (30, 1))
        clients[f"c{i}"] = (x, (2 if i % 2 else -2) * x[:, 0] + random.standard_normal(30))
    diagnosis = coterie.diagnose(coterie.from_arrays(clients))
    assert diagnosis.shift.kind == "relation"
    assert diagnosis.recommendation.method == "ifca"
    assert diagnosis.recommendation.settings()["clusters"] == 2


def test_the_level_is_shared_by_four_tests():
    assert kind_of_shift(NONE | {"labels": 0.02}, slopes=0.2) == "none"
    assert kind_of_shift(NONE | {"labels": 0.0124}, slopes=0.2) == "labels"


def test_a_p_value_by_hand():
    """One client of no samples has weight 1 for every doubt: draws -1, 0, 1, 0 have deviation sqrt(1/2).

    U = 1 is as large as one of four draws: p = (1 + 1) / (1 + 4).
    """
    drawn = np.tile([-1.0, 0, 1, 0], (4, 1))
    statistic, p = p_value(np.array([1.0]), np.zeros(1), drawn)
    assert statistic == pytest.approx(2**0.5)
    assert p == pytest.approx(2 / 5)


def test_p_values_are_ranks_whichever_of_the_sums_is_the_data():
    """Each of ten columns of weighted sums taken as the data, the others as draws: every rank occurs once."""
    sums = np.random.default_rng(0).standard_normal((4, 10)).cumsum(axis=0)
    sizes = np.array([0.0, 10, 100, 1000])
    weights = 1 / (1 + np.array(DOUBTS)[:, None] * sizes)
    found = [p_value(np.linalg.solve(weights, sums[:, j]), sizes, np.delete(sums, j, axis=1))[1] for j in range(10)]
    assert sorted(found) == pytest.approx(np.arange(1, 11) / 10)


def test_without_pairs_there_is_no_alarm():
    assert p_value(np.zeros(3), np.ones(3), np.zeros((4, 9))) == (0.0, 1.0)


def test_the_variance_between_clients_by_hand():
    """Two equal clients of 10 samples with U = 90 and 0 of 90 possible: squared lengths 1 and 0, mean 1/2."""
    pairs, possible, sizes = np.array([90.0, 0]), np.array([90.0, 90]), np.array([10.0, 10])
    assert float(variance_between(pairs, possible, sizes, np.ones(2))) == pytest.approx(0.5)
    assert variance_between(pairs, possible, sizes, np.array([[2.0, 0], [0, 2]])) == pytest.approx([1, 0])


def p_values(classes: int | None, distance: float, draws: int) -> np.ndarray:
    """p-values of the tests of the model and of the relation, (draws, 2): small clients of very unequal sizes.

    The noise of a regression depends on the features, so that tests which rely on equal variances give false alarms.
    """
    found = []
    for seed in range(draws):
        random = np.random.default_rng([7, seed])
        arrays = []
        for i, size in enumerate(np.exp(random.uniform(0, np.log(100), 16)).astype(int)):
            x = random.standard_normal((size, 2))
            signal = x @ np.array([0.5 + distance * (i % 2 - 0.5), -0.5])
            noise = random.standard_normal(size) * (0.3 + np.abs(x[:, 0]))
            y = 2 + signal + noise if classes is None else 1 * (2 * signal + random.logistic(size=size) > 0)
            arrays.append((x, y))
        data = from_arrays(arrays).compact()
        session = Session.of(federation_of(data, seed))
        scores = ask_scores(session, pooled_fit(session, data.profile, seed), seed, draws=39)
        found.append([p_value(scores.pairs[:, i], scores.sizes, scores.drawn[i])[1] for i in range(2)])
    return np.array(found)


@pytest.mark.parametrize("classes", [None, 2])
def test_false_alarms_are_as_frequent_as_the_level_says(classes):
    """A small version of benchmarks/diagnose.py: of 100 draws without differences 5 have p <= 0.05 and 25 p <= 0.25.

    Outside of these limits is a binomial variable with a probability below 0.001.
    """
    p = p_values(classes, 0, 100)
    assert ((p <= 0.05).sum(axis=0) <= 13).all()
    assert ((p <= 0.25).sum(axis=0) >= 12).all()
    assert ((p <= 0.25).sum(axis=0) <= 40).all()


@pytest.mark.parametrize("classes", [None, 2])
def test_groups_raise_an_alarm(classes):
    """Both tests find two groups in at least 18 of 20 draws."""
    assert ((p_values(classes, 1.5, 20) <= 0.05).sum(axis=0) >= 18).all()
