"""What a method and an initializer may use, and what an initialisation gives."""

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
"""The round number of everything that happens before the first round."""


@dataclass(frozen=True)
class Run:
    """What a method may use: the only context object."""

    data: ClientDirectory
    """What is known of the clients: their ids and sizes and, in experiments, the true groups."""
    learner: Learner
    federation: Federation
    settings: RunSettings
    tiers: Tiers
    """The method's composition; what was left to the data is filled in once it is decided."""
    rounds: int
    """Number of rounds of the run; 0 for methods that consist of their initialisation."""
    noise: Noise = SYSTEM_NOISE
    """Source of the noise by which the server hides single clients."""
    known_groups: Tensor | None = None
    """(m,) the cluster of each client where the method knows it in advance."""
    exchanges: bool = True
    """Whether clients need to send anything; if not, no bytes are counted."""

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
        """Return the same run with what the initialisation has decided."""
        return replace(self, tiers=self.tiers.decided(K, lr))


@dataclass(frozen=True)
class FirstModels:
    """Models before the first round, as an initializer makes them."""

    params: Mapping[str, Tensor]
    """{name: (R K, ...)}: K models for each of R restarts."""
    K: int
    labels: Tensor | None = None
    """(m,) the cluster of each client, -1 where it has none; None: the initializer finds no groups."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """What was found out and what it cost, ready for JSON."""
    notes: tuple[str, ...] = ()
    """Warnings for the user."""


class Initializer(Registered, OptionGroup, family="init"):
    """Makes the first models of a method. A member is a frozen dataclass; its fields are its settings."""

    restarts: int | Auto = 1
    """Number of independent random initialisations; a field where the models are drawn at random, `auto` until the
    method has decided it."""
    random: ClassVar[bool] = False
    """Whether another key gives other models, so that restarts make sense."""
    any_count: ClassVar[bool] = False
    """Whether it makes any number of models without asking clients, so that trial runs can choose the number."""
    finds_count: ClassVar[bool] = False
    """Whether it can find the number of clusters."""
    models_trained: ClassVar[bool] = False
    """Whether clients have trained the models, so that these may have diverged already."""
    reveals_rows: ClassVar[Mapping[str, str]] = {}
    """Rows of the replies before the first round, and what each tells the server about a single client."""

    def first_models(self, run: Run) -> FirstModels:
        """Return the first models; `run.tiers` says how many, or None where they are to be found."""
        raise ConfigError(f"{type(self).__name__} defines no first_models(): write a method that returns FirstModels")

    @property
    def starts(self) -> int:
        """Number of independent random initialisations; one as long as it is undecided."""
        return 1 if self.restarts == AUTO else self.restarts

    def takes_steps(self, learner: Learner) -> bool:
        """Return whether clients take gradient steps before the first round, with the run's learning rate."""
        return False

    def check(self, learner: Learner) -> None:
        """Refuse learners that this initializer cannot serve.

        Raises:
            ConfigError: with a sentence that says what to change.
        """

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """`init`, `restarts`, and the settings of the method's own initializer."""
        own = tuple(replace(each, needs=(f"{INIT.name}={default.name}", *each.needs)) for each in own_options(default))
        return (replace(INIT, default=default), replace(RESTARTS, default=default.restarts), *own)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        init: Any = default if values.get(INIT.name) is None else INIT.check(values[INIT.name])
        # an initializer that is not the method's own keeps its settings: their names may be options of the method
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
        """Return the same with this many restarts.

        Raises:
            ConfigError: if there are several, but nothing is drawn at random.
        """
        if not self.random:
            if restarts != AUTO and restarts > 1:
                raise ConfigError(f"restarts={restarts} needs random starts: leave restarts at 1 with init={self.name}")
            return self
        return replace(self, restarts=restarts)  # type: ignore[type-var]


@dataclass(frozen=True)
class Initial:
    """A run before its first round."""

    state: ServerState
    clusters: int | None = None
    """Number of clusters, if it was left to the data."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """What the initialisation found out and what it cost, ready for JSON."""
    notes: tuple[str, ...] = ()


INIT = Option(
    "init",
    Initializer,
    "how the first models are made: random, gaussian:sd=1, odcl, moment-descent (linear regression), fedgroup, "
    "near-truth or cluster-oracle, with settings after a colon (`coterie describe odcl`), or a run folder",
)
RESTARTS = Option(
    "restarts",
    int,
    "number of random initialisations that are trained side by side; the least training loss wins; auto: several where "
    "the method depends on its start (docs/defaults.md), else one",
    AUTO,
    low=1,
    words=(AUTO,),
)
OF_THE_METHOD = frozenset({"clusters"})
"""Settings of an initializer that is a method itself which the method that it initialises decides."""


def own_options(init: Initializer) -> tuple[Option, ...]:
    """Return the settings of an initializer that are options of a method whose initializer it is."""
    groups = {
        each.name
        for name in ("local", "averaging", "server")
        if (group := getattr(init, name, None)) is not None
        for each in group.group_options(group)
    }
    hidden = groups | OF_THE_METHOD | {INIT.name, RESTARTS.name}
    return tuple(each for each in options_of(type(init), init) if each.name not in hidden)
