"""What a method is: settings with documented fields, an initialisation, and a round.

A method that is a composition of tiers derives from `TieredMethod` and writes `tiers()`. Any other derives from
`Method` and writes `initialize` or `step` itself, as sequential code over `run.federation.ask(...)`. Both are frozen
dataclasses made known by `@register("name")`; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from coterie.core.registry import Registered, find_member
from coterie.core.state import ServerState
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.local_training import AutoTraining, LocalTraining
from coterie.methods.groups import FoundGroups
from coterie.methods.initialization import initialize
from coterie.methods.initializers import RandomInit
from coterie.methods.round import Step, tiered_round
from coterie.methods.run import Initial, Initializer, Run
from coterie.methods.settings import RUN_OPTIONS
from coterie.options import AUTO, Option, check_fields, from_options, option, options_of, to_options, without_effect
from coterie.server.averaging import Averaging
from coterie.server.optimizers import ServerOptimizer, ServerSGD
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Exchange, Tiers


class Method(Registered, family="method"):
    """Base of all methods. A member is a frozen dataclass; its fields are its settings.

    A subclass declares facts about itself and overrides what it does differently. By default a method makes its first
    models by its initializer and trains them in rounds that follow from `tiers()`.
    """

    summary: ClassVar[str] = ""
    """One sentence for `coterie methods`."""
    citation: ClassVar[str] = ""
    groups: ClassVar[FoundGroups] = FoundGroups()
    """Where the clusters come from."""
    trains: ClassVar[bool] = True
    """Whether rounds of training follow the initialisation."""
    exchanges: ClassVar[bool] = True
    """Whether clients need to send anything; if not, no bytes are counted."""
    tries_counts: ClassVar[bool] = False
    """Whether trial runs can choose the number of clusters (`clusters=auto`); such a method has `TrialSettings`."""
    learners: ClassVar[tuple[str, ...] | None] = None
    """The model families that it supports; None: all."""
    twin: ClassVar[str | None] = None
    """The method that it equals with one cluster; None with the reason in `no_twin`."""
    no_twin: ClassVar[str] = ""
    """Why it has no twin; or with which options it does not equal the one it has."""
    refuses: ClassVar[frozenset[str]] = frozenset()
    """Options of runs and of its base classes that mean nothing to this method."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Options whose default goes before what a scenario recommends, or it would be another method."""

    private_options: ClassVar[Mapping[str, Any]] = {}
    """Options of private runs, where the user gives none of them."""

    def __post_init__(self) -> None:
        check_fields(self)

    # ---- what a subclass may override --------------------------------------------------------------------------

    def tiers(self) -> Tiers:
        """Return the composition: how clients are given to clusters and what they do in a round."""
        raise ConfigError(f"{type(self).__name__} defines no tiers(): write one that returns Tiers(assignment=...)")

    @property
    def initializer(self) -> Initializer:
        """What makes the first models."""
        raise ConfigError(f"{type(self).__name__} has no initializer: write a property that returns one")

    def for_learner(self, learner: Learner) -> Method:
        """Return the method as it trains this learner, with local training that suits it.

        Raises:
            ConfigError: if it cannot.
        """
        local: LocalTraining | None = getattr(self, "local", None)
        return self if local is None else _replaced(self, local=local.for_learner(learner.usual_training))

    def with_starts(self, learner: Learner, clients: int, rounds: int | None) -> Method:
        """Return the method with the number of its random starts decided.

        Args:
            learner: The model family.
            clients: Number of clients.
            rounds: Number of rounds; None if it is left to the data.
        """
        return self._started(1)

    def _started(self, restarts: int) -> Self:
        """Return the method with this number of random starts where it was undecided."""
        return self.with_options({"restarts": restarts}) if self.initializer.restarts == AUTO else self

    def initialize(self, run: Run) -> Initial:
        """Return the state before the first round."""
        return initialize(run, self.initializer, self.groups)

    def step(self, run: Run, state: ServerState) -> Step:
        """Carry out one round: ask clients, aggregate, regroup."""
        return tiered_round(run, state)

    @property
    def placing(self) -> Placing:
        """How a client that did not train finds its models."""
        return "least-loss"

    @property
    def race_rounds(self) -> int:
        """Number of first rounds in which several restarts compete on a share of the clients."""
        return 0

    # ---- facts -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int | None:
        """Number of clusters that was asked for; None: it is left to the data, or the method has no such setting."""
        asked = getattr(self, "clusters", None)
        return None if asked == AUTO else asked

    def reveals(self) -> Mapping[str, str]:
        """Return the rows of all replies and what each tells the server about a single client."""
        if not self.exchanges:
            return {}
        return {**self.initializer.reveals_rows, **(self.tiers().reveals() if self.trains else {})}

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Return every option that the method takes: those of its fields, then those of its runs."""
        return tuple(each for each in (*options_of(cls), *RUN_OPTIONS) if each.name not in cls.refuses)

    @classmethod
    def own_names(cls) -> frozenset[str]:
        """Return the names of the options that come from its fields."""
        return frozenset(each.name for each in options_of(cls)) - cls.refuses

    @classmethod
    def equals(cls) -> str:
        """Return what it equals with one cluster, in words."""
        if cls.twin is None:
            return f"No twin with one cluster: {cls.no_twin}."
        return f"Equals {cls.twin} with one cluster{f', {cls.no_twin}' if cls.no_twin else ''}."

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that go before what a scenario recommends, by what the user gave."""
        defaults = cls().to_options()
        return {name: defaults[name] for name in cls.keeps if name in defaults}

    def to_options(self) -> dict[str, Any]:
        """Return the options that give this method."""
        return {name: value for name, value in self.field_options().items() if name not in self.refuses}

    def field_options(self) -> dict[str, Any]:
        """Return the options of all fields, also of those that the method refuses."""
        return to_options(self)

    def without_effect(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return those of the given options that have no effect on this method, with the condition that is not met."""
        return without_effect(self.options(), {**given, **self.field_options()}, type(self)().field_options())

    def with_options(self, values: Mapping[str, Any]) -> Self:
        """Return the method with these options replaced."""
        return from_options(type(self), values, self)  # type: ignore[no-any-return]


def _replaced(method: Any, **fields: Any) -> Any:
    """Return a method, which is a dataclass, with these fields replaced."""
    return replace(method, **fields)


def find_method(name: object) -> type[Method]:
    """Return the method of this name; the error for an unknown name suggests the nearest one."""
    if not isinstance(name, str):
        raise ConfigError(f"method must be a name or a value such as IFCA(clusters=4), got {type(name).__name__}")
    return find_member(Method, name)


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How trial runs choose the number of clusters (`clusters=auto`)."""

    max_clusters: int = option(6, "clusters=auto: the largest number of clusters that is tried", low=1)
    choose_seeds: int = option(
        3, "clusters=auto: trial runs of each number, each with samples of its own held out", low=1
    )
    choose_rounds: int | None = option(
        None, "clusters=auto: number of rounds of a trial run; by default half of rounds", low=1
    )


@dataclass(frozen=True, kw_only=True)
class RefitSettings:
    """Whether least squares of the members' samples end the run."""

    refit: bool = option(
        False,
        "linear models: one exchange after the last round, in which clients send X^T X and X^T y of their samples, "
        "added up by cluster, and the server solves for the least squares of each cluster",
    )


@dataclass(frozen=True, kw_only=True)
class TieredMethod(Method):
    """Base of methods that are a composition of tiers: a subclass adds its settings and writes `tiers()`."""

    local: LocalTraining = AutoTraining()
    """What a client does with the models that it receives."""
    averaging: Averaging = Averaging()
    """How the changes of a cluster's members become the change of its model."""
    server: ServerOptimizer = ServerSGD()
    """What the server makes of that change."""
    init: Initializer = RandomInit()
    """What makes the first models."""
    exchange: Exchange = option("model", "what clients send: the change of their model, or one gradient")
    shared: str | None = option(
        None,
        "parameters common to all clusters, as name prefixes separated by commas (layer0), or body: all but the head",
    )

    @property
    def initializer(self) -> Initializer:
        return self.init

    def with_starts(self, learner: Learner, clients: int, rounds: int | None) -> Self:
        counted_by_trials = self.count is None and self.tries_counts
        own_solutions = self.count != 1 and not self.shared and not counted_by_trials
        return replace(self, init=self.init.decided(learner, clients, own_solutions))._started(1)

    @property
    def default_averaging(self) -> Averaging:
        """The averaging of the method's paper."""
        return Averaging(over="members", client_weight="samples")

    def compose(self, **tiers: Any) -> Tiers:
        """Return a composition with the parts that are not tiers filled in from the fields; keywords replace them."""
        common: dict[str, Any] = {
            "K": self.count if self.groups.found else None,
            "local": self.local,
            "averaging": self.averaging.filled(self.default_averaging).for_hard_clusters(),
            "server": self.server,
            "exchange": self.exchange,
            "restarts": self.init.starts,
            "shared": tuple(self.shared.split(",")) if self.shared else (),
        }
        return Tiers(**common | tiers)

    @property
    def soft_averaging(self) -> Averaging:
        """The averaging of methods whose clients belong to several clusters."""
        return self.averaging.filled(self.default_averaging)

    def field_options(self) -> dict[str, Any]:
        return to_options(replace(self, averaging=self.averaging.filled(self.default_averaging)))
