"""Validation samples, cut from the clients' own training samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.keys import Purpose, keys_for_clients, shuffled
from coterie.core.population import Population
from coterie.core.shard import spans
from coterie.errors import ConfigError


def hold_out(population: Population, share: float, seed: int) -> Population:
    """The same clients with a share of their training samples put aside as `test`, in place of any test data.

    Which samples are put aside follows from the seed and the client's id. A client with several samples gives away at
    least one and keeps at least one; a client with a single sample keeps it and has nothing to validate on.
    """
    train = population.train
    sizes = train.sizes
    aside = np.minimum(sizes - 1, np.maximum(1, np.rint(share * sizes).astype(np.int64)))
    if not aside.any():
        raise ConfigError("validation needs a client with two samples or more, but all have one: leave it out")
    order = shuffled(keys_for_clients(seed, Purpose.VALIDATION, 0, train.hashes), sizes)
    rows = order + np.repeat(train.starts, sizes)
    first = np.cumsum(sizes) - sizes
    return replace(
        population,
        train=train.gather(rows[spans(first + aside, sizes - aside)], sizes - aside),
        test=train.gather(rows[spans(first, aside)], aside),
    )
