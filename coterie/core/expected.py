"""The expected form of a reply: names, shapes, types and ranges of its arrays, known before the reply arrives.

The server derives it from what it asked for. A length that only the learner of a remote client determines is None here;
all remote clients must then agree on one length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from coterie.core.clusters import Clusters, Params

LARGEST = {torch.float64: 1e100, torch.float32: 1e15}
"""Larger numbers count as not finite: the sum of their squares would overflow."""
LONGEST = 2**16
"""Largest length of an axis that only the remote clients know."""
ARRAY_OVERHEAD = 4096
"""Number of bytes that an array takes in addition to its values."""

Missing = Literal["never", "vector", "shared"]
Total = Literal["", "samples", "mass", "one"]


class RunFacts(Protocol):
    """Facts about a run that every reply depends on."""

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of classes; None for a regression."""
        ...

    @property
    def torch_dtype(self) -> torch.dtype:
        """Floating type of the models."""
        ...

    @property
    def model_width(self) -> int | None:
        """Number of parameters of one model; None where only the remote clients can build the learner."""
        ...


@dataclass(frozen=True)
class Spec:
    """One array of a reply."""

    shape: tuple[int | None, ...] = ()
    """Shape without the axis of clients or slots."""
    dtype: torch.dtype | None = torch.float64
    """Type of the values; None: any floating type."""
    low: float = -math.inf
    high: float = math.inf
    missing: Missing = "never"
    """Where values may be NaN or infinite: `never`; in a whole `vector` (last axis) of a restart that diverged; or
    `shared`, where the replies of most nodes are so, too, as with a model that has diverged."""
    total: Total = ""
    """Upper bound of the sum of the values: the clients' numbers of samples, their mass in the mean, or 1 each."""
    whole: bool = False
    """Whether the values are whole numbers."""
    axes: int = 0
    """Number of leading axes (after that of clients) for each of which the total holds."""

    @property
    def nbytes(self) -> int:
        """Largest number of bytes of one row."""
        return 8 * math.prod(LONGEST if length is None else length for length in self.shape)

    def fits(self, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Return whether an array has this shape and type; an unknown length has an upper bound."""
        same = len(shape) == len(self.shape) and all(
            length == wanted or (wanted is None and length <= LONGEST)
            for length, wanted in zip(shape, self.shape, strict=True)
        )
        return same and (dtype in LARGEST if self.dtype is None else dtype == self.dtype)

    def __str__(self) -> str:
        kind = "a floating type" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return f"{kind} {tuple('any' if length is None else length for length in self.shape)}"


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Slots:
    """A slotted sum of a reply."""

    count: int
    """Number of slots."""
    arrays: Specs


@dataclass(frozen=True)
class Expected:
    """Everything that a sound reply holds."""

    sums: Specs = field(default_factory=dict)
    slotted: Mapping[str, Slots] = field(default_factory=dict)
    rows: Specs = field(default_factory=dict)
    uniform: bool = False
    """Whether a client counts once in the mean, instead of once per sample."""
    longest_change: float = math.inf
    """Largest length of a client's change of a model."""
    compares_changes: bool = True
    """Whether a reply whose change is much longer than those of others may be refused."""

    def most_bytes(self, clients: int) -> int:
        """Return the largest number of bytes of all arrays in a reply of this many clients."""
        arrays = [spec.nbytes for spec in self.sums.values()]
        arrays += [clients * spec.nbytes for spec in self.rows.values()]
        for slots in self.slotted.values():
            held = slots.count
            arrays += [held * spec.nbytes for spec in slots.arrays.values()] + [8 * held, 8 * held]
        return sum(arrays) + ARRAY_OVERHEAD * (len(arrays) + 1) + 64 * 1024


def expected_changes(params: Params) -> dict[str, Spec]:
    """Return the form of summed changes of parameters {name: (S, ...)}."""
    return {f"change/{name}": Spec(tuple(p.shape[1:]), p.dtype) for name, p in params.items()}


def clusters_dtype(clusters: Clusters) -> torch.dtype | None:
    """Return the floating type of the models; None where no model is sent."""
    return next((p.dtype for p in clusters.params.values()), None)


def parameter_count(params: Params) -> int:
    """Return the number of parameters of one model {name: (S, ...)}."""
    return sum(math.prod(p.shape[1:]) for p in params.values())
