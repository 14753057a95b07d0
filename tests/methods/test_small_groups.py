"""Groups that are probably too small to be real are named, with what to do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import coterie
from coterie.data.arrays import from_arrays
from coterie.methods.small_groups import small_groups


def found(*sizes: int) -> list[str]:
    return list(small_groups(np.repeat(np.arange(len(sizes)), sizes), "anchor", "ask more"))


def test_a_group_of_one_anchor_among_large_ones():
    assert found(34, 18, 17, 1) == [
        "the 4 groups have 34 + 18 + 17 + 1 anchors: a group of 1 anchor is probably noise; set clusters=3, or ask more"
    ]
    assert "such small groups are probably noise; set clusters=2" in found(30, 30, 2, 1)[0]


@pytest.mark.parametrize("sizes", [(34, 18, 17), (2, 1, 1), (5, 4, 1), (20, 20, 3), (1,)])
def test_no_other_groups_are_reported_as_noise(sizes):
    assert found(*sizes) == []


def outlier(clients: int = 40):
    """Two groups of lines, and one client with a distant line."""
    random = np.random.default_rng(0)
    data = {}
    for i in range(clients):
        x = random.standard_normal((60, 3))
        slope = np.array([40.0, -40.0, 9.0]) if i == 7 else np.array([5.0 if i % 2 else -5.0, 1.0, 0.0])
        data[f"c{i:02d}"] = (x, x @ slope + 0.1 * random.standard_normal(60))
    return from_arrays(data)


@pytest.mark.parametrize(
    ("method", "options", "member"),
    [
        ("two-phase", {"anchors": 40, "rounds": 2}, "anchor"),
        ("odcl", {"clustering": "convex"}, "client"),
        ("one-shot", {"clustering": "convex", "rounds": 2}, "client"),
    ],
)
def test_runs_warn_if_the_data_decides_the_number_of_groups(method, options, member):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        coterie.fit(outlier(), method, clusters="auto", **options)
    words = f"+ 1 {member}s: a group of 1 {member} is probably noise; set clusters=2"
    assert any(words in str(each.message) for each in seen)
