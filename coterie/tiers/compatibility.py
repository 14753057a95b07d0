"""Mixes of tiers that make no sense, each refused in a sentence that says what to change.

A check looks at a method and the learner it is to train; it gives the sentence, or None where all is well. `REFUSED`
stops a run, `CAUTIONS` only warn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from coterie.errors import ConfigError
from coterie.learners.base import Learner, has_features
from coterie.tiers.assignment import AssignmentRule, EMMixture, PersonalEM, SingleCluster, SoftmaxLoss
from coterie.tiers.distance import AnchorCosine, FeatureNorm, LabelHistogram, Parameters
from coterie.tiers.method import Method
from coterie.tiers.objective import Joint, Ratio
from coterie.tiers.procedure import MergeAbove, SplitByNorm, SplitBySpectrum, Step

Check = Callable[[Method, Learner], str | None]

LIMITS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "em-mixture": {"mu": (0, 1)},
    "softmax-loss": {"temperature": (1e-12, float("inf"))},
    "count-shares": {"every": (1, float("inf")), "least": (1e-12, 1)},
    "split-by-gap": {"rho": (0, float("inf")), "least": (2, float("inf")), "warmup": (0, float("inf"))},
    "split-by-spectrum": {"alpha0": (1e-12, 1 - 1e-12), "least": (2, float("inf"))},
    "split-by-norm": {"eps1": (0, float("inf")), "eps2": (0, float("inf")), "least": (2, float("inf"))},
}
"""Least and greatest values of settings."""
SATURATED = 0.9
"""Above this mu-tilde the weights of single samples settle within a few rounds, whatever comes later."""


def check_compatibility(method: Method, learner: Learner) -> None:
    """Refuse what makes no sense, warn of what hardly does."""
    for refused in REFUSED:
        sentence = refused(method, learner)
        if sentence is not None:
            raise ConfigError(f"{method.name}: {sentence}")
    for caution in CAUTIONS:
        sentence = caution(method, learner)
        if sentence is not None:
            warnings.warn(f"{method.name}: {sentence}", stacklevel=2)


# ---- refused -------------------------------------------------------------------------------------------------


def setting_out_of_range(method: Method, learner: Learner) -> str | None:
    """Options check theirs; settings inside a text come here."""
    members: tuple[AssignmentRule | Step, ...] = (method.weights, *method.procedure.steps)
    for member in members:
        for name, (low, high) in LIMITS.get(member.name, {}).items():
            value = getattr(member, name)
            if not low <= value <= high:
                limit = f"at least {low:g}" if value < low else f"at most {high:g}"
                return f"{member.name} takes {name} of {limit}, got {value:g}"
    return None


def features_without_a_body(method: Method, learner: Learner) -> str | None:
    """Features of different clusters' models are not comparable."""
    if method.distance is None or method.distance.needs != "features" or shares_body(method, learner):
        return None
    return (
        f"distance {method.distance.name} compares features, which clusters with bodies of their own do not have "
        "in common: set shared=body"
    )


def split_without_distance(method: Method, learner: Learner) -> str | None:
    """A step that parts clients has nothing to part them by."""
    step = next((step for step in method.procedure.steps if step.splits), None)
    if step is None or method.distance is not None:
        return None
    return f"{step.name} parts clients by a distance, but none was chosen: set distance, such as distance=update-cosine"


def merging_without_introduction(method: Method, learner: Learner) -> str | None:
    """Only changes of one frozen model, told once, can be compared between rounds."""
    merges = any(isinstance(step, MergeAbove) for step in method.procedure.steps)
    anchored = isinstance(method.distance, AnchorCosine)
    if merges != anchored:
        return "merge-above and distance anchor-cosine need each other: set both, or neither"
    if merges and not method.weights.assigned:
        return f"merge-above places clients itself, but weights {method.weights.name} do that: set weights=assigned"
    return None


def merging_what_is_split(method: Method, learner: Learner) -> str | None:
    """Both parts of a cluster would be as alike as before."""
    steps = method.procedure.steps
    if any(isinstance(step, MergeAbove) for step in steps) and len(steps) > 1:
        return "merge-above would unite again what another step has parted: make it the only step"
    return None


def distance_nobody_tells(method: Method, learner: Learner) -> str | None:
    """Those who choose a cluster, or are told it, train whole models and never see features."""
    if method.distance is None or not method.adapts or method.weights.trains_heads:
        return None
    if method.distance.needs != "features":
        return None
    return (
        f"distance {method.distance.name} needs features, which clients with weights {method.weights.name} do not tell "
        "in a round: use weights=em-mixture or nearest-parameters, or distance=update-cosine"
    )


