"""StoCFL: clients that would change a frozen model alike share a cluster, whenever they come. (Zeng et al. 2023)

paper                      here
Psi_i                      row `anchor`, sent once, before the client first trains: a frozen random model less what one
                           local epoch makes of it; everybody draws that model from the seed, so it is not sent
tau                        tau: clusters whose mean Psi have a cosine of at least tau unite, from the largest on
theta_k, omega             the clusters' models, and `clusters.overall`, which all clients train as in FedAvg
lambda                     lam: theta_k is pulled to omega, as it was sent, by (lam/2) |theta_k - omega|^2

Every client begins as a cluster of its own. Only those exist, and are counted in K, whose clients have introduced
themselves: they do so in the first round they take part in, are united with the clusters there are, and then train. A
cluster without a model starts from omega, so a client that finds its like at once never has a model of its own. The
union keeps the model of the larger side. Nothing splits. A client that never took part has no cluster.

The right tau depends on data and local work: the default, 0.1 as in HCFL, puts all `rotated-digits` in one cluster;
with batch_size=10, local_epochs=1, lr=0.5 its four rotations are found with tau=0.5.

Somebody new takes the cluster's model with the least loss on its samples (the paper: the nearest mean Psi, or omega).
"""

from __future__ import annotations

from dataclasses import replace

from coterie.methods.base import Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.distance import AnchorCosine
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Adaptive, MergeAbove


def stocfl(options: Options) -> Method:
    """Unite by Psi_i where cos >= tau; theta_k <- mean over members, held near omega; omega <- mean over all."""
    own, common = options.own, parts(options)
    return Method(
        "stocfl",
        Conditional(),
        Assigned(),
        Adaptive(1, (MergeAbove(own["tau"]),)),
        work=replace(common.pop("work"), prox=own["lam"]),
        distance=AnchorCosine(),
        overall=True,
        groups=Groups("introduction"),
        **common,
    )


ENTRY = Entry(
    name="stocfl",
    summary="clients that change a frozen model alike unite; cluster models stay near one that all train",
    paper="Zeng, Hu, Liu, Yu, Wang, Xu: Stochastic Clustered Federated Learning, 2023",
    compose=stocfl,
    refuses=frozenset({"combine", "exchange", "shared", "restarts", "clusters"}),
    options=(
        Option("tau", float, "clusters unite if their clients' changes of the frozen model have this cosine", 0.1),
        Option("lam", float, "how strongly clusters' models are pulled to the one for all (lambda)", 0.5, low=0),
    ),
    defaults=lambda given: {"clusters": 1, "client_weight": "samples", "averaging": "members"},
    no_twin="its clusters' models are pulled to a second model; with lam=0 and tau=-1 it equals fedavg",
    reveals={
        "cluster": "which cluster it is in",
        "anchor": "once, how an epoch of its own changes a frozen model: a gradient of its data",
    },
)
