"""The values of a diagnosis go through JSON unchanged."""

from __future__ import annotations

import pytest

from coterie.diagnosis.values import (
    Candidate,
    ClientDiagnosis,
    Cost,
    DataFacts,
    Diagnosis,
    Estimate,
    Gain,
    Power,
    PowerPoint,
    Recommendation,
    Setting,
    Shift,
    ShiftTest,
    Structure,
)
from coterie.errors import ConfigError

TEST = ShiftTest(3.2, 0.001, True, Estimate(1.5, 0.9, 2.0), "log-odds")
EXAMPLE = Diagnosis(
    facts=DataFacts("made up", 2, 30, 10, 15.0, 20, 3, 2, "outcome", "a logistic model", 0.6),
    shift=Shift(TEST, TEST, TEST, TEST, TEST, "several", 0.05, "Clients differ."),
    structure=Structure("groups", 2, (Candidate(1, 40.0), Candidate(2, 10.0)), 30.0, (1, 1), "Two groups."),
    power=Power(2.0, "log-odds", (PowerPoint(10, 0.8), PowerPoint(100, 1.0)), 40, 1),
    gain=Gain("log loss", 0.6, Estimate(0.1, 0.05, 0.2), Estimate(0.02, -0.01, 0.03), 0.3),
    clients=(
        ClientDiagnosis("a", 10, Estimate(0.1, -0.1, 0.3), 0.4, 1.0, 2.0, 0, 0.99, True),
        ClientDiagnosis("b", 20, Estimate(0.1, -0.1, 0.3), 0.4, 1.0, 2.0, None, None, False),
    ),
    recommendation=Recommendation(
        "ifca", (Setting("clusters", 2), Setting("init", "odcl")), ("--method", "ifca"), False, "Two groups."
    ),
    warnings=("One client did not answer.",),
    cost=Cost(4, 100, 200, 0.5),
    seed=0,
)


def test_a_diagnosis_is_the_same_after_json():
    assert Diagnosis.from_json(EXAMPLE.to_json()) == EXAMPLE


def test_settings_are_keyword_arguments():
    assert EXAMPLE.recommendation.settings() == {"clusters": 2, "init": "odcl"}


def test_something_else_is_refused():
    with pytest.raises(ConfigError, match="diagnosis needs"):
        Diagnosis.from_json('{"seed": 1}')