def halves_of_a_hard_client(method: Method, learner: Learner) -> str | None:
    """Halved weights need weights."""
    step = next((step for step in method.procedure.steps if step.splits and not getattr(step, "hard", True)), None)
    if step is None or method.weights.keeps_weights:
        return None
    return (
        f"{step.name} with hard=false halves weights, but with weights {method.weights.name} a client has one "
        f"cluster: set {step.name}:hard=true"
    )


def ratio_without_mixtures(method: Method, learner: Learner) -> str | None:
    """Outside mixtures clients do not count what these objectives need."""
    if method.objective.counts and not method.weights.mixture:
        return (
            f"objective {method.objective.name} counts only in mixtures, and weights {method.weights.name} make "
            "none: use weights=em-mixture, or objective=conditional"
        )
    return None


def ratio_of_numbers(method: Method, learner: Learner) -> str | None:
    """There are no classes to count."""
    if isinstance(method.objective, Ratio) and learner.classes is None:
        return "objective ratio counts classes, but the targets are numbers: use objective=conditional"
    return None


def likelihoods_of_numbers(method: Method, learner: Learner) -> str | None:
    """Who has a model of its own keeps no variance of a mixture."""
    if isinstance(method.weights, PersonalEM) and learner.classes is None:
        return (
            "weights personal-em compare likelihoods of classes, but the targets are numbers: use weights=count-shares"
        )
    return None


def one_cluster_that_changes(method: Method, learner: Learner) -> str | None:
    """Nobody could be anywhere else."""
    if isinstance(method.weights, SingleCluster) and method.adapts:
        return (
            "weights single-cluster put everybody into one cluster, so there is nothing to split or remove: use "
            "weights=assigned, or procedure=fixed"
        )
    return None


def gaussians_that_split(method: Method, learner: Learner) -> str | None:
    """A Gaussian paired with every model belongs to no cluster."""
    if isinstance(method.objective, Joint) and method.objective.gaussians is not None and method.adapts:
        return (
            "with gaussians of their own clusters cannot be split or removed: leave gaussians out, so that each "
            "cluster has one"
        )
    return None


def ways_that_cannot_change(method: Method, learner: Learner) -> str | None:
    """What these clients send is not carried over to other clusters."""
    if method.adapts and isinstance(method.weights, SoftmaxLoss):
        return (
            f"the number of clusters cannot change with weights {method.weights.name}: use weights=em-mixture, "
            "lowest-loss or assigned, or procedure=fixed"
        )
    return None


def mixture_averaged_over_members(method: Method, learner: Learner) -> str | None:
    """A client of a mixture is a member of every cluster in part."""
    if method.weights.mixture and method.averaging.over == "members":
        return (
            f"averaging=members has no meaning with weights {method.weights.name}, where everybody is a member of "
            "all clusters in part: use averaging=all or responsibility"
        )
    return None


def whole_models_on_a_body(method: Method, learner: Learner) -> str | None:
    """Models of all clusters that are trained one by one have no heads apart from their bodies."""
    if isinstance(method.weights, SoftmaxLoss) and method.shared:
        return (
            f"with weights {method.weights.name} clients train whole models, which cannot share parts: leave shared out"
        )
    return None


def part_of_a_body(method: Method, learner: Learner) -> str | None:
    """All but those who choose train heads on features, so everything below the heads is common."""
    if method.weights.trains_heads and method.shared and not shares_body(method, learner):
        shared = ",".join(method.shared)
        return (
            f"with weights {method.weights.name} a network's whole body can be shared and no part of it, but "
            f"shared={shared}: use shared=body"
        )
    return None


def several_starts_of_one(method: Method, learner: Learner) -> str | None:
    """A body that heads share has one start, and so has a client with a model of its own."""
    one = method.weights.personal or (method.weights.trains_heads and bool(method.shared))
    if one and method.restarts > 1:
        what = "a shared body" if method.shared else f"weights {method.weights.name}"
        return f"{what} can have one start only, but restarts={method.restarts}: leave it at 1"
    return None


def split_heads_of_hard_clients(method: Method, learner: Learner) -> str | None:
    """Those who choose do not send the changes of heads and body apart."""
    if method.shared and method.tells_changes and not method.weights.trains_heads:
        return (
            f"clusters on a shared body cannot be split with weights {method.weights.name}: leave shared out, or use "
            "weights=em-mixture or nearest-parameters"
        )
    return None


