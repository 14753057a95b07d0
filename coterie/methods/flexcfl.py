"""FlexCFL: FedGroup with clients that may change their group and groups that learn from each other. (Duan et al. 2021)

paper                       here
group cold start, EDC       as in `fedgroup.py`
client migration            every migrate_every rounds the clients of the round receive all models; a client whose loss
                            under another group's model is below (1 - tau) times that under its own moves there
tau                         tau; the paper's is a threshold on the Wasserstein distance of a client's old and new labels
eta_G, inter-group          eta_g: after every round w_g <- w_g + eta_g sum_{l != g} w_l / |w_l|, for all groups at once

In the paper, a client whose labels have shifted repeats the cold start: it trains w_0 again and joins the group whose
first update has the largest cosine with its own. Within a run a client's data does not change, so this would repeat the
first decision. The training loss under the present models detects the same mismatch, also for a client that the cold
start misplaced, and needs no record of a client's labels. The norm is over all parameters of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.tasks.score import Score
from coterie.core.clusters import Clusters, flat, unflat
from coterie.core.federation import positions_of
from coterie.core.messages import Broadcast
from coterie.core.registry import register
from coterie.core.state import UNKNOWN, ServerState
from coterie.methods.exchanges import Cost
from coterie.methods.fedgroup import FedGroup
from coterie.methods.round import Step, participants
from coterie.methods.run import Run
from coterie.options import option


@register("flexcfl")
@dataclass(frozen=True, kw_only=True)
class FlexCFL(FedGroup):
    """FedGroup with client migration and a step between the groups.

    Client i moves to g if F_i(w_g) < (1 - tau) F_i(w_own); after averaging w_g <- w_g + eta_G sum_{l != g} w_l / |w_l|.

    Example:
        >>> import coterie
        >>> from coterie.methods import FlexCFL
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, FlexCFL(clusters=4, migrate_every=1), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    migrate_every: int = option(5, "number of rounds between two migrations of clients; 0: never", low=0)
    tau: float = option(
        0.1,
        "smallest relative reduction of the training loss for which a client moves",
        low=0,
        high=1,
        needs="migrate_every",
    )
    eta_g: float = option(0.01, "length of the step of every group towards each other group (eta_G)", low=0)

    summary: ClassVar[str] = "FedGroup with clients that may change their group and groups that learn from each other"
    citation: ClassVar[str] = (
        "Duan, Liu, Ji, Wu, Liang, Chen, Tan, Ren: Flexible Clustered Federated Learning for Client-Level Data "
        "Distribution Shift, 2021"
    )
    reveals_rows: ClassVar[Mapping[str, str]] = {
        **FedGroup.reveals_rows,
        "losses": "its loss under the model of each cluster",
    }

    def step(self, run: Run, state: ServerState) -> Step:
        """Let clients migrate every few rounds; then train, average, and step between the groups."""
        cost, moved = Cost(), 0
        if self.migrate_every and state.round and state.round % self.migrate_every == 0:
            state, moved = self._migrated(run, state, cost)
        step = super().step(run, state).with_cost(cost)
        after = step.state
        if step.answered and self.eta_g:
            after = replace(after, clusters=self._approached(after.clusters))
        return replace(step, state=after, moved=step.moved + moved)

    def _migrated(self, run: Run, state: ServerState, cost: Cost) -> tuple[ServerState, int]:
        """Return the state after clients of this round have migrated, and their number."""
        broadcast = Broadcast(state.round, state.clusters)
        reply = cost.count(run.federation.ask(Score(), broadcast, participants(run, state)))
        if not reply.clients:
            return state, 0
        answered = torch.from_numpy(positions_of(run.federation, reply.clients))
        losses = reply.rows["losses"].nan_to_num(nan=torch.inf)
        before = state.choice[answered, 0]
        after = better_groups(losses, before, self.tau)
        moved = int(((after != before) & (before != UNKNOWN)).sum())
        return state.with_values(choice=state.choice.index_copy(0, answered, after[:, None])), moved

    def _approached(self, clusters: Clusters) -> Clusters:
        """Return the models after w_g + eta_g sum_{l != g} w_l / |w_l|."""
        models = flat(clusters.params).double()
        units = torch.nn.functional.normalize(models, dim=1)
        moved = models + self.eta_g * (units.sum(dim=0) - units)
        params = {name: p.to(clusters.params[name]) for name, p in unflat(moved, clusters.params).items()}
        return replace(clusters, params=params)


def better_groups(losses: Tensor, present: Tensor, tau: float) -> Tensor:
    """Return the group of each client (m,): the one of lowest loss (m, K) if it is `tau` better than the present one.

    A client without a group, -1, joins the group of lowest loss.
    """
    best = losses.argmin(dim=1)
    own = losses.gather(1, present.clamp_min(0)[:, None])[:, 0]
    least = losses.gather(1, best[:, None])[:, 0]
    return torch.where((present == UNKNOWN) | (least < (1 - tau) * own), best, present)
