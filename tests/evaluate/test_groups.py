"""Profiles of groups by hand, and the differences of coefficients that are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coterie
from coterie.evaluate.baselines import MINUS
from coterie.evaluate.groups import Distinction, Groups, distinctions


def coefficients(first: list[float], second: list[float], error: float = 0.1) -> dict:
    def row(cluster: int, estimate: list[float]) -> dict:
        errors = [error] * len(estimate)
        return {"cluster": cluster, "clients": 9, "samples": 90, "estimate": estimate, "standard_errors": errors}

    return {"names": ["price", "weekend", "size", "intercept"], "clusters": [row(0, first), row(1, second)]}


DEVIATIONS = {"price": 1.0, "weekend": 0.5, "size": 100.0}


def test_the_largest_clear_differences_are_named_first():
    """price differs by 2 for a deviation of 1, weekend by 3 for 0.5, size by 0.2 = 1.4 errors, which is not clear."""
    found = distinctions(coefficients([-3.0, 1, 0.2, 5], [-1.0, 4, 0.0, 9]), DEVIATIONS, 0)
    assert [(each.name, each.size) for each in found] == [("price", 2.0), ("weekend", 1.5)]
    assert found[0].words() == f"stronger effect of price ({MINUS}3.00 against {MINUS}1.00 on average)"
    assert found[1].words() == "weaker effect of weekend (1.00 against 4.00 on average)"


def test_small_differences_next_to_a_large_one_are_left_out():
    found = distinctions(coefficients([-9.0, 1, 0.0, 5], [9.0, 2, 0.0, 9]), DEVIATIONS, 1)
    assert [each.words() for each in found] == [f"opposite effect of price (9.00 against {MINUS}9.00 on average)"]


def test_one_group_differs_from_nothing():
    one = coefficients([1.0] * 4, [2.0] * 4)
    one["clusters"] = one["clusters"][:1]
    assert distinctions(one, DEVIATIONS, 0) == []


def test_log_odds_of_small_groups_are_not_named():
    """Four coefficients need eighty samples: group 1 has 79, and group 0 has no other group to differ from."""
    found = coefficients([-9.0, 1, 0.0, 5], [9.0, 2, 0.0, 9]) | {"classes": ["yes"]}
    assert distinctions(found, DEVIATIONS, 0)
    found["clusters"][1]["samples"] = 79
    assert distinctions(found, DEVIATIONS, 0) == distinctions(found, DEVIATIONS, 1) == []


def test_a_level_is_higher_or_lower():
    assert (
        Distinction("level", 1.0, 2.0, 1.0).words()
        == "lower level at the mean of all features (1.00 against 2.00 on average)"
    )


@pytest.fixture(scope="module")
def result():
    """Sites a and b: y = 10 + x, every second row is red; sites c and d: y = 10 - x, every fourth row is red."""
    x = np.arange(8.0)
    table = {
        "site": np.repeat([*"abcd"], 8),
        "x": np.tile(x, 4),
        "kind": np.array([*(["blue", "red"] * 8), *(["blue", "blue", "blue", "red"] * 4)]),
        "y": np.concatenate([10 + x, 10 + x, 10 - x, 10 - x]),
    }
    data = coterie.from_table(table, client="site", target="y", features=["x", "kind"], holdout=0)
    return coterie.fit(data, "ifca", clusters=2, restarts=3, rounds=30)


def test_profiles_are_means_in_original_units(result):
    found = result.groups()
    by_first = {result.assignments["a"]: (0.5, 13.5), result.assignments["c"]: (0.25, 6.5)}
    assert sorted(by_first) == [0, 1]
    for profile in found.profiles:
        share, target = by_first[profile.cluster]
        assert (profile.clients, profile.samples) == (2, 16)
        assert profile.means == pytest.approx((3.5, share))
        assert profile.target == pytest.approx(target)
        assert profile.target_deviation == pytest.approx(np.arange(8.0).std())
    assert found.features == ("x", "kind=red")
    assert found.means == pytest.approx((3.5, 0.375))


def test_profiles_survive_json_and_frames(result):
    found = result.groups()
    assert Groups.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.to_frame().loc[0, "clients"] == 2
    assert "mean y" in found.to_frame().columns


def test_arrays_have_numbered_features_and_images_have_no_profiles():
    x = np.random.default_rng(0).standard_normal((10, 2))
    assert coterie.fit(coterie.from_arrays([(x, x[:, 0])] * 4), "ifca", clusters=2, rounds=1).groups().features == (
        "x1",
        "x2",
    )
    images = np.random.default_rng(0).standard_normal((10, 2, 2))
    data = coterie.from_arrays([(images, images[:, 0, 0])] * 4)
    with pytest.raises(coterie.InputError, match="no profiles of groups"):
        coterie.fit(data, "ifca", clusters=2, rounds=1, learner="linear").groups()
