"""Members of the tiers by name, as texts such as `em-mixture:mu=0.4`; members of one's own join here."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from coterie.errors import ConfigError, unknown_name
from coterie.tiers.assignment import AssignmentRule
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Objective
from coterie.tiers.procedure import MergeAbove, RemoveUnclaimed, SplitByGap, SplitByNorm, SplitBySpectrum, Step

Tier = Literal["objective", "weights", "procedure", "distance"]
Member = Objective | AssignmentRule | Step | Distance

STEPS: dict[str, type[Any]] = {
    m.name: m for m in (SplitByNorm, SplitByGap, SplitBySpectrum, RemoveUnclaimed, MergeAbove)
}
FIXED = "fixed"
"""The text of a procedure without steps: K stays."""


@dataclass(frozen=True)
class TierFacts:
    """One of the four choices."""

    question: str
    members: dict[str, type[Any]]
    must_have: tuple[str, ...]
    """What every member has."""


TIERS: Mapping[Tier, TierFacts] = {
    "objective": TierFacts(
        "what a cluster models",
        Objective.members,
        ("name", "counts", "summed", "client_cost", "client_counts", "server_keep", "server_combine", "server_regroup"),
    ),
    "weights": TierFacts(
        "how clients are given to clusters",
        AssignmentRule.members,
        ("name", "client_round", "server_aggregate", "assigned", "keeps"),
    ),
    "procedure": TierFacts(
        "when the number of clusters changes",
        STEPS,
        ("name", "splits", "server_propose"),
    ),
    "distance": TierFacts(
        "how far apart two clients are",
        Distance.members,
        ("name", "needs", "reveals", "weighted", "client_summary", "server_pairwise"),
    ),
}

M = TypeVar("M")


def register(tier: Tier) -> Callable[[type[M]], type[M]]:
    """A decorator that makes a member of one's own known, so that texts and options can name it.

    The member is a frozen dataclass; its fields are its settings. A name can be taken again only by the class of the
    same name, as when a notebook's cell is run twice.
    """
    if tier not in TIERS:
        raise unknown_name("tier", str(tier), TIERS)
    facts = TIERS[tier]

    def known(member: type[M]) -> type[M]:
        if not is_dataclass(member):
            raise ConfigError(f"a member of tier {tier} must be a dataclass, but {member.__name__} is none: add it")
        lacking = [name for name in facts.must_have if not hasattr(member, name) and name not in _names(member)]
        if lacking:
            raise ConfigError(f"{member.__name__} lacks {', '.join(lacking)}, which members of tier {tier} have")
        name = str(member.name)  # type: ignore[attr-defined]
        holder = facts.members.get(name)
        if holder is not None and getattr(holder, "__qualname__", "") != member.__qualname__:
            raise ConfigError(f"tier {tier} has a member called {name!r} already: choose another name")
        facts.members[name] = member
        return member

    return known


OF_THE_RUN = "seed"
"""A field that the run fills in and no text does."""


def _fields(member: Any) -> list[Field[Any]]:
    return [field for field in fields(member) if field.name != OF_THE_RUN]


def _names(member: Any) -> set[str]:
    return {field.name for field in _fields(member)}


# ---- texts ---------------------------------------------------------------------------------------------------


def read_member(tier: Tier, text: str) -> Any:
    """The member that a text such as `prototypes:principle=cscp,weighted=false` names."""
    return read_named(f"member of tier {tier}", TIERS[tier].members, text)


def read_named(what: str, members: Mapping[str, Callable[..., Any]], text: str) -> Any:
    """The one of these dataclasses that a text such as `name:setting=value` names; `what` they are, for the error."""
    name, _, settings = text.strip().partition(":")
    if name not in members:
        raise unknown_name(what, name, members)
    return members[name](**_settings(members[name], name, settings))


def read_steps(text: str) -> tuple[Step, ...]:
    """The steps of a procedure such as `split-by-gap:rho=0.3 + remove-unclaimed`; none for `fixed`."""
    if text.strip() == FIXED:
        return ()
    # a plus sign inside a number, as in 1e+20, is followed by a digit
    return tuple(read_member("procedure", part) for part in re.split(r"\s*\+\s*(?!\d)", text.strip()))


def text_of(member: Member) -> str:
    """The text that `read_member` reads back: the name, and the settings that differ from their defaults."""
    given = [
        f"{field.name}={_written(getattr(member, field.name))}"
        for field in _fields(member)
        if getattr(member, field.name) != field.default
    ]
    return f"{member.name}:{','.join(given)}" if given else member.name


def settings_of(member: Callable[..., Any]) -> dict[str, str]:
    """The settings of a member with their defaults as texts; `needed` where there is none."""
    return {field.name: "needed" if _needed(field) else _written(field.default) for field in _fields(member)}


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _settings(member: Any, name: str, text: str) -> dict[str, object]:
    kinds = {key: kind for key, kind in get_type_hints(member).items() if key in _names(member)}
    given: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in kinds:
            if not kinds:
                raise ConfigError(f"{name} has no settings, got {part!r}: leave it out")
            raise unknown_name(f"setting of {name}", key, kinds)
        try:
            given[key] = _value(kinds[key], value)
        except ValueError:
            raise ConfigError(f"{name}: {key} must be {_wanted(kinds[key])}, got {value!r}") from None
    missing = [field.name for field in _fields(member) if _needed(field) and field.name not in given]
    if missing:
        raise ConfigError(f"{name} needs {' and '.join(missing)}: write {name}:{missing[0]}=...")
    return given


def _value(kind: Any, text: str) -> object:
    """A value of a setting's type; ValueError if it is none."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = next(each for each in get_args(kind) if each is not types.NoneType)
        return None if text == "none" else _value(inner, text)
    if get_origin(kind) is Literal or kind is bool:
        choices = {_written(choice): choice for choice in (get_args(kind) or (True, False))}
        if text not in choices:
            raise ValueError(text)
        return choices[text]
    return kind(text)


def _wanted(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join("none" if each is types.NoneType else _wanted(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(_written, get_args(kind)))}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]


def _written(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
