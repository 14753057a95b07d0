"""Clients from PyTorch data sets and loaders: every sample once, in the order of the data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import coterie
from coterie.errors import InputError

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])


class Items(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Items())


def doubled(items):
    return torch.stack([x for x, _ in items]) * 2, torch.tensor([y for _, y in items])


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (TensorDataset(X, Y), range(6)),
        (Subset(TensorDataset(X, Y), [4, 1]), [4, 1]),
        (Items(), range(6)),
        (Subset(Items(), [4, 1]), [4, 1]),
        (Stream(), range(6)),
        (DataLoader(Items(), batch_size=4, shuffle=True, drop_last=True), range(6)),
        (DataLoader(Stream(), batch_size=4), range(6)),
        (DataLoader(Items(), sampler=SubsetRandomSampler([5, 2])), [2, 5]),
        (DataLoader(Items(), batch_sampler=BatchSampler(SequentialSampler(Items()), 4, False)), range(6)),
    ],
)
def test_every_kind_of_source_gives_its_samples_in_order(source, rows):
    state = torch.get_rng_state()
    data = coterie.from_torch({"a": source, "b": Items()}, truth={"a": 0, "b": 1})
    assert torch.equal(torch.get_rng_state(), state), "the caller's random state is left alone"
    train = data.train
    assert train.x[train.starts[0] : train.stops[0]].tolist() == X[list(rows)].tolist()
    assert train.y[train.starts[0] : train.stops[0]].tolist() == Y[list(rows)].tolist()
    assert not train.y.is_floating_point()


def test_a_loader_collates_and_test_samples_are_kept():
    loader = DataLoader(Items(), batch_size=4, collate_fn=doubled)
    data = coterie.from_torch({"a": loader}, test={"a": Items()})
    assert data.train.x.tolist() == (2 * X).tolist()
    assert data.test.x.tolist() == X.tolist()


def test_floating_point_labels_are_a_regression():
    targets = torch.randn(len(Y))
    data = coterie.from_torch({"a": TensorDataset(X, targets), "b": TensorDataset(X, targets)})
    assert data.profile.classes is None


class Triples(Items):
    def __getitem__(self, index):
        return X[index], 0, 0


class Growing(Items):
    def __getitem__(self, index):
        return np.zeros(index + 1), 0


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"a": DataLoader(Items(), sampler=WeightedRandomSampler([1.0], 9))}, "repeats samples: pass the Dataset"),
        ({"a": Triples()}, r"client 'a': every item must be a pair \(x, y\), got 3 values"),
        ({"a": TensorDataset(X)}, "needs two tensors"),
        ({"a": Growing()}, r"samples of shapes \(1,\) and \(2,\)"),
        ({"a": Subset(Items(), [])}, "client 'a' has no samples"),
        ({"a": 3}, "expected a PyTorch Dataset or DataLoader, got int"),
        ([Items()], "clients must be a dict"),
    ],
)
def test_sources_that_cannot_be_used_are_refused(clients, message):
    with pytest.raises(InputError, match=message):
        coterie.from_torch(clients)
