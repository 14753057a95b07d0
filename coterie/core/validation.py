"""Samples put aside, cut from the clients' own: for validation, or for the test samples of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.keys import Purpose, Words, keys_for_clients, shuffled
from coterie.core.shard import Positions, spans
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """Which samples are kept and which are put aside, client after client; a client's samples count 0..n_i-1."""

    kept: Positions
    """Places of the kept samples when all samples stand client after client, shape (sum of kept_sizes,)."""
    kept_sizes: Positions
    """(m,)"""
    aside: Positions
    aside_sizes: Positions


def split(keys: Words, sizes: Positions, share: float) -> Split:
    """Put a share of each client's samples aside; which ones follows from its key, `keys` and `sizes` have shape (m,).

    A client with several samples gives away at least one and keeps at least one; a client with one keeps it.
    """
    aside = aside_sizes(sizes, share)
    first = np.cumsum(sizes) - sizes
    places = shuffled(keys, sizes) + np.repeat(first, sizes)
    return Split(places[spans(first + aside, sizes - aside)], sizes - aside, places[spans(first, aside)], aside)


def aside_sizes(sizes: Positions, share: float) -> Positions:
    """(m,) how many of their `sizes` samples clients put aside: none where there are none, or one."""
    wanted = np.maximum(1, np.rint(share * sizes).astype(np.int64))
    return np.asarray(np.maximum(0, np.minimum(sizes - 1, wanted)))


def validation_split(data: FederatedDataset, share: float, seed: int) -> FederatedDataset:
    """The same clients with a share of their training samples put aside as `test`, in place of any test data.

    Which samples are put aside follows from the seed and the client's id. A client with several samples gives away at
    least one and keeps at least one; a client with a single sample keeps it and has nothing to validate on.
    """
    check_validation_split(data)
    return split_validation(data, share, seed)


def check_validation_split(data: ClientDirectory) -> None:
    """Refuse a federation in which nobody can put a sample aside."""
    if data.sizes.max() < 2:
        raise ConfigError("validation needs a client with two samples or more, but all have one: leave it out")


def split_validation(data: FederatedDataset, share: float, seed: int) -> FederatedDataset:
    """As `validation_split`, for some of the clients of a federation: some may have nothing to validate on."""
    train = data.train
    sizes = train.sizes
    parts = split(keys_for_clients(seed, Purpose.VALIDATION, 0, train.hashes), sizes, share)
    rows = spans(train.starts, sizes)
    kept, truth = rows[parts.kept], data.sample_truth
    return replace(
        data,
        train=train.gather(kept, parts.kept_sizes),
        test=train.gather(rows[parts.aside], parts.aside_sizes),
        sample_truth=None if truth is None else truth[kept],
    )
