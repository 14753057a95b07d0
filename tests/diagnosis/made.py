"""Diagnoses made by hand, for the tests of terminal, page and `method="auto"`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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

DIFFERENT = ShiftTest(9.1, 0.0001, True, Estimate(1.5, 0.9, 2.0), "log-odds")
SAME = ShiftTest(0.2, 0.42, False, Estimate(0.05, 0.0, 0.3), "log-odds")
CENTRES = ((-2.0, 0.5), (1.5, 1.8), (1.2, -1.6))


def grouped(sizes: Sequence[int] = (1, 5, 20, 80, 300, 803), groups: int = 3, name: str = "hospitals") -> Diagnosis:
    """Return a diagnosis that found groups; clients take turns in them and have these numbers of samples."""
    rng = np.random.default_rng(0)
    clients = tuple(_client(i, n, i % groups, rng) for i, n in enumerate(sizes))
    members = tuple(sum(client.group == g for client in clients) for g in range(groups))
    return Diagnosis(
        facts=DataFacts(
            name,
            len(sizes),
            sum(sizes),
            min(sizes),
            float(np.median(sizes)),
            max(sizes),
            12,
            2,
            "readmitted",
            "logistic regression with an intercept",
            0.61,
        ),
        shift=Shift(
            DIFFERENT, SAME, SAME, DIFFERENT, DIFFERENT, "relation", 0.05, "The relation between features and target."
        ),
        structure=Structure(
            "groups",
            groups,
            tuple(Candidate(k, 400.0 / k + 60 * abs(k - groups)) for k in range(1, 9)),
            320.0,
            members,
            f"The clients form {groups} groups.",
        ),
        power=Power(2.1, "log-odds", tuple(PowerPoint(n, 1 - 0.67 * math.exp(-n / 25)) for n in NUMBERS), 66, 4),
        gain=Gain(
            "log loss",
            0.61,
            Estimate(0.11, 0.07, 0.15),
            Estimate(0.04, -0.01, 0.09),
            0.17,
            clusters=groups,
            personal=Estimate(0.09, 0.05, 0.13),
        ),
        clients=clients,
        recommendation=Recommendation(
            "ifca",
            (Setting("clusters", groups), Setting("restarts", 2)),
            ("--method", "ifca", "--clusters", str(groups), "--restarts", "2"),
            False,
            f"The relation differs between {groups} groups of clients.",
        ),
        warnings=(),
        cost=Cost(5, 120_000, 48_000, 1.7),
        seed=0,
    )


NUMBERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def _client(i: int, n: int, group: int, rng: np.random.Generator) -> ClientDiagnosis:
    """Return a client near the centre of its group; the smaller it is, the farther from it and the less certain."""
    width = 2.4 / math.sqrt(n)
    x, y = np.asarray(CENTRES[group % 3]) * (1 - 0.8 / (1 + n)) + min(width, 1.2) * rng.normal(size=2)
    value = 0.12 * CENTRES[group % 3][0] + 0.2 * width * float(rng.normal())
    probability = 1 - 0.6 * math.exp(-n / 25)
    interval = Estimate(value, value - width, value + width)
    distance = float(np.hypot(x, y))
    return ClientDiagnosis(
        f"site {i:03d}", n, interval, distance, float(x), float(y), group, probability, probability >= 0.95
    )


def alike() -> Diagnosis:
    """Return a diagnosis that found no differences."""
    made = grouped()
    return replace(
        made,
        shift=Shift(SAME, SAME, SAME, SAME, SAME, "none", 0.05, "No differences were found."),
        structure=Structure("one", 1, (Candidate(1, 0.0), Candidate(2, 31.0)), 12.0, (), "One model fits all."),
        power=Power(None, "log-odds", (), None, 0),
        gain=replace(made.gain, over_one=Estimate(0.0, 0.0, 0.0), most_over_one=0.004, clusters=None, personal=None),
        clients=tuple(replace(c, group=None, probability=None, can_be_placed=False) for c in made.clients),
        recommendation=Recommendation("fedavg", (), ("--method", "fedavg"), True, "No differences were found."),
    )
