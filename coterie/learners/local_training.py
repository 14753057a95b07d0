"""Local training of the received model by a client in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.core.registry import Registered, register
from coterie.errors import ConfigError, unknown_name
from coterie.learners.augment import changes
from coterie.learners.optimizers import SGD, Optimizer
from coterie.learners.schedules import Constant, ExponentialDecay, Schedule
from coterie.options import AUTO, Auto, Option, OptionGroup

COMMON = ("lr", "optimizer", "schedule", "prox", "augment", "order")
"""Settings that are common to all kinds of local training."""
FIXED_RATE = 0.1
"""Learning rate if it cannot be derived from the data."""
Order = Literal["together", "heads-first"]
ORDERS = ("together", "heads-first")


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Registered, OptionGroup, ABC, family="local training"):
    """Base class of local training.

    Args:
        lr: Learning rate before the schedule (gamma); `auto`: derived from the data before the first round, see
            docs/defaults.md.
        optimizer: Update rule of the gradient steps. Its state is reset in every round.
        schedule: Learning rate of each round, relative to `lr`.
        prox: Weight mu of the proximal term (mu/2) ||theta - centre||^2 in the local objective. The centre is the
            model that the client received, unless the method defines another one.
        augment: Random changes of the images in every step, names separated by commas; `none` for no changes.
        order: Order of training for cluster heads on a shared body: body and heads `together`, or `heads-first` with
            fixed features and then the body.

    Raises:
        ConfigError: if a value is out of range or unknown.

    Example:
        >>> from coterie.methods import IFCA
        >>> from coterie.learners import FullBatch
        >>> IFCA(clusters=4, local=FullBatch(steps=5, lr=0.1)).local.steps
        5
    """

    lr: float | Auto = AUTO
    optimizer: Optimizer = SGD()
    schedule: Schedule = Constant()
    prox: float = 0.0
    augment: str = "none"
    order: Order = "together"

    implicit: ClassVar[bool] = False
    """Whether clients compute one exact proximal step, which only some learners support."""
    pools_heads: ClassVar[bool] = False
    """Whether clients send moments of their samples, from which the server computes heads and body."""

    def __post_init__(self) -> None:
        if self.lr != AUTO and not 0 < self.lr < float("inf"):
            raise ConfigError(f"{self.name}: lr must be a finite number above 0, got {self.lr}")
        if not 0 <= self.prox < float("inf"):
            raise ConfigError(f"{self.name}: prox must be a finite number of at least 0, got {self.prox}")
        if self.order not in ORDERS:
            raise unknown_name(f"order of {self.name}", self.order, ORDERS)
        changes(self.augment)  # refuses unknown names

    def for_learner(self, usual: LocalTraining) -> LocalTraining:
        """Return the training with all settings that depend on the learner.

        Args:
            usual: Default local training of the learner.
        """
        return self

    @property
    def takes_gradient_steps(self) -> bool:
        """Whether clients take gradient steps, which all learners support."""
        return not self.implicit and not self.pools_heads

    @property
    @abstractmethod
    def full_batch_steps(self) -> int | None:
        """Number of steps if all steps use the same full batch; None for mini-batches and augmented images.

        Training without gradient steps counts as one step.
        """

    @property
    @abstractmethod
    def single_step(self) -> bool:
        """Whether every client takes exactly one gradient step."""

    @abstractmethod
    def without_prox(self, steps: int | None = None) -> LocalTraining:
        """Return the same training by gradient steps on the loss, without proximal term.

        Args:
            steps: Number of gradient steps; None: unchanged number of steps or epochs.
        """

    @abstractmethod
    def one_pass(self) -> LocalTraining:
        """Return the same training for one pass over the client's samples."""

    def prolonged(self, times: int) -> LocalTraining:
        """Return training by gradient steps on the loss with the number of steps or epochs multiplied by `times`."""
        return self.without_prox().prolonged(times)

    @abstractmethod
    def batch_size_for(self, samples: int) -> int:
        """Return the number of samples in a step, for clients with at most `samples` samples."""

    @abstractmethod
    def steps_for(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of steps of each client, given its number of batches in an epoch."""

    def rate(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round.

        Args:
            round_: Number of the round, from 0.
            rounds: Number of rounds of the run.
        """
        assert self.lr != AUTO, "the learning rate is determined before the first round"
        return self.schedule.rate(self.lr, round_, rounds)

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """Return the options of local training: `local_steps`, `local_epochs`, `batch_size`, `lr` and others."""
        values = default.to_group(default)
        return tuple(replace(each, default=values.get(each.name, each.default)) for each in LOCAL_OPTIONS)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        checked: dict[str, Any] = {each.name: each.check(values.get(each.name)) for each in LOCAL_OPTIONS}
        given = {name: value for name, value in checked.items() if value is not None}
        common = {name: given[name] for name in ("lr", "augment", "optimizer", "schedule") if name in given}
        if "lr_decay" in given and "schedule" in given:
            raise ConfigError("lr_decay and schedule both change the learning rate of the rounds: give one of them")
        if "lr_decay" in given:
            common["schedule"] = _decaying(given["lr_decay"])
        length = {"local_steps", "local_epochs", "batch_size"} & given.keys()
        if length and isinstance(default, AutoTraining):
            return default.of_length(given, common)
        if not length or not isinstance(default, FullBatch | MiniBatch):
            return replace(default, **common)
        kept = {name: getattr(default, name) for name in COMMON}
        return _of_length(default, given, kept | common)

    def to_group(self, default: Any) -> dict[str, Any]:
        """Return the options that describe this training, without the optimizer if it is SGD by default."""
        named: dict[str, Any] = {"lr": self.lr, "augment": self.augment}
        if self.optimizer != SGD() or default.optimizer != SGD():
            named["optimizer"] = self.optimizer
        if isinstance(self.schedule, Constant | ExponentialDecay) and not self.schedule.warmup:
            named["lr_decay"] = getattr(self.schedule, "factor", 1.0)
        else:
            named["schedule"] = self.schedule
        return named

    def path(self, name: str) -> str:
        """Return the name of a computation path for the record, with the optimizer if it is not plain SGD."""
        return name if self.optimizer.plain else f"{name}:{self.optimizer.name}"


@register("full-batch")
@dataclass(frozen=True, kw_only=True)
class FullBatch(LocalTraining):
    """Gradient steps that each use all samples of the client.

    Args:
        steps: Number of gradient steps in a round (tau).
        lr, optimizer, schedule, prox, augment, order: See `LocalTraining`.

    Raises:
        ConfigError: if a value is out of range or unknown.

    Example:
        >>> from coterie.learners import Cosine, FullBatch
        >>> training = FullBatch(steps=5, lr=0.1, schedule=Cosine())
        >>> round(training.rate(5, rounds=10), 3)
        0.05
    """

    steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count(self.name, "steps", self.steps)

    @property
    def full_batch_steps(self) -> int | None:
        return self.steps if self.augment == "none" else None

    @property
    def single_step(self) -> bool:
        return self.steps == 1

    def to_group(self, default: Any) -> dict[str, Any]:
        return {"local_steps": self.steps, **super().to_group(default)}

    def without_prox(self, steps: int | None = None) -> FullBatch:
        return replace(self, prox=0.0, steps=self.steps if steps is None else steps)

    def one_pass(self) -> FullBatch:
        return replace(self, steps=1)

    def prolonged(self, times: int) -> FullBatch:
        return replace(self, prox=0.0, steps=times * self.steps)

    def batch_size_for(self, samples: int) -> int:
        return samples

    def steps_for(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.full(len(batches), self.steps)


@register("mini-batch")
@dataclass(frozen=True, kw_only=True)
class MiniBatch(LocalTraining):
    """Gradient steps on mini-batches of the client's shuffled samples; the last batch of an epoch may be smaller.

    Args:
        batch_size: Number of samples in a step (B).
        epochs: Number of epochs in a round (E); 1 if neither epochs nor steps are given.
        steps: Number of gradient steps in a round, instead of epochs.
        lr, optimizer, schedule, prox, augment, order: See `LocalTraining`.

    Raises:
        ConfigError: if both epochs and steps are given, or a value is out of range or unknown.

    Example:
        >>> from coterie.learners import Adam, MiniBatch
        >>> MiniBatch(batch_size=32, epochs=2, optimizer=Adam(), lr=0.001).epochs
        2
    """

    batch_size: int = 20
    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count(self.name, "batch_size", self.batch_size)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError("mini-batch: epochs and steps both set the length of local training: give one of them")
        if self.steps is not None:
            _check_count(self.name, "steps", self.steps)
        elif self.epochs is None:
            object.__setattr__(self, "epochs", 1)
        else:
            _check_count(self.name, "epochs", self.epochs)

    @property
    def full_batch_steps(self) -> int | None:
        return None

    @property
    def single_step(self) -> bool:
        return self.steps == 1

    def to_group(self, default: Any) -> dict[str, Any]:
        length = {"local_epochs": self.epochs} if self.steps is None else {"local_steps": self.steps}
        return {**length, "batch_size": self.batch_size, **super().to_group(default)}

    def without_prox(self, steps: int | None = None) -> MiniBatch:
        if steps is None:
            return replace(self, prox=0.0)
        return replace(self, prox=0.0, steps=steps, epochs=None)

    def one_pass(self) -> MiniBatch:
        return replace(self, steps=None, epochs=1)

    def prolonged(self, times: int) -> MiniBatch:
        if self.epochs is not None:
            return replace(self, prox=0.0, epochs=times * self.epochs)
        return replace(self, prox=0.0, steps=times * (self.steps or 1))

    def batch_size_for(self, samples: int) -> int:
        return min(self.batch_size, samples)

    def steps_for(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.full(len(batches), self.steps) if self.epochs is None else batches * self.epochs


@register("auto")
@dataclass(frozen=True, kw_only=True)
class AutoTraining(LocalTraining):
    """Default local training of the learner: 10 full-batch steps for linear and logistic models, else mini-batches.

    Args:
        epochs: Number of epochs in a round; by default, that of the learner.
        batch_size: Number of samples in a step; by default, that of the learner.
        lr, optimizer, schedule, prox, augment, order: See `LocalTraining`.

    Raises:
        ConfigError: if a value is out of range or unknown.

    Example:
        >>> from coterie.learners import AutoTraining
        >>> AutoTraining(batch_size=20).batch_size
        20
    """

    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, value in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if value is not None:
                _check_count(self.name, setting, value)

    def for_learner(self, usual: LocalTraining) -> LocalTraining:
        own = {name: getattr(self, name) for name in COMMON}
        given = {"local_epochs": self.epochs, "batch_size": self.batch_size}
        given = {name: value for name, value in given.items() if value is not None}
        if not given or not isinstance(usual, FullBatch | MiniBatch):
            return replace(usual, **own)
        return _of_length(usual, given, own)

    def of_length(self, given: Mapping[Any, Any], common: Mapping[Any, Any]) -> LocalTraining:
        """Return the training with these numbers of steps, epochs and samples; without a batch size, full batches.

        Args:
            given: Options for the length of the training.
            common: Other settings that were given.
        """
        own = {name: getattr(self, name) for name in COMMON} | dict(common)
        if "local_steps" in given:
            return _of_length(FullBatch(), given, own)
        epochs, size = given.get("local_epochs", self.epochs), given.get("batch_size", self.batch_size)
        if epochs is not None and size is not None:
            return MiniBatch(epochs=epochs, batch_size=size, **own)
        return AutoTraining(epochs=epochs, batch_size=size, **own)

    @property
    def full_batch_steps(self) -> int | None:
        return None

    @property
    def single_step(self) -> bool:
        return False

    def to_group(self, default: Any) -> dict[str, Any]:
        named = {"local_epochs": self.epochs, "batch_size": self.batch_size}
        return {name: value for name, value in named.items() if value is not None} | super().to_group(default)

    def without_prox(self, steps: int | None = None) -> LocalTraining:
        raise self._undecided()

    def one_pass(self) -> LocalTraining:
        raise self._undecided()

    def batch_size_for(self, samples: int) -> int:
        raise self._undecided()

    def steps_for(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        raise self._undecided()

    def _undecided(self) -> ConfigError:
        return ConfigError(f"local training {self.name!r} depends on the learner: use full-batch or mini-batch here")


@dataclass(frozen=True, kw_only=True)
class _WithoutGradientSteps(LocalTraining):
    """Base class of training without gradient steps, for which the settings of gradient steps have no effect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {
            "optimizer": self.optimizer != SGD(),
            "prox": self.prox != 0,
            "augment": self.augment != "none",
            "order": self.order != "together",
        }
        for setting in (name for name, differs in given.items() if differs):
            raise ConfigError(f"{self.name} takes no gradient steps, so {setting} has no effect: leave it out")

    @property
    def full_batch_steps(self) -> int | None:
        return 1

    @property
    def single_step(self) -> bool:
        return False

    def without_prox(self, steps: int | None = None) -> FullBatch:
        return FullBatch(steps=1 if steps is None else steps, lr=self.lr, schedule=self.schedule)

    def one_pass(self) -> LocalTraining:
        return self

    def batch_size_for(self, samples: int) -> int:
        return samples

    def steps_for(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.ones_like(batches)


@register("proximal-step")
@dataclass(frozen=True, kw_only=True)
class ProximalStep(_WithoutGradientSteps):
    """Exact proximal step, the minimum of the loss plus ||theta - theta_received||^2 / (2 lr); for linear models.

    Args:
        lr: Step size (eta).
        schedule: Step size of each round, relative to `lr`.

    Raises:
        ConfigError: if a value is out of range, or a setting of gradient steps is given.

    Example:
        >>> from coterie.learners import ProximalStep
        >>> ProximalStep(lr=0.5).implicit
        True
    """

    implicit: ClassVar[bool] = True


@register("pooled-heads")
@dataclass(frozen=True, kw_only=True)
class PooledHeads(_WithoutGradientSteps):
    """Training by the server from moments of the clients' samples: least squares for the heads, one step of the body.

    Only the learner `representation` supports it.

    Args:
        lr: Learning rate of the server's step on the body.
        schedule: Learning rate of each round, relative to `lr`.

    Raises:
        ConfigError: if a value is out of range, or a setting of gradient steps is given.

    Example:
        >>> from coterie.learners import PooledHeads
        >>> PooledHeads(lr=0.1).pools_heads
        True
    """

    pools_heads: ClassVar[bool] = True


def _check_count(training: str, setting: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{training}: {setting} must be at least 1, got {value}")


EPOCHS, BATCH = 2, 20
"""Default local training of networks; see docs/defaults.md for the measurements."""
FULL_BATCHES = FullBatch()
MINI_BATCHES = MiniBatch(batch_size=BATCH, epochs=EPOCHS)

LOCAL_OPTIONS = (
    Option(
        "local_steps",
        int,
        "number of gradient steps of a client in a round (tau); by default 10 for linear and logistic models",
        low=1,
    ),
    Option(
        "local_epochs",
        int,
        f"number of epochs of a client in a round, instead of local_steps; by default {EPOCHS} for networks",
        low=1,
    ),
    Option(
        "batch_size",
        int,
        f"number of samples in a gradient step; by default {BATCH} for networks, and all samples of a client for "
        "linear and logistic models or if local_steps is given",
        low=1,
    ),
    Option(
        "augment",
        str,
        "random changes of the training images in every step, separated by commas: flip (swap left and right with "
        "probability 1/2), crop (shift by up to 4 pixels), or none",
    ),
    Option(
        "lr",
        float,
        "learning rate of local training (gamma); auto: derived from the data before the first round "
        "(docs/defaults.md)",
        above=0,
        words=(AUTO,),
    ),
    Option("lr_decay", float, "factor by which the learning rate is multiplied after every round", above=0, high=1),
    Option("optimizer", Optimizer, "local optimizer: sgd:momentum=0.9,nesterov=true, adam, adamw:weight_decay=0.01"),
    Option(
        "schedule",
        Schedule,
        "learning-rate schedule over the rounds, instead of lr_decay: step-decay:every=10,factor=0.5, cosine:warmup=5",
    ),
)


def _decaying(factor: float) -> Schedule:
    return Constant() if factor == 1 else ExponentialDecay(factor)


def _of_length(default: FullBatch | MiniBatch, given: Mapping[str, Any], common: dict[str, Any]) -> LocalTraining:
    """Return full-batch or mini-batch training with the given numbers of steps, epochs and samples."""
    size = given.get("batch_size", getattr(default, "batch_size", None))
    steps, epochs = given.get("local_steps"), given.get("local_epochs")
    if steps is None and epochs is None:
        steps, epochs = default.steps, getattr(default, "epochs", None)
    if size is not None:
        return MiniBatch(batch_size=size, steps=steps, epochs=epochs, **common)
    return FullBatch(steps=steps or epochs or 1, **common)
