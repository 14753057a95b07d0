"""Pairwise designs: a few combinations of several lists in which every two entries of different lists meet."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from tests.fuzz.cases import SCALE


def pairwise(*lists: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    """Return parameters of a test, as many as the two longest lists have pairs; `make fuzz` takes all combinations.

    The entry of every further list is the sum of the places in the first two, modulo its length. So each of its entries
    meets each of theirs, as long as it is no longer than they are.
    """
    named = [list(each.items()) if isinstance(each, Mapping) else [(str(v), v) for v in each] for each in lists]
    lengths = [len(each) for each in named]
    assert all(length <= min(lengths[:2]) for length in lengths[2:]), "the longest lists come first"
    found = []
    for places in product(*map(range, lengths)):
        kept = all(place == (places[0] + places[1] + n) % lengths[n + 2] for n, place in enumerate(places[2:]))
        if kept or SCALE > 1:
            chosen = [each[place] for each, place in zip(named, places, strict=True)]
            found.append(pytest.param(*(value for _, value in chosen), id="-".join(name for name, _ in chosen)))
    return found
