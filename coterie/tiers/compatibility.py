"""Compatibility checks: compositions of tiers that cannot work, each refused in a sentence that says what to change.

A check looks at a composition and the learner it is to train; it returns the sentence, or None where all is well.
`REFUSED` stops a run, `CAUTIONS` only warn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.errors import ConfigError
from coterie.learners.base import Learner, has_features
from coterie.learners.network import Network
from coterie.tiers.assignment import AssignmentRule, EMMixture, PersonalEM, SingleCluster, SoftmaxLoss
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import AnchorCosine, FeatureNorm, LabelHistogram, Parameters
from coterie.tiers.objective import Joint, Ratio
from coterie.tiers.procedure import ProcedureStep, SplitByNorm, SplitBySpectrum
from coterie.tiers.split_test import OwnBodiesByTest


@dataclass(frozen=True)
class Mix:
    """A composition, and what it is to train."""

    name: str
    """Name of the method."""
    tiers: Tiers
    learner: Learner
    participation: float = 1.0

    @property
    def objective(self) -> str:
        return self.tiers.objective.name

    @property
    def assignment(self) -> str:
        return self.tiers.assignment.name

    @property
    def distance(self) -> str:
        return "none" if self.tiers.distance is None else self.tiers.distance.name


Check = Callable[[Mix], str | None]

LIMITS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "em-mixture": {"mu": (0, 1)},
    "softmax-loss": {"temperature": (1e-12, float("inf"))},
    "count-shares": {"every": (1, float("inf")), "least": (1e-12, 1)},
    "split-by-gap": {"rho": (0, float("inf")), "least": (2, float("inf")), "warmup": (0, float("inf"))},
    "merge-by-test": {"least_p": (0, 1), "every": (1, float("inf"))},
    "own-bodies-by-test": {"every": (1, float("inf"))},
    "split-by-spectrum": {"alpha0": (1e-12, 1 - 1e-12), "least": (2, float("inf"))},
    "split-by-norm": {"eps1": (0, float("inf")), "eps2": (0, float("inf")), "least": (2, float("inf"))},
}
"""Least and greatest values of settings."""
SATURATED = 0.9
"""Above this mu-tilde the weights of single samples settle within a few rounds, whatever comes later."""


def check_compatibility(mix: Mix) -> None:
    """Refuse compositions that cannot work, and warn of those that hardly can.

    Raises:
        ConfigError: with a sentence that says what to change.
    """
    for refused in REFUSED:
        sentence = refused(mix)
        if sentence is not None:
            raise ConfigError(f"{mix.name}: {sentence}")
    for caution in CAUTIONS:
        sentence = caution(mix)
        if sentence is not None:
            warnings.warn(f"{mix.name}: {sentence}", stacklevel=2)


# ---- refused -------------------------------------------------------------------------------------------------


def setting_out_of_range(mix: Mix) -> str | None:
    """Options check theirs; settings inside a text come here."""
    members: tuple[AssignmentRule | ProcedureStep, ...] = (mix.tiers.assignment, *mix.tiers.procedure.steps)
    for member in members:
        for name, (low, high) in LIMITS.get(member.name, {}).items():
            value = getattr(member, name)
            if not low <= value <= high:
                limit = f"at least {low:g}" if value < low else f"at most {high:g}"
                return f"{member.name} takes {name} of {limit}, got {value:g}"
    return None


def features_without_a_body(mix: Mix) -> str | None:
    """Features of different clusters' models are not comparable."""
    if mix.tiers.distance is None or mix.tiers.distance.needs != "features" or shares_body(mix):
        return None
    return (
        f"distance {mix.distance} compares features, which clusters with bodies of their own do not have "
        "in common: set shared=body"
    )


def split_without_distance(mix: Mix) -> str | None:
    """A step that parts clients has nothing to part them by."""
    step = next((step for step in mix.tiers.procedure.steps if step.splits), None)
    if step is None or mix.tiers.distance is not None:
        return None
    return f"{step.name} parts clients by a distance, but none was chosen: set distance, such as distance=update-cosine"


