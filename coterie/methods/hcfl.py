"""HCFL and HCFL': a backbone whose clusters are cut as CFL cuts them. (Guo, Tang, Lin 2025)

paper                 here
tiers 1, 2            the backbone's: p(y|x) (fedem) or p(y|x)/P_k(y) (fedrc), soft weights by EM
tiers 3, 4            CFL's: norms of the updates of a cluster's model decide, their cosines part; the parts are written
                      into the clients' weights; a cluster that nobody ranks first is removed
HCFL                  a whole model for each cluster
HCFL' (hcfl-split)    one body for all, a head for each cluster; updates are those of the heads

A client counts in the cluster that weighs most for it, with its update of that cluster's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coterie.config import Option, Options
from coterie.errors import ConfigError
from coterie.methods.base import Entry, parts
from coterie.methods.cfl import NORM_OPTIONS, norm_split
from coterie.methods.fedem import ORDER
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.method import Averaging, Method
from coterie.tiers.objective import Conditional, Ratio
from coterie.tiers.procedure import Adaptive, RemoveUnclaimed
from coterie.tiers.weights import SoftByEM

BACKBONE = Option("backbone", str, "how a cluster explains a sample", "fedrc", ("fedem", "fedrc"))


def hcfl(options: Options) -> Method:
    """The backbone with whole models, split by update cosines."""
    return _composed("hcfl", options, ())


def hcfl_split(options: Options) -> Method:
    """The backbone with one body, its heads split by update cosines."""
    return _composed("hcfl-split", options, ("body",))


def _composed(name: str, options: Options, shared: tuple[str, ...]) -> Method:
    common, backbone = parts(options), options.own["backbone"]
    if backbone == "fedrc" and options.learner.startswith("linear"):
        raise ConfigError(f"{name}: backbone fedrc counts classes, but the targets are numbers: use backbone=fedem")
    if options.averaging == "responsibility":
        common["averaging"] = Averaging("responsibility", common["averaging"].client_weight)
    work = replace(common.pop("work"), order=options.own.get("order", "together"))
    return Method(
        name,
        Ratio() if backbone == "fedrc" else Conditional(),
        SoftByEM(),
        Adaptive(options.clusters, (RemoveUnclaimed(), norm_split(options))),
        work=work,
        distance=UpdateCosine(),
        **{**common, "shared": shared},
    )


def begin_with_one(given: Mapping[str, object]) -> Mapping[str, object]:
    """One cluster at first, however many groups the data has: they are to be found."""
    return {} if "clusters" in given else {"clusters": 1}


REVEALS = {
    "cluster": "which cluster weighs most for it",
    "change": "how it changed every model",
    "weights": "what each cluster counts for it",
    "labels": "with backbone fedrc, how many samples of each class it counts in each cluster",
}
PAPER = (
    "Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved Methodologies, 2025"
)
ENTRIES = (
    Entry(
        name="hcfl",
        summary="mixtures whose number grows as in CFL, a whole model for each cluster",
        paper=PAPER,
        compose=hcfl,
        refuses=frozenset({"exchange", "shared", "restarts"}),
        options=(BACKBONE, *NORM_OPTIONS),
        learners=("logistic", "mlp", "cnn", "module"),
        defaults=lambda given: {"client_weight": "samples", "averaging": "all"},
        prefers=begin_with_one,
        twin="fedavg",
        newcomers="mixture",
        reveals=REVEALS,
    ),
    Entry(
        name="hcfl-split",
        summary="the same with one body for all and a head for each cluster",
        paper=PAPER,
        compose=hcfl_split,
        refuses=frozenset({"exchange", "shared", "restarts"}),
        options=(BACKBONE, replace(ORDER, default="heads-first"), *NORM_OPTIONS),
        defaults=lambda given: {"client_weight": "samples", "averaging": "all"},
        prefers=begin_with_one,
        learners=("mlp", "cnn", "module"),
        twin="fedavg",
        newcomers="mixture",
        reveals=REVEALS,
    ),
)
