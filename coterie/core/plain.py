"""Conversion of typed values to plain ones (JSON, TOML, text) and back, derived from the fields of dataclasses."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coterie.core.registry import Registered, find_member
from coterie.errors import ConfigError, shown, unknown_name

Plain = str | int | float | bool | None | Sequence["Plain"] | Mapping[str, "Plain"]
"""Values that JSON can hold."""

NAME = "name"
"""Key of the member's name in its plain form."""


def to_plain(value: Any) -> Plain:
    """Return a typed value in plain form; `from_plain` is the inverse.

    A member of a family becomes a mapping with its name and its fields, any other dataclass a mapping of its fields.

    Raises:
        TypeError: if a value has no plain form.
    """
    if is_dataclass(value) and not isinstance(value, type):
        named = {NAME: value.name} if isinstance(value, Registered) else {}
        return named | {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form")


def short_plain(value: Registered) -> Plain:
    """Return a member in plain form without settings that have their defaults; only its name if all of them do."""
    given = {
        field.name: short_plain(setting) if isinstance(setting, Registered) else to_plain(setting)
        for field in settings_of(type(value))
        if (setting := getattr(value, field.name)) is not None and setting != _default_of(field)
    }
    return {NAME: value.name, **given} if given else value.name


def _default_of(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def from_plain(kind: Any, plain: Any, what: str = "value") -> Any:
    """Return a typed value from its plain form.

    Args:
        kind: A family (the name in `plain` selects the member), a dataclass, or the type of a field.
        plain: Plain form as returned by `to_plain`, or as read from JSON or TOML. Absent fields get their defaults.
        what: Name of the value in error messages.

    Raises:
        ConfigError: if the plain form does not fit the type.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _from_union(get_args(kind), plain, what)
    if origin is Literal:
        if plain not in get_args(kind):
            raise ConfigError(f"{what} must be one of {', '.join(map(str, get_args(kind)))}, got {shown(plain)}")
        return plain
    if origin is tuple:
        inner = get_args(kind)[0]
        return tuple(from_plain(inner, each, what) for each in _checked(plain, list | tuple, "a list", what))
    if isinstance(kind, type) and issubclass(kind, Registered):
        return _member(kind, plain, what)
    if is_dataclass(kind):
        return _dataclass(kind, plain, what)
    return _scalar(kind, plain, what)


def _from_union(kinds: Sequence[Any], plain: Any, what: str) -> Any:
    if plain is None and types.NoneType in kinds:
        return None
    refused = []
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return from_plain(kind, plain, what)
        except ConfigError as error:
            refused.append(error)
    raise refused[0]


def _checked(plain: Any, kind: Any, wanted: str, what: str) -> Any:
    if not isinstance(plain, kind):
        raise ConfigError(f"{what} must be {wanted}, got {shown(plain)}")
    return plain


def one_of(kind: type[Registered]) -> str:
    """Return the name of a family with an indefinite article: `an objective`, `a method`."""
    return f"{'an' if kind.family[:1] in 'aeiou' else 'a'} {kind.family}"


def _member(kind: type[Registered], plain: Any, what: str) -> Any:
    """Return a member of a family from a mapping or from its name alone."""
    if isinstance(plain, str):
        plain = {NAME: plain}
    settings = dict(_checked(plain, Mapping, f"{one_of(kind)} with its name and settings", what))
    name = _checked(settings.pop(NAME, None), str, f"{one_of(kind)} with a name", what)
    return _dataclass(find_member(kind, name), settings, name)


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the types of the constructor fields of a dataclass by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in settings_of(kind)}


def settings_of(kind: Any) -> list[Field[Any]]:
    """Return the fields of a dataclass that are parameters of its constructor."""
    return [field for field in fields(kind) if field.init]


def _dataclass(kind: Any, plain: Any, what: str) -> Any:
    settings = _checked(plain, Mapping, "a mapping of settings", what)
    hints = hints_of(kind)
    for key in settings:
        if key not in hints:
            if not hints:
                raise ConfigError(f"{what} has no settings, got {shown(key)}: leave it out")
            raise unknown_name(f"setting of {what}", str(key), hints)
    needed = [f.name for f in settings_of(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: write {what}:{missing[0]}=...")
    return kind(**{key: from_plain(hints[key], value, f"{what}: {key}") for key, value in settings.items()})


def _scalar(kind: Any, plain: Any, what: str) -> Any:
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
    if not isinstance(plain, kind) or (kind is not bool and isinstance(plain, bool)):
        raise ConfigError(f"{what} must be {wanted}, got {shown(plain)}")
    return plain


# ---- texts such as `name:setting=value,setting=value`, as used by flags ----------------------------------------------


def from_text(kind: type[Registered], text: str) -> Any:
    """Return the member of a family that a text such as `softmax-loss:temperature=0.5` describes.

    Args:
        kind: The family.
        text: Name of the member, followed by a colon and its settings, if any.

    Raises:
        ConfigError: if the name or a setting is unknown, or a value does not fit.
    """
    name, _, settings = text.strip().partition(":")
    member: Any = find_member(kind, name)
    hints, given = hints_of(member), {}
    for part in filter(None, (part.strip() for part in settings.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in hints:
            if not hints:
                raise ConfigError(f"{name} has no settings, got {part!r}: leave it out")
            raise unknown_name(f"setting of {name}", key, hints)
        given[key] = _read(hints[key], value, f"{name}: {key}")
    return _dataclass(member, given, name)


def _read(kind: Any, text: str, what: str) -> Any:
    """Return the plain form of a setting from text; a text that does not fit is returned as it is."""
    if get_origin(kind) in (Union, types.UnionType):
        if text == "none" and types.NoneType in get_args(kind):
            return None
        return _read_any([each for each in get_args(kind) if each is not types.NoneType], text, what)
    if get_origin(kind) is Literal:
        choices = {written(choice): choice for choice in get_args(kind)}
        return choices.get(text, text)
    if isinstance(kind, type) and issubclass(kind, Registered):
        return to_plain(from_text(kind, text))
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def _read_any(kinds: Sequence[Any], text: str, what: str) -> Any:
    """Return the plain form of a setting for the first of these types that the text fits."""
    for kind in kinds:
        value = _read(kind, text, what)
        try:
            from_plain(kind, value, what)
        except ConfigError:
            continue
        return value
    return _read(kinds[0], text, what)


def to_text(value: Registered) -> str:
    """Return a member as a text for `from_text`: its name, and the settings that differ from their defaults."""
    given = [
        f"{field.name}={written(setting)}"
        for field in settings_of(type(value))
        if (setting := getattr(value, field.name)) != _default_of(field)
    ]
    return f"{value.name}:{','.join(given)}" if given else value.name


def written(value: object) -> str:
    """Return the value of a setting as text."""
    if isinstance(value, Registered):
        return to_text(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
