"""Small shards and blocks for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from coterie.core.blocks import Block
from coterie.core.keys import hash_ids
from coterie.core.shard import Shard

Samples = tuple[np.ndarray, np.ndarray]


def names(count: int) -> list[str]:
    return [f"c{index}" for index in range(count)]


def make_shard(data: Sequence[Samples], ids: Sequence[str] | None = None) -> Shard:
    """Return a shard of clients that are adjacent in memory."""
    ids = names(len(data)) if ids is None else list(ids)
    sizes = np.array([len(y) for _, y in data], dtype=np.int64)
    stops = np.cumsum(sizes)
    x = torch.from_numpy(np.concatenate([x for x, _ in data]))
    y = torch.from_numpy(np.concatenate([y for _, y in data]))
    return Shard(tuple(ids), hash_ids(ids), x, y, stops - sizes, stops)


def make_block(data: Sequence[Samples], ids: Sequence[str] | None = None, width: int | None = None) -> Block:
    """Return one block of all clients; rows beyond a client's size repeat its first sample."""
    ids = names(len(data)) if ids is None else list(ids)
    sizes = np.array([len(y) for _, y in data], dtype=np.int64)
    width = int(sizes.max()) if width is None else width
    x = np.stack([np.concatenate([x, np.repeat(x[:1], width - len(x), axis=0)]) for x, _ in data])
    y = np.stack([np.concatenate([y, np.repeat(y[:1], width - len(y))]) for _, y in data])
    mask = None if (sizes == width).all() else torch.from_numpy(np.arange(width)[None] < sizes[:, None])
    return Block(
        np.arange(len(data)), torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(sizes), mask, hash_ids(ids)
    )


def regression_data(sizes: Sequence[int], d: int, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    return [(random.standard_normal((n, d)), random.standard_normal(n)) for n in sizes]


def class_data(sizes: Sequence[int], shape: tuple[int, ...], classes: int, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    return [(random.standard_normal((n, *shape)), random.integers(0, classes, n)) for n in sizes]
