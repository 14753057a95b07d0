"""Registries of named classes: methods, tier members, tasks, optimizers, callbacks. Users can extend each of them.

A *family* is a base class; its *members* are frozen dataclasses whose fields are their settings. The command line, TOML
files and messages refer to a member by its name::

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
    """Base class of all families."""

    name: ClassVar[str] = ""
    """Name of a member, set by `register`."""
    family: ClassVar[str] = ""
    """Name of the family, for error messages: `objective`, `method`."""
    members: ClassVar[dict[str, type[Any]]] = {}
    """Members of the family by name."""

    def __init_subclass__(cls, family: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if family is not None:
            cls.family, cls.members = family, {}


def families_of(member: type) -> list[type[Registered]]:
    """Return those base classes of a class that define a family."""
    return [base for base in member.__mro__ if issubclass(base, Registered) and "members" in vars(base) and base.family]


M = TypeVar("M", bound=type)


def register(name: str) -> Callable[[M], M]:
    """Return a decorator that registers a class under a name.

    The class must be a dataclass derived from an extensible base class, such as `coterie.methods.Method`. A registered
    name can be reused only by a class with the same qualified name, as when a notebook cell is run again.

    Args:
        name: Name of the class on the command line, in files and in messages.

    Returns:
        A decorator that returns the class itself.

    Raises:
        ConfigError: if the class has no extensible base class, is not a dataclass, or the name is already registered.

    Example:
        >>> from dataclasses import dataclass
        >>> import coterie
        >>> from coterie.callbacks import Callback
        >>> @coterie.register("stop-after-three")
        ... @dataclass(frozen=True)
        ... class StopAfterThree(Callback):
        ...     def on_round(self, run, record):
        ...         return record.round >= 3
        >>> StopAfterThree.name
        'stop-after-three'
    """

    def decorate(member: M) -> M:
        families = families_of(member)
        if not families:
            raise ConfigError(
                f"{member.__name__} has no extensible base class: derive it from a class such as "
                "coterie.methods.Method, coterie.tiers.Objective or coterie.callbacks.Callback"
            )
        if not is_dataclass(member):
            raise ConfigError(f"{member.__name__} must be a dataclass: put @dataclass(frozen=True) above the class")
        for family in families:
            registered = family.members.get(name)
            if registered is not None and registered.__qualname__ != member.__qualname__:
                raise ConfigError(f"there is already a {family.family} called {name!r}: choose another name")
            family.members[name] = member
        member.name = name  # type: ignore[attr-defined]
        return member

    return decorate


class UnknownMemberError(ConfigError):
    """Raised for a name that no member of a family has; a plugin may register it later."""

    def __init__(self, message: object, family: str, name: str) -> None:
        super().__init__(message)
        self.family, self.name = family, name


def find_member(family: type[Registered], name: str) -> type[Any]:
    """Return the member of a family with this name.

    Args:
        family: Base class of the family.
        name: Name of the member.

    Raises:
        UnknownMemberError: if there is none; the message suggests a similar name.
    """
    if name not in family.members:
        raise UnknownMemberError(unknown_name(family.family, name, family.members), family.family, name)
    return family.members[name]
