"""What is known of the clients, and their data where it lies in this process."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.schema import ColumnNote, Schema
from coterie.core.shard import ClientId, Positions, Shard
from coterie.errors import InputError


@dataclass(frozen=True)
class Profile:
    """What a server may know before the first round: shapes, kind of task, sizes. No sample."""

    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """C for classification; None for regression."""


@dataclass(frozen=True)
class Newcomers:
    """Clients that did not train, one for each true group: how well do the models serve somebody new?"""

    support: Shard
    """Labelled samples from which a newcomer finds its clusters."""
    query: Shard
    """Samples of the same newcomers, on which it is measured."""


@dataclass(frozen=True)
class ClientDirectory(ABC):
    """Who the clients are and what is known of them, wherever their samples lie."""

    name: str
    _: KW_ONLY
    truth: npt.NDArray[np.int64] | None = None
    """The true group of each client, shape (m,)."""
    true_models: npt.NDArray[np.float64] | None = None
    """The true parameters of each group, shape (groups, d), for synthetic data."""
    true_basis: npt.NDArray[np.float64] | None = None
    """Orthonormal directions (d, c) that the true parameters of all groups lie in, where there are some."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The scenario's options, so that it can be made again; empty for a user's own arrays."""
    recommended: Mapping[str, object] = field(default_factory=dict)
    """Run options that suit this data; used where the user says nothing."""
    group_names: tuple[str, ...] = ()
    schema: Schema = field(default_factory=Schema)
    """How raw values became features and classes: columns, scaling, class labels."""
    column_notes: tuple[ColumnNote, ...] = ()
    """What became of each column of the table that the data came from; empty for other data."""
    newcomers: Newcomers | None = None
    client_notes: tuple[str, ...] = ()
    """What is known of the data of each client, m texts, parts separated by "; "; empty where nobody said."""

    @property
    @abstractmethod
    def clients(self) -> tuple[ClientId, ...]:
        """All ids, in the order of everything that has a row for each client."""

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """Shapes and kind of task."""

    @property
    @abstractmethod
    def sizes(self) -> Positions:
        """Training samples of each client before any are put aside, (m,)."""

    @property
    @abstractmethod
    def tested(self) -> npt.NDArray[np.bool_] | None:
        """(m,) which clients have test samples; None where nobody has."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features; empty where the data came without names."""
        return self.schema.feature_names

    def compact(self) -> Self:
        """Return the same clients with only those classes that occur, numbered 0 to C-1."""
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest by which a run knows its data again."""

    @abstractmethod
    def training_only(self) -> Self:
        """The same clients with what they train on and nothing else: no test data, no newcomers, no truth."""


@dataclass(frozen=True)
class FederatedDataset(ClientDirectory):
    """Clients in memory: training data, optional held-out data, optional true groups."""

    train: Shard
    test: Shard | None = None
    """Held-out samples of the same clients in the same order; ranges may coincide."""
    _: KW_ONLY
    sample_truth: npt.NDArray[np.int64] | None = None
    """Where clients are mixed: the true group of each row of `train.x`; only for scoring."""
    labels: tuple[int, ...] = ()
    """All labels that occur, sorted, where the user's own integers are not 0 to C-1. `compact` makes them classes."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.train.ids

    @property
    def sizes(self) -> Positions:
        return self.train.sizes

    @property
    def tested(self) -> npt.NDArray[np.bool_] | None:
        return None if self.test is None else self.test.sizes > 0

    @property
    def profile(self) -> Profile:
        y = self.train.y
        if self.labels and self.labels[0] < 0:
            raise InputError(
                f"label {self.labels[0]} cannot be a class where other data may come with other labels: use labels "
                "from 0 on"
            )
        labels = [y] if self.test is None else [y, self.test.y]
        found = None if y.is_floating_point() else int(max(int(v.max()) for v in labels if v.numel())) + 1
        # a table may hold every class in its rows, but not in those of these clients
        classes = len(self.schema.classes) if self.schema.classes else found
        return Profile(tuple(self.train.x.shape[1:]), classes)

    def compact(self) -> FederatedDataset:
        """Return the same clients with the labels that occur numbered 0 to C-1; the schema keeps the labels.

        Nodes of a federation each see some of the labels only, so their data must not be renumbered.
        """
        if not self.labels:
            return self

        def renumbered(shard: Shard | None) -> Shard | None:
            return None if shard is None else replace(shard, y=torch.searchsorted(torch.tensor(self.labels), shard.y))

        train = renumbered(self.train)
        assert train is not None
        schema = replace(self.schema, classes=self.labels)
        return replace(self, train=train, test=renumbered(self.test), labels=(), schema=schema)

    def fingerprint(self) -> str:
        """A digest of ids, samples, newcomers and truth: the same data gives the same text. Computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        if self.labels:
            return self.compact().fingerprint()
        digest = hashlib.sha256(json.dumps(self.train.ids).encode())
        parts = [self.train] if self.test is None else [self.train, self.test]
        parts += [] if self.newcomers is None else [self.newcomers.support, self.newcomers.query]
        arrays = [a for part in parts for a in (part.starts, part.stops, part.x.numpy(), part.y.numpy())]
        for array in [*arrays, *(known for known in (self.truth, self.sample_truth) if known is not None)]:
            digest.update(str((array.dtype, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        if self.schema.classes and not self.schema.is_table:
            digest.update(json.dumps(self.schema.classes).encode())
        return digest.hexdigest()

    def take(self, positions: Iterable[int]) -> FederatedDataset:
        """Some of the clients with their samples, and nothing else that is known of them: what a node has."""
        at = np.fromiter(positions, dtype=np.int64)
        test = None if self.test is None else self.test.take(at)
        return FederatedDataset(self.name, self.train.take(at), test, schema=self.schema, labels=self.labels)

    def training_only(self) -> FederatedDataset:
        return replace(
            self, test=None, newcomers=None, truth=None, true_models=None, true_basis=None, sample_truth=None
        )

    def __repr__(self) -> str:
        sizes = self.train.sizes
        groups = "unknown" if self.truth is None else str(len(np.unique(self.truth)))
        return (
            f"FederatedDataset({self.name!r}, clients={len(sizes)}, samples={int(sizes.sum())} "
            f"({sizes.min()} to {sizes.max()} each), features={tuple(self.train.x.shape[1:])}, true groups: {groups})"
        )


def dtype_name(dtype: torch.dtype) -> Literal["float32", "float64"]:
    """Return the name of a floating type."""
    return "float64" if dtype == torch.float64 else "float32"


def torch_dtype(name: str) -> torch.dtype:
    """`float32` or `float64` as torch knows it."""
    return {"float32": torch.float32, "float64": torch.float64}[name]
