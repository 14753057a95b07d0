"""Different samples in every round: disjoint parts of equal size, independent of other clients."""

from __future__ import annotations

import numpy as np

from coterie.client.resample import fresh_parts
from coterie.core.keys import Purpose, keys_for_clients, permutations
from tests.core.make import make_shard

SIZES, ROUNDS = (12, 6, 31), 3
SHARD = make_shard(
    [(np.arange(100 * i, 100 * i + n, dtype=float)[:, None], np.arange(n) / 2.0) for i, n in enumerate(SIZES)]
)


def samples(shard):
    return [shard.x[a:b, 0].tolist() for a, b in zip(shard.starts, shard.stops, strict=True)]


def test_no_sample_is_used_twice_in_a_run():
    seen = [[] for _ in SIZES]
    for t in range(ROUNDS):
        for part in fresh_parts(SHARD, 5, t, ROUNDS):
            assert part.sizes.tolist() == [n // 6 for n in SIZES]
            for mine, more in zip(seen, samples(part), strict=True):
                mine += more
    for i, (mine, n) in enumerate(zip(seen, SIZES, strict=True)):
        assert len(set(mine)) == len(mine) == n // 6 * 6
        assert set(mine) <= set(range(100 * i, 100 * i + n))


def test_the_subsets_equal_a_plain_loop():
    keys = keys_for_clients(5, Purpose.RESAMPLE, 0, SHARD.hashes)
    for t in range(ROUNDS):
        choosing, training = fresh_parts(SHARD, 5, t, ROUNDS)
        for i, n in enumerate(SIZES):
            order = permutations(keys[i : i + 1], np.array([n]), n, 0)[0] + 100 * i
            size = n // 6
            assert samples(choosing)[i] == order[2 * t * size : (2 * t + 1) * size].tolist()
            assert samples(training)[i] == order[(2 * t + 1) * size : (2 * t + 2) * size].tolist()


def test_the_parts_of_a_client_do_not_depend_on_other_clients():
    alone = fresh_parts(SHARD.take(np.array([2])), 5, 1, ROUNDS)
    assert [samples(part)[0] for part in alone] == [samples(part)[2] for part in fresh_parts(SHARD, 5, 1, ROUNDS)]
