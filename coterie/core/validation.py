"""Splits of each client's samples into training samples and held-out samples for validation or testing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.keys import Purpose, Words, keys_for_clients, shuffled
from coterie.core.shard import Positions, spans
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """Indices of the training and the held-out samples, where the samples of all clients are concatenated."""

    train: Positions
    """Indices of the training samples, client after client, (sum of train_sizes,)."""
    train_sizes: Positions
    """Number of training samples of each client, (m,)."""
    held_out: Positions
    """Indices of the held-out samples, client after client, (sum of held_out_sizes,)."""
    held_out_sizes: Positions
    """Number of held-out samples of each client, (m,)."""


def split(keys: Words, sizes: Positions, share: float) -> Split:
    """Split each client's samples at random.

    A client with several samples has at least one training sample and one held-out sample. The only sample of a client
    is a training sample.

    Args:
        keys: Random key of each client, (m,).
        sizes: Number of samples of each client, (m,).
        share: Share of held-out samples, between 0 and 1.
    """
    held_out = held_out_sizes(sizes, share)
    train = sizes - held_out
    first = np.cumsum(sizes) - sizes
    places = shuffled(keys, sizes) + np.repeat(first, sizes)
    return Split(places[spans(first + held_out, train)], train, places[spans(first, held_out)], held_out)


def held_out_sizes(sizes: Positions, share: float) -> Positions:
    """Return the number of held-out samples of each client, (m,); zero for clients with at most one sample."""
    wanted = np.maximum(1, np.rint(share * sizes).astype(np.int64))
    return np.asarray(np.maximum(0, np.minimum(sizes - 1, wanted)))


def validation_split(data: FederatedDataset, share: float, seed: int) -> FederatedDataset:
    """Return a data set whose test data is replaced by a share of the training samples, for validation.

    The split depends on the seed and the ids of the clients only. A client with several samples keeps at least one for
    training and has at least one for validation. A client with a single sample has none for validation.

    Args:
        data: Clients with their samples.
        share: Share of validation samples, between 0 and 1.
        seed: Seed of the split.

    Raises:
        ConfigError: if no client has two samples.
    """
    check_validation_split(data)
    return split_validation(data, share, seed)


def check_validation_split(data: ClientDirectory) -> None:
    """Raise ConfigError if no client has enough samples for a validation split."""
    if data.sizes.max() < 2:
        raise ConfigError(
            "a validation split needs a client with at least two samples, but every client has one: train without it"
        )


def split_validation(data: FederatedDataset, share: float, seed: int) -> FederatedDataset:
    """Split like `validation_split`, for a part of the clients: it is no error if none has two samples."""
    train = data.train
    sizes = train.sizes
    parts = split(keys_for_clients(seed, Purpose.VALIDATION, 0, train.hashes), sizes, share)
    rows = spans(train.starts, sizes)
    training, truth = rows[parts.train], data.sample_truth
    return replace(
        data,
        train=train.gather(training, parts.train_sizes),
        test=train.gather(rows[parts.held_out], parts.held_out_sizes),
        sample_truth=None if truth is None else truth[training],
        source=None,
        stored=None,
    )
