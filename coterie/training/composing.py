"""A method of one's own as a value: a member of each tier, and the options of a run.

    from coterie.training.composing import prototypes, ratio, remove, sample_wise, split

    mine = coterie.compose(
        objective=ratio(), weights=sample_wise(mu=0.4), procedure=split(rho=0.3) + remove(), distance=prototypes("cscp")
    )
    coterie.fit(data, mine, learner="mlp", shared="body")

Every choice may also be a text, as the method `composed` takes it: "em-mixture:mu=0.4".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coterie.errors import ConfigError
from coterie.tiers.assignment import (
    Assigned,
    AssignmentRule,
    CountShares,
    EMMixture,
    LowestLoss,
    NearestParameters,
    PersonalEM,
    SoftmaxLoss,
)
from coterie.tiers.compatibility import OWN_MIX
from coterie.tiers.distance import (
    AnchorCosine,
    Distance,
    FeatureNorm,
    LabelHistogram,
    Parameters,
    Prototypes,
    UpdateCosine,
)
from coterie.tiers.members import FIXED, TIERS, Member, Tier, read_member, read_steps, text_of
from coterie.tiers.objective import Conditional, Joint, Objective, Ratio
from coterie.tiers.procedure import MergeAbove, RemoveUnclaimed, SplitByGap, SplitByNorm, SplitBySpectrum, Step

COMPOSED = OWN_MIX
"""The registered method that a composition is."""


@dataclass(frozen=True)
class Composition:
    """What `fit` takes as its method; `options` are those of the method `composed`, ready for TOML or `compare`."""

    options: Mapping[str, Any]


@dataclass(frozen=True)
class Steps:
    """Steps that may change the number of clusters, considered in this order; `+` adds more of them."""

    steps: tuple[Step, ...]

    def __add__(self, other: Steps | Step) -> Steps:
        return Steps(self.steps + (other.steps if isinstance(other, Steps) else (other,)))


def compose(
    *,
    objective: Objective | str | None = None,
    weights: AssignmentRule | str | None = None,
    procedure: Steps | Step | str | None = None,
    distance: Distance | str | None = None,
    **options: Any,
) -> Composition:
    """A method of one's own, of one member of each tier; without one p(y|x), mixtures by EM, a fixed K, no distance.

    options: any of the method `composed` and of runs, such as clusters, shared="body", averaging.
    """
    chosen = {
        "objective": _text("objective", objective),
        "weights": _text("weights", weights),
        "procedure": _procedure(procedure),
        "distance": _text("distance", distance),
    }
    return Composition({name: text for name, text in chosen.items() if text is not None} | options)


def _text(tier: Tier, choice: Member | str | None) -> str | None:
    """The choice as text, once it is sure that the text means it."""
    if choice is None:
        return None
    text = choice if isinstance(choice, str) else _named(tier, choice)
    read_member(tier, text)
    return text


def _procedure(choice: Steps | Step | str | None) -> str | None:
    if choice is None:
        return None
    if not isinstance(choice, str):
        steps = choice.steps if isinstance(choice, Steps) else (choice,)
        choice = " + ".join(_named("procedure", step) for step in steps) or FIXED
    read_steps(choice)
    return choice


def _named(tier: Tier, member: Member) -> str:
    known = TIERS[tier].members.get(getattr(member, "name", ""))
    if known is not type(member):
        raise ConfigError(
            f"{tier} must be a member of that tier, got {member!r}: take one from coterie.training.composing, or put "
            f'@coterie.tiers.register("{tier}") on a class of your own'
        )
    return text_of(member)


# ---- tier 1 --------------------------------------------------------------------------------------------------


def conditional() -> Objective:
    """A cluster is as good as its predictions, p(y|x)."""
    return Conditional()


def ratio() -> Objective:
    """p(y|x) / P(y): a cluster rich in a class is no better at it for that alone. (FedRC)"""
    return Ratio()


def joint(embedding: str = "auto", gaussians: int | None = None) -> Objective:
    """A cluster also models what its samples look like. (FedGMM)"""
    return Joint(embedding, gaussians)


# ---- tier 2 --------------------------------------------------------------------------------------------------


def soft() -> AssignmentRule:
    """Every client is its own mixture of the clusters' models, by EM. (FedEM)"""
    return EMMixture()


