"""HCFL+: one body, a head for each cluster, and as many heads as the data calls for. (Guo, Tang, Lin 2025)

paper                     here
phi, theta_k              clusters.body, clusters.params (the last layer)
omega-tilde_i, omega_ij   a client's weights and those of its samples, kept by the client (eq. 4, 5); mu-tilde  mu
gamma_ijk                 responsibilities, once a round, in log space, under the backbone's objective
eq. 6, 7                  order=heads-first: all heads on features as they are, then the body; joint: both at once
P_ic, P_i (eq. 11, 12)    class prototypes and mean feature, before training; their distance is eq. 9
rho                       split the cluster of the largest distance if that is rho above the mean there (alg. 2)
alg. 4                    the parts make the two heads; weights are halved (soft), or the parts written into them (hard)
lines 12-19               a cluster that nobody ranks first is removed

backbone fedem: p(y|x), any shift sets apart (ASCP), mu 0. fedrc: p(y|x)/P_k(y), only concepts do (CSCP), mu 0.4.
Equation 4 is read with index n on weights and likelihoods of the denominator; 6 and 7 are descents on the loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from coterie.config import Option, Options
from coterie.errors import ConfigError
from coterie.methods.base import Entry, parts
from coterie.methods.fedem import ORDER
from coterie.methods.hcfl import begin_with_one
from coterie.tiers.distance import Prototypes
from coterie.tiers.method import Averaging, Method
from coterie.tiers.objective import Conditional, Objective, Ratio
from coterie.tiers.procedure import Adaptive, RemoveUnclaimed, SplitByGap, Step
from coterie.tiers.weights import SoftByEM

MU = {"fedem": 0.0, "fedrc": 0.4}
"""mu-tilde of each backbone, as in the paper's tables."""


def hcfl_plus(options: Options) -> Method:
    """gamma_jk ~ w_jk L_k; heads, then body, by gamma; split by prototypes, remove what nobody ranks first."""
    own, common = options.own, parts(options)
    if options.learner.startswith("linear"):
        raise ConfigError("hcfl+ compares the features of classes, but the targets are numbers: use fedem")
    objective: Objective = Ratio() if own["backbone"] == "fedrc" else Conditional()
    mu = MU[own["backbone"]] if own["mu"] is None else own["mu"]
    principle: Literal["ascp", "cscp"] = own["principle"] or ("cscp" if own["backbone"] == "fedrc" else "ascp")
    if options.averaging == "responsibility":
        common["averaging"] = Averaging("responsibility", common["averaging"].client_weight)
    work = replace(common.pop("work"), order=own["order"])
    split = SplitByGap(own["rho"], own["split"] == "hard", own["warmup"], own["max_clusters"])
    steps: tuple[Step, ...] = (RemoveUnclaimed(), split) if own["remove"] else (split,)
    return Method(
        "hcfl+",
        objective,
        SoftByEM(mu),
        Adaptive(options.clusters, steps),
        work=work,
        distance=Prototypes(principle),
        **{**common, "shared": ("body",)},
    )


ENTRY = Entry(
    name="hcfl+",
    summary="one body and as many heads as the data calls for, split by what classes look like",
    paper="Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved "
    "Methodologies, 2025",
    compose=hcfl_plus,
    refuses=frozenset({"exchange", "shared", "restarts"}),
    options=(
        Option("backbone", str, "how a cluster explains a sample", "fedrc", ("fedem", "fedrc")),
        Option("rho", float, "split once the largest distance in a cluster is so far above the mean", 0.3, above=0),
        Option(
            "mu",
            float,
            "mu-tilde, how far samples have weights of their own; else 0.4 (fedrc), 0 (fedem)",
            low=0,
            high=1,
        ),
        Option("principle", str, "what sets clients apart; else by the backbone", None, ("ascp", "cscp")),
        replace(ORDER, default="heads-first"),
        Option("split", str, "whether a split halves weights, or writes the parts into them", "soft", ("soft", "hard")),
        Option("remove", bool, "whether clusters that nobody ranks first are removed", True),
        Option("warmup", int, "rounds before the first split", 0, low=0),
        Option("max_clusters", int, "no more clusters than this", low=1),
    ),
    defaults=lambda given: {"client_weight": "samples", "averaging": "all"},
    prefers=begin_with_one,
    learners=("mlp", "cnn", "module"),
    twin="fedavg",
    newcomers="mixture",
    reveals={
        "cluster": "which cluster weighs most for it",
        "change": "how it changed the heads",
        "weights": "what each cluster counts for it",
        "labels": "with backbone fedrc, how many samples of each class it counts in each cluster",
        **Prototypes.reveals,
    },
)
