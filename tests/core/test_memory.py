"""The cache of tensors: equal values, bounded size, and no confusion between blocks."""

import numpy as np
import torch

from coterie.core.blocks import Memory, cut
from tests.core.make import make_shard, regression_data


def test_tensors_are_cached_up_to_the_limit():
    memory, calls = Memory(limit=100), []

    def make(size: int):
        calls.append(size)
        return torch.zeros(size, dtype=torch.float64)

    first = memory.recall(("a",), lambda: make(10))  # 80 bytes
    assert memory.recall(("a",), lambda: make(10)) is first
    assert memory.recall(("b",), lambda: make(3)).shape == (3,)  # 24 more would be 104
    memory.recall(("b",), lambda: make(3))
    assert calls == [10, 3, 3]
    assert memory.used == 80


def test_blocks_with_a_cache_equal_blocks_without_and_other_clients_have_other_keys():
    shard = make_shard(regression_data([3, 5, 3, 5, 4], 2))
    memory = Memory(limit=10**6)
    for _ in range(2):
        kept, plain = list(cut(shard, shard.hashes, 0, memory)), list(cut(shard, shard.hashes, 0))
        assert len(kept) == len(plain)
        for one, other in zip(kept, plain, strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
    grams = [block.recall("gram", lambda block=block: block.x @ block.x.transpose(1, 2)) for block in kept]
    part = shard.take(np.array([0]))
    (other,) = cut(part, part.hashes, 0, memory)
    own = other.recall("gram", lambda: other.x @ other.x.transpose(1, 2))
    assert torch.equal(own, other.x @ other.x.transpose(1, 2))
    assert own.shape != grams[0].shape
