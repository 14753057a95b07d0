"""Learners: model families with local training. Any function that returns a `torch.nn.Module` is a learner, too.

Example:
    >>> from coterie.core.dataset import Profile
    >>> from coterie.learners import make_learner
    >>> make_learner("mlp:hidden=32-16", Profile(features=(8,), classes=3)).spec
    'mlp:hidden=32-16,l2=0.0'
"""

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
from coterie.learners.module import Factory, user_module
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
"""Choice of a learner: `"mlp"`, `"mlp:hidden=200-100"`, or a function that returns a `torch.nn.Module`."""

Reader = Callable[[str], Mapping[str, Tensor]]
"""Function that reads named arrays from a file, for learners with stored initial weights; learners read no files."""

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
    """Return a decorator that registers a function as a learner, to be used as `learner="NAME:hidden=8"` everywhere.

    The function takes the `Profile` of the data (`features`, the shape of a sample, and `classes`) and its settings as
    keyword-only parameters with types and defaults. It returns a `torch.nn.Module`.

    Args:
        name: Name of the learner. A registered name can be reused only by a function with the same qualified name.

    Returns:
        A decorator that returns the function itself.

    Raises:
        ConfigError: if the name is already registered.

    Example:
        >>> from torch import nn
        >>> import coterie
        >>> from coterie.learners import register_learner
        >>> @register_learner("tiny")
        ... def tiny(profile, *, hidden: int = 8):
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, profile.classes))
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, "fedavg", learner="tiny:hidden=4", rounds=1)
        >>> result.models[0]["1.weight"].shape
        (4, 64)
    """

    def decorate(network: Network) -> Network:
        registered = LEARNERS.get(name)
        if (registered is not None and registered.__qualname__ != network.__qualname__) or name == "module":
            raise ConfigError(f"there is already a learner called {name!r}: choose another name")

        @wraps(network)
        def learner(profile: Profile, **given: object) -> Learner:
            settings = {each.name: each.default for each in learner_options(name).values()} | given
            text = ",".join(f"{each}={_written(value)}" for each, value in settings.items())
            return user_module(profile, lambda: network(profile, **settings), spec=f"{name}:{text}" if text else name)

        LEARNERS[name] = learner
        return network

    return decorate


def _written(value: object) -> str:
    """Return the text of a setting; the inverse of `_read`."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def no_files(source: str) -> Mapping[str, Tensor]:
    """Refuse to read a file: the default reader, for code without access to files.

    Args:
        source: Path of the file.

    Raises:
        ConfigError: always.

    Example:
        >>> from coterie.learners import no_files
        >>> no_files("weights.safetensors")
        Traceback (most recent call last):
        ...
        coterie.errors.ConfigError: weights weights.safetensors: no file can be read here, ...
    """
    raise ConfigError(f"weights {source}: no file can be read here, pass a function that reads it to make_learner")


def make_learner(choice: LearnerChoice, profile: Profile, read: Reader = no_files) -> Learner:
    """Return a learner.

    Args:
        choice: Name of a learner with its settings, or a function that returns a `torch.nn.Module`.
        profile: Shape of the samples and number of classes.
        read: Function that reads a file with initial weights, if the settings name one.

    Returns:
        The learner.

    Raises:
        ConfigError: if the learner or a setting is unknown, or the learner does not fit the data.

    Example:
        >>> import torch
        >>> from coterie.core.dataset import Profile
        >>> learner = make_learner("linear:bias=true", Profile(features=(3,), classes=None))
        >>> {name: tuple(p.shape) for name, p in learner.start([0, 1], torch.float64).items()}
        {'weight': (2, 3), 'bias': (2,)}
    """
    if not isinstance(choice, str):
        if isinstance(choice, nn.Module) or not callable(choice):
            raise ConfigError(
                f"learner must be one of {', '.join(LEARNERS)} or a function that returns a torch.nn.Module; "
                f"got {type(choice).__name__}"
            )
        name = getattr(choice, "__qualname__", type(choice).__name__)
        return user_module(profile, choice, spec=f"module:{name}")
    name, _, text = choice.partition(":")
    if name == "module":
        raise ConfigError(f"{choice!r} was created from a Python function: pass this function again as learner=")
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    build = LEARNERS[name]
    return build(profile, **_parse(name, text, learner_options(name), read))


def learner_options(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings of a registered learner with their types and defaults.

    Args:
        name: Name of the learner.

    Returns:
        Parameters of the function that creates the learner, by name.

    Example:
        >>> {name: setting.default for name, setting in learner_options("cnn").items()}
        {'channels': 8, 'hidden': 64, 'kernel': 3}
    """
    signature = inspect.signature(LEARNERS[name], eval_str=True)
    return {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def _parse(learner: str, text: str, options: dict[str, inspect.Parameter], read: Reader) -> dict[str, object]:
    """Convert a text such as `hidden=200-100,l2=0.1` to keyword arguments."""
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
