"""Server state of a run: the models, and arrays with declared axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters, Params, plain_layout
from coterie.core.regroup import Changes
from coterie.core.state_array import Axis, ClusterNumber, RegroupEvent, Reset, ShareByMember, StateArray
from coterie.errors import ConfigError

UNKNOWN = -1
"""Entry of `ServerState.choice` for a client whose cluster is not known yet."""

OBJECTIVE = "objective/"
"""Prefix of the names of arrays that belong to the objective."""
TREE = "tree/"
"""Prefix of the names of arrays that record all splits (`core/tree.py`)."""
AGE = "age"
"""Name of the array with the number of rounds since each cluster was created, for methods that remove clusters."""

TIE = 1e-9
"""Relative tolerance when training losses are compared: smaller differences from the smallest loss are ties."""


@dataclass(frozen=True)
class ServerState:
    """Complete server state, from which training can continue; a checkpoint contains all of it.

    Every array declares its axes and its behaviour in a regroup, so that `keep_restart`, `regrouped` and checkpoints
    handle all arrays in the same way. To add an array, put a `StateArray` into `arrays`; no other code has to change.

    Args:
        round: Number of completed rounds.
        clusters: Models of the clusters.
        arrays: Arrays by name; a `/` in a name separates the owner from the array, as in `objective/labels`.
        clients: State of simulated clients, {name: (m, ...)}; only in checkpoints of simulations. In a deployment,
            clients store their own state. Each row belongs to the client's last accepted round, and the client converts
            it to the present clusters (`flows`); therefore it is no server array and not changed by a regroup.

    Raises:
        ConfigError: if the length of an axis differs from the number of clusters, restarts or clients.
    """

    round: int
    clusters: Clusters
    arrays: Mapping[str, StateArray] = field(default_factory=dict)
    clients: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths: dict[Axis, int] = {"cluster": self.clusters.K, "restart": self.clusters.restarts}
        for name, array in self.arrays.items():
            for axis, count in zip(array.axes, array.value.shape, strict=True):
                if axis is not None and lengths.setdefault(axis, count) != count:
                    raise ConfigError(
                        f"the state array {name!r} has {count} entries along its {axis} axis, expected {lengths[axis]}"
                    )

    @classmethod
    def fresh(cls, clusters: Clusters, clients: int, flows: bool = False) -> ServerState:
        """Return the state before the first round.

        Args:
            clusters: Initial models.
            clients: Number of clients.
            flows: Whether to add the array `flows`, which is needed if clients store weights over the clusters and the
                number of clusters may change.

        Example:
            >>> import torch
            >>> from coterie.extend import Clusters, ServerState
            >>> state = ServerState.fresh(Clusters({"weight": torch.zeros(2, 3)}, K=2), clients=4)
            >>> state.round, sorted(state.arrays)
            (0, ['accepted', 'choice', 'loss', 'steady'])
        """
        restarts = clusters.restarts
        choice = torch.full((clients, restarts), UNKNOWN, dtype=torch.int64)
        arrays = {
            "choice": StateArray(choice, ("client", "restart"), ClusterNumber()),
            "steady": StateArray(torch.zeros(clients, dtype=torch.int64), ("client",), Reset()),
            "loss": StateArray(torch.full((restarts,), torch.inf, dtype=torch.float64), ("restart",)),
            "accepted": StateArray(torch.full((clients,), NEVER, dtype=torch.int64), ("client",)),
        }
        if flows:
            stay = torch.eye(clusters.K, dtype=torch.float64).repeat(clients, 1, 1)
            arrays["flows"] = StateArray(stay, ("client", None, "cluster"), ShareByMember())
        return cls(0, clusters, arrays)

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Tensor:
        """Last known cluster of each client in each restart, (m, R); `UNKNOWN` if there is none."""
        return self.arrays["choice"].value

    @property
    def steady(self) -> Tensor:
        """Number of consecutive rounds in which each client took part without changing its cluster, (m,)."""
        return self.arrays["steady"].value

    @property
    def loss(self) -> Tensor:
        """Training loss of each restart in the last round, (R,); infinity before the first round."""
        return self.arrays["loss"].value

    @property
    def accepted(self) -> Tensor:
        """Last accepted round of each client, (m,), or `NEVER`; the client continues from its state of that round."""
        return self.arrays["accepted"].value

    @property
    def groups(self) -> Tensor | None:
        """Cluster of each client, (m,), if it is known in advance and never changes; else None."""
        found = self.arrays.get("groups")
        return None if found is None else found.value

    @property
    def flows(self) -> Tensor:
        """Matrices that convert each client's weights from its last accepted round to the present clusters.

        The shape is (m, K in that round, K now), or (0, 0, 0) if clients store no weights or K never changes.
        """
        found = self.arrays.get("flows")
        return torch.zeros(0, 0, 0, dtype=torch.float64) if found is None else found.value

    @property
    def portraits(self) -> Tensor:
        """Sum of the onboarding vectors of each cluster's members, (K, P), or (0, 0) without onboarding."""
        found = self.arrays.get("portraits")
        return torch.zeros(0, 0) if found is None else found.value

    @property
    def onboarding_rows(self) -> Tensor:
        """Onboarding vector of each client, (m, P), zeros before its onboarding, or (0, 0) if none are stored."""
        found = self.arrays.get("onboarding_rows")
        return torch.zeros(0, 0) if found is None else found.value

    @property
    def tables(self) -> Params:
        """Arrays of the objective, by their names without the prefix."""
        return self.under(OBJECTIVE)

    @property
    def tree(self) -> Params:
        """All splits so far (`core/tree.py`); empty if the method does not record them."""
        return self.under(TREE)

    def under(self, prefix: str) -> Params:
        """Return the tensors of all arrays whose names start with a prefix, by their names without the prefix."""
        return {name.removeprefix(prefix): a.value for name, a in self.arrays.items() if name.startswith(prefix)}

    # ---- changing ------------------------------------------------------------------------------------------------

    def with_arrays(self, arrays: Mapping[str, StateArray], prefix: str = "") -> ServerState:
        """Return the state with arrays added or replaced.

        Args:
            arrays: Arrays by name.
            prefix: Prefix that is added to the names.
        """
        together = {**self.arrays, **{f"{prefix}{name}": array for name, array in arrays.items()}}
        return ServerState(self.round, self.clusters, together, self.clients)

    def with_values(self, **values: Tensor) -> ServerState:
        """Return the state with new tensors in existing arrays, whose declarations stay the same."""
        return self.with_arrays({name: self.arrays[name].with_value(value) for name, value in values.items()})

    def with_groups(self, groups: Tensor) -> ServerState:
        """Return the state with clusters of all clients, (m,), that are known in advance and never change."""
        return self.with_arrays({"groups": StateArray(groups, ("client",))})

    def with_choice(self, choice: Tensor) -> ServerState:
        """Return the state with the initial cluster of each client, (m,); only for a single restart."""
        return self.with_values(choice=choice[:, None])

    def best_restart_only(self) -> ServerState:
        """Return the state of the restart with the smallest training loss only."""
        return self.keep_restart(best_restart(self.loss))

    def keep_restart(self, index: int) -> ServerState:
        """Return the state of one restart only."""
        arrays = {name: array.keep_restart(index) for name, array in self.arrays.items()}
        return replace(self, clusters=self.clusters.keep_restart(index), arrays=arrays)

    def in_plain_layout(self) -> ServerState:
        """Return the same state in contiguous and aligned arrays, as when it is read from a checkpoint."""
        plain = {name: plain_layout(array.value) for name, array in self.arrays.items()}
        arrays = {
            name: array if plain[name] is array.value else array.with_value(plain[name])
            for name, array in self.arrays.items()
        }
        return replace(self, clusters=self.clusters.in_plain_layout(), arrays=arrays)

    def regrouped(self, event: RegroupEvent, changes: Changes | None = None) -> ServerState:
        """Return the state after a regroup, with the new models and all arrays adapted.

        Args:
            event: The regroup and the clusters before it.
            changes: Changes by single clients in this round, for new clusters with `how="members"`.
        """
        clusters = event.regroup.apply(self.clusters, event.sizes, changes)
        return replace(self, clusters=clusters, arrays={name: a.regrouped(event) for name, a in self.arrays.items()})


def best_restart(loss: Tensor) -> int:
    """Return the index of the restart with the smallest training loss, the lowest index in case of a tie.

    Losses within the relative tolerance `TIE` of the smallest loss are ties, so that rounding errors, which differ
    between engines, do not decide. Restarts with a loss that is not finite are ignored; if there are no others, 0 is
    returned.

    Args:
        loss: Training loss of each restart, (R,).

    Example:
        >>> import torch
        >>> best_restart(torch.tensor([0.3, 0.2, float("nan")]))
        1
    """
    finite = torch.where(loss.isfinite(), loss.double(), torch.inf)
    least = finite.min()
    return int((finite <= least + TIE * least.abs()).int().argmax())