def sample_wise(mu: float = 0.4) -> AssignmentRule:
    """The same, with weights of each sample's own as far as `mu` says. (HCFL+)"""
    return EMMixture(mu)


def soft_by_loss(temperature: float) -> AssignmentRule:
    """A client trains every model, weighted by exp(-mean loss / temperature)."""
    return SoftmaxLoss(temperature)


def hard_by_loss() -> AssignmentRule:
    """A client joins the cluster whose model fits it best. (IFCA)"""
    return LowestLoss()


def nearest() -> AssignmentRule:
    """A client joins the cluster whose parameters are nearest to its own model's. (FeSEM)"""
    return NearestParameters()


def counts(every: int = 1, least: float = 1e-4) -> AssignmentRule:
    """A client has a model of its own, near its mixture by counts of samples. (FedSoft)"""
    return CountShares(every, least)


def personal() -> AssignmentRule:
    """A client has a model of its own, near its mixture by EM. (HCFL+ with FedSoft)"""
    return PersonalEM()


def assigned() -> AssignmentRule:
    """The server says which cluster a client is in. (CFL)"""
    return Assigned()


# ---- tier 3 --------------------------------------------------------------------------------------------------


def split(rho: float = 0.3, *, hard: bool = False, warmup: int = 0, max_clusters: int | None = None) -> Steps:
    """Split the cluster with the largest distance inside, if that is `rho` above the mean there. (HCFL+)"""
    return Steps((SplitByGap(rho, hard, warmup, max_clusters),))


def split_by_norm(
    eps1: float = 0.4,
    eps2: float = 1.6,
    *,
    relative: bool = False,
    warmup: int = 20,
    gate: float | None = None,
    max_clusters: int | None = None,
    hard: bool = True,
) -> Steps:
    """Split a cluster whose mean update has become small while some member's has not. (CFL)"""
    return Steps((SplitByNorm(eps1, eps2, relative, warmup, gate=gate, max_clusters=max_clusters, hard=hard),))


def split_by_spectrum(alpha0: float, *, warmup: int = 0, max_clusters: int | None = None, hard: bool = True) -> Steps:
    """Split a cluster whose updates do not point one way, by the leading eigenvectors of their cosines. (ICFL)"""
    return Steps((SplitBySpectrum(alpha0, warmup=warmup, max_clusters=max_clusters, hard=hard),))


def merge(tau: float) -> Steps:
    """Begin with a cluster for each client and unite those that introduce themselves alike. (StoCFL)"""
    return Steps((MergeAbove(tau),))


def remove() -> Steps:
    """Remove clusters that nobody ranks first. (HCFL+)"""
    return Steps((RemoveUnclaimed(),))


# ---- tier 4 --------------------------------------------------------------------------------------------------


def update_cosine() -> Distance:
    """1 - cos of what two clients changed. (CFL)"""
    return UpdateCosine()


def parameters() -> Distance:
    """How far apart two clients' models are after training. (FeSEM's, between clients)"""
    return Parameters()


def feature_norm(*, weighted: bool = True) -> Distance:
    """By how much the lengths of two clients' mean features differ; needs shared="body"."""
    return FeatureNorm(weighted)


def label_histogram(*, weighted: bool = True) -> Distance:
    """Total variation of two clients' shares of the classes."""
    return LabelHistogram(weighted)


def anchor_cosine() -> Distance:
    """1 - cos of what one epoch of two clients makes of the same frozen model; for `merge`. (StoCFL)"""
    return AnchorCosine()


def prototypes(
    principle: Literal["cscp", "ascp"] = "cscp", *, reduce: Literal["max", "mean"] = "max", weighted: bool = True
) -> Distance:
    """1 - cos of the mean features of a class, over classes that both clients have; needs shared="body". (HCFL+)"""
    return Prototypes(principle, reduce, weighted)
