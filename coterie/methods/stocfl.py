"""StoCFL: clients that would change a frozen model alike share a cluster, whenever they come. (Zeng et al. 2023)

paper                      here
Psi_i                      row `anchor`, sent once, before the client first trains: a frozen random model less what one
                           local epoch makes of it; everybody draws that model from the seed, so it is not sent
tau                        tau: clusters whose mean Psi have a cosine of at least tau unite, from the largest on
mean Psi                   compare=sampled, the authors' code: of the members that take part in the round, so that only
                           clusters with such members are compared, and the server keeps every Psi_i; compare=all: of
                           all members so far, and the server keeps their sum. With participation=1 both are the same
theta_k, omega             the clusters' models, and `clusters.overall`, which all clients train as in FedAvg
lambda                     lam: theta_k is pulled to omega, as it was sent, by (lam/2) |theta_k - omega|^2

Every client begins as a cluster of its own. Only those clusters exist, and are counted in K, whose clients have been
onboarded: they are in the first round they take part in, are united with the clusters there are, and then train. A
cluster without a model starts from omega, so a client that finds its like at once never has a model of its own. The
union keeps the model of the larger side. Nothing splits. A client that never took part has no cluster.

The right tau depends on data and local work: 0.1, as in HCFL, puts all `rotated-digits` in one cluster; with
batch_size=10, local_epochs=1, lr=0.5 its four rotations are found with tau=0.5. By default no tau is needed: a client
tells what 50 local steps on each half of its samples make of the frozen model, and clients are grouped by that as far
as tests on the other halves tell groups apart (`tiers/halves_groups.py`). Clusters are then united, and also divided,
only in rounds in which clients come for the first time.

A new client takes the cluster's model with the least loss on its samples (the paper: the nearest mean Psi, or omega).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.options import AUTO, Auto, option
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import AnchorCosine
from coterie.tiers.halves_groups import GroupByHalves
from coterie.tiers.procedure import MergeAbove, Procedure
from coterie.tiers.split_test import ERROR_RATE


@register("stocfl")
@dataclass(frozen=True, kw_only=True)
class StoCFL(TieredMethod):
    """Unite by Psi_i where cos >= tau; theta_k <- mean over members, held near omega; omega <- mean over all."""

    tau: float | Auto = option(
        AUTO,
        "clusters unite if their clients' changes of the frozen model have this cosine (0.1 in the paper); auto: tests "
        "on halves of the clients' samples find the clusters",
    )
    false_splits: float = option(
        ERROR_RATE,
        "tau=auto: largest probability that a run without groups has more than one cluster",
        above=0,
        high=0.5,
    )
    compare: Literal["sampled", "all"] = option(
        "sampled",
        "with tau: whose introductions represent a cluster in a round: those of its members that take part, as in the "
        "authors' code, or those of all its members so far",
        needs="tau",
    )
    lam: float = option(0.5, "how strongly clusters' models are pulled to the one for all (lambda)", low=0)

    summary: ClassVar[str] = (
        "clients that change a frozen model alike unite; cluster models stay near one that all train"
    )
    citation: ClassVar[str] = "Zeng, Hu, Liu, Yu, Wang, Xu: Stochastic Clustered Federated Learning, 2023"
    no_twin: ClassVar[str] = "its clusters' models are pulled to a second model; with lam=0 and tau=-1 it equals fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared", "restarts", "clusters"})

    def tiers(self) -> Tiers:
        return self.compose(
            assignment=Assigned(),
            procedure=Procedure(
                (GroupByHalves(self.false_splits) if self.tau == AUTO else MergeAbove(self.tau, self.compare),)
            ),
            distance=AnchorCosine(),
            K=1,
            local=replace(self.local, prox=self.lam),
            overall=True,
            onboards=True,
        )
