"""A method is a composition: four tiers and the few parts that are not tiers but every method has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from coterie.client.interfaces import Distance, Objective
from coterie.client.tasks.introduce import Introduce
from coterie.client.tasks.local_round import LocalRound
from coterie.errors import ConfigError
from coterie.learners.descent import LocalWork
from coterie.privacy.mechanism import Privacy
from coterie.server.aggregate import Averaging
from coterie.tiers.assignment import AssignmentRule
from coterie.tiers.procedure import Procedure


@dataclass(frozen=True)
class Groups:
    """Who tells an assigned client its cluster: the known truth, what the start found, each is one of its own, all
    begin in one, or nobody has one until it has introduced itself."""

    by: Literal["truth", "start", "self", "one", "introduction"]


@dataclass(frozen=True)
class Race:
    """Several starts for `rounds` rounds on a `share` of the clients; the least training loss goes on alone."""

    rounds: int
    share: float


@dataclass(frozen=True)
class Method:
    """All that the loop needs to know."""

    name: str
    objective: Objective
    weights: AssignmentRule
    procedure: Procedure
    work: LocalWork
    averaging: Averaging
    distance: Distance | None = None
    exchange: Literal["model", "gradient"] = "model"
    lr: float = 0.1
    """gamma, the step size of the first round."""
    lr_decay: float = 1.0
    """The step size is multiplied by this after every round."""
    server_lr: float = 1.0
    participation: float = 1.0
    """Share of clients asked each round."""
    restarts: int = 1
    """Independent random starts; the one with the least training loss wins."""
    race: Race | None = None
    """How the restarts become one; None: all are trained to the end."""
    shared: tuple[str, ...] = ()
    """Parameters whose names start with one of these are common to all clusters."""
    overall: bool = False
    """Whether everybody trains one more model, for all, to which `work.prox` pulls the clusters' models."""
    groups: Groups | None = None
    """For assigned weights: where the clusters come from."""
    tree: bool = False
    """Whether the server keeps all splits, for newcomers to descend."""
    stable_after: int | None = None
    """After so many visits without a change of cluster a client is sent only its own model."""
    resample: int | None = None
    """T, the rounds of the run, if each uses fresh samples: some to choose a cluster, others to train; None: all."""
    travels: bool = True
    """False when clients never exchange anything; then no bytes are counted."""
    privacy: Privacy | None = None
    """How single clients are hidden; None: they are not."""

    def __post_init__(self) -> None:
        if self.weights.assigned != (self.groups is not None):
            raise ConfigError(f"{self.name}: assigned weights need groups, and only they do")
        if self.restarts > 1 and self.weights.assigned:
            raise ConfigError(
                f"{self.name}: restarts={self.restarts} has no effect where the groups are given: leave it at 1"
            )
        if self.exchange == "gradient" and self.work.full_batch_steps != 1 and self.work.steps != 1:
            raise ConfigError(
                "exchange=gradient sends the gradient of one step: set local_steps=1 (or exchange=model for more)"
            )
        if self.exchange == "gradient" and self.work.prox:
            raise ConfigError("exchange=gradient has no local model for a proximal term to hold: use exchange=model")

    @property
    def adapts(self) -> bool:
        """Whether the number of clusters may change."""
        return bool(self.procedure.steps)

    @property
    def tells_changes(self) -> bool:
        """Whether clients send what they changed one by one, and not only for the sum."""
        by_updates = self.distance is not None and self.distance.needs == "updates"
        return by_updates or self.combines_robustly or any(step.splits for step in self.procedure.steps)

    @property
    def combines_robustly(self) -> bool:
        """Whether a cluster's change is something else than its members' mean."""
        return self.averaging.combine.robust

    @property
    def introduces(self) -> bool:
        """Whether clients introduce themselves before they first train, and are placed by that."""
        return self.groups is not None and self.groups.by == "introduction"

    @property
    def tells_choice(self) -> bool:
        """Whether the cluster that a client works on follows from its data, in a round that is to be private."""
        return not self.weights.assigned and (self.procedure.K > 1 or self.adapts)

    def introduction(self, seed: int) -> Introduce:
        """Return the task of clients that take part for the first time: one epoch on a model drawn from the seed."""
        return Introduce(replace(self.work, steps=None, epochs=1, prox=0.0), seed)

    def rate(self, round_: int) -> float:
        """The step size of a round."""
        return self.lr * self.lr_decay**round_

    def task(self, seed: int) -> LocalRound:
        """Return the task of a round."""
        return LocalRound(
            objective=self.objective,
            assignment=self.weights,
            work=self.work,
            client_weight=self.averaging.client_weight,
            seed=seed,
            resample=self.resample,
            by_share=self.averaging.over == "responsibility",
            send_each=self.tells_changes,
            distance=self.distance,
            privacy=self.privacy,
        )
