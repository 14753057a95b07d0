"""Compatibility checks: refuse compositions of tiers that cannot work, and say what to change.

Each check receives a composition and the learner to train; it returns a message, or None if the composition is fine.
Checks in `REFUSED` stop a run; those in `CAUTIONS` only warn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.errors import ConfigError
from coterie.learners.base import Learner, has_features
from coterie.learners.linear import Linear
from coterie.learners.minimum import GeneralisedLinear
from coterie.learners.network import Network
from coterie.tiers.assignment import AssignmentRule, EMMixture, PersonalEM, SingleCluster, SoftmaxLoss
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import AnchorCosine, FeatureNorm, LabelHistogram, Parameters
from coterie.tiers.objective import Joint, Ratio
from coterie.tiers.procedure import ProcedureStep, SplitByNorm, SplitBySpectrum
from coterie.tiers.split_test import OwnBodiesByTest


@dataclass(frozen=True)
class Mix:
    """A composition of tiers and the learner it trains."""

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
    "merge-by-test": {"every": (1, float("inf"))},
    "own-bodies-by-test": {"every": (1, float("inf"))},
    "split-by-spectrum": {"alpha0": (1e-12, 1 - 1e-12), "least": (2, float("inf"))},
    "split-by-norm": {"eps1": (0, float("inf")), "eps2": (0, float("inf")), "least": (2, float("inf"))},
}
"""Smallest and largest allowed values of the members' settings."""
SATURATED = 0.9
"""Above this mu-tilde the weights of single samples saturate within a few rounds and then hardly change."""


def check_compatibility(mix: Mix) -> None:
    """Refuse compositions that cannot work, and warn about those that rarely do.

    Raises:
        ConfigError: if the composition cannot work; the message says what to change.
    """
    for refused in REFUSED:
        sentence = refused(mix)
        if sentence is not None:
            raise ConfigError(f"{mix.name}: {sentence}")
    for caution in CAUTIONS:
        sentence = caution(mix)
        if sentence is not None:
            warnings.warn(f"{mix.name}: {sentence}", stacklevel=2)


# ---- checks that refuse --------------------------------------------------------------------------------------


def setting_out_of_range(mix: Mix) -> str | None:
    """Settings of tier members given as text must be within their limits; options check their own limits."""
    members: tuple[AssignmentRule | ProcedureStep, ...] = (mix.tiers.assignment, *mix.tiers.procedure.steps)
    for member in members:
        for name, (low, high) in LIMITS.get(member.name, {}).items():
            value = getattr(member, name)
            if not low <= value <= high:
                limit = f"at least {low:g}" if value < low else f"at most {high:g}"
                return f"{name} of {member.name} must be {limit}, got {value:g}"
    return None


def features_without_last_layer(mix: Mix) -> str | None:
    """Features are the inputs of the last layer, or the samples of a linear model."""
    if mix.tiers.distance is None or mix.tiers.distance.needs != "features":
        return None
    if has_features(mix.learner) or isinstance(mix.learner, GeneralisedLinear):
        return None
    return (
        f"distance {mix.distance} compares features, the inputs of one fully connected last layer with a bias, which "
        f"the learner {mix.learner.spec} does not have: use logistic, mlp, cnn or a module that ends in nn.Linear"
    )


def split_without_distance(mix: Mix) -> str | None:
    """A step that splits clusters needs a distance."""
    step = next((step for step in mix.tiers.procedure.steps if step.splits), None)
    if step is None or mix.tiers.distance is not None:
        return None
    return f"{step.name} splits clusters by a distance, but none is set: set distance, such as distance=update-cosine"


def merging_without_anchor(mix: Mix) -> str | None:
    """Merging in rounds with different clients needs updates of one frozen model, which each client sends once."""
    step = next((step for step in mix.tiers.procedure.steps if step.onboards), None)
    anchored = isinstance(mix.tiers.distance, AnchorCosine)
    if (step is not None) != anchored:
        name = "merge-above" if step is None else step.name
        return f"{name} and distance anchor-cosine work only together: set both, or neither"
    if step is not None and not mix.tiers.assignment.assigned:
        return f"{step.name} assigns clients itself, but so does assignment {mix.assignment}: set assignment=assigned"
    return None


def merging_after_splitting(mix: Mix) -> str | None:
    """The parts of a split cluster would be merged again at once."""
    steps = mix.tiers.procedure.steps
    step = next((step for step in steps if step.onboards), None)
    if step is not None and len(steps) > 1:
        return f"{step.name} would merge the clusters that another step has split: make it the only step"
    return None


