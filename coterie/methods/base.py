"""Base classes of methods: settings with documented fields, an initialisation, and a round.

A method that is a composition of tiers derives from `TieredMethod` and implements `tiers()`. Any other method derives
from `Method` and implements `initialize` or `step`, as sequential code over `run.federation.ask(...)`. Both are frozen
dataclasses that `@register("name")` makes known; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from coterie.core.dataset import Profile
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
    """Base class of all methods.

    A method is a frozen dataclass whose fields are its settings. A subclass declares facts about itself in class
    variables and overrides the members that differ. By default, the method's initializer makes the first models, and
    the rounds follow from `tiers()`.

    Example:
        >>> from coterie.methods import IFCA
        >>> method = IFCA(clusters=4)
        >>> method.name, method.clusters
        ('ifca', 4)
        >>> sorted(method.reveals())
        ['cluster']
    """

    summary: ClassVar[str] = ""
    """Summary of the method in one sentence."""
    citation: ClassVar[str] = ""
    """Paper that introduced the method."""
    groups: ClassVar[FoundGroups] = FoundGroups()
    """Source of the clusters."""
    trains: ClassVar[bool] = True
    """Whether rounds of training follow the initialisation."""
    exchanges: ClassVar[bool] = True
    """Whether clients send anything; if not, no bytes are counted."""
    tries_counts: ClassVar[bool] = False
    """Whether trial runs can choose the number of clusters (`clusters=auto`); such a method has `TrialSettings`."""
    learners: ClassVar[tuple[str, ...] | None] = None
    """Model families that the method supports; None for all."""
    twin: ClassVar[str | None] = None
    """Method that this one equals with a single cluster; None if there is none, for the reason in `no_twin`."""
    no_twin: ClassVar[str] = ""
    """Reason why the method has no twin, or options with which it differs from its twin."""
    refuses: ClassVar[frozenset[str]] = frozenset()
    """Options of runs and base classes that have no meaning for this method."""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """Options whose defaults take precedence over a scenario's recommendations, because they define the method."""

    private_options: ClassVar[Mapping[str, Any]] = {}
    """Options of private runs that apply if the user gives none of them."""

    def __post_init__(self) -> None:
        check_fields(self)

    # ---- members that a subclass may override ------------------------------------------------------------------

    def tiers(self) -> Tiers:
        """Return the composition of tiers: how clients are assigned to clusters and what they compute in a round."""
        raise ConfigError(f"{type(self).__name__} defines no tiers(): add a method that returns Tiers(assignment=...)")

    @property
    def initializer(self) -> Initializer:
        """Initializer of the first models."""
        raise ConfigError(f"{type(self).__name__} has no initializer: add a property that returns one")

    def for_learner(self, learner: Learner) -> Method:
        """Return the method for this learner, with local training that suits it.

        Raises:
            ConfigError: if the method does not support the learner.
        """
        local: LocalTraining | None = getattr(self, "local", None)
        return self if local is None else _replaced(self, local=local.for_learner(learner.usual_training))

    def with_decided_init(self, learner: Learner, clients: int, rounds: int | None) -> Method:
        """Return the method with the number of its random initialisations decided.

        Args:
            learner: The model family.
            clients: Number of clients.
            rounds: Number of rounds; None if it depends on the data.
        """
        return self._with_restarts(1)

    def _with_restarts(self, restarts: int) -> Self:
        """Return the method with this number of restarts if the user has not set it."""
        return self.with_options({"restarts": restarts}) if self.initializer.restarts == AUTO else self

    def initialize(self, run: Run) -> Initial:
        """Return the state before the first round."""
        return initialize(run, self.initializer, self.groups)

    def step(self, run: Run, state: ServerState) -> Step:
        """Run one round: ask clients, aggregate their replies, and regroup."""
        return tiered_round(run, state)

    @property
    def placing(self) -> Placing:
        """How a client that did not train is assigned to models."""
        return "least-loss"

    @property
    def race_rounds(self) -> int:
        """Number of initial rounds in which several restarts compete on a share of the clients."""
        return 0

    # ---- facts -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int | None:
        """Requested number of clusters; None if it depends on the data, or the method has no such setting."""
        asked = getattr(self, "clusters", None)
        return None if asked == AUTO else asked

    def reveals(self) -> Mapping[str, str]:
        """Return the rows of all replies, and what each reveals to the server about a single client."""
        if not self.exchanges:
            return {}
        return {**self.initializer.reveals_rows, **(self.tiers().reveals() if self.trains else {})}

    @classmethod
    def usual_learner(cls, profile: Profile) -> str:
        """Return the model family of runs for which the user chose none."""
        usual = "linear" if profile.classes is None else "logistic"
        supported = cls.learners or (usual,)
        return "mlp" if usual not in supported and "mlp" in supported else usual

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Return all options of the method: those of its fields, then those of its runs."""
        return tuple(each for each in (*options_of(cls), *RUN_OPTIONS) if each.name not in cls.refuses)

    @classmethod
    def own_names(cls) -> frozenset[str]:
        """Return the names of the options that come from the method's fields."""
        return frozenset(each.name for each in options_of(cls)) - cls.refuses

    @classmethod
    def equals(cls) -> str:
        """Return a sentence on the method that this one equals with a single cluster."""
        if cls.twin is None:
            return f"Equals no other method with one cluster: {cls.no_twin}."
        return f"Equals {cls.twin} with one cluster{f', {cls.no_twin}' if cls.no_twin else ''}."

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that take precedence over a scenario's recommendations, given the user's options."""
        defaults = cls().to_options()
        return {name: defaults[name] for name in cls.keeps if name in defaults}

    def to_options(self) -> dict[str, Any]:
        """Return the options that recreate this method."""
        return {name: value for name, value in self.field_options().items() if name not in self.refuses}

    def field_options(self) -> dict[str, Any]:
        """Return the options of all fields, including those that the method refuses."""
        return to_options(self)

    def without_effect(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the given options that have no effect on this method, each with the condition that is not met."""
        return without_effect(self.options(), {**given, **self.field_options()}, type(self)().field_options())

    def with_options(self, values: Mapping[str, Any]) -> Self:
        """Return the method with these options replaced."""
        return from_options(type(self), values, self)  # type: ignore[no-any-return]


