"""Tests of the aspects: p-values, effects and the table of kinds."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.diagnosis.diagnose import federation_of
from coterie.diagnosis.pooled import pooled_fit
from coterie.diagnosis.session import Session
from coterie.diagnosis.shift import ask_scores, kind_of_shift, p_value, variance_between
from tests.diagnosis.make import federation

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
    assert kind_of_shift(NONE | dict.fromkeys(small, 0.001)) == kind


def test_the_level_is_shared_by_four_tests():
    assert kind_of_shift(NONE | {"labels": 0.02}) == "none"
    assert kind_of_shift(NONE | {"labels": 0.0124}) == "labels"


def test_a_p_value_by_hand():
    """One client of no samples has weight 1 for every doubt: draws -1, 0, 1, 0 have deviation sqrt(1/2).

    U = 1 is as large as one of four draws: p = (1 + 1) / (1 + 4).
    """
    drawn = np.tile([-1.0, 0, 1, 0], (4, 1))
    statistic, p = p_value(np.array([1.0]), np.zeros(1), drawn)
    assert statistic == pytest.approx(2**0.5)
    assert p == pytest.approx(2 / 5)


def test_without_pairs_there_is_no_alarm():
    assert p_value(np.zeros(3), np.ones(3), np.zeros((4, 9))) == (0.0, 1.0)


def test_the_variance_between_clients_by_hand():
    """Two equal clients of 10 samples with U = 90 and 0 of 90 possible: squared lengths 1 and 0, mean 1/2."""
    pairs, possible, sizes = np.array([90.0, 0]), np.array([90.0, 90]), np.array([10.0, 10])
    assert float(variance_between(pairs, possible, sizes, np.ones(2))) == pytest.approx(0.5)
    assert variance_between(pairs, possible, sizes, np.array([[2.0, 0], [0, 2]])) == pytest.approx([1, 0])


@pytest.mark.parametrize("classes", [None, 2])
def test_false_alarms_are_rare(classes):
    """A small version of benchmarks/diagnose.py: of 15 draws without differences few have p below 0.05.

    Six or more alarms have a probability below 0.0001 at the level of 5 %.
    """
    alarms = 0
    for seed in range(15):
        data = federation(classes, distance=0, clients=12, seed=100 + seed).compact()
        session = Session.of(federation_of(data, seed))
        pooled = pooled_fit(session, data.profile, seed)
        scores = ask_scores(session, pooled, seed, draws=39)
        alarms += p_value(scores.pairs[:, 0], scores.sizes, scores.drawn[0])[1] < 0.05
    assert alarms < 6
