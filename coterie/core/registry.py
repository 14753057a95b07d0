"""Families of named values: methods, tier members, tasks, optimizers, callbacks. Each family can be extended.

A family is a base class; its members are frozen dataclasses whose fields are their settings. A member has a name, by
which the command line, TOML files and messages refer to it::

    class Objective(Registered, family="objective"): ...

    @register("ratio")
    @dataclass(frozen=True)
    class Ratio(Objective): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, ClassVar, TypeVar

from coterie.errors import ConfigError, unknown_name


class Registered:
    """Base of all families."""

    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    """Name of the family, for error messages: `objective`, `method`."""
    members: ClassVar[dict[str, type[Any]]] = {}
    """Members of the family by name."""

    def __init_subclass__(cls, family: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if family is not None:
            cls.family, cls.members = family, {}


def families_of(member: type) -> list[type[Registered]]:
    """Return the base classes of a class that open a family."""
    return [base for base in member.__mro__ if issubclass(base, Registered) and "members" in vars(base) and base.family]


M = TypeVar("M", bound=type)


def register(name: str) -> Callable[[M], M]:
    """Return a decorator that makes a class a member of its families under this name.

    A name can be taken again only by a class of the same qualified name, as when a notebook cell is run twice.

    Args:
        name: Name of the member; it identifies the member on the command line, in files and in messages.

    Raises:
        ConfigError: if the class belongs to no family, is not a dataclass, or the name is taken.
    """

    def known(member: M) -> M:
        families = families_of(member)
        if not families:
            raise ConfigError(
                f"{member.__name__} belongs to no family that can be extended: derive it from a base class such as "
                "coterie.methods.Method, coterie.tiers.Objective or coterie.callbacks.Callback"
            )
        if not is_dataclass(member):
            raise ConfigError(f"{member.__name__} must be a dataclass: put @dataclass(frozen=True) above the class")
        for family in families:
            holder = family.members.get(name)
            if holder is not None and holder.__qualname__ != member.__qualname__:
                raise ConfigError(f"there is already a {family.family} called {name!r}: choose another name")
            family.members[name] = member
        member.name = name  # type: ignore[attr-defined]
        return member

    return known


class UnknownMemberError(ConfigError):
    """A name that no member of a family has; a plugin may register it."""

    def __init__(self, message: object, family: str, name: str) -> None:
        super().__init__(message)
        self.family, self.name = family, name


def find_member(family: type[Registered], name: str) -> type[Any]:
    """Return the member of a family by its name.

    Raises:
        UnknownMemberError: if there is none; the message suggests the nearest name.
    """
    if name not in family.members:
        raise UnknownMemberError(unknown_name(family.family, name, family.members), family.family, name)
    return family.members[name]
