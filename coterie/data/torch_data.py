"""Clients whose samples are PyTorch data sets or data loaders."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data import Subset as TorchSubset

from coterie.core.arrays import as_array
from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import ClientArrays, from_arrays
from coterie.errors import InputError

Source = Dataset[Any] | DataLoader[Any]
"""Samples of one client as PyTorch holds them: items (x, y)."""


def from_torch(
    clients: Mapping[Hashable, Source],
    *,
    test: Mapping[Hashable, Source] | None = None,
    truth: Mapping[Any, Hashable] | None = None,
    name: str = "torch",
) -> FederatedDataset:
    """Return the clients whose samples are given as PyTorch data sets or data loaders.

    Every sample is read once and kept in memory. Of a data loader the samples that its sampler selects are used, in the
    order of its data set and through its `collate_fn`, so that the result does not depend on shuffling, batch size or
    `drop_last`. A random transformation in the data set is applied once.

    Args:
        clients: {client id: data set or data loader}. Each item is a pair (x, y); whole numbers as y are class labels,
            floating-point numbers are the targets of a regression.
        test: Held-out samples of the same clients, in the same form.
        truth: The true group of each client, if it is known.
        name: Name of the data set.

    Returns:
        The clients.

    Raises:
        InputError: if an item is not a pair (x, y), the shapes of samples differ, or a sampler repeats samples.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> import coterie
        >>> sets = {name: TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])) for name in ("north", "south")}
        >>> coterie.from_torch(sets).clients
        ('north', 'south')
    """
    if not isinstance(clients, Mapping):
        raise InputError(f"clients must be a dict of data sets for each client, got {type(clients).__name__}")
    held_out = None if test is None else {client: _arrays(source, client) for client, source in test.items()}
    train = {client: _arrays(source, client) for client, source in clients.items()}
    return from_arrays(train, test=held_out, truth=truth, name=name)


def _arrays(source: Source, client: Hashable) -> ClientArrays:
    where = f"client {client!r}"
    tensors = _tensors(source)
    if tensors is not None:
        if len(tensors) != 2:
            raise InputError(f"{where}: a TensorDataset needs two tensors (x, y), got {len(tensors)}")
        return tensors[0].detach().cpu().numpy(), tensors[1].detach().cpu().numpy()
    xs: list[npt.NDArray[Any]] = []
    ys: list[npt.NDArray[Any]] = []
    for x, y in _batches(source, where):
        xs.append(as_array(x, f"{where}: x"))
        ys.append(np.atleast_1d(as_array(y, f"{where}: y")))
        if xs[-1].shape[1:] != xs[0].shape[1:]:
            raise InputError(f"{where}: samples of shapes {xs[0].shape[1:]} and {xs[-1].shape[1:]}: use one shape")
    if not xs:
        raise InputError(f"{where} has no samples: leave it out")
    return np.concatenate(xs), np.concatenate(ys)


def _tensors(source: Source) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a TensorDataset or of a subset of one; None for anything else."""
    if isinstance(source, TensorDataset):
        return source.tensors
    if isinstance(source, TorchSubset) and isinstance(source.dataset, TensorDataset):
        rows = torch.as_tensor(list(source.indices), dtype=torch.int64)
        return tuple(tensor[rows] for tensor in source.dataset.tensors)
    return None


def _batches(source: Source, where: str) -> Iterator[tuple[Any, Any]]:
    """Yield the samples as pairs of batches."""
    if isinstance(source, DataLoader):
        items, collate = _selected(source, where), source.collate_fn
        size = source.batch_size or 1
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        items, collate, size = (source[i] for i in range(len(source))), None, 1
    elif isinstance(source, Iterable):
        items, collate, size = iter(source), None, 1
    else:
        raise InputError(f"{where}: expected a PyTorch Dataset or DataLoader, got {type(source).__name__}")
    held: list[Any] = []
    for item in items:
        if collate is None:
            x, y = _pair(item, where)
            yield as_array(x, f"{where}: x")[None], y
            continue
        held.append(item)
        if len(held) == size:
            yield _pair(collate(held), where)
            held = []
    if held and collate is not None:
        yield _pair(collate(held), where)


def _selected(loader: DataLoader[Any], where: str) -> Iterator[Any]:
    """Yield the items that the loader's sampler selects, in the order of its data set."""
    data: Any = loader.dataset
    if isinstance(data, IterableDataset):
        return iter(data)
    with torch.random.fork_rng(devices=[]):  # the caller's random state is left alone
        chosen = _positions(loader)
    if len(set(chosen)) != len(chosen):
        raise InputError(f"{where}: the sampler of the data loader repeats samples: pass the Dataset itself")
    return (data[i] for i in sorted(chosen))


def _positions(loader: DataLoader[Any]) -> list[int]:
    """Return the positions that the loader's sampler, or a batch sampler that the user gave, selects."""
    batches: Any = loader.batch_sampler
    if loader.batch_size is None and batches is not None:
        return [int(position) for batch in batches for position in batch]
    return [int(position) for position in loader.sampler]


def _pair(item: object, where: str) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        what = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise InputError(f"{where}: every item must be a pair (x, y), got {what}: wrap the data set so that it is one")
    return item[0], item[1]
