"""Validation samples come from the training samples, by seed and client id alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, keys_for_clients, permutations
from coterie.core.validation import held_out_sizes, validation_split
from coterie.errors import ConfigError
from tests.core.make import make_shard


def population(sizes, ids=None):
    """Every sample has a number of its own, so that it can be recognised."""
    numbers = np.split(np.arange(sum(sizes), dtype=float), np.cumsum(sizes)[:-1])
    data = [(mine[:, None], mine / 2) for mine in numbers]
    return FederatedDataset("numbers", make_shard(data, ids))


def samples(shard):
    return {c: shard.x[a:b, 0].tolist() for c, a, b in zip(shard.ids, shard.starts, shard.stops, strict=True)}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0.01, 0.9), st.integers(0, 5))
def test_every_sample_is_on_one_side_and_everybody_keeps_one(sizes, share, seed):
    whole = population([*sizes, 2])
    cut = validation_split(whole, share, seed)
    before, train, aside = samples(whole.train), samples(cut.train), samples(cut.test)
    for client, n in zip(whole.clients, [*sizes, 2], strict=True):
        assert sorted(train[client] + aside[client]) == before[client]
        assert len(train[client]) >= 1
        assert len(aside[client]) == (0 if n == 1 else min(n - 1, max(1, round(share * n))))
    assert np.array_equal(cut.train.y.numpy(), cut.train.x[:, 0].numpy() / 2), "labels stay with their samples"


def test_the_split_equals_a_plain_loop():
    whole = population([5, 1, 12])
    keys = keys_for_clients(3, Purpose.VALIDATION, 0, whole.train.hashes)
    cut = validation_split(whole, 0.25, 3)
    for i, (client, n) in enumerate(zip(whole.clients, (5, 1, 12), strict=True)):
        order = permutations(keys[i : i + 1], np.array([n]), n, 0)[0]
        mine = np.array(samples(whole.train)[client])[order]
        count = {5: 1, 1: 0, 12: 3}[n]
        assert samples(cut.test)[client] == mine[:count].tolist()
        assert samples(cut.train)[client] == mine[count:].tolist()


def test_a_clients_split_depends_on_the_seed_and_its_id_and_on_nothing_else():
    one, other = population([30, 40], ["a", "b"]), population([40, 30], ["b", "a"])
    places = {}
    for data in (one, other):
        first = dict(zip(data.train.ids, data.train.starts, strict=True))
        places[data.train.ids] = {
            c: sorted(v - first[c] for v in s) for c, s in samples(validation_split(data, 0.2, 7).test).items()
        }
    assert places["a", "b"] == places["b", "a"]
    assert samples(validation_split(one, 0.2, 7).test) != samples(validation_split(one, 0.2, 8).test)


def test_test_data_is_replaced_and_does_not_matter():
    plain = population([6, 9])
    tested = replace(plain, test=plain.train)
    assert samples(validation_split(tested, 0.5, 0).test) == samples(validation_split(plain, 0.5, 0).test)


def test_nothing_to_hold_out_is_an_error():
    with pytest.raises(ConfigError, match="a client with at least two samples, but every client has one"):
        validation_split(population([1, 1]), 0.2, 0)


def test_how_many_are_put_aside():
    # a third of 10 is 3.3, of 2 it is 0.7 but one at least; of one or none nobody gives any
    assert held_out_sizes(np.array([0, 1, 2, 10]), 1 / 3).tolist() == [0, 0, 1, 3]