def features_not_sent(mix: Mix) -> str | None:
    """Clients that train whole models do not compute features in a round."""
    if mix.tiers.distance is None or not mix.tiers.adapts or mix.tiers.assignment.trains_heads:
        return None
    if mix.tiers.distance.needs != "features":
        return None
    return (
        f"distance {mix.distance} needs features, which clients with assignment {mix.assignment} do not send "
        "in a round: use assignment=em-mixture or nearest-parameters, or distance=update-cosine"
    )


def soft_split_without_weights(mix: Mix) -> str | None:
    """A soft split halves weights, so clients must have weights."""
    step = next((step for step in mix.tiers.procedure.steps if step.splits and not getattr(step, "hard", True)), None)
    if step is None or mix.tiers.assignment.keeps_weights:
        return None
    return (
        f"{step.name} with hard=false halves the clients' weights, but with assignment {mix.assignment} every client "
        f"has exactly one cluster: set {step.name}:hard=true"
    )


def counts_without_mixture(mix: Mix) -> str | None:
    """Only clients of a mixture send the counts that some objectives need."""
    if mix.tiers.objective.counts and not mix.tiers.assignment.mixture:
        return (
            f"objective {mix.objective} needs counts that only mixtures send, and assignment {mix.assignment} is not a "
            "mixture: use assignment=em-mixture, or objective=conditional"
        )
    return None


def ratio_without_classes(mix: Mix) -> str | None:
    """The objective `ratio` needs classes."""
    if isinstance(mix.tiers.objective, Ratio) and mix.learner.classes is None:
        return "objective ratio counts classes, but this is a regression: use objective=conditional"
    return None


def personal_em_without_classes(mix: Mix) -> str | None:
    """Likelihoods of a regression need a variance, which clients with personal models do not keep."""
    if isinstance(mix.tiers.assignment, PersonalEM) and mix.learner.classes is None:
        return (
            "assignment personal-em compares likelihoods of classes, but this is a regression: use "
            "assignment=count-shares"
        )
    return None


def single_cluster_with_procedure(mix: Mix) -> str | None:
    """With a single cluster there is nothing to change."""
    if isinstance(mix.tiers.assignment, SingleCluster) and mix.tiers.adapts:
        return (
            "assignment single-cluster has only one cluster, so there is nothing to split or remove: use "
            "assignment=assigned, or no procedure"
        )
    return None


def paired_gaussians_with_procedure(mix: Mix) -> str | None:
    """If every Gaussian is paired with every model, no Gaussian belongs to a cluster."""
    if isinstance(mix.tiers.objective, Joint) and mix.tiers.objective.gaussians is not None and mix.tiers.adapts:
        return (
            "clusters cannot be split or removed if gaussians is set, because Gaussians then belong to no cluster: "
            "leave gaussians out, so that each cluster has one"
        )
    return None


def softmax_loss_with_procedure(mix: Mix) -> str | None:
    """The weights of `softmax-loss` cannot be carried over to other clusters."""
    if mix.tiers.adapts and isinstance(mix.tiers.assignment, SoftmaxLoss):
        return (
            f"the number of clusters cannot change with assignment {mix.assignment}: use assignment=em-mixture, "
            "lowest-loss or assigned, or no procedure"
        )
    return None


def mixture_averaged_over_members(mix: Mix) -> str | None:
    """In a mixture no client is a member of a single cluster."""
    if mix.tiers.assignment.mixture and mix.tiers.averaging.over == "members":
        return (
            f"averaging=members has no meaning with assignment {mix.assignment}, where every client belongs to all "
            "clusters in part: use averaging=all or responsibility"
        )
    return None


def softmax_loss_with_shared_parameters(mix: Mix) -> str | None:
    """With `softmax-loss` every model is trained as a whole, not as a head on a body."""
    if isinstance(mix.tiers.assignment, SoftmaxLoss) and mix.tiers.shared:
        return (
            f"clients with assignment {mix.assignment} train whole models, which cannot share parts: leave shared out"
        )
    return None


def partly_shared_body(mix: Mix) -> str | None:
    """Assignments that train heads on features need everything below the head to be shared."""
    if mix.tiers.assignment.trains_heads and mix.tiers.shared and not shares_body(mix):
        shared = ",".join(mix.tiers.shared)
        return (
            f"assignment {mix.assignment} trains heads on the features of a network's whole body, but shared={shared} "
            "is only a part of it: use shared=body"
        )
    return None


