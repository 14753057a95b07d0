"""Models of a run: K clusters in one or several independent restarts, with or without a shared body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Named parameters of one or several models."""


def row_bytes(arrays: Mapping[str, Tensor]) -> int:
    """Return the number of bytes of one row (one slot or one client), summed over all named arrays."""
    return sum(a.nbytes // max(1, a.shape[0]) for a in arrays.values())


def take_rows(params: Params, rows: Tensor) -> Params:
    """Return copies of the models at `rows`, an index tensor of any shape: {name: rows.shape + (...)}."""
    flat = rows.flatten()
    # index_select is several times faster than indexing with a tensor
    return {n: p.index_select(0, flat.to(p.device)).reshape(*rows.shape, *p.shape[1:]) for n, p in params.items()}


def rows_of(params: Params, rows: int | slice) -> Params:
    """Return views of one model, or of a slice of models."""
    return {name: p[rows] for name, p in params.items()}


def is_shared(parameter: Tensor) -> bool:
    """Return whether a parameter (S, ...) is the same in all models, such as one of a shared body."""
    return parameter.stride(0) == 0 or bool((parameter == parameter[:1]).all())


ALIGNMENT = 64
"""Alignment in bytes of the first element of an array in plain layout, as in torch's own allocations."""


def plain_layout(array: Tensor) -> Tensor:
    """Return the array in contiguous and aligned memory; a copy only if necessary.

    The rounding of sums and products depends on the strides and the alignment of their operands. With this layout,
    training continues bit-identically whether the state stayed in memory or was read from a checkpoint.
    """
    if array.is_contiguous() and array.data_ptr() % ALIGNMENT == 0:
        return array
    return array.clone(memory_format=torch.contiguous_format)


def flat(models: Mapping[str, Tensor]) -> Tensor:
    """Return B models as vectors of all their parameters, concatenated in the order of their names.

    Args:
        models: Parameters of the models, {name: (B, ...)}.

    Returns:
        One vector for each model, (B, P).

    Example:
        >>> import torch
        >>> from coterie.extend import flat
        >>> flat({"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])})
        tensor([[3., 1., 2.]])
    """
    return torch.cat(
        [models[name].flatten(1) if models[name].dim() > 1 else models[name][:, None] for name in sorted(models)], dim=1
    )


def unflat(vectors: Tensor, like: Mapping[str, Tensor]) -> Params:
    """Return the models that `flat` converted to vectors.

    Args:
        vectors: One vector for each model, (B, P).
        like: Parameters with the names and shapes of one model, {name: (1, ...)}.

    Returns:
        Parameters of the models, {name: (B, ...)}.

    Example:
        >>> import torch
        >>> from coterie.extend import flat, unflat
        >>> models = {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])}
        >>> unflat(flat(models), models)["weight"]
        tensor([[1., 2.]])
    """
    names = sorted(like)
    parts = torch.split(vectors, [like[name][:1].numel() for name in names], dim=1)
    return {name: part.reshape(len(vectors), *like[name].shape[1:]) for name, part in zip(names, parts, strict=True)}


@dataclass(frozen=True)
class Clusters:
    """Parameters of K clusters in R restarts.

    A *restart* is an independent repetition of the same method from other initial models; all restarts share every
    message. Model k of restart r has the *slot* r K + k. The server holds all slots; a client may receive only some.

    Example:
        >>> import torch
        >>> from coterie.extend import Clusters
        >>> clusters = Clusters({"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, K=2)
        >>> clusters.at(torch.tensor([1]))["weight"]
        tensor([[3., 4.]])
    """

    params: Params
    """Parameters of the clusters (theta_k), {name: (S, ...)}, with one row for each available slot."""
    K: int
    """Number of clusters."""
    restarts: int = 1
    """Number of restarts (R)."""
    body: Params | None = None
    """Parameters that all clusters of a restart share, {name: (R, ...)}; None without weight sharing."""
    overall: Params | None = None
    """Parameters of a model that all clients train in addition to their cluster's model (omega of StoCFL),
    {name: (R, ...)}; None without one."""
    slots: Tensor | None = None
    """Slots of the rows in ascending order, (S,); None: all slots."""

    @property
    def shared(self) -> Params:
        """The shared body; empty without weight sharing."""
        return self.body or {}

    @property
    def slot_bytes(self) -> int:
        """Number of bytes of one cluster's parameters, without the shared body."""
        return row_bytes(self.params)

    @property
    def body_bytes(self) -> int:
        """Number of bytes of the shared body of one restart."""
        return row_bytes(self.shared)

    @property
    def common_bytes(self) -> int:
        """Number of bytes of the shared body and the overall model of one restart."""
        return self.body_bytes + row_bytes(self.overall or {})

    def at(self, slots: Tensor) -> Params:
        """Return complete models, including the shared body.

        Args:
            slots: Slots of the models, a tensor of any shape.

        Returns:
            Parameters by name, {name: slots.shape + (...)}.
        """
        rows = self._rows(slots)
        restarts = torch.div(slots, self.K, rounding_mode="floor")
        return take_rows(self.params, rows) | take_rows(self.shared, restarts)

    def all_models(self) -> Params:
        """Return the complete models of all available slots, {name: (S, ...)}, without a copy if possible.

        The shared body of a single restart is a view with the stride 0, which must not be modified.
        """
        if not self.shared:
            return self.params
        count = next(iter(self.params.values())).shape[0]
        if self.restarts == 1:
            return self.params | {name: p.expand(count, *p.shape[1:]) for name, p in self.shared.items()}
        return self.at(torch.arange(count) if self.slots is None else self.slots)

    def by_restart(self, values: Tensor) -> Tensor:
        """Return values of all slots, (..., R K), reshaped to (..., R, K)."""
        return values.reshape(*values.shape[:-1], self.restarts, self.K)

    def keep(self, slots: Tensor) -> Clusters:
        """Return the models of these slots only, for a client that needs no others; `slots` must be ascending."""
        return replace(self, params=take_rows(self.params, self._rows(slots)), slots=slots)

    def _rows(self, slots: Tensor) -> Tensor:
        """Return the row of each slot."""
        return slots if self.slots is None else torch.searchsorted(self.slots, slots)

    def in_plain_layout(self) -> Clusters:
        """Return the same models in contiguous and aligned arrays."""
        params, body, overall = (
            part and {name: plain_layout(p) for name, p in part.items()}
            for part in (self.params, self.body, self.overall)
        )
        return replace(self, params=params or {}, body=body, overall=overall)

    def keep_restart(self, index: int) -> Clusters:
        """Return everything that is needed to continue the training of one restart."""
        own, common = slice(index * self.K, (index + 1) * self.K), slice(index, index + 1)
        body, overall = (rows_of(shared or {}, common) or None for shared in (self.body, self.overall))
        return Clusters(rows_of(self.params, own), self.K, body=body, overall=overall)

    def restart(self, index: int) -> Clusters:
        """Return the models of one restart for prediction, without the overall model, which only training uses."""
        return replace(self.keep_restart(index), overall=None)

    def models(self) -> list[Params]:
        """Return the named parameters of each cluster; only for a single restart."""
        whole = self.all_models()
        return [{name: p[k] for name, p in whole.items()} for k in range(self.K)]
