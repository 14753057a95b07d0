"""Methods of a comparison or a sweep, in a form that can be stored in files and sent to worker processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import ConfigError, shown
from coterie.methods.base import Method
from coterie.methods.initializers import GivenModels
from coterie.options import from_options, plain_options
from coterie.training.planning import MethodChoice, method_class

Methods = Sequence[MethodChoice] | Mapping[str, MethodChoice]
"""Methods by name or as typed values; a mapping gives each a label, so that one method can occur several times."""

LABEL = re.compile(r"[\w.+=,-]+")
"""Allowed labels, which are part of the names of folders."""


@dataclass(frozen=True)
class Variant:
    """A method with the label under which its runs are stored."""

    label: str
    method: str
    """Name of the method."""
    settings: Mapping[str, Any] | None = None
    """All settings of a typed method as plain values; None: the method was given by name, so that recommendations of
    the scenario apply."""

    @classmethod
    def of(cls, choice: MethodChoice, label: str = "") -> Variant:
        """Return the variant of a method.

        Args:
            choice: Name of the method, or a typed method.
            label: Label of the variant; by default the name of the method.

        Raises:
            ConfigError: if the name is unknown, or the typed method cannot be rebuilt from its name and settings.
        """
        if not isinstance(choice, Method):
            return cls(_checked_label(label or str(choice)), method_class(choice).name)
        if Method.members.get(choice.name) is not type(choice):
            raise ConfigError(
                f"{type(choice).__name__} is not registered, so that its runs could not be loaded: decorate the class "
                'with @coterie.register("name")'
            )
        if isinstance(choice.initializer, GivenModels):
            raise ConfigError(
                f"{choice.name}: models as init cannot be stored in a plan: use fit, or the name of an initializer"
            )
        return cls(_checked_label(label or choice.name), choice.name, plain_options(choice.to_options()))

    @classmethod
    def from_plain(cls, label: str, typed: Mapping[str, Mapping[str, Any]]) -> Variant:
        """Return the variant of a label.

        Args:
            label: Label of the variant; without an entry in `typed` it is the name of the method.
            typed: Table of the typed methods in a file, by label.
        """
        return cls(label, **typed[label]) if label in typed else cls(label, label)

    @property
    def kind(self) -> type[Method]:
        """Class of the method."""
        return method_class(self.method)

    @property
    def is_plain(self) -> bool:
        """Whether the label is the name of the method, and there are no settings."""
        return self.settings is None and self.label == self.method

    def to_plain(self) -> dict[str, Any]:
        """Return the content of the variant for a file, besides its label."""
        return {"method": self.method} | ({} if self.settings is None else {"settings": dict(self.settings)})

    def choice(self) -> MethodChoice:
        """Return the name of the method, or the typed method."""
        return self.method if self.settings is None else from_options(self.kind, self.settings)

    def takes(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that the method has and that affect it."""
        kind = self.kind
        own, names = kind.own_names(), {option.name for option in kind.options()}
        taken = {name: value for name, value in options.items() if name in names}
        try:
            built = from_options(kind, {**(self.settings or {}), **{n: v for n, v in taken.items() if n in own}})
        except ConfigError:
            return taken  # the plan of the run raises the error
        idle = built.without_effect({name: value for name, value in taken.items() if name in own})
        return {name: value for name, value in taken.items() if name not in idle}


def variants_of(methods: Methods) -> list[Variant]:
    """Return the variants of a list or mapping of methods.

    Raises:
        ConfigError: if a method or a label is not allowed, or a method occurs twice without labels.
    """
    if isinstance(methods, Mapping):
        return [Variant.of(choice, _checked_label(label)) for label, choice in methods.items()]
    variants = [Variant.of(choice) for choice in methods]
    labels = [variant.label for variant in variants]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ConfigError(
            f"method {twice[0]!r} is listed twice: list every method once, or use labels, as in "
            f"{{'{twice[0]}-a': ..., '{twice[0]}-b': ...}}"
        )
    return variants


def _checked_label(label: object) -> str:
    if not isinstance(label, str) or not LABEL.fullmatch(label) or label.strip(".") == "":
        raise ConfigError(
            f"a label must consist of letters, digits and . + = , - _ because it names a folder, got {shown(label)}"
        )
    return label