def _replaced(method: Any, **fields: Any) -> Any:
    """Return a method with these fields replaced; `Method` itself is not a dataclass, its subclasses are."""
    return replace(method, **fields)


def find_method(name: object) -> type[Method]:
    """Return the method class of this name.

    Args:
        name: Name of the method, as `coterie methods` lists it.

    Returns:
        The class, whose fields are the settings of the method.

    Raises:
        ConfigError: if there is no such method; the message suggests similar names.

    Example:
        >>> from coterie.methods import find_method
        >>> find_method("ifca").summary
        'clients join the cluster whose model fits them best'
    """
    if not isinstance(name, str):
        raise ConfigError(f"method must be a name or a value such as IFCA(clusters=4), got {type(name).__name__}")
    return find_member(Method, name)


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How trial runs choose the number of clusters (`clusters=auto`)."""

    max_clusters: int = option(6, "clusters=auto: largest number of clusters to try", low=1)
    choose_seeds: int = option(
        3, "clusters=auto: number of trial runs for each number of clusters, each with other held-out samples", low=1
    )
    choose_rounds: int | None = option(
        None, "clusters=auto: number of rounds of a trial run; by default half of rounds", low=1
    )


@dataclass(frozen=True, kw_only=True)
class RefitSettings:
    """Whether a least-squares refit of each cluster ends the run."""

    refit: bool = option(
        False,
        "linear models: whether a final exchange refits the models: clients send X^T X and X^T y of their samples, "
        "which are summed by cluster, and the server solves each cluster's least-squares problem",
    )


@dataclass(frozen=True, kw_only=True)
class TieredMethod(Method):
    """Base class of methods that are a composition of tiers: a subclass adds its settings and implements `tiers()`.

    Example:
        >>> from coterie.methods import IFCA, TieredMethod
        >>> issubclass(IFCA, TieredMethod)
        True
        >>> IFCA(clusters=4).tiers().assignment
        LowestLoss()
    """

    local: LocalTraining = AutoTraining()
    """Local training of the clients on the models that they receive."""
    averaging: Averaging = Averaging()
    """How the updates of a cluster's members are combined into the update of its model."""
    server: ServerOptimizer = ServerSGD()
    """Optimizer that applies the combined update."""
    init: Initializer = RandomInit()
    """Initializer of the first models."""
    exchange: Exchange = option("model", "what clients send: the update of their model, or a single gradient")
    shared: str | None = option(
        None,
        "parameters that all clusters share, as name prefixes separated by commas (layer0), or body: all but the head",
    )

    @property
    def initializer(self) -> Initializer:
        return self.init

    def with_decided_init(self, learner: Learner, clients: int, rounds: int | None) -> Self:
        counted_by_trials = self.count is None and self.tries_counts
        own_solutions = self.count != 1 and not self.shared and not counted_by_trials
        return replace(self, init=self.init.decided(learner, clients, own_solutions))._with_restarts(1)

    @property
    def default_averaging(self) -> Averaging:
        """The averaging of the method's paper."""
        return Averaging(over="members", client_weight="samples")

    def compose(self, **tiers: Any) -> Tiers:
        """Return a composition of tiers in which the fields fill in everything that the keywords do not set."""
        common: dict[str, Any] = {
            "K": self.count if self.groups.found else None,
            "local": self.local,
            "averaging": self.averaging.filled(self.default_averaging).for_hard_clusters(),
            "server": self.server,
            "exchange": self.exchange,
            "restarts": self.init.restart_count,
            "shared": tuple(self.shared.split(",")) if self.shared else (),
        }
        return Tiers(**common | tiers)

    @property
    def soft_averaging(self) -> Averaging:
        """The averaging of methods whose clients belong to several clusters."""
        return self.averaging.filled(self.default_averaging)

    def field_options(self) -> dict[str, Any]:
        return to_options(replace(self, averaging=self.averaging.filled(self.default_averaging)))
