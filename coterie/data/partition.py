"""Partitions of samples into simulated clients: by class proportions, by number of classes, at random, by a column.

A partition is a dict {client id: positions of its samples}. Every function here ends, gives every sample to exactly one
client, leaves no client empty, and draws the same partition again for the same seed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import as_array
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, from_arrays
from coterie.data.scenarios.shifts import labels as label_shift
from coterie.data.sizes import equal_parts
from coterie.errors import ConfigError, InputError
from coterie.options import check_seed

Ints = npt.NDArray[np.int64]
Partition = dict[str, Ints]
"""Positions of the samples of each client, in increasing order."""


def dirichlet(y: npt.ArrayLike, clients: int, alpha: float, seed: int = 0, *, least: int = 1) -> Partition:
    """Return a partition in which class proportions differ between clients.

    The samples of every class are divided among the clients by proportions drawn from a symmetric Dirichlet
    distribution. Clients that would have fewer than `least` samples receive samples of the largest clients, drawn at
    random.

    Args:
        y: Class of each sample (n,): whole numbers, texts or true/false.
        clients: Number of clients.
        alpha: Concentration of the Dirichlet distribution: small values give each client few classes, large values give
            all clients the same proportions.
        seed: Seed of the draw.
        least: Smallest number of samples of a client.

    Returns:
        The positions of each client's samples.

    Raises:
        ConfigError: if there are fewer samples than `clients` times `least`, or alpha is not a number above 0.
        InputError: if y is not a list of classes.

    Example:
        >>> import numpy as np
        >>> from coterie.data import partition
        >>> clients = partition.dirichlet(np.arange(100) % 5, clients=4, alpha=0.3)
        >>> sum(len(positions) for positions in clients.values())
        100
    """
    classes = _classes(y)
    if not isinstance(alpha, int | float) or not 0 < alpha < np.inf:
        raise ConfigError(f"alpha must be a number above 0, got {alpha!r}")
    _check_clients(clients, len(classes), least)
    random = generator(key_for(check_seed(seed), Purpose.SCENARIO))
    owner = np.empty(len(classes), np.int64)
    for label in range(int(classes.max()) + 1):
        rows = random.permutation(np.flatnonzero(classes == label))
        ends = np.cumsum(random.dirichlet(np.full(clients, float(alpha)))) * len(rows)
        owner[rows] = np.searchsorted(np.round(ends[:-1]), np.arange(len(rows)), side="right")
    return _by_owner(_filled(owner, clients, least, random), clients)


def classes_per_client(y: npt.ArrayLike, clients: int, classes: int, seed: int = 0) -> Partition:
    """Return a partition in which every client has samples of a limited number of classes.

    Classes are given to clients so that all are used about equally often; the samples of a class are divided evenly
    among the clients that have it.

    Args:
        y: Class of each sample (n,): whole numbers, texts or true/false.
        clients: Number of clients.
        classes: Number of classes of each client.
        seed: Seed of the draw.

    Returns:
        The positions of each client's samples.

    Raises:
        ConfigError: if clients times classes cannot cover all classes, or a class has fewer samples than clients.
        InputError: if y is not a list of classes.

    Example:
        >>> import numpy as np
        >>> from coterie.data import partition
        >>> y = np.arange(100) % 5
        >>> clients = partition.classes_per_client(y, clients=5, classes=2)
        >>> {len(set(y[positions])) for positions in clients.values()}
        {2}
    """
    numbers = _classes(y)
    known = int(numbers.max()) + 1
    _check_clients(clients, len(numbers), 1)
    if not isinstance(classes, int) or not 1 <= classes <= known:
        raise ConfigError(f"classes must be a number from 1 to {known}, the classes that occur; got {classes!r}")
    if clients * classes < known:
        raise ConfigError(
            f"{clients} clients with {classes} classes each cannot hold all {known} classes: use more of either"
        )
    random = generator(key_for(check_seed(seed), Purpose.SCENARIO))
    chosen = label_shift.classes_per_client(known, classes, clients, random)
    owner = np.empty(len(numbers), np.int64)
    for label in range(known):
        holders = random.permutation(np.flatnonzero((chosen == label).any(axis=1)))
        rows = random.permutation(np.flatnonzero(numbers == label))
        if not len(holders):  # pairs of classes repeat, so that with few clients some pair may have no client
            raise ConfigError(f"{clients} clients do not cover all {known} classes: use more clients")
        owner[rows] = np.repeat(holders, equal_parts(len(rows), len(holders)))
    return _by_owner(owner, clients)


def iid(samples: int, clients: int, seed: int = 0) -> Partition:
    """Return a partition at random into clients whose sizes differ by at most one.

    Args:
        samples: Number of samples.
        clients: Number of clients.
        seed: Seed of the draw.

    Returns:
        The positions of each client's samples.

    Raises:
        ConfigError: if there are fewer samples than clients.

    Example:
        >>> from coterie.data import partition
        >>> [len(positions) for positions in partition.iid(10, clients=3).values()]
        [4, 3, 3]
    """
    _check_clients(clients, samples, 1)
    order = generator(key_for(check_seed(seed), Purpose.SCENARIO)).permutation(samples)
    owner = np.empty(samples, np.int64)
    owner[order] = np.repeat(np.arange(clients), equal_parts(samples, clients))
    return _by_owner(owner, clients)


def by_column(values: npt.ArrayLike) -> Partition:
    """Return the partition in which each different value is a client; ids are the values as text.

    Args:
        values: Client of each sample (n,), such as a column of site names.

    Returns:
        The positions of each client's samples; clients in the order of first appearance.

    Raises:
        InputError: if a value is missing, or the values are not one-dimensional.

    Example:
        >>> from coterie.data import partition
        >>> {name: positions.tolist() for name, positions in partition.by_column(["north", "south", "north"]).items()}
        {'north': [0, 2], 'south': [1]}
    """
    column = _one_axis(values, "the column of clients")
    rows: dict[str, list[int]] = {}
    for position, value in enumerate(column.tolist()):
        if value is None or value != value:
            raise InputError(f"the column of clients has no value in row {position}: every sample needs a client")
        rows.setdefault(str(value), []).append(position)
    return {client: np.array(own, dtype=np.int64) for client, own in rows.items()}


def partitioned(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    partition: Mapping[Hashable, npt.ArrayLike],
    *,
    test: tuple[npt.ArrayLike, npt.ArrayLike, Mapping[Hashable, npt.ArrayLike]] | None = None,
    name: str = "partitioned",
) -> FederatedDataset:
    """Return the clients that a partition makes of pooled samples.

    Args:
        x: Samples (n, ...).
        y: Labels or targets (n,), as in `from_arrays`.
        partition: Positions of the samples of each client; from a function of this module, or any other.
        test: Held-out samples, their labels, and their partition among the same clients.
        name: Name of the data set.

    Returns:
        The clients.

    Raises:
        InputError: if a position is out of range or occurs twice, or the arrays cannot be used.

    Example:
        >>> import numpy as np
        >>> from coterie.data import partition, partitioned
        >>> x, y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
        >>> partitioned(x, y, partition.iid(6, clients=2)).train.sizes.tolist()
        [3, 3]
    """
    held_out = None if test is None else _cut(*test, "test partition")
    return from_arrays(_cut(x, y, partition, "partition"), test=held_out, name=name)


def _cut(
    x: npt.ArrayLike, y: npt.ArrayLike, partition: Mapping[Hashable, npt.ArrayLike], what: str
) -> dict[Hashable, tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]]:
    samples, labels = as_array(x, "x"), _one_axis(y, "y")
    if samples.ndim == 0 or len(samples) != len(labels):
        raise InputError(f"x has shape {samples.shape}, but y has {len(labels)} labels: give one label a sample")
    if not isinstance(partition, Mapping):
        raise InputError(f"{what} must be a dict of positions for each client, got {type(partition).__name__}")
    used = np.zeros(len(labels), dtype=np.int64)
    cut = {}
    for client, positions in partition.items():
        rows = as_array(positions, f"{what} of client {client!r}")
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or not ((rows >= 0) & (rows < len(labels))).all():
            raise InputError(
                f"{what} of client {client!r} must hold positions from 0 to {len(labels) - 1}, as whole numbers"
            )
        np.add.at(used, rows, 1)
        cut[client] = (samples[rows], labels[rows])
    if (used > 1).any():
        raise InputError(f"{what} gives sample {int((used > 1).argmax())} to a client twice: give it to one client")
    return cut


def _classes(y: npt.ArrayLike) -> Ints:
    """Return the class of each sample as a number from 0 on, in the sorted order of the classes."""
    values = _one_axis(y, "y")
    if values.dtype.kind == "f":
        raise InputError("y must hold classes (whole numbers, texts or true/false), got floating-point numbers")
    if not len(values):
        raise InputError("y is empty: give at least one sample")
    if values.dtype.kind == "O" and any(value is None or value != value for value in values.tolist()):
        raise InputError("y has missing values: every sample needs a class")
    return np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)[1]


def _one_axis(values: npt.ArrayLike, what: str) -> npt.NDArray[np.generic]:
    array = as_array(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} must have one value a sample, got shape {array.shape}")
    return array


def _check_clients(clients: int, samples: int, least: int) -> None:
    for what, value in (("clients", clients), ("samples", samples), ("least", least)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{what} must be a whole number of at least 1, got {value!r}")
    if samples < clients * least:
        raise ConfigError(
            f"{clients} clients with at least {least} samples each need {clients * least}, but there are {samples}"
        )


def _filled(owner: Ints, clients: int, least: int, random: np.random.Generator) -> Ints:
    """Return the owners (n,) after the largest clients have given samples to those with fewer than `least`."""
    sizes = np.bincount(owner, minlength=clients)
    while sizes.min() < least:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        owner[random.choice(np.flatnonzero(owner == rich))] = poor
        sizes[poor] += 1
        sizes[rich] -= 1
    return owner


def _by_owner(owner: Ints, clients: int) -> Partition:
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=clients)
    return dict(zip(client_ids(clients), np.split(order, np.cumsum(sizes)[:-1]), strict=True))