def merging_without_introduction(mix: Mix) -> str | None:
    """Only changes of one frozen model, told once, can be compared between rounds."""
    step = next((step for step in mix.tiers.procedure.steps if step.onboards), None)
    anchored = isinstance(mix.tiers.distance, AnchorCosine)
    if (step is not None) != anchored:
        name = "merge-above" if step is None else step.name
        return f"{name} and distance anchor-cosine need each other: set both, or neither"
    if step is not None and not mix.tiers.assignment.assigned:
        return f"{step.name} places clients itself, but assignment {mix.assignment} does that: set assignment=assigned"
    return None


def merging_what_is_split(mix: Mix) -> str | None:
    """Both parts of a cluster would be as alike as before."""
    steps = mix.tiers.procedure.steps
    step = next((step for step in steps if step.onboards), None)
    if step is not None and len(steps) > 1:
        return f"{step.name} would unite again what another step has parted: make it the only step"
    return None


def distance_nobody_tells(mix: Mix) -> str | None:
    """Those who choose a cluster, or are told it, train whole models and never see features."""
    if mix.tiers.distance is None or not mix.tiers.adapts or mix.tiers.assignment.trains_heads:
        return None
    if mix.tiers.distance.needs != "features":
        return None
    return (
        f"distance {mix.distance} needs features, which clients with assignment {mix.assignment} do not send "
        "in a round: use assignment=em-mixture or nearest-parameters, or distance=update-cosine"
    )


def halves_of_a_hard_client(mix: Mix) -> str | None:
    """Halved weights need weights."""
    step = next((step for step in mix.tiers.procedure.steps if step.splits and not getattr(step, "hard", True)), None)
    if step is None or mix.tiers.assignment.keeps_weights:
        return None
    return (
        f"{step.name} with hard=false halves weights, but with assignment {mix.assignment} a client has one "
        f"cluster: set {step.name}:hard=true"
    )


def ratio_without_mixtures(mix: Mix) -> str | None:
    """Outside mixtures clients do not count what these objectives need."""
    if mix.tiers.objective.counts and not mix.tiers.assignment.mixture:
        return (
            f"objective {mix.objective} counts only in mixtures, and assignment {mix.assignment} makes "
            "none: use assignment=em-mixture, or objective=conditional"
        )
    return None


def ratio_of_numbers(mix: Mix) -> str | None:
    """There are no classes to count."""
    if isinstance(mix.tiers.objective, Ratio) and mix.learner.classes is None:
        return "objective ratio counts classes, but the targets are numbers: use objective=conditional"
    return None


def likelihoods_of_numbers(mix: Mix) -> str | None:
    """Who has a model of its own keeps no variance of a mixture."""
    if isinstance(mix.tiers.assignment, PersonalEM) and mix.learner.classes is None:
        return (
            "assignment personal-em compares likelihoods of classes, but the targets are numbers: use "
            "assignment=count-shares"
        )
    return None


def one_cluster_that_changes(mix: Mix) -> str | None:
    """Nobody could be anywhere else."""
    if isinstance(mix.tiers.assignment, SingleCluster) and mix.tiers.adapts:
        return (
            "assignment single-cluster puts everybody into one cluster, so there is nothing to split or remove: use "
            "assignment=assigned, or no procedure"
        )
    return None


def gaussians_that_split(mix: Mix) -> str | None:
    """A Gaussian paired with every model belongs to no cluster."""
    if isinstance(mix.tiers.objective, Joint) and mix.tiers.objective.gaussians is not None and mix.tiers.adapts:
        return (
            "with gaussians of their own clusters cannot be split or removed: leave gaussians out, so that each "
            "cluster has one"
        )
    return None


def ways_that_cannot_change(mix: Mix) -> str | None:
    """What these clients send is not carried over to other clusters."""
    if mix.tiers.adapts and isinstance(mix.tiers.assignment, SoftmaxLoss):
        return (
            f"the number of clusters cannot change with assignment {mix.assignment}: use assignment=em-mixture, "
            "lowest-loss or assigned, or no procedure"
        )
    return None


def mixture_averaged_over_members(mix: Mix) -> str | None:
    """A client of a mixture is a member of every cluster in part."""
    if mix.tiers.assignment.mixture and mix.tiers.averaging.over == "members":
        return (
            f"averaging=members has no meaning with assignment {mix.assignment}, where everybody is a member of "
            "all clusters in part: use averaging=all or responsibility"
        )
    return None