def lengths_for_cosines(method: Method, learner: Learner) -> str | None:
    """Some steps read 1 - distance as a cosine."""
    if not isinstance(method.distance, Parameters | FeatureNorm | LabelHistogram):
        return None
    for step in method.procedure.steps:
        gated = isinstance(step, SplitByNorm) and step.gate is not None
        if gated or isinstance(step, SplitBySpectrum):
            what = f"the gate of {step.name}" if gated else step.name
            return f"{what} looks at cosines, which distance {method.distance.name} has not: use distance=update-cosine"
    return None


def classes_of_numbers(method: Method, learner: Learner) -> str | None:
    """Class by class needs classes."""
    if method.distance is None or learner.classes is not None:
        return None
    if method.distance.needs == "labels" or getattr(method.distance, "per_class", False):
        return (
            f"distance {method.distance.name} compares classes, but the targets are numbers: use distance=update-cosine"
        )
    return None


def several_starts_that_change(method: Method, learner: Learner) -> str | None:
    """Each would have a K of its own."""
    if method.restarts > 1 and method.adapts:
        return (
            f"several starts cannot change their clusters side by side, but restarts={method.restarts}: leave it at 1"
        )
    return None


def robust_without_members(method: Method, learner: Learner) -> str | None:
    """A robust mean is taken over whole models that clients made as members of one cluster."""
    if not method.combines_robustly:
        return None
    combine, weights = f"combine={method.averaging.combine.name}", method.weights
    if not weights.member_of_one:
        return (
            f"{combine} needs clients that are members of one cluster each, but with weights {weights.name} they count "
            "in several: use weights=lowest-loss, nearest-parameters or assigned, or combine=mean"
        )
    if method.shared or method.overall:
        what = "a shared body" if method.shared else "the model for all"
        return f"{combine} is for whole models of clusters, but {what} would still be a mean: use combine=mean"
    if method.adapts:
        return (
            f"{combine} needs a fixed number of clusters, since the parts of a split are means: use procedure=fixed, "
            "or combine=mean"
        )
    if method.averaging.client_weight == "samples":
        return (
            f"{combine} counts every client once, since n_i is only what a client says: use client_weight=uniform, and "
            "averaging=members or all"
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
    several_starts_of_one,
    robust_without_members,
    split_heads_of_hard_clients,
)


# ---- only warned of ------------------------------------------------------------------------------------------


def norms_of_a_few(method: Method, learner: Learner) -> str | None:
    """The mean update of those who were drawn is short or long by chance."""
    if method.participation < 1 and any(isinstance(step, SplitByNorm) for step in method.procedure.steps):
        return (
            "split-by-norm judges a cluster by the mean update of all its clients, but "
            f"participation={method.participation:g} asks only some: it may split by chance"
        )
    return None


def parts_written_into_mixtures(method: Method, learner: Learner) -> str | None:
    """Only of one's own mixes: published methods that do so are what their authors made them."""
    hard = any(step.splits and getattr(step, "hard", False) for step in method.procedure.steps)
    if method.name == OWN_MIX and hard and method.weights.mixture:
        return (
            "hard=true writes a split into the weights of mixtures as zeros and ones, from which samples return "
            "slowly: hard=false halves them"
        )
    return None


def samples_on_their_own(method: Method, learner: Learner) -> str | None:
    """Samples that have nothing in common with their client any more."""
    if isinstance(method.weights, EMMixture) and method.weights.mu > SATURATED:
        return (
            f"with mu={method.weights.mu:g} the weights of single samples hardly hear of their client's and "
            f"saturate: take at most {SATURATED:g}"
        )
    return None


OWN_MIX = "composed"
"""The name of methods that a user has put together."""

CAUTIONS: tuple[Check, ...] = (norms_of_a_few, parts_written_into_mixtures, samples_on_their_own)


def shares_body(method: Method, learner: Learner) -> bool:
    """Whether everything but the head is common to all clusters."""
    if not method.shared or not has_features(learner):
        return False
    prefixes = tuple(prefix.removesuffix(".") + "." for prefix in method.shared)
    own = [name for name in learner.start([0], learner.dtype) if not f"{name}.".startswith(prefixes)]
    return all(name.startswith(f"{learner.head}.") for name in own)