def own_bodies_without_shared_body(mix: Mix) -> str | None:
    """Separate bodies need a shared body to start from and clients without personal heads."""
    if not any(isinstance(step, OwnBodiesByTest) for step in mix.tiers.procedure.steps):
        return None
    if not mix.tiers.shared:
        return (
            "own-bodies-by-test separates a shared body, but nothing is shared: set shared=body, or leave the step out"
        )
    if mix.tiers.assignment.personal:
        return (
            f"own-bodies-by-test turns heads into whole models, but with assignment {mix.assignment} clients keep "
            "personal heads: use assignment=em-mixture or nearest-parameters"
        )
    return None


def restarts_of_one_model(mix: Mix) -> str | None:
    """A shared body under several heads has one initialisation, and so has a personal model."""
    one = mix.tiers.assignment.personal or (mix.tiers.assignment.trains_heads and bool(mix.tiers.shared))
    if one and mix.tiers.restarts > 1:
        what = "a shared body" if mix.tiers.shared else f"assignment {mix.assignment}"
        return f"{what} supports one initialisation only, but restarts={mix.tiers.restarts}: leave it at 1"
    return None


def separate_changes_of_shared_body(mix: Mix) -> str | None:
    """Only assignments that train heads send the updates of head and body separately."""
    if mix.tiers.shared and mix.tiers.sends_each_change and not mix.tiers.assignment.trains_heads:
        return (
            f"clusters on a shared body cannot be split with assignment {mix.assignment}: leave shared out, or use "
            "assignment=em-mixture or nearest-parameters"
        )
    return None


def cosine_step_without_cosines(mix: Mix) -> str | None:
    """Some steps interpret 1 - distance as a cosine."""
    if not isinstance(mix.tiers.distance, Parameters | FeatureNorm | LabelHistogram):
        return None
    for step in mix.tiers.procedure.steps:
        gated = isinstance(step, SplitByNorm) and step.gate is not None
        if gated or isinstance(step, SplitBySpectrum):
            what = f"the gate of {step.name}" if gated else step.name
            return f"{what} needs cosines, but distance {mix.distance} is not one: use distance=update-cosine"
    return None


def class_distance_without_classes(mix: Mix) -> str | None:
    """Distances that compare class by class need classes."""
    if mix.tiers.distance is None or mix.learner.classes is not None:
        return None
    if mix.tiers.distance.needs == "labels" or getattr(mix.tiers.distance, "per_class", False):
        return f"distance {mix.distance} compares classes, but this is a regression: use distance=update-cosine"
    return None


def restarts_with_procedure(mix: Mix) -> str | None:
    """Restarts must keep the same number of clusters."""
    if mix.tiers.restarts > 1 and mix.tiers.adapts:
        return f"with restarts={mix.tiers.restarts} the number of clusters cannot change: leave restarts at 1"
    return None


def robust_mean_without_members(mix: Mix) -> str | None:
    """A robust mean combines the whole models of clients that are members of one cluster each."""
    if not mix.tiers.averaging.robust:
        return None
    combine, weights = f"combine={mix.tiers.averaging.combine.name}", mix.tiers.assignment
    if not weights.member_of_one:
        return (
            f"{combine} needs clients that are members of one cluster each, but with assignment {weights.name} they "
            "contribute to several: use assignment=lowest-loss, nearest-parameters or assigned, or combine=mean"
        )
    if mix.tiers.shared or mix.tiers.overall:
        what = "a shared body" if mix.tiers.shared else "the overall model"
        return (
            f"{combine} applies to whole models of clusters, but {what} would still be a plain mean: use combine=mean"
        )
    if mix.tiers.adapts:
        return (
            f"{combine} needs a fixed number of clusters, because splits use plain means: use no procedure, or "
            "combine=mean"
        )
    if mix.tiers.averaging.client_weight == "samples":
        return (
            f"{combine} gives every client the same weight, because a client could report a false number of samples: "
            "use client_weight=uniform, and averaging=members or all"
        )
    return None


def start_embedding_without_head(mix: Mix) -> str | None:
    """The embedding `start` is the input of the head, so the learner must have one."""
    objective = mix.tiers.objective
    if isinstance(objective, Joint) and objective.embedding == "start" and not has_features(mix.learner):
        return (
            "embedding=start needs a network that ends in one layer, such as mlp or cnn, but the learner is "
            f"{mix.learner.spec}: use embedding=inputs or random"
        )
    return None


def refit_of_nonlinear_model(mix: Mix) -> str | None:
    """Only linear models have a least-squares solution from X^T X and X^T y."""
    if not mix.tiers.refit or isinstance(mix.learner, Linear):
        return None
    return f"refit solves least squares, but the learner is {mix.learner.spec}: use linear, or leave refit out"


