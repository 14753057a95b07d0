"""CFL: everybody trains one model until it stops helping all; then the clients are cut in two. (Sattler et al. 2020)

paper                      here
Delta theta_i              row `change`: what client i changed of its cluster's model
eps_1, eps_2               eps1, eps2: |mean of Delta theta_i| < eps_1 and max |Delta theta_i| > eps_2, L2 norms
alpha_ij                   cosine of two updates; the cut by complete linkage makes the largest one across least
gamma_max                  gate: a cut counts only if gamma_max < sqrt((1 - alpha_cross) / 2)

After a cut the model of a part is the mean of what its members made of the cluster's. Nothing is merged or removed.

Somebody new takes the cluster whose model has the least loss on its samples (newcomers=loss). The paper keeps the tree
of cuts (newcomers=tree): with the model that was cut, and what each part made of it in the mean. A newcomer trains that
model on its own samples, goes to the part whose mean update has the larger cosine with its own, and on from there.
"""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Adaptive, SplitByNorm


def cfl(options: Options) -> Method:
    """theta_c <- mean over members; cut c in two where its mean update is small and a member's is not."""
    procedure = Adaptive(1, (norm_split(options),))
    return Method(
        "cfl",
        Conditional(),
        Assigned(),
        procedure,
        distance=UpdateCosine(),
        groups=Groups("one"),
        tree=options.own["newcomers"] == "tree",
        **parts(options),
    )


def norm_split(options: Options) -> SplitByNorm:
    """The cut by norms, from `NORM_OPTIONS`."""
    own = options.own
    return SplitByNorm(
        own["eps1"],
        own["eps2"],
        own["thresholds"] == "relative",
        own["warmup"],
        own["least"],
        own["gate"],
        own["max_clusters"],
    )


NORM_OPTIONS = (
    Option("eps1", float, "a cluster may be cut once its mean update is shorter than this (eps_1)", 0.4, above=0),
    Option("eps2", float, "and some member's update is longer than this (eps_2)", 1.6, low=0),
    Option(
        "thresholds",
        str,
        "whether eps1 is a length, or a part of the longest member's update",
        "absolute",
        ("absolute", "relative"),
    ),
    Option("warmup", int, "rounds before the first cut", 20, low=0),
    Option("least", int, "no cluster with fewer members is cut", 3, low=2),
    Option("gate", float, "gamma_max: cut only if updates across the cut differ that much; without it always", low=0),
    Option("max_clusters", int, "no more clusters than this", low=1),
)

ENTRY = Entry(
    name="cfl",
    summary="one model for all, cut in two where it no longer helps everybody, and again",
    paper="Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization "
    "under Privacy Constraints, 2020",
    compose=cfl,
    refuses=frozenset({"combine", "exchange", "shared", "restarts", "clusters"}),
    options=(
        *NORM_OPTIONS,
        Option(
            "newcomers",
            str,
            "how somebody new finds its cluster: by least loss, or down the tree of splits by its own updates",
            "loss",
            ("loss", "tree"),
        ),
    ),
    defaults=lambda given: {"clusters": 1, "client_weight": "samples", "averaging": "members"},
    twin="fedavg",
    newcomers=lambda own: "tree" if own.get("newcomers") == "tree" else "least-loss",
    reveals={"cluster": "which cluster it is in", "change": "how it changed its cluster's model"},
)
