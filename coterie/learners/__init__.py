"""Model families with their local optimisation. A learner is a name with settings, or any module factory."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeVar

from torch import Tensor, nn

from coterie.core.dataset import Profile
from coterie.errors import ConfigError, unknown_name
from coterie.learners.base import Learner
from coterie.learners.cnn import cnn
from coterie.learners.linear import linear
from coterie.learners.local_training import AutoTraining, FullBatch, LocalTraining, MiniBatch, PooledHeads, ProximalStep
from coterie.learners.logistic import logistic
from coterie.learners.mlp import mlp
from coterie.learners.module import Factory, own_module
from coterie.learners.networks.mobilenet import mobilenet_v2
from coterie.learners.networks.resnet import resnet18
from coterie.learners.networks.stored import StoredWeights
from coterie.learners.optimizers import SGD, Adam, AdamW, Optimizer
from coterie.learners.representation import representation
from coterie.learners.schedules import Constant, Cosine, ExponentialDecay, Schedule, StepDecay

__all__ = [
    "LEARNERS",
    "SGD",
    "Adam",
    "AdamW",
    "AutoTraining",
    "Constant",
    "Cosine",
    "ExponentialDecay",
    "Factory",
    "FullBatch",
    "Learner",
    "LearnerChoice",
    "LocalTraining",
    "MiniBatch",
    "Optimizer",
    "PooledHeads",
    "ProximalStep",
    "Reader",
    "Schedule",
    "StepDecay",
    "learner_options",
    "make_learner",
    "no_files",
    "register_learner",
]

LearnerChoice = str | Factory
"""What a user passes: `"mlp"`, `"mlp:hidden=200-100"`, or a function that returns a torch.nn.Module."""

Reader = Callable[[str], Mapping[str, Tensor]]
"""Named arrays from a file. Learners touch no file: whoever makes one that starts from stored weights brings this."""

LEARNERS: dict[str, Callable[..., Learner]] = {
    "linear": linear,
    "logistic": logistic,
    "representation": representation,
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": resnet18,
    "mobilenet-v2": mobilenet_v2,
}


Network = TypeVar("Network", bound=Callable[..., nn.Module])


def register_learner(name: str) -> Callable[[Network], Network]:
    """Return a decorator that makes a function a learner: `learner="NAME:hidden=8"`, in Flower and on the command line.

    The function takes the `Profile` of the data (`features`, the shape of a sample, and `classes`) and its settings as
    keyword-only parameters with types and defaults; it returns a `torch.nn.Module`.

    Args:
        name: Name of the learner. Only a function of the same name can take it again.

    Raises:
        ConfigError: if the name is taken.
    """

    def known(network: Network) -> Network:
        taken = LEARNERS.get(name)
        if (taken is not None and taken.__qualname__ != network.__qualname__) or name == "module":
            raise ConfigError(f"there is already a learner called {name!r}: choose another name")

        @wraps(network)
        def learner(profile: Profile, **given: object) -> Learner:
            settings = {each.name: each.default for each in learner_options(name).values()} | given
            text = ",".join(f"{each}={_written(value)}" for each, value in settings.items())
            return own_module(profile, lambda: network(profile, **settings), spec=f"{name}:{text}" if text else name)

        LEARNERS[name] = learner
        return network

    return known


def _written(value: object) -> str:
    """The text of a setting, the inverse of `_read`."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def no_files(source: str) -> Mapping[str, Tensor]:
    """The reader where no file may be read."""
    raise ConfigError(f"weights {source}: no file can be read here, pass make_learner a function that reads it")


def make_learner(choice: LearnerChoice, profile: Profile, read: Reader = no_files) -> Learner:
    """The learner for data of this profile; `read` opens the file that its settings name, if they do."""
    if not isinstance(choice, str):
        if isinstance(choice, nn.Module) or not callable(choice):
            raise ConfigError(
                f"learner must be one of {', '.join(LEARNERS)} or a function that returns a torch.nn.Module; "
                f"got {type(choice).__name__}"
            )
        name = getattr(choice, "__qualname__", type(choice).__name__)
        return own_module(profile, choice, spec=f"module:{name}")
    name, _, text = choice.partition(":")
    if name == "module":
        raise ConfigError(f"{choice!r} was made from a function of yours: pass that function again as learner=")
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    build = LEARNERS[name]
    return build(profile, **_parse(name, text, learner_options(name), read))


def learner_options(name: str) -> dict[str, inspect.Parameter]:
    """The settings of a named learner, with types and defaults."""
    signature = inspect.signature(LEARNERS[name], eval_str=True)
    return {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def _parse(learner: str, text: str, options: dict[str, inspect.Parameter], read: Reader) -> dict[str, object]:
    """`hidden=200-100,l2=0.1` into keyword arguments."""
    settings: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in options:
            raise unknown_name(f"setting of learner {learner}", key, options)
        kind = options[key].annotation
        if kind == StoredWeights | None:
            settings[key] = None if value == "none" else StoredWeights(value, read(value))
            continue
        try:
            settings[key] = _read(kind, value)
        except ValueError:
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(
                kind, "widths such as 200-100"
            )
            raise ConfigError(f"learner {learner}: {key} must be {wanted}, got {value or equals!r}") from None
    return settings


def _read(kind: object, value: str) -> object:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(value)
        return value == "true"
    if isinstance(kind, types.GenericAlias) and typing.get_origin(kind) is tuple:
        return tuple(int(v) for v in value.split("-"))
    if kind is str:
        return value
    return int(value) if kind is int else float(value)
