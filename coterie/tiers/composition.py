"""The composition of a tiered method: one member of each tier, and the settings that every method has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from coterie.client.tasks.local_round import LocalRound
from coterie.client.tasks.onboarding import Onboarding
from coterie.client.tasks.onboarding_halves import OnboardingHalves
from coterie.errors import ConfigError
from coterie.learners.local_training import FullBatch, LocalTraining
from coterie.privacy.mechanism import Privacy
from coterie.server.averaging import Averaging
from coterie.server.optimizers import ServerOptimizer, ServerSGD
from coterie.tiers.assignment import AssignmentRule
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Conditional, Objective
from coterie.tiers.procedure import Procedure

Exchange = Literal["model", "gradient"]
HALF_STEPS = 50
"""Number of local steps in the description of each half of a client's samples."""
ONLY_SUMMED = (
    "the change of the models it trained and its training loss; only sums over clients are used, so secure aggregation "
    "could hide them"
)
"""Information about a client's training that the server sees if it only adds updates."""
SENT_SEPARATELY = (
    "its training loss, and its update of the parameters that all clusters share, both of which are only summed; its "
    "own update or model is sent separately (below), which secure aggregation could not hide"
)
"""Information about a client's training that the server sees if every client's update or model is sent separately."""


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """The parts of a method that its rounds depend on.

    Example:
        >>> from coterie.methods import Tiers
        >>> from coterie.tiers import LowestLoss
        >>> Tiers(assignment=LowestLoss(), K=4).adapts
        False
    """

    objective: Objective = field(default_factory=Conditional)
    """Tier 1: how well a cluster explains a sample."""
    assignment: AssignmentRule
    """Tier 2: how clients are assigned to clusters, and what they compute in a round."""
    procedure: Procedure = field(default_factory=Procedure)
    """Tier 3: when and how the number of clusters changes."""
    distance: Distance | None = None
    """Tier 4: how far apart two clients are."""
    K: int | None = None
    """Initial number of clusters; None if the initializer finds it."""
    local: LocalTraining = field(default_factory=FullBatch)
    """Local training of the clients in a round."""
    averaging: Averaging = field(default_factory=Averaging)
    """How the server combines the clients' updates."""
    server: ServerOptimizer = field(default_factory=ServerSGD)
    """Optimizer that applies the combined updates."""
    exchange: Exchange = "model"
    """Whether clients send the update of their model or a single gradient."""
    restarts: int = 1
    """Number of independent random initialisations; the one with the lowest training loss is kept."""
    shared: tuple[str, ...] = ()
    """Prefixes of the names of parameters that all clusters share."""
    overall: bool = False
    """Whether all clients also train one overall model, towards which the proximal term pulls the clusters' models."""
    onboards: bool = False
    """Whether a client describes itself before it first trains, so that the server can assign it."""
    tree: bool = False
    """Whether the server records all splits, so that newcomers can descend the tree."""
    stable_after: int | None = None
    """Number of rounds without a change of cluster after which a client receives only its own model."""
    resample: bool = False
    """Whether each round uses fresh samples: one part to choose a cluster, another to train."""
    refit: bool = False
    """Whether a final exchange after the last round solves each cluster's least-squares problem."""
    privacy: Privacy | None = None
    """Protection of single clients by differential privacy; None for no protection."""

    def check(self, name: str) -> None:
        """Check that a round can carry out this composition; `name` is the name of the method.

        Raises:
            ConfigError: if it cannot; the message says what to change.
        """
        if self.restarts > 1 and self.assignment.assigned:
            raise ConfigError(
                f"{name}: restarts={self.restarts} has no effect because the groups are given: leave it at 1"
            )
        if self.exchange == "gradient" and not self.local.single_step:
            raise ConfigError(
                "exchange=gradient sends the gradient of one step: set local_steps=1, or use exchange=model for more"
            )
        if self.exchange == "gradient" and not self.local.optimizer.plain:
            raise ConfigError(
                f"exchange=gradient sends the plain gradient and cannot use optimizer {self.local.optimizer.name}: use "
                "exchange=model, or SGD without momentum and weight decay"
            )
        if self.exchange == "gradient" and self.local.prox:
            raise ConfigError("exchange=gradient has no local model for a proximal term to act on: use exchange=model")

    @property
    def adapts(self) -> bool:
        """Whether the number of clusters may change."""
        return bool(self.procedure.steps)

    @property
    def sends_each_change(self) -> bool:
        """Whether every client's update is sent separately, and not only as part of a sum."""
        by_updates = self.distance is not None and self.distance.needs == "updates"
        return by_updates or self.averaging.robust or any(step.splits for step in self.procedure.steps)

    @property
    def sends_choice(self) -> bool:
        """Whether the cluster that a client reports depends on its data."""
        return not self.assignment.assigned and ((self.K or 1) > 1 or self.adapts)

    def decided(self, K: int | None = None, lr: float | None = None) -> Tiers:
        """Return the composition with the number of clusters and the learning rate that the initialisation chose."""
        local = self.local if lr is None else replace(self.local, lr=lr)
        return replace(self, K=self.K if K is None else K, local=local)

    def task(self, seed: int, rounds: int) -> LocalRound:
        """Return the task of one round."""
        return LocalRound(
            objective=self.objective,
            assignment=self.assignment,
            work=self.local,
            client_weight=self.averaging.client_weight or "uniform",
            seed=seed,
            resample=rounds if self.resample else None,
            by_share=self.averaging.over == "responsibility",
            send_each=self.sends_each_change,
            distance=self.distance,
            privacy=self.privacy,
        )

    @property
    def onboards_by_halves(self) -> bool:
        """Whether clients describe themselves by halves of their samples, and the server keeps each description."""
        return any(step.by_halves for step in self.procedure.steps)

    def onboarding_task(self, seed: int) -> Onboarding | OnboardingHalves:
        """Return the task by which a client describes itself: one epoch on a model that the seed determines.

        With halves, clients train `HALF_STEPS` steps instead, because one epoch of a single step from an untrained
        model carries too little information.
        """
        if self.onboards_by_halves:
            return OnboardingHalves(self.local.without_prox(HALF_STEPS), seed)
        return Onboarding(self.local.without_prox().one_pass(), seed)

    def reveals(self) -> Mapping[str, str]:
        """Return the rows of all replies of the rounds, and what each reveals to the server about a client."""
        onboarding = self.distance.reveals if self.onboards and self.distance is not None else {}
        steps = {name: words for step in self.procedure.steps for name, words in step.reveals.items()}
        return self.task(0, 1).reveals() | onboarding | steps

    def seen(self) -> str:
        """Return what the server sees of a client's training in addition to these rows."""
        return SENT_SEPARATELY if {"change", "model"} & self.reveals().keys() else ONLY_SUMMED
