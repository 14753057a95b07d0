"""A mix of one's own: a member of each tier, named by text, where no published method has that combination.

tier            option       such as
1, objective    objective    conditional, ratio, joint:embedding=inputs
2, weights      weights      em-mixture:mu=0.4, lowest-loss, assigned
3, procedure    procedure    fixed, split-by-gap:rho=0.3 + remove-unclaimed
4, distance     distance     update-cosine, prototypes:principle=cscp

`coterie tiers` lists them all. A mix that makes no sense is refused (`tiers/sense.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from coterie.errors import ConfigError
from coterie.methods.base import Entry, Placing, parts
from coterie.methods.fedem import ORDER
from coterie.options import Option, Options
from coterie.tiers.assignment import AssignmentRule, PersonalEM, SingleCluster
from coterie.tiers.compatibility import OWN_MIX
from coterie.tiers.distance import AnchorCosine, Distance
from coterie.tiers.members import FIXED, read_member, read_steps
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Joint, Objective
from coterie.tiers.procedure import Adaptive, Fixed, MergeAbove, Step
from coterie.training.starts import RANDOM

NO_DISTANCE = "none"
BEFORE_TRAINING = "inputs"
"""Distances that need this compare clients once, in a start of their own."""


def composed(options: Options) -> Method:
    """What the four members do, in this order: costs, weights, local steps and averaging, changes of K."""
    own, common = options.own, parts(options)
    weights = read_member("weights", own["weights"])
    steps = tuple(_capped(step, own["max_clusters"]) for step in read_steps(own["procedure"]))
    groups = _groups(options, steps) if weights.assigned else None
    merges = _merges(steps)
    if isinstance(weights, SingleCluster) and options.clusters != 1:
        raise ConfigError(
            f"composed: weights single-cluster have one cluster, but clusters={options.clusters}: set it to 1"
        )
    if weights.personal or merges:
        common["work"] = replace(common["work"], prox=own["pull"])
    if weights.keeps_weights and options.averaging == "responsibility":
        common["averaging"] = replace(common["averaging"], over="responsibility")
    common["work"] = replace(common["work"], order=own["order"])
    return Method(
        OWN_MIX,
        _objective(own["objective"], options.seed),
        weights,
        Adaptive(options.clusters, steps) if steps else Fixed(options.clusters),
        distance=_distance(own["distance"]),
        groups=groups,
        overall=merges,
        **common,
    )


def _objective(text: str, seed: int) -> Objective:
    found: Objective = read_member("objective", text)
    return replace(found, seed=seed) if isinstance(found, Joint) else found


def _distance(text: str) -> Distance | None:
    if text == NO_DISTANCE:
        return None
    found: Distance = read_member("distance", text)
    if found.needs == BEFORE_TRAINING:
        raise ConfigError(
            f"composed: distance {found.name} compares clients before anything is trained, where a start does that: "
            f"use start={found.name} with weights=assigned and procedure=fixed"
        )
    return found


def _capped(step: Step, most: int | None) -> Step:
    """The step with the greatest K of the run, unless it has one of its own."""
    if most is None or getattr(step, "max_clusters", most) is not None:  # a step without a limit has none to set
        return step
    capped: Step = replace(cast(Any, step), max_clusters=most)
    return capped


def _merges(steps: Sequence[Step]) -> bool:
    """Whether clients introduce themselves, find their like, and train a model for all besides."""
    return any(isinstance(step, MergeAbove) for step in steps)


def _groups(options: Options, steps: Sequence[Step]) -> Groups:
    """All begin in one cluster that is split later, or in those that the start finds, or each as one of its own."""
    if _merges(steps):
        return Groups("introduction")
    if options.start != RANDOM:
        return Groups("start")
    if not steps:
        raise ConfigError(
            "composed: with weights assigned nobody ever leaves the first cluster: set a procedure that splits, or "
            "start=odcl, which finds groups"
        )
    if options.clusters != 1:
        raise ConfigError(
            f"composed: with weights assigned all begin in one cluster, but clusters={options.clusters}: set it to 1"
        )
    return Groups("one")


def _weights_of(given: Mapping[str, Any]) -> AssignmentRule:
    found: AssignmentRule = read_member("weights", str(given.get("weights") or DEFAULT_WEIGHTS))
    return found


def _grows(given: Mapping[str, Any]) -> bool:
    return bool(read_steps(str(given.get("procedure") or FIXED)))


def _defaults(given: Mapping[str, Any]) -> Mapping[str, object]:
    weights = _weights_of(given)
    averaging = "all" if weights.mixture else "responsibility" if weights.personal else "members"
    return {"clusters": 3, "client_weight": "samples", "averaging": averaging}


def _prefers(given: Mapping[str, Any]) -> Mapping[str, object]:
    """A number of clusters that changes begins with one, however many groups the data is known to have; several starts
    are only for those that can have them."""
    weights = _weights_of(given)
    alone = _grows(given) or isinstance(weights, SingleCluster)
    one_start = alone or weights.assigned or weights.personal or given.get("shared") is not None
    return ({"clusters": 1} if alone else {}) | ({"restarts": 1} if one_start else {})


def _newcomers(own: Mapping[str, Any]) -> Placing:
    weights = _weights_of(own)
    if not weights.mixture:
        return "mixture" if isinstance(weights, PersonalEM) else "least-loss"
    return "density" if str(own.get("objective", "")).startswith(Joint.name) else "mixture"


CHANGE, LABELS = "how it changed the models it trained", "how many samples of each class it counts in each cluster"
ANY_ROW = {
    "cluster": "which cluster it is in, or which weighs most for it",
    "change": CHANGE,
    "weights": "what each cluster counts for it",
    "labels": f"with objective ratio, {LABELS}",
    "model": "with weights count-shares or personal-em, its own model",
}


def _reveals(own: Mapping[str, Any]) -> Mapping[str, str]:
    """The rows of this mix; without options those of any."""
    if not own:
        return ANY_ROW | {row: words for member in Distance.members.values() for row, words in _rows(member).items()}
    weights, distance = _weights_of(own), _distance(str(own.get("distance") or NO_DISTANCE))
    names = ["cluster"]
    if weights.personal:
        names += ["weights", "model"]
    elif _grows(own) and not isinstance(distance, AnchorCosine):
        names += ["change", "weights"] if weights.mixture else ["change"]
    if str(own.get("objective", "")).startswith("ratio"):
        names.append("labels")
    told = {} if distance is None else distance.reveals
    if weights.personal:  # the server finds the changes of those who send their models
        told = {row: words for row, words in told.items() if row != "change"}
    return {name: ANY_ROW[name] for name in names} | told


def _rows(member: Any) -> Mapping[str, str]:
    found: Mapping[str, str] = member.reveals
    return found


DEFAULT_WEIGHTS = "em-mixture"
ENTRY = Entry(
    name=OWN_MIX,
    summary="a mix of your own: one member of each tier (see `coterie tiers`)",
    paper="The tiers are those of Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies "
    "and Improved Methodologies, 2025",
    compose=composed,
    refuses=frozenset({"exchange"}),
    options=(
        Option("objective", str, "tier 1, what a cluster models: conditional, ratio, joint", "conditional"),
        Option("weights", str, "tier 2, how clients are given to clusters, such as em-mixture:mu=0.4", DEFAULT_WEIGHTS),
        Option(
            "procedure",
            str,
            "tier 3, when K changes: fixed, or steps in a row such as split-by-gap:rho=0.3 + remove-unclaimed",
            FIXED,
        ),
        Option(
            "distance", str, "tier 4, how far apart clients are: update-cosine, prototypes:principle=cscp", NO_DISTANCE
        ),
        ORDER,
        Option(
            "pull",
            float,
            "strength of the pull to the mixture (weights count-shares, personal-em) or to the model for all "
            "(merge-above)",
            0.1,
            low=0,
        ),
        Option("max_clusters", int, "no more clusters than this", low=1),
    ),
    defaults=_defaults,
    prefers=_prefers,
    twin="fedavg",
    reveals=_reveals,
    newcomers=_newcomers,
)
