"""The server state of a run: the models, and arrays with declared axes."""

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
"""In `ServerState.choice`: the server does not know a cluster of this client yet."""

OBJECTIVE = "objective/"
"""Prefix of the arrays that the objective keeps."""
TREE = "tree/"
"""Prefix of the arrays that record all splits (`core/tree.py`)."""
AGE = "age"
"""Array of the number of rounds that each cluster has existed for, where clusters are removed."""

TIE = 1e-9
"""Training losses that differ by less than this, relative to the least, are a tie."""


@dataclass(frozen=True)
class ServerState:
    """Everything that the server needs to continue training. A checkpoint holds all of it.

    Every array declares its axes and what a regroup does to it, so that `keep_restart`, `regrouped` and checkpoints
    treat all arrays alike. To add an array, put a `StateArray` into `arrays`; nothing else has to know about it.

    Args:
        round: Number of completed rounds.
        clusters: The models.
        arrays: Arrays by name; a `/` in a name separates the owner from the array, as in `objective/labels`.
        clients: States of simulated clients, {name: (m, ...)}; filled in checkpoints of a simulation only. They belong
            to the clients, who keep them elsewhere in a deployment; their rows are as old as the client's last accepted
            round, and the client itself carries them over to the present clusters (`flows`). So they are no array of
            the server and follow no regroup.

    Raises:
        ConfigError: if the length of an axis does not fit the clusters, the restarts or the other arrays' clients.
    """

    round: int
    clusters: Clusters
    arrays: Mapping[str, StateArray] = field(default_factory=dict)
    clients: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [array.length("client") for array in self.arrays.values()]
        clients = next((count for count in counts if count is not None), None)
        lengths: dict[Axis, int | None] = {
            "cluster": self.clusters.K,
            "restart": self.clusters.restarts,
            "client": clients,
        }
        for name, array in self.arrays.items():
            for axis, length in lengths.items():
                if array.length(axis) not in (None, length):
                    raise ConfigError(
                        f"the state array {name!r} has {array.length(axis)} entries along its {axis} axis, "
                        f"expected {length}"
                    )

    @classmethod
    def fresh(cls, clusters: Clusters, clients: int, flows: bool = False) -> ServerState:
        """Return the state before the first round.

        Args:
            clusters: The first models.
            clients: Number of clients.
            flows: Whether clients keep weights over clusters whose number may change, which needs `flows`.
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
        """Number of consecutive visits of each client without a change of cluster in any restart, (m,)."""
        return self.arrays["steady"].value

    @property
    def loss(self) -> Tensor:
        """Training loss of each restart in the last round, (R,); infinite before the first round."""
        return self.arrays["loss"].value

    @property
    def accepted(self) -> Tensor:
        """Last accepted round of each client, (m,), or `NEVER`; the client continues from its state of that round."""
        return self.arrays["accepted"].value

    @property
    def groups(self) -> Tensor | None:
        """Cluster of each client, (m,), where it is known in advance and never changes; else None."""
        found = self.arrays.get("groups")
        return None if found is None else found.value

    @property
    def flows(self) -> Tensor:
        """How a client's weights go from the K clusters of its last accepted round to the present ones, (m, K then, K).

        It is empty, (0, 0, 0), if clients keep no weights or K never changes.
        """
        found = self.arrays.get("flows")
        return torch.zeros(0, 0, 0, dtype=torch.float64) if found is None else found.value

    @property
    def portraits(self) -> Tensor:
        """Sum of the onboarding rows of each cluster's members, (K, P); empty, (0, 0), without onboarding."""
        found = self.arrays.get("portraits")
        return torch.zeros(0, 0) if found is None else found.value

    @property
    def introductions(self) -> Tensor:
        """Onboarding row of each client, (m, P), zeros before it was onboarded; empty, (0, 0), if none are kept."""
        found = self.arrays.get("introductions")
        return torch.zeros(0, 0) if found is None else found.value

    @property
    def tables(self) -> Params:
        """Arrays that the objective keeps, by their names within the objective."""
        return self.under(OBJECTIVE)

    @property
    def tree(self) -> Params:
        """All splits so far (`core/tree.py`); empty unless the method records them."""
        return self.under(TREE)

    def under(self, prefix: str) -> Params:
        """Return the tensors of all arrays whose names start with a prefix, by the rest of their names."""
        return {name.removeprefix(prefix): a.value for name, a in self.arrays.items() if name.startswith(prefix)}

    # ---- changing ------------------------------------------------------------------------------------------------

    def with_arrays(self, arrays: Mapping[str, StateArray], prefix: str = "") -> ServerState:
        """Return the state with these arrays added or replaced, under the prefix."""
        return replace(self, arrays={**self.arrays, **{f"{prefix}{name}": array for name, array in arrays.items()}})

    def with_values(self, **values: Tensor) -> ServerState:
        """Return the state with other tensors in arrays that it already has; their declarations stay."""
        return self.with_arrays({name: self.arrays[name].with_value(value) for name, value in values.items()})

    def with_groups(self, groups: Tensor) -> ServerState:
        """Return the state of clients whose clusters (m,) are known in advance."""
        return self.with_arrays({"groups": StateArray(groups, ("client",))})

    def with_choice(self, choice: Tensor) -> ServerState:
        """Return the state with the cluster of each client (m,) before the first round."""
        return self.with_values(choice=choice[:, None])

    def best_restart_only(self) -> ServerState:
        """Return the state of the restart of least training loss only."""
        return self.keep_restart(best_restart(self.loss))

    def keep_restart(self, index: int) -> ServerState:
        """Return the state of one restart only."""
        arrays = {name: array.keep_restart(index) for name, array in self.arrays.items()}
        return replace(self, clusters=self.clusters.keep_restart(index), arrays=arrays)

    def in_plain_layout(self) -> ServerState:
        """Return the same state in arrays that are contiguous and aligned, as a checkpoint would give it back."""
        arrays = {name: array.with_value(plain_layout(array.value)) for name, array in self.arrays.items()}
        return replace(self, clusters=self.clusters.in_plain_layout(), arrays=arrays)

    def regrouped(self, event: RegroupEvent, changes: Changes | None = None) -> ServerState:
        """Return the state after a regroup: the models and every array.

        Args:
            event: The regroup and the clusters before it.
            changes: What single clients changed in the round, for clusters that are made of their members' changes.
        """
        clusters = event.regroup.apply(self.clusters, event.sizes, changes)
        return replace(self, clusters=clusters, arrays={name: a.regrouped(event) for name, a in self.arrays.items()})


def best_restart(loss: Tensor) -> int:
    """Return the restart of least training loss, the lowest index among ties.

    Losses within `TIE` of the least, relative to it, are a tie: rounding, which differs between engines, must not
    decide. A restart whose loss is not finite never wins; if none is finite, the first one is returned.

    Args:
        loss: Training loss of each restart, (R,).
    """
    finite = torch.where(loss.isfinite(), loss.double(), torch.inf)
    least = finite.min()
    return int((finite <= least + TIE * least.abs()).int().argmax())
