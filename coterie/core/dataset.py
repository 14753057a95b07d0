"""Federated data sets: facts about the clients, and their samples if they are in this process."""

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
from coterie.core.source import DataSource, StoredRows
from coterie.errors import InputError


@dataclass(frozen=True)
class Profile:
    """Shape of the samples and kind of task, which the server knows before the first round."""

    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """Number of classes (C); None for regression."""


@dataclass(frozen=True)
class Newcomers:
    """Clients that do not take part in training, one for each true group, on which trained models are evaluated."""

    support: Shard
    """Labelled samples by which each newcomer is assigned to clusters."""
    query: Shard
    """Test samples of the same newcomers."""


@dataclass(frozen=True)
class ClientDirectory(ABC):
    """Facts about all clients of a federation; the samples may be in this process or elsewhere."""

    name: str
    """Name of the data."""
    _: KW_ONLY
    truth: npt.NDArray[np.int64] | None = None
    """True group of each client, (m,); None if unknown."""
    true_models: npt.NDArray[np.float64] | None = None
    """True parameters of each group, (groups, d), for synthetic data."""
    true_basis: npt.NDArray[np.float64] | None = None
    """Orthonormal basis of the subspace of the true parameters of all groups, (d, c), for synthetic data."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the scenario, from which it can be generated again; empty for other data."""
    recommended: Mapping[str, object] = field(default_factory=dict)
    """Recommended run options for this data, which replace the defaults."""
    group_names: tuple[str, ...] = ()
    """Names of the true groups."""
    schema: Schema = field(default_factory=Schema)
    """Encoding of the raw values: columns, scaling and class labels."""
    column_notes: tuple[ColumnNote, ...] = ()
    """Use of each column of the table that the data was read from; empty for other data."""
    newcomers: Newcomers | None = None
    """Clients that do not take part in training."""
    client_notes: tuple[str, ...] = ()
    """Descriptions of the clients' data, one text for each client with parts separated by "; "; may be empty."""
    source: DataSource | None = None
    """Source from which another process can load these clients; None if they exist in this process only."""

    @property
    @abstractmethod
    def clients(self) -> tuple[ClientId, ...]:
        """Ids of all m clients, in the order of all arrays with a row for each client."""

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """Shape of the samples and kind of task."""

    @property
    @abstractmethod
    def sizes(self) -> Positions:
        """Number of training samples of each client, (m,), before a validation split."""

    @property
    @abstractmethod
    def tested(self) -> npt.NDArray[np.bool_] | None:
        """Whether each client has test samples, (m,); None if there are no test samples at all."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features; empty for data without feature names."""
        return self.schema.feature_names

    def compact(self) -> Self:
        """Return the same clients with the labels that occur renumbered as classes 0 to C-1."""
        return self

    def in_memory(self) -> ClientDirectory:
        """Return the same clients with their samples in this process, if they are in files that it can read."""
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash that identifies the data, by which a resumed run checks that it is unchanged."""

    @abstractmethod
    def training_only(self) -> Self:
        """Return the same clients with their training data only: without test data, newcomers and true groups."""


@dataclass(frozen=True)
class FederatedDataset(ClientDirectory):
    """Clients with their data in memory: training samples, optional test samples, optional true groups.

    Functions such as `coterie.from_table`, `coterie.from_arrays` and `coterie.scenario` create it.

    Example:
        >>> import numpy as np
        >>> import coterie
        >>> x, y = np.array([[1.0], [2.0], [3.0]]), np.array([2.0, 4.0, 6.0])
        >>> data = coterie.from_arrays({"a": (x, y), "b": (x, -y)})
        >>> data.clients
        ('a', 'b')
        >>> data.sizes
        array([3, 3])
    """

    train: Shard
    """Training samples."""
    test: Shard | None = None
    """Test samples of the same clients in the same order; clients may share test samples."""
    _: KW_ONLY
    sample_truth: npt.NDArray[np.int64] | None = None
    """True group of each row of `train.x` for clients that mix several groups; used for evaluation only."""
    stored: StoredRows | None = None
    """The rows of `train.x` in a file; None if they are in this process only."""
    labels: tuple[int, ...] = ()
    """Sorted labels that occur, if they are integers other than 0 to C-1; `compact` renumbers them as classes."""

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
                f"label {self.labels[0]} is negative, and labels cannot be renumbered if other nodes may have other "
                "labels: number the classes from 0"
            )
        labels = [y] if self.test is None else [y, self.test.y]
        found = None if y.is_floating_point() else int(max(int(v.max()) for v in labels if v.numel())) + 1
        # these clients may lack some of the classes of their table
        classes = len(self.schema.classes) if self.schema.classes else found
        return Profile(tuple(self.train.x.shape[1:]), classes)

    def compact(self) -> FederatedDataset:
        """Return the same clients with the labels that occur renumbered as classes 0 to C-1.

        The schema of the result maps classes to labels. The data of a single node of a deployed federation must not be
        renumbered, since the node may have only some of the labels.
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
        """Return a hash of ids, samples, newcomers and true groups; it is computed once and equal for equal data."""
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
        """Return some of the clients with their samples but without true groups and newcomers, as a node has them.

        Args:
            positions: Positions of the clients.
        """
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
    """Return the name of a floating-point dtype."""
    return "float64" if dtype == torch.float64 else "float32"


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `float32` or `float64`."""
    return {"float32": torch.float32, "float64": torch.float64}[name]
