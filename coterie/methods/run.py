"""The context of methods and initializers, and the results of an initialisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coterie.core.dataset import ClientDirectory, torch_dtype
from coterie.core.federation import Federation
from coterie.core.registry import Registered
from coterie.core.state import ServerState
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.methods.settings import RunSettings
from coterie.options import AUTO, Auto, Option, OptionGroup, from_options, options_of, to_options
from coterie.privacy.noise import SYSTEM_NOISE, Noise
from coterie.tiers.composition import Tiers

BEFORE = -1
"""Round number of everything that happens before the first round."""


@dataclass(frozen=True)
class Run:
    """Everything that a method may use; the only context object."""

    data: ClientDirectory
    """Facts about the clients: their ids, sizes and, in experiments, true groups."""
    learner: Learner
    """Model family that is trained."""
    federation: Federation
    """The clients, which answer tasks."""
    settings: RunSettings
    """Settings of the run that do not belong to the method."""
    tiers: Tiers
    """The method's composition of tiers; values that depend on the data are filled in when they are known."""
    rounds: int
    """Number of rounds of the run; 0 for methods that consist of their initialisation."""
    noise: Noise = SYSTEM_NOISE
    """Source of the noise by which the server hides single clients."""
    known_groups: Tensor | None = None
    """Cluster of each client, if the method knows it in advance, (m,)."""
    exchanges: bool = True
    """Whether clients send anything; if not, no bytes are counted."""

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def dtype(self) -> torch.dtype:
        assert self.settings.dtype is not None, "settled when the run is planned"
        return torch_dtype(self.settings.dtype)

    @property
    def device(self) -> torch.device:
        return torch.device(self.settings.device)

    def decided(self, K: int | None = None, lr: float | None = None) -> Run:
        """Return the run with the number of clusters and the learning rate that the initialisation chose."""
        return replace(self, tiers=self.tiers.decided(K, lr))


@dataclass(frozen=True)
class FirstModels:
    """Models before the first round, from an initializer."""

    params: Mapping[str, Tensor]
    """Parameters {name: (R K, ...)}: K models for each of R restarts."""
    K: int
    """Number of clusters."""
    labels: Tensor | None = None
    """Cluster of each client, -1 if it has none, (m,); None if the initializer finds no groups."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """Findings and their cost, ready for JSON."""
    notes: tuple[str, ...] = ()
    """Warnings for the user."""


class Initializer(Registered, OptionGroup, family="init"):
    """Base class of initializers, which make the first models of a method.

    A member is a frozen dataclass whose fields are its settings; it implements `first_models`.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.methods import Initializer
        >>> from_text(Initializer, "gaussian:sd=2").sd
        2.0
    """

    restarts: int | Auto = 1
    """Number of independent random initialisations; a field of initializers that draw models at random, `auto` until
    the method decides it."""
    random: ClassVar[bool] = False
    """Whether another key gives other models, so that restarts make sense."""
    any_count: ClassVar[bool] = False
    """Whether it makes any number of models without asking clients, so that trial runs can choose the number."""
    finds_count: ClassVar[bool] = False
    """Whether it can find the number of clusters."""
    models_trained: ClassVar[bool] = False
    """Whether clients have trained the models, so that they may have diverged."""
    reveals_rows: ClassVar[Mapping[str, str]] = {}
    """Rows of the replies before the first round, and what each reveals to the server about a single client."""

    def first_models(self, run: Run) -> FirstModels:
        """Return the first models of a run; `run.tiers.K` is their number, or None if the initializer finds it.

        Raises:
            ConfigError: if the initializer does not fit the run.
            TrainingError: if the clients' answers give no models.
        """
        raise ConfigError(f"{type(self).__name__} defines no first_models(): add a method that returns FirstModels")

    @property
    def restart_count(self) -> int:
        """Number of independent random initialisations; 1 while it is undecided."""
        return 1 if self.restarts == AUTO else self.restarts

    def decided(self, learner: Learner, clients: int, own_solutions: bool) -> Initializer:
        """Return the initializer for a run, if the choice depends on the run.

        Args:
            learner: The model family.
            clients: Number of clients.
            own_solutions: Whether the clusters could start from clustered solutions of the clients.
        """
        return self

    def takes_steps(self, learner: Learner) -> bool:
        """Return whether clients take gradient steps with the run's learning rate before the first round."""
        return False

    def check(self, learner: Learner) -> None:
        """Check that this initializer supports the learner.

        Raises:
            ConfigError: if it does not; the message says what to change.
        """

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """Return `init`, `restarts`, and the settings of the method's default initializer."""
        own = tuple(replace(each, needs=(f"{INIT.name}={default.name}", *each.needs)) for each in own_options(default))
        return (replace(INIT, default=default), replace(RESTARTS, default=default.restarts), *own)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        init: Any = default if values.get(INIT.name) is None else INIT.check(values[INIT.name])
        # other initializers keep their settings, whose names may be those of options of the method
        if type(init) is type(default if declared is None else declared):
            given = {each.name: values.get(each.name) for each in own_options(init)}
            init = from_options(type(init), given, init)
        restarts = values.get(RESTARTS.name)
        return init if restarts is None else init.with_restarts(RESTARTS.check(restarts))

    def to_group(self, default: Any) -> dict[str, Any]:
        restarts = {RESTARTS.name: self.restarts}
        if type(self) is not type(default):
            return {INIT.name: self, **restarts}
        given = to_options(self)
        own = {each.name: given[each.name] for each in own_options(self) if each.name in given}
        return {INIT.name: type(self)(), **restarts, **own}

    def with_restarts(self, restarts: int | Auto) -> Self:
        """Return the initializer with this number of restarts.

        Raises:
            ConfigError: if there are several, but the initializer draws nothing at random.
        """
        if not self.random:
            if restarts != AUTO and restarts > 1:
                raise ConfigError(
                    f"restarts={restarts} needs random initial models: leave restarts at 1 with init={self.name}"
                )
            return self
        return replace(self, restarts=restarts)  # type: ignore[type-var]


@dataclass(frozen=True)
class Initial:
    """State of a run before its first round."""

    state: ServerState
    """State with the first models."""
    clusters: int | None = None
    """Number of clusters, if the initialisation found it."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the initialisation and their cost, ready for JSON."""
    notes: tuple[str, ...] = ()
    """Warnings for the user."""


INIT = Option(
    "init",
    Initializer,
    "how the first models are made: random, gaussian:sd=1, odcl, moment-descent (linear regression), fedgroup, "
    "near-truth or cluster-oracle, with settings after a colon (`coterie describe odcl`), or a run folder",
)
RESTARTS = Option(
    "restarts",
    int,
    "number of random initialisations that are trained side by side, of which the one with the lowest training loss is "
    "kept; auto: several if the method depends on its initialisation (docs/defaults.md), else one",
    AUTO,
    low=1,
    words=(AUTO,),
)
METHOD_DECIDES = frozenset({"clusters"})
"""Settings of a method used as an initializer that the initialised method decides."""


def own_options(init: Initializer) -> tuple[Option, ...]:
    """Return the settings of an initializer that are also options of the methods that use it by default."""
    groups = {
        each.name
        for name in ("local", "averaging", "server")
        if (group := getattr(init, name, None)) is not None
        for each in group.group_options(group)
    }
    hidden = groups | METHOD_DECIDES | {INIT.name, RESTARTS.name}
    return tuple(each for each in options_of(type(init), init) if each.name not in hidden)
