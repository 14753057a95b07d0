"""Methods of a comparison or a sweep, as names or typed values, in a form that files and worker processes can hold."""

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
"""Labels are part of the names of folders."""


@dataclass(frozen=True)
class Variant:
    """A method with the label under which its runs are filed."""

    label: str
    method: str
    """Name of the method."""
    settings: Mapping[str, Any] | None = None
    """All settings of a typed method as plain values; None: the name was given, so that a scenario may suggest some."""

    @classmethod
    def of(cls, choice: MethodChoice, label: str = "") -> Variant:
        """Return the variant of a method as a user chose it; without a label the method's name is used.

        Raises:
            ConfigError: if the name is unknown, or the typed method cannot be rebuilt from its name and settings.
        """
        if not isinstance(choice, Method):
            return cls(_checked_label(label or str(choice)), method_class(choice).name)
        if Method.members.get(choice.name) is not type(choice):
            raise ConfigError(
                f"{type(choice).__name__} is not registered, so that its runs could not be read again: put "
                '@coterie.register("name") above the class'
            )
        if isinstance(choice.initializer, GivenModels):
            raise ConfigError(f"{choice.name}: models as init cannot be written down: use fit, or init with a name")
        return cls(_checked_label(label or choice.name), choice.name, plain_options(choice.to_options()))

    @classmethod
    def from_plain(cls, label: str, typed: Mapping[str, Mapping[str, Any]]) -> Variant:
        """Return the variant of a label from the table of typed methods in a file; without an entry it is a name."""
        return cls(label, **typed[label]) if label in typed else cls(label, label)

    @property
    def kind(self) -> type[Method]:
        """Class of the method."""
        return method_class(self.method)

    @property
    def is_plain(self) -> bool:
        """Whether the label alone says everything."""
        return self.settings is None and self.label == self.method

    def to_plain(self) -> dict[str, Any]:
        """Return what a file holds of the variant besides its label."""
        return {"method": self.method} | ({} if self.settings is None else {"settings": dict(self.settings)})

    def choice(self) -> MethodChoice:
        """Return the name, or the typed method."""
        return self.method if self.settings is None else from_options(self.kind, self.settings)

    def takes(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the options that the method takes and that have an effect on it."""
        kind = self.kind
        own, names = kind.own_names(), {option.name for option in kind.options()}
        taken = {name: value for name, value in options.items() if name in names}
        try:
            built = from_options(kind, {**(self.settings or {}), **{n: v for n, v in taken.items() if n in own}})
        except ConfigError:
            return taken  # the plan of the run says what is wrong
        idle = built.without_effect({name: value for name, value in taken.items() if name in own})
        return {name: value for name, value in taken.items() if name not in idle}


def variants_of(methods: Methods) -> list[Variant]:
    """Return the variants of the methods that a user lists.

    Raises:
        ConfigError: if it is no list or mapping of methods, or one occurs twice without a label.
    """
    if isinstance(methods, Mapping):
        return [Variant.of(choice, _checked_label(label)) for label, choice in methods.items()]
    variants = [Variant.of(choice) for choice in methods]
    labels = [variant.label for variant in variants]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ConfigError(
            f"method {twice[0]!r} is listed twice: name every method once, or give labels as in "
            f"{{'{twice[0]}-a': ..., '{twice[0]}-b': ...}}"
        )
    return variants


def _checked_label(label: object) -> str:
    if not isinstance(label, str) or not LABEL.fullmatch(label) or label.strip(".") == "":
        raise ConfigError(f"a label names a folder: use letters, digits and . + = , - _ only, got {shown(label)}")
    return label