def refit_with_shared_parameters(mix: Mix) -> str | None:
    """The least-squares solutions of the clusters would differ in the parameters that they share."""
    if not mix.tiers.refit or not mix.tiers.shared:
        return None
    common = ", ".join(mix.tiers.shared)
    return f"refit solves for whole models, but all clusters share {common}: leave refit or shared out"


def refit_with_privacy_or_robust_mean(mix: Mix) -> str | None:
    """The sums of the final exchange carry no noise and no protection against attackers."""
    if not mix.tiers.refit or not (mix.tiers.privacy or mix.tiers.averaging.robust):
        return None
    what = "combine is robust" if mix.tiers.averaging.robust else "privacy protects single clients"
    return f"refit needs plain sums over the clients' samples, but {what}: leave refit out"


REFUSED: tuple[Check, ...] = (
    setting_out_of_range,
    single_cluster_with_procedure,
    softmax_loss_with_procedure,
    paired_gaussians_with_procedure,
    restarts_with_procedure,
    merging_after_splitting,
    split_without_distance,
    merging_without_anchor,
    cosine_step_without_cosines,
    class_distance_without_classes,
    features_not_sent,
    features_without_last_layer,
    soft_split_without_weights,
    counts_without_mixture,
    ratio_without_classes,
    personal_em_without_classes,
    mixture_averaged_over_members,
    softmax_loss_with_shared_parameters,
    partly_shared_body,
    own_bodies_without_shared_body,
    restarts_of_one_model,
    robust_mean_without_members,
    separate_changes_of_shared_body,
    start_embedding_without_head,
    refit_of_nonlinear_model,
    refit_with_shared_parameters,
    refit_with_privacy_or_robust_mean,
)


# ---- checks that only warn -----------------------------------------------------------------------------------


def norms_under_partial_participation(mix: Mix) -> str | None:
    """With partial participation the norm of the mean update depends on the clients that are drawn."""
    if mix.participation < 1 and any(isinstance(step, SplitByNorm) for step in mix.tiers.procedure.steps):
        return (
            "split-by-norm judges a cluster by the mean update of all its clients, but with "
            f"participation={mix.participation:g} only some are asked: it may split by chance"
        )
    return None


def hard_split_of_mixtures(mix: Mix) -> str | None:
    """Warn about hard splits of mixtures in custom compositions; published methods keep their authors' choice."""
    hard = any(step.splits and getattr(step, "hard", False) for step in mix.tiers.procedure.steps)
    if mix.name == CUSTOM_METHOD and hard and mix.tiers.assignment.mixture:
        return (
            "hard=true writes a split into the clients' mixture weights as zeros and ones, from which samples recover "
            "only slowly: hard=false halves the weights instead"
        )
    return None


def saturated_sample_weights(mix: Mix) -> str | None:
    """With a large mu the weights of samples no longer depend on their client's weights."""
    if isinstance(mix.tiers.assignment, EMMixture) and mix.tiers.assignment.mu > SATURATED:
        return (
            f"with mu={mix.tiers.assignment.mu:g} the weights of single samples hardly depend on their client's "
            f"weights and saturate: use at most {SATURATED:g}"
        )
    return None


CUSTOM_METHOD = "tiered"
"""Name of the method that users compose from tiers themselves."""

CAUTIONS: tuple[Check, ...] = (norms_under_partial_participation, hard_split_of_mixtures, saturated_sample_weights)


def shares_body(mix: Mix) -> bool:
    """Return whether all clusters share everything but the head."""
    if not mix.tiers.shared or not has_features(mix.learner):
        return False
    prefixes = tuple(prefix.removesuffix(".") + "." for prefix in mix.tiers.shared)
    own = [name for name in mix.learner.start([0], mix.learner.dtype) if not f"{name}.".startswith(prefixes)]
    return all(name.startswith(f"{mix.learner.head}.") for name in own)


def check_shared_body(tiers: Tiers, learner: Learner) -> None:
    """Check that the learner can train heads on a shared body.

    Raises:
        ConfigError: if the learner has no head, or a penalty that the training of heads does not support.
    """
    if not has_features(learner):
        raise ConfigError(
            "shared=body needs a network whose outputs come from one fully connected layer with a bias and whose "
            "parameters are all trained, such as mlp, cnn or a module that ends in nn.Linear, but the learner is "
            f"{learner.spec}"
        )
    if tiers.assignment.trains_heads and isinstance(learner, Network) and learner.l2 > 0:
        raise ConfigError(
            f"heads on a shared body do not support an L2 penalty, but the learner is {learner.spec}: leave l2 at 0"
        )
