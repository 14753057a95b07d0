"""A partition ends, is exact, and never leaves a part empty."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.sizes import by_shares, equal_parts
from coterie.errors import ConfigError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1000), st.data())
def test_equal_parts_sum_up_and_differ_by_at_most_one(total, data):
    parts = data.draw(st.integers(1, total))
    sizes = equal_parts(total, parts)
    assert len(sizes) == parts
    assert sum(sizes) == total
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("total", "parts"), [(3, 4), (0, 1), (5, 0), (5, -1)])
def test_parts_that_would_be_empty_are_an_error(total, parts):
    with pytest.raises(ConfigError, match=f"{total} samples cannot be cut into {parts} wards"):
        equal_parts(total, parts, "wards")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8), st.integers(0, 500))
def test_shares_sum_up_and_leave_no_client_out(shares, extra):
    total = len(shares) + extra
    counts = by_shares(total, shares)
    assert len(counts) == len(shares)
    assert sum(counts) == total
    assert min(counts) >= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 20))
def test_whole_proportions_are_kept_exactly(shares, factor):
    assert by_shares(sum(shares) * factor, [float(s) for s in shares]) == [s * factor for s in shares]


@pytest.mark.parametrize(
    ("total", "shares", "counts"),
    [
        (10, [0.2, 0.3, 0.5], [2, 3, 5]),
        (10, [1, 1, 1], [4, 3, 3]),  # 3.33 each, the first gets the rest
        (10, [0.55, 0.25, 0.2], [6, 2, 2]),  # 5.5, 2.5, 2: floors 5, 2, 2, one left for the first largest remainder
        (4, [1000, 1, 1], [2, 1, 1]),  # no client is left out
        (3, [5, 1, 1], [1, 1, 1]),
    ],
)
def test_shares_by_hand(total, shares, counts):
    assert by_shares(total, shares) == counts


@pytest.mark.parametrize("share", [0.0, -1.0])
def test_shares_that_are_not_above_zero_are_an_error(share):
    with pytest.raises(ConfigError, match="shares must be above 0"):
        by_shares(10, [1.0, share])


@pytest.mark.parametrize("share", [float("nan"), float("inf")])
def test_shares_that_are_not_finite_are_an_error(share):
    with pytest.raises(ConfigError):
        by_shares(10, [1.0, share])


def test_more_groups_than_clients_are_an_error():
    with pytest.raises(ConfigError, match="2 clients cannot fill 3 groups: every one needs at least one"):
        by_shares(2, [1, 1, 1])
