"""StoCFL: clients with similar updates of one frozen model share a cluster, whenever they arrive. (Zeng et al. 2023)

paper                      here
Psi_i                      row `anchor`, sent once, before the client first trains: a frozen random model minus the
                           result of one local epoch; all clients draw the model from the seed, so it is not sent
tau                        tau: clusters whose mean Psi have a cosine of at least tau merge, from the largest on
mean Psi                   compare=sampled, the authors' code: over the members that take part in the round, so only
                           clusters with such members are compared, and the server keeps every Psi_i; compare=all: over
                           all members so far, and the server keeps their sum. With participation=1 both are the same
theta_k, omega             the clusters' models, and `clusters.overall`, which all clients train as in FedAvg
lambda                     lam: theta_k is pulled towards the received omega by (lam/2) |theta_k - omega|^2

Every client starts as its own cluster. A cluster exists, and counts in K, once its clients have been onboarded: in the
first round they take part in, they are merged with existing clusters and then train. A cluster without a model starts
from omega, so a client that joins a cluster at once never has its own model. A merged cluster keeps the model of the
larger side. Clusters are never split. A client that never took part has no cluster.

The right tau depends on data and local work: 0.1, as in HCFL, puts all of `rotated-digits` into one cluster; with
batch_size=10, local_epochs=1, lr=0.5 its four rotations are found with tau=0.5. By default no tau is needed: a client
sends its updates of the frozen model after 50 local steps on each half of its samples, and clients are grouped by them
as far as tests on the other halves separate groups (`tiers/halves_groups.py`). Clusters are then merged, and also
divided, only in rounds in which clients take part for the first time.

A new client joins the cluster whose model has the lowest loss on its samples (the paper: the nearest mean Psi, or
omega).
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
    """Clients whose updates of one frozen model are similar share a cluster; an overall model connects the clusters.

    Merge clusters with cos(Psi) >= tau; theta_k <- mean over members, pulled towards omega; omega <- mean over all.
    """

    tau: float | Auto = option(
        AUTO,
        "clusters merge if their clients' updates of the frozen model have at least this cosine (0.1 in the paper); "
        "auto: tests on halves of the clients' samples find the clusters",
    )
    false_splits: float = option(
        ERROR_RATE,
        "tau=auto: largest probability that a run without groups has more than one cluster",
        above=0,
        high=0.5,
    )
    compare: Literal["sampled", "all"] = option(
        "sampled",
        "with tau: members whose updates of the frozen model represent a cluster: those that take part in the round, "
        "as in the authors' code (sampled), or all members so far (all)",
        needs="tau",
    )
    lam: float = option(
        0.05,
        "strength of the pull of the clusters' models towards the overall model (lambda; 0.5 in HCFL's tables)",
        low=0,
    )

    summary: ClassVar[str] = (
        "clients with similar updates of a frozen model share a cluster; cluster models stay near an overall model"
    )
    citation: ClassVar[str] = "Zeng, Hu, Liu, Yu, Wang, Xu: Stochastic Clustered Federated Learning, 2023"
    no_twin: ClassVar[str] = "its models are pulled towards an overall model; with lam=0 and tau=-1 it equals fedavg"
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
