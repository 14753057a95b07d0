"""The models of a run: K clusters, in one or several independent restarts, with or without a shared body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Params = dict[str, Tensor]


def row_bytes(arrays: Mapping[str, Tensor]) -> int:
    """Return the bytes of one row (one slot, one client) over all named arrays."""
    return sum(a[:1].numel() * a.element_size() for a in arrays.values())


def take_rows(params: Params, rows: Tensor) -> Params:
    """Return copies of the models in `rows`, which may have any shape: {name: rows.shape + (...)}."""
    flat = rows.flatten()
    # several times faster than indexing by a tensor
    return {n: p.index_select(0, flat.to(p.device)).reshape(*rows.shape, *p.shape[1:]) for n, p in params.items()}


def rows_of(params: Params, rows: int | slice) -> Params:
    """Return views of one model, or of a slice of models."""
    return {name: p[rows] for name, p in params.items()}


ALIGNMENT = 64
"""Bytes at multiples of which an array in plain layout starts; torch allocates its arrays so."""


def plain_layout(array: Tensor) -> Tensor:
    """Return the array contiguous and aligned, itself where it is both.

    The last digits of sums and products depend on the strides and the alignment of their operands. A state that is kept
    in this layout trains on in the same digits whether it stayed in memory or came from a checkpoint.
    """
    if array.is_contiguous() and array.data_ptr() % ALIGNMENT == 0:
        return array
    return array.clone(memory_format=torch.contiguous_format)


def flat(models: Mapping[str, Tensor]) -> Tensor:
    """Return models {name: (B, ...)} as vectors (B, P): their arrays one after the other, sorted by name."""
    return torch.cat(
        [models[name].flatten(1) if models[name].dim() > 1 else models[name][:, None] for name in sorted(models)], dim=1
    )


def unflat(vectors: Tensor, like: Mapping[str, Tensor]) -> Params:
    """Return the models of which `flat` gave the vectors; `like` {name: (1, ...)} has their shapes."""
    names = sorted(like)
    parts = torch.split(vectors, [like[name][:1].numel() for name in names], dim=1)
    return {name: part.reshape(len(vectors), *like[name].shape[1:]) for name, part in zip(names, parts, strict=True)}


@dataclass(frozen=True)
class Clusters:
    """Parameters of K clusters in R restarts.

    A *restart* is an independent start of the same method; all restarts share every message. Model k of restart r has
    the *slot* r K + k. A server holds all slots; a client may have been sent only some of them.
    """

    params: Params
    """Parameters of the clusters (theta_k), {name: (S, ...)}, with one row for each slot held."""
    K: int
    """Number of clusters."""
    restarts: int = 1
    """Number of restarts (R)."""
    body: Params | None = None
    """Parameters that all clusters of a restart share, {name: (R, ...)}; None without weight sharing."""
    overall: Params | None = None
    """A whole model that all clients train besides their cluster's, {name: (R, ...)}; it belongs to no cluster (omega
    of StoCFL). None without one."""
    slots: Tensor | None = None
    """Slots of the rows, ascending, (S,); None: all slots."""

    @property
    def shared(self) -> Params:
        """The shared body; empty without weight sharing."""
        return self.body or {}

    @property
    def slot_bytes(self) -> int:
        """Bytes of one cluster's own parameters."""
        return row_bytes(self.params)

    @property
    def body_bytes(self) -> int:
        """Bytes of one restart's shared body."""
        return row_bytes(self.shared)

    @property
    def common_bytes(self) -> int:
        """Bytes of one restart's shared body and overall model."""
        return self.body_bytes + row_bytes(self.overall or {})

    def at(self, slots: Tensor) -> Params:
        """Return whole models for slots of any shape: {name: slots.shape + (...)}."""
        rows = self._rows(slots)
        restarts = torch.div(slots, self.K, rounding_mode="floor")
        return take_rows(self.params, rows) | take_rows(self.shared, restarts)

    def all_models(self) -> Params:
        """Return whole models of every slot held, {name: (S, ...)}; no copies without a body."""
        if not self.shared:
            return self.params
        count = next(iter(self.params.values())).shape[0]
        return self.at(torch.arange(count) if self.slots is None else self.slots)

    def by_restart(self, values: Tensor) -> Tensor:
        """Return values of every slot, (..., R K), as (..., R, K)."""
        return values.reshape(*values.shape[:-1], self.restarts, self.K)

    def keep(self, slots: Tensor) -> Clusters:
        """Return these slots only (ascending), as they are sent to a client that needs no others."""
        return replace(self, params=take_rows(self.params, self._rows(slots)), slots=slots)

    def _rows(self, slots: Tensor) -> Tensor:
        """Return the rows that hold these slots."""
        return slots if self.slots is None else torch.searchsorted(self.slots, slots)

    def in_plain_layout(self) -> Clusters:
        """Return the same models in arrays that are contiguous and aligned."""
        params, body, overall = (
            part and {name: plain_layout(p) for name, p in part.items()}
            for part in (self.params, self.body, self.overall)
        )
        return replace(self, params=params or {}, body=body, overall=overall)

    def keep_restart(self, index: int) -> Clusters:
        """Return one restart with everything that training continues from."""
        own, common = slice(index * self.K, (index + 1) * self.K), slice(index, index + 1)
        body, overall = (rows_of(shared or {}, common) or None for shared in (self.body, self.overall))
        return Clusters(rows_of(self.params, own), self.K, body=body, overall=overall)

    def restart(self, index: int) -> Clusters:
        """Return the models of one restart to predict with: without the overall model, which no cluster predicts by."""
        return replace(self.keep_restart(index), overall=None)

    def models(self) -> list[Params]:
        """Return one dict of named tensors for each cluster; for a single restart only."""
        whole = self.all_models()
        return [{name: p[k] for name, p in whole.items()} for k in range(self.K)]
