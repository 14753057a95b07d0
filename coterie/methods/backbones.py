"""Tiers 1 and 2 of published methods, whose number of clusters HCFL lets grow.

backbone    a cluster explains by    clients                                   averaging of the clusters' models
fedem       p(y|x)                   mixtures by EM                            all (or by responsibility)
fedrc       p(y|x) / P_k(y)          mixtures by EM                            all (or by responsibility)
fesem       p(y|x)                   one cluster, of the nearest parameters    members
fedsoft     p(y|x)                   a model (head) of their own, held near    by weight
                                     their mixture of the clusters'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.errors import ConfigError
from coterie.methods.base import parts
from coterie.options import Option, Options

DEFAULT = "fedrc"
BACKBONE = Option(
    "backbone",
    str,
    "how a cluster explains a sample and how clients are given to clusters",
    DEFAULT,
    ("fedem", "fedrc", "fesem", "fedsoft"),
)
PULL = 0.1
LAM = Option(
    "lam", float, f"with backbone fedsoft, strength of the pull to the mixture (lambda), {PULL:g} unless set", low=0
)
NO_TWIN = "but not with order=heads-first, nor with backbone fedsoft, whose clients go on from heads of their own"
AVERAGING = {"fedem": "all", "fedrc": "all", "fesem": "members", "fedsoft": "responsibility"}
WEIGHS, OWN = "which cluster weighs most for it", "its own model"
LABELS = "how many samples of each class it counts in each cluster"
SOFT = {
    "cluster": WEIGHS,
    "change": "how it changed the clusters' models",
    "weights": "what each cluster counts for it",
}
ROWS: Mapping[str, Mapping[str, str]] = {
    "fedem": SOFT,
    "fedrc": {**SOFT, "labels": LABELS},
    "fesem": {"cluster": "which cluster it is in", "change": "how far what it trained is from its cluster's model"},
    "fedsoft": {"cluster": WEIGHS, "weights": SOFT["weights"], "model": OWN},
}
"""What clients send in rows of their own."""


def backbone_of(given: Mapping[str, Any]) -> str:
    """The one chosen among a method's own options."""
    return str(given.get("backbone") or DEFAULT)


def backbone_defaults(given: Mapping[str, Any]) -> Mapping[str, object]:
    """A client counts n_i times; models are averaged as the backbone does."""
    return {"client_weight": "samples", "averaging": AVERAGING[backbone_of(given)]}


def begin_with_one(given: Mapping[str, object]) -> Mapping[str, object]:
    """One cluster at first, however many groups the data has: they are to be found."""
    return {} if "clusters" in given else {"clusters": 1}


def backbone_parts(name: str, options: Options, shared: tuple[str, ...]) -> dict[str, Any]:
    """The parts that are not tiers, as the backbone has them: keyword arguments of `Method`."""
    own, common = options.own, parts(options)
    personal = own["backbone"] == "fedsoft"
    if own["lam"] is not None and not personal:
        raise ConfigError(
            f"{name}: lam pulls a client's own model to its mixture, but with backbone {own['backbone']} it has none: "
            "leave lam out, or use backbone=fedsoft"
        )
    if personal and options.averaging != "responsibility":
        raise ConfigError(
            f"{name}: backbone fedsoft averages the clients' own models by their weights, but "
            f"averaging={options.averaging}: leave it out"
        )
    if options.averaging == "responsibility" and own["backbone"] != "fesem":  # there it is the mean over members
        common["averaging"] = replace(common["averaging"], over="responsibility")
    pull = PULL if own["lam"] is None else own["lam"]
    work = replace(common["work"], order=own.get("order", "together"), prox=pull if personal else 0.0)
    return common | {"work": work, "shared": shared}


def backbone_rows(own: Mapping[str, Any]) -> Mapping[str, str]:
    """The rows of the backbone among a method's own options; without options those of any."""
    if own:
        return ROWS[backbone_of(own)]
    return {**SOFT, "labels": f"with backbone fedrc, {LABELS}", "model": f"with backbone fedsoft, {OWN}"}