def whole_models_on_a_body(mix: Mix) -> str | None:
    """Models of all clusters that are trained one by one have no heads apart from their bodies."""
    if isinstance(mix.tiers.assignment, SoftmaxLoss) and mix.tiers.shared:
        return (
            f"with assignment {mix.assignment} clients train whole models, which cannot share parts: leave shared out"
        )
    return None


def part_of_a_body(mix: Mix) -> str | None:
    """All but those who choose train heads on features, so everything below the heads is common."""
    if mix.tiers.assignment.trains_heads and mix.tiers.shared and not shares_body(mix):
        shared = ",".join(mix.tiers.shared)
        return (
            f"with assignment {mix.assignment} a network's whole body can be shared and no part of it, but "
            f"shared={shared}: use shared=body"
        )
    return None


def bodies_that_cannot_part(mix: Mix) -> str | None:
    """Only a shared body can become several, and a client's own head would not fit a whole model."""
    if not any(isinstance(step, OwnBodiesByTest) for step in mix.tiers.procedure.steps):
        return None
    if not mix.tiers.shared:
        return (
            "own-bodies-by-test parts a shared body, but clusters have whole models: set shared=body, or leave it out"
        )
    if mix.tiers.assignment.personal:
        return (
            f"own-bodies-by-test makes whole models of heads, but with assignment {mix.assignment} clients keep heads "
            "of their own: use assignment=em-mixture or nearest-parameters"
        )
    return None


def several_starts_of_one(mix: Mix) -> str | None:
    """A body that heads share has one start, and so has a client with a model of its own."""
    one = mix.tiers.assignment.personal or (mix.tiers.assignment.trains_heads and bool(mix.tiers.shared))
    if one and mix.tiers.restarts > 1:
        what = "a shared body" if mix.tiers.shared else f"assignment {mix.assignment}"
        return f"{what} can have one start only, but restarts={mix.tiers.restarts}: leave it at 1"
    return None


def split_heads_of_hard_clients(mix: Mix) -> str | None:
    """Those who choose do not send the changes of heads and body apart."""
    if mix.tiers.shared and mix.tiers.sends_each_change and not mix.tiers.assignment.trains_heads:
        return (
            f"clusters on a shared body cannot be split with assignment {mix.assignment}: leave shared out, or use "
            "assignment=em-mixture or nearest-parameters"
        )
    return None


def lengths_for_cosines(mix: Mix) -> str | None:
    """Some steps read 1 - distance as a cosine."""
    if not isinstance(mix.tiers.distance, Parameters | FeatureNorm | LabelHistogram):
        return None
    for step in mix.tiers.procedure.steps:
        gated = isinstance(step, SplitByNorm) and step.gate is not None
        if gated or isinstance(step, SplitBySpectrum):
            what = f"the gate of {step.name}" if gated else step.name
            return f"{what} looks at cosines, which distance {mix.distance} has not: use distance=update-cosine"
    return None


def classes_of_numbers(mix: Mix) -> str | None:
    """Class by class needs classes."""
    if mix.tiers.distance is None or mix.learner.classes is not None:
        return None
    if mix.tiers.distance.needs == "labels" or getattr(mix.tiers.distance, "per_class", False):
        return f"distance {mix.distance} compares classes, but the targets are numbers: use distance=update-cosine"
    return None


def several_starts_that_change(mix: Mix) -> str | None:
    """Each would have a K of its own."""
    if mix.tiers.restarts > 1 and mix.tiers.adapts:
        return f"restarts cannot change their clusters side by side, but restarts={mix.tiers.restarts}: leave it at 1"
    return None


def robust_without_members(mix: Mix) -> str | None:
    """A robust mean is taken over whole models that clients made as members of one cluster."""
    if not mix.tiers.averaging.robust:
        return None
    combine, weights = f"combine={mix.tiers.averaging.combine.name}", mix.tiers.assignment
    if not weights.member_of_one:
        return (
            f"{combine} needs clients that are members of one cluster each, but with assignment {weights.name} they "
            "count in several: use assignment=lowest-loss, nearest-parameters or assigned, or combine=mean"
        )
    if mix.tiers.shared or mix.tiers.overall:
        what = "a shared body" if mix.tiers.shared else "the model for all"
        return f"{combine} is for whole models of clusters, but {what} would still be a mean: use combine=mean"
    if mix.tiers.adapts:
        return (
            f"{combine} needs a fixed number of clusters, since the parts of a split are means: use no procedure, "
            "or combine=mean"
        )
    if mix.tiers.averaging.client_weight == "samples":
        return (
            f"{combine} counts every client once, since n_i is only what a client says: use client_weight=uniform, and "
            "averaging=members or all"
        )
    return None


