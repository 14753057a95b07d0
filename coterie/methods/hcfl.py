"""HCFL and HCFL': a backbone whose clusters are cut as CFL cuts them. (Guo, Tang, Lin 2025)

paper                 here
tiers 1, 2            the backbone's (`methods/backbones.py`): of fedem, fedrc, fesem or fedsoft
tiers 3, 4            CFL's: norms of the updates of a cluster's model decide, their cosines part; the parts are written
                      into the clients' weights; a cluster that nobody ranks first is removed
HCFL                  a whole model for each cluster
HCFL' (hcfl-split)    one body for all, a head for each cluster; updates are those of the heads

A client counts in the cluster that weighs most for it, with its update of that cluster's model: by how much it moved it
(fedem, fedrc), how far what it trained is from the model of the cluster it is in then (fesem), or how far its own model
is from it (fedsoft). The mean of the last becomes short once the cluster has settled, while clients that differ stay
away from it, which is what CFL looks for; what fedsoft's clients changed in the round becomes short for everybody.

fedsoft counts its shares anew in every round, so that parts written into them last until the next count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from coterie.methods.cfl import NORM_OPTIONS, norm_split
from coterie.methods.fedem import ORDER
from coterie.options import Options
from coterie.tiers.assignment import AssignmentRule, CountShares, EMMixture, NearestParameters
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional, Ratio
from coterie.tiers.procedure import Adaptive, RemoveUnclaimed

ASSIGNMENTS: Mapping[str, AssignmentRule] = {
    "fedem": EMMixture(),
    "fedrc": EMMixture(),
    "fesem": NearestParameters(),
    "fedsoft": CountShares(),
}


def hcfl(options: Options) -> Method:
    """The backbone with whole models, split by update cosines."""
    return _composed("hcfl", options, ())


def hcfl_split(options: Options) -> Method:
    """The backbone with one body, its heads split by update cosines."""
    return _composed("hcfl-split", options, ("body",))


def _composed(name: str, options: Options, shared: tuple[str, ...]) -> Method:
    backbone = options.own["backbone"]
    if backbone == "fedrc" and options.learner.startswith("linear"):
        raise ConfigError(f"{name}: backbone fedrc counts classes, but the targets are numbers: use backbone=fedem")
    return Method(
        name,
        Ratio() if backbone == "fedrc" else Conditional(),
        ASSIGNMENTS[backbone],
        Adaptive(options.clusters, (RemoveUnclaimed(), norm_split(options))),
        distance=UpdateCosine(),
        **backbone_parts(name, options, shared),
    )


def _newcomers(own: Mapping[str, Any]) -> Placing:
    """As the backbone does by itself."""
    return "mixture" if backbone_of(own) in ("fedem", "fedrc") else "least-loss"


PAPER = (
    "Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved Methodologies, 2025"
)
ENTRIES = (
    Entry(
        name="hcfl",
        summary="a method whose number of clusters grows as in CFL, a whole model for each cluster",
        paper=PAPER,
        compose=hcfl,
        refuses=frozenset({"combine", "exchange", "shared", "restarts"}),
        options=(BACKBONE, LAM, *NORM_OPTIONS),
        learners=("logistic", "mlp", "cnn", "module"),
        defaults=backbone_defaults,
        prefers=begin_with_one,
        twin="fedavg",
        no_twin="but not with backbone fedsoft, whose clients go on from models of their own",
        newcomers=_newcomers,
        reveals=backbone_rows,
    ),
    Entry(
        name="hcfl-split",
        summary="the same with one body for all and a head for each cluster",
        paper=PAPER,
        compose=hcfl_split,
        refuses=frozenset({"combine", "exchange", "shared", "restarts"}),
        options=(BACKBONE, LAM, replace(ORDER, default="heads-first"), *NORM_OPTIONS),
        defaults=backbone_defaults,
        prefers=begin_with_one,
        learners=("mlp", "cnn", "module"),
        twin="fedavg",
        no_twin=NO_TWIN,
        newcomers=_newcomers,
        reveals=backbone_rows,
    ),
)
