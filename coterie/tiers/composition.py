"""A method as the round sees it: a member of each tier, and the few parts that are not tiers but every method has."""

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
"""Local steps by which a client describes each half of its samples."""
SUMMED = (
    "the change of the models it trained and its training loss; only sums over clients are used, so secure aggregation "
    "could hide them"
)
"""What the server sees of a client's training where it is only added up."""
ROW_BY_ROW = (
    "its training loss, and its change of what all clusters share, which are only added up; its own change or model is "
    "sent by itself (below), which secure aggregation could not hide"
)
"""The same where every client's own work is sent."""


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Everything that a round needs to know of a method."""

    objective: Objective = field(default_factory=Conditional)
    """Tier 1: how well a cluster explains a sample."""
    assignment: AssignmentRule
    """Tier 2: how clients are given to clusters, and what they do in a round."""
    procedure: Procedure = field(default_factory=Procedure)
    """Tier 3: when the number of clusters changes."""
    distance: Distance | None = None
    """Tier 4: how far apart two clients are."""
    K: int | None = None
    """Number of clusters at first; None: the initializer finds it."""
    local: LocalTraining = field(default_factory=FullBatch)
    averaging: Averaging = field(default_factory=Averaging)
    server: ServerOptimizer = field(default_factory=ServerSGD)
    exchange: Exchange = "model"
    """Whether clients send the change of their model or one gradient."""
    restarts: int = 1
    """Independent random initialisations; the one with the least training loss wins."""
    shared: tuple[str, ...] = ()
    """Parameters whose names start with one of these are common to all clusters."""
    overall: bool = False
    """Whether all clients train one more model, to which the proximal term pulls the clusters' models."""
    onboards: bool = False
    """Whether a client sends a description of itself before it first trains, by which it is assigned."""
    tree: bool = False
    """Whether the server keeps all splits, for newcomers to descend."""
    stable_after: int | None = None
    """A client whose cluster has not changed in this many rounds is sent only its own model."""
    resample: bool = False
    """Whether each round uses fresh samples: some to choose a cluster, others to train."""
    refit: bool = False
    """Whether one exchange after the last round solves each cluster's least squares."""
    privacy: Privacy | None = None
    """How single clients are hidden; None: they are not."""

    def check(self, name: str) -> None:
        """Refuse combinations that no round can carry out; `name` is the method's.

        Raises:
            ConfigError: with a sentence that says what to change.
        """
        if self.restarts > 1 and self.assignment.assigned:
            raise ConfigError(
                f"{name}: restarts={self.restarts} has no effect where the groups are given: leave it at 1"
            )
        if self.exchange == "gradient" and not self.local.single_step:
            raise ConfigError(
                "exchange=gradient sends the gradient of one step: set local_steps=1 (or exchange=model for more)"
            )
        if self.exchange == "gradient" and not self.local.optimizer.plain:
            raise ConfigError(
                f"exchange=gradient sends the gradient itself, without the optimizer {self.local.optimizer.name}: use "
                "exchange=model, or SGD without momentum and weight decay"
            )
        if self.exchange == "gradient" and self.local.prox:
            raise ConfigError("exchange=gradient has no local model for a proximal term to hold: use exchange=model")

    @property
    def adapts(self) -> bool:
        """Whether the number of clusters may change."""
        return bool(self.procedure.steps)

    @property
    def sends_each_change(self) -> bool:
        """Whether every client's change is sent by itself, and not only in a sum."""
        by_updates = self.distance is not None and self.distance.needs == "updates"
        return by_updates or self.averaging.robust or any(step.splits for step in self.procedure.steps)

    @property
    def sends_choice(self) -> bool:
        """Whether the cluster that a client works on follows from its data."""
        return not self.assignment.assigned and ((self.K or 1) > 1 or self.adapts)

    def decided(self, K: int | None = None, lr: float | None = None) -> Tiers:
        """Return the same with what the initialisation has decided."""
        local = self.local if lr is None else replace(self.local, lr=lr)
        return replace(self, K=self.K if K is None else K, local=local)

    def task(self, seed: int, rounds: int) -> LocalRound:
        """Return the task of a round."""
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
    def introduces_halves(self) -> bool:
        """Whether clients describe themselves by halves of their samples, and the server keeps what each told."""
        return any(step.by_halves for step in self.procedure.steps)

    def introduction(self, seed: int) -> Onboarding | OnboardingHalves:
        """Return the task by which a client describes itself: one epoch on a model that the seed determines.

        By halves it is `HALF_STEPS` steps: a single step from a model that knows nothing tells too little.
        """
        if self.introduces_halves:
            return OnboardingHalves(self.local.without_prox(HALF_STEPS), seed)
        return Onboarding(self.local.without_prox().one_pass(), seed)

    def reveals(self) -> Mapping[str, str]:
        """Return the rows of all replies of the rounds and what each tells the server about a single client."""
        onboarding = self.distance.reveals if self.onboards and self.distance is not None else {}
        steps = {name: words for step in self.procedure.steps for name, words in step.reveals.items()}
        return self.task(0, 1).reveals() | onboarding | steps

    def seen(self) -> str:
        """Return what the server sees of a client's training besides these rows."""
        return ROW_BY_ROW if {"change", "model"} & self.reveals().keys() else SUMMED
