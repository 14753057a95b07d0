"""HCFL+: one body, a head for each cluster, and as many heads as the data calls for. (Guo, Tang, Lin 2025)

paper                     here
phi, theta_k              clusters.body, clusters.params (the last layer)
omega-tilde_i, omega_ij   a client's weights and those of its samples, kept by the client (eq. 4, 5); mu-tilde  mu
gamma_ijk                 responsibilities, once a round, in log space, under the backbone's objective
eq. 6, 7                  order=heads-first: all heads on features as they are, then the body; together: both at once
P_ic, P_i (eq. 11, 12)    class prototypes and mean feature, before training; their distance is eq. 9
rho                       split the cluster of the largest distance if that is rho above the mean there (alg. 2)
alg. 4                    the parts make the two heads; weights are halved (soft), or the parts written into them (hard)
lines 12-19               a cluster that nobody ranks first is removed

backbone  explains by     clients                                                   sets apart      mu    split
fedem     p(y|x)          train all heads by gamma                                  any shift       0     soft
fedrc     p(y|x)/P_k(y)   the same                                                  concepts only   0.4   soft
fesem     p(y|x)          train their cluster's head and join the one nearest to    any shift       none  hard
                          what came out; heads are averaged over members
fedsoft   p(y|x)          train and keep a head h_i of their own, pulled by         any shift       none  soft
                          (lambda/2) |h_i - sum_k omega-tilde_ik theta_k|^2;
                          theta_k = sum_i omega-tilde_ik N_i h_i / sum

Any shift is the paper's ASCP, concepts only its CSCP. fesem begins with the cluster of least loss, and so does a client
that was away while its cluster was split, among the parts. fedsoft finds weights as fedem does, by responsibilities of
the theta_k. Who has trained predicts by its own h_i; somebody new, who has none, by a mixture of the theta_k as in
fedem.
Equation 4 is read with index n on weights and likelihoods of the denominator; 6 and 7 are descents on the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from coterie.errors import ConfigError
from coterie.methods.backbones import (
    BACKBONE,
    LAM,
    NO_TWIN,
    backbone_defaults,
    backbone_of,
    backbone_parts,
    backbone_rows,
    begin_with_one,
)
from coterie.methods.base import Entry, Placing
from coterie.methods.fedem import ORDER
from coterie.options import Option, Options
from coterie.tiers.assignment import AssignmentRule, EMMixture, NearestParameters, PersonalEM
from coterie.tiers.distance import Prototypes
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional, Objective, Ratio
from coterie.tiers.procedure import Adaptive, RemoveUnclaimed, SplitByGap, Step

MU = {"fedem": 0.0, "fedrc": 0.4}
"""mu-tilde of each backbone that has it, as in the paper's tables."""


def hcfl_plus(options: Options) -> Method:
    """gamma_jk ~ w_jk L_k; heads, then body, by gamma; split by prototypes, remove what nobody ranks first."""
    own = options.own
    if options.learner.startswith("linear"):
        raise ConfigError("hcfl+ compares the features of classes, but the targets are numbers: use fedem")
    objective: Objective = Ratio() if own["backbone"] == "fedrc" else Conditional()
    principle: Literal["ascp", "cscp"] = own["principle"] or ("cscp" if own["backbone"] == "fedrc" else "ascp")
    split = SplitByGap(own["rho"], _hard(own), own["warmup"], own["max_clusters"])
    steps: tuple[Step, ...] = (RemoveUnclaimed(), split) if own["remove"] else (split,)
    return Method(
        "hcfl+",
        objective,
        _weights(own),
        Adaptive(options.clusters, steps),
        distance=Prototypes(principle),
        **backbone_parts("hcfl+", options, ("body",)),
    )


def _weights(own: Mapping[str, Any]) -> AssignmentRule:
    backbone, mu = own["backbone"], own["mu"]
    if backbone in MU:
        return EMMixture(MU[backbone] if mu is None else mu)
    if mu is not None:
        raise ConfigError(
            f"hcfl+: mu gives samples weights of their own, which backbone {backbone} has not: leave mu out, or use "
            "backbone=fedem or fedrc"
        )
    return NearestParameters() if backbone == "fesem" else PersonalEM()


def _hard(own: Mapping[str, Any]) -> bool:
    """Whether the parts of a split are written into the clients' weights."""
    if own["backbone"] == "fesem" and own["split"] == "soft":
        raise ConfigError(
            "hcfl+: split=soft halves weights, but with backbone fesem a client has one cluster: leave split out"
        )
    return bool(own["backbone"] == "fesem" or own["split"] == "hard")


def _newcomers(own: Mapping[str, Any]) -> Placing:
    return "least-loss" if backbone_of(own) == "fesem" else "mixture"


ENTRY = Entry(
    name="hcfl+",
    summary="one body and as many heads as the data calls for, split by what classes look like",
    paper="Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved "
    "Methodologies, 2025",
    compose=hcfl_plus,
    refuses=frozenset({"combine", "exchange", "shared", "restarts"}),
    options=(
        BACKBONE,
        Option("rho", float, "split once the largest distance in a cluster is so far above the mean", 0.3, above=0),
        Option(
            "mu",
            float,
            "mu-tilde, how far samples have weights of their own; else 0.4 (fedrc), 0 (fedem)",
            low=0,
            high=1,
        ),
        LAM,
        Option("principle", str, "what sets clients apart; else by the backbone", None, ("ascp", "cscp")),
        replace(ORDER, default="heads-first"),
        Option(
            "split",
            str,
            "whether a split halves weights, or writes the parts into them; else soft, hard with backbone fesem",
            None,
            ("soft", "hard"),
        ),
        Option("remove", bool, "whether clusters that nobody ranks first are removed", True),
        Option("warmup", int, "rounds before the first split", 0, low=0),
        Option("max_clusters", int, "no more clusters than this", low=1),
    ),
    defaults=backbone_defaults,
    prefers=begin_with_one,
    learners=("mlp", "cnn", "module"),
    twin="fedavg",
    no_twin=NO_TWIN,
    newcomers=_newcomers,
    reveals=lambda own: {**backbone_rows(own), **Prototypes.reveals},
)
