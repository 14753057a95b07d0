"""Expected form of a reply: names, shapes, dtypes and ranges of its arrays, known before the reply arrives.

The server derives the form from its request. A length that only the learner of a remote client determines is None; all
remote clients must then agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from coterie.core.clusters import Clusters, Params

LARGEST = {torch.float64: 1e100, torch.float32: 1e15}
"""Largest number that counts as finite for each dtype; the sum of squares of larger numbers could overflow."""
LONGEST = 2**16
"""Upper bound of the length of an axis that only the remote clients know."""
ARRAY_OVERHEAD = 4096
"""Number of bytes allowed for an array in addition to its values."""

Missing = Literal["never", "vector", "shared"]
Total = Literal["", "samples", "mass", "one"]


class RunFacts(Protocol):
    """Facts about a run on which the form of every reply depends."""

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of classes; None for regression."""
        ...

    @property
    def torch_dtype(self) -> torch.dtype:
        """Floating-point dtype of the models."""
        ...

    @property
    def model_width(self) -> int | None:
        """Number of parameters of one model; None if only the remote clients can build the learner."""
        ...


@dataclass(frozen=True)
class Spec:
    """Expected form of one array of a reply.

    Example:
        >>> import torch
        >>> spec = Spec((3,), torch.float64, low=0.0)
        >>> spec.fits((3,), torch.float64), spec.fits((4,), torch.float64)
        (True, False)
    """

    shape: tuple[int | None, ...] = ()
    """Shape without the axis of clients or slots; None: a length that the server does not know."""
    dtype: torch.dtype | None = torch.float64
    """Type of the values; None: any floating-point dtype."""
    low: float = -math.inf
    """Smallest allowed value."""
    high: float = math.inf
    """Largest allowed value."""
    missing: Missing = "never"
    """Places of NaN and infinite values: `never`; for all values of a `vector` (last axis), as when a restart
    diverged; or `shared`, if the replies of most nodes have them too, as when a model diverged."""
    total: Total = ""
    """Upper bound of the sum of the values: the clients' numbers of samples, their mass in the mean, or 1 each."""
    whole: bool = False
    """Whether the values must be integers."""
    axes: int = 0
    """Number of leading axes (after the client axis) along which the bound `total` holds separately."""

    @property
    def nbytes(self) -> int:
        """Maximum number of bytes of one row."""
        return 8 * math.prod(LONGEST if length is None else length for length in self.shape)

    def fits(self, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Return whether this shape and dtype are as expected; an unknown length may be at most `LONGEST`."""
        same = len(shape) == len(self.shape) and all(
            length == wanted or (wanted is None and length <= LONGEST)
            for length, wanted in zip(shape, self.shape, strict=True)
        )
        return same and (dtype in LARGEST if self.dtype is None else dtype == self.dtype)

    def __str__(self) -> str:
        kind = "any floating-point type" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return f"{kind} {tuple('any' if length is None else length for length in self.shape)}"


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Slots:
    """Expected form of a slotted sum of a reply."""

    count: int
    """Number of slots."""
    arrays: Specs
    """Form of each array, without the slot axis."""


@dataclass(frozen=True)
class Expected:
    """Expected form of a valid reply."""

    sums: Specs = field(default_factory=dict)
    """Arrays that are summed over clients."""
    slotted: Mapping[str, Slots] = field(default_factory=dict)
    """Arrays that are summed over clients slot by slot."""
    rows: Specs = field(default_factory=dict)
    """Arrays with one row for each client."""
    uniform: bool = False
    """Whether every client has the same weight in the mean, instead of its number of samples."""
    longest_change: float = math.inf
    """Maximum Euclidean norm of a client's model change."""
    compares_changes: bool = True
    """Whether a reply may be refused because its change is much larger than those of other clients."""

    def most_bytes(self, clients: int) -> int:
        """Return the maximum number of bytes of a reply from this many clients."""
        arrays = [spec.nbytes for spec in self.sums.values()]
        arrays += [clients * spec.nbytes for spec in self.rows.values()]
        for slots in self.slotted.values():
            held = slots.count
            arrays += [held * spec.nbytes for spec in slots.arrays.values()] + [8 * held, 8 * held]
        return sum(arrays) + ARRAY_OVERHEAD * (len(arrays) + 1) + 64 * 1024


def expected_changes(params: Params) -> dict[str, Spec]:
    """Return the expected form of summed changes of parameters {name: (S, ...)}."""
    return {f"change/{name}": Spec(tuple(p.shape[1:]), p.dtype) for name, p in params.items()}


def clusters_dtype(clusters: Clusters) -> torch.dtype | None:
    """Return the floating-point dtype of the models; None if there are no models."""
    return next((p.dtype for p in clusters.params.values()), None)


def parameter_count(params: Params) -> int:
    """Return the number of parameters of one of the models {name: (S, ...)}."""
    return sum(math.prod(p.shape[1:]) for p in params.values())