def embedding_without_a_network(mix: Mix) -> str | None:
    """The embedding `start` is the input of a head."""
    objective = mix.tiers.objective
    if isinstance(objective, Joint) and objective.embedding == "start" and not has_features(mix.learner):
        return (
            "embedding=start needs a network that ends in one layer, such as mlp or cnn, but the learner is "
            f"{mix.learner.spec}: use embedding=inputs or random"
        )
    return None


REFUSED: tuple[Check, ...] = (
    setting_out_of_range,
    one_cluster_that_changes,
    ways_that_cannot_change,
    gaussians_that_split,
    several_starts_that_change,
    merging_what_is_split,
    split_without_distance,
    merging_without_introduction,
    lengths_for_cosines,
    classes_of_numbers,
    distance_nobody_tells,
    features_without_a_body,
    halves_of_a_hard_client,
    ratio_without_mixtures,
    ratio_of_numbers,
    likelihoods_of_numbers,
    mixture_averaged_over_members,
    whole_models_on_a_body,
    part_of_a_body,
    bodies_that_cannot_part,
    several_starts_of_one,
    robust_without_members,
    split_heads_of_hard_clients,
    embedding_without_a_network,
)


# ---- only warned of ------------------------------------------------------------------------------------------


def norms_of_a_few(mix: Mix) -> str | None:
    """The mean update of those who were drawn is short or long by chance."""
    if mix.participation < 1 and any(isinstance(step, SplitByNorm) for step in mix.tiers.procedure.steps):
        return (
            "split-by-norm judges a cluster by the mean update of all its clients, but "
            f"participation={mix.participation:g} asks only some: it may split by chance"
        )
    return None


def parts_written_into_mixtures(mix: Mix) -> str | None:
    """Only of one's own mixes: published methods that do so are what their authors made them."""
    hard = any(step.splits and getattr(step, "hard", False) for step in mix.tiers.procedure.steps)
    if mix.name == OWN_MIX and hard and mix.tiers.assignment.mixture:
        return (
            "hard=true writes a split into the weights of mixtures as zeros and ones, from which samples return "
            "slowly: hard=false halves them"
        )
    return None


def samples_on_their_own(mix: Mix) -> str | None:
    """Samples that have nothing in common with their client any more."""
    if isinstance(mix.tiers.assignment, EMMixture) and mix.tiers.assignment.mu > SATURATED:
        return (
            f"with mu={mix.tiers.assignment.mu:g} the weights of single samples hardly hear of their client's and "
            f"saturate: take at most {SATURATED:g}"
        )
    return None


OWN_MIX = "tiered"
"""The name of methods that a user has put together."""

CAUTIONS: tuple[Check, ...] = (norms_of_a_few, parts_written_into_mixtures, samples_on_their_own)


def shares_body(mix: Mix) -> bool:
    """Whether everything but the head is common to all clusters."""
    if not mix.tiers.shared or not has_features(mix.learner):
        return False
    prefixes = tuple(prefix.removesuffix(".") + "." for prefix in mix.tiers.shared)
    own = [name for name in mix.learner.start([0], mix.learner.dtype) if not f"{name}.".startswith(prefixes)]
    return all(name.startswith(f"{mix.learner.head}.") for name in own)


def check_shared_body(tiers: Tiers, learner: Learner) -> None:
    """Refuse `shared=body` where the learner has no head, or a penalty that heads do not know.

    Raises:
        ConfigError: with a sentence that says what to change.
    """
    if not has_features(learner):
        raise ConfigError(
            "a shared body needs a network whose outputs come from one fully connected layer with a bias, all of it "
            f"trained, such as mlp or cnn or a module that ends in nn.Linear, but the learner is {learner.spec}"
        )
    if tiers.assignment.trains_heads and isinstance(learner, Network) and learner.l2 > 0:
        raise ConfigError(
            f"heads on a shared body are trained without a penalty, but the learner is {learner.spec}: leave l2 at 0"
        )
