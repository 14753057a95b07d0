"""A method is a composition: four tiers and the few parts that are not tiers but every method has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, cast

from coterie.core.messages import ROUND, Plain, Task
from coterie.core.plain import from_plain, to_plain
from coterie.errors import ConfigError
from coterie.learners.local_training import LocalTraining
from coterie.privacy.mechanism import Privacy
from coterie.tiers.assignment import ASSIGNMENTS, AssignmentRule
from coterie.tiers.combine import Combine, Mean
from coterie.tiers.distance import DISTANCES, Distance
from coterie.tiers.objective import OBJECTIVES, Objective
from coterie.tiers.procedure import Procedure

ClientWeight = Literal["uniform", "samples"]


@dataclass(frozen=True)
class Averaging:
    """How the members' changes become the cluster's change."""

    over: Literal["members", "all", "responsibility"] = "members"
    """Divide by the mass of the cluster's members, or by the mass of all clients (FedX-clustering, IFCA's option I,
    FedEM); or weigh a soft client's model by what the cluster counts for it, and divide by that."""
    client_weight: ClientWeight = "uniform"
    """Whether a client counts once or n_i times."""
    divide_by: Literal["answered", "federation"] = "answered"
    """With `all`: those who answered this round, or everybody there is (the m of IFCA's option I)."""
    combine: Combine = field(default_factory=Mean)
    """What takes the place of the members' mean change; the rest is as before."""


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
    work: LocalTraining
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
        if self.exchange == "gradient" and not self.work.single_step:
            raise ConfigError(
                "exchange=gradient sends the gradient of one step: set local_steps=1 (or exchange=model for more)"
            )
        if self.exchange == "gradient" and not self.work.optimizer.plain:
            raise ConfigError(
                f"exchange=gradient sends the gradient itself, without the optimizer {self.work.optimizer.name}: use "
                "exchange=model, or SGD without momentum and weight decay"
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
        return not isinstance(self.averaging.combine, Mean)

    @property
    def introduces(self) -> bool:
        """Whether clients introduce themselves before they first train, and are placed by that."""
        return self.groups is not None and self.groups.by == "introduction"

    @property
    def tells_choice(self) -> bool:
        """Whether the cluster that a client works on follows from its data, in a round that is to be private."""
        return not self.weights.assigned and (self.procedure.K > 1 or self.adapts)

    def introduction(self, seed: int) -> Task:
        """What a client is asked for once: what one epoch makes of a model that everybody can draw from the seed."""
        work = self.work.without_prox().one_pass()
        return Task("introduce", {"work": to_plain(work), "seed": seed})

    def rate(self, round_: int) -> float:
        """The step size of a round."""
        return self.lr * self.lr_decay**round_

    def task(self, seed: int) -> Task:
        """What a client is asked to do in a round."""
        settings = RoundSettings(
            self.objective,
            self.weights,
            self.work,
            self.averaging.client_weight,
            seed,
            self.resample,
            self.averaging.over == "responsibility",
            self.tells_changes,
            self.distance,
            self.privacy,
        )
        return Task(ROUND, settings.plain())


@dataclass(frozen=True)
class RoundSettings:
    """The settings of the task `local-round`, as plain values on the wire."""

    objective: Objective
    weights: AssignmentRule
    work: LocalTraining
    client_weight: ClientWeight
    seed: int
    resample: int | None = None
    by_share: bool = False
    """Whether a soft client's change counts in the sums by what the cluster counts for it."""
    each: bool = False
    """Whether every client's change is sent as a row, and its soft weights with it, instead of being added up."""
    distance: Distance | None = None
    """What clients tell for the distances between them."""
    privacy: Privacy | None = None
    """What clients do to their answers before they send them."""

    @property
    def hides(self) -> bool:
        """Whether clients hide their answers themselves."""
        return self.privacy is not None and self.privacy.local

    def tells_no_choice(self, K: int) -> bool:
        """Whether nothing that a client says of its cluster depends on its data."""
        return K == 1 or self.weights.assigned

    def plain(self) -> dict[str, Plain]:
        return {
            "objective": plain_member(self.objective),
            "weights": plain_member(self.weights),
            "work": to_plain(self.work),
            "client_weight": self.client_weight,
            "seed": self.seed,
            "resample": self.resample,
            "by_share": self.by_share,
            "each": self.each,
            "distance": None if self.distance is None else plain_member(self.distance),
            "privacy": None if self.privacy is None else self.privacy.plain(),
        }

    @classmethod
    def read(cls, plain: Mapping[str, Plain]) -> RoundSettings:
        """The inverse of `plain`."""
        return cls(
            objective=read_objective(plain["objective"]),
            weights=_read_member(ASSIGNMENTS, plain["weights"]),
            work=from_plain(LocalTraining, plain["work"]),
            client_weight="samples" if plain["client_weight"] == "samples" else "uniform",
            seed=int(str(plain["seed"])),
            resample=None if plain["resample"] is None else int(str(plain["resample"])),
            by_share=bool(plain["by_share"]),
            each=bool(plain["each"]),
            distance=None if plain["distance"] is None else read_distance(plain["distance"]),
            privacy=None if plain["privacy"] is None else Privacy(**cast(Mapping[str, Any], plain["privacy"])),
        )


def plain_member(member: Objective | AssignmentRule | Distance) -> dict[str, Plain]:
    """A member of a tier as plain values: its name and its settings."""
    return {"name": member.name, **asdict(cast(Any, member))}


def read_objective(plain: Plain) -> Objective:
    """The member of tier 1 that `plain_member` gave."""
    return _read_member(OBJECTIVES, plain)


def read_distance(plain: Plain) -> Distance:
    """The member of tier 4 that `plain_member` gave."""
    return _read_member(DISTANCES, plain)


M = TypeVar("M")


def _read_member(registry: Mapping[str, Callable[..., M]], plain: Plain) -> M:
    settings = cast(Mapping[str, Any], plain)
    return registry[settings["name"]](**{name: value for name, value in settings.items() if name != "name"})
