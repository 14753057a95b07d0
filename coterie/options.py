"""Options: one name everywhere (Python keyword, TOML key, command-line flag), derived from the fields of typed values.

A field of a dataclass becomes an option by `option(default, help, ...)`. A nested value whose own settings are options
derives from `OptionGroup`: a method's `local` training brings `local_steps`, `batch_size`, `lr` and so on. So one set
of fields serves `IFCA(local=FullBatch(steps=5))`, `fit(data, "ifca", local_steps=5)`, `--local-steps 5` and TOML.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from coterie.core.plain import from_plain, from_text, one_of, short_plain
from coterie.core.registry import Registered
from coterie.errors import ConfigError, is_unicode, shown, unknown_name

Auto = Literal["auto"]
"""Type of a setting that may be left to the data."""
AUTO: Auto = "auto"
"""Instead of a value: let the data decide."""
LARGEST = 2**63 - 1
"""The largest whole number that TOML and arrays can hold."""


@dataclass(frozen=True)
class Option:
    """One option: what may be given, what it means."""

    name: str
    kind: type
    """int, float, str, bool, or a family of named values such as `Optimizer`."""
    help: str
    default: object = None
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    """Least value allowed."""
    above: float = -math.inf
    """Values must be greater than this."""
    high: float = math.inf
    words: tuple[str, ...] = ()
    """Texts that may stand instead of a number."""
    several: bool = False
    """Whether the value is a sequence of members of the family; as text they are joined by ` + `."""
    listed: bool = False
    """Whether the value is a list of names separated by commas; its flag may be repeated."""
    needs: tuple[str, ...] = ()
    """Conditions without which the option has no effect: `then=fedprox`, `solver=steps|auto`, or `race`: not zero."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: object) -> object:
        """Return the value in the option's type; numbers of NumPy become plain ones.

        Raises:
            ConfigError: if it is of another type, out of range or not one of the choices.
        """
        given = value
        if issubclass(self.kind, Registered):
            return value if value is None else self._member(value)
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or (isinstance(value, str) and value in self.words):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = self._converted(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise self._refusal(given)
        if isinstance(value, str):
            self._check_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value)
        return value

    def _member(self, value: object) -> object:
        """A member of the option's family, or several, from themselves, their texts or their plain forms."""
        if self.several:
            if isinstance(value, str):
                # a plus sign inside a number, as in 1e+20, is followed by a digit
                value = [part for part in re.split(r"\s*\+\s*(?!\d)", value.strip()) if part]
            parts = value if isinstance(value, list | tuple) else [value]
            return tuple(replace(self, several=False)._member(part) for part in parts)
        if isinstance(value, self.kind):
            return value
        if isinstance(value, str):
            return from_text(self.kind, value)
        return from_plain(self.kind, value, self.name)

    def _converted(self, value: int | float) -> object:
        """A whole number as a real one, and numbers as text, where that is the option's type."""
        try:
            if self.kind is float:
                return float(value)
            return str(value) if self.kind is str else value  # samples=50 in Python is as good as "50"
        except (OverflowError, ValueError):  # beyond the largest float; more digits than Python converts
            raise self._refusal(value) from None

    def _check_text(self, value: str) -> None:
        if self.choices and value not in self.choices:
            raise unknown_name(self.name, value, self.choices)
        if "\0" in value or not is_unicode(value):
            raise ConfigError(f"{self.name} must be a text that UTF-8 can store, without NUL, got {shown(value)}")

    def _check_range(self, value: int | float) -> None:
        if not (self.low <= value <= self.high and self.above < value < math.inf):  # false for NaN, too
            raise self._refusal(value)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{self.name} must be a whole number below 2^63, got {shown(value)}")

    def _refusal(self, value: object) -> ConfigError:
        return ConfigError(f"{self.name} must be {self.wanted()}, got {shown(value)}")

    def unmet(self, values: Mapping[str, Any]) -> str:
        """Return the first condition of the option that these values do not meet; empty if it has an effect."""
        return next((condition for condition in self.needs if not _holds(condition, values)), "")

    def read(self, text: str) -> object:
        """A value from text, as a flag gives it."""
        if text in self.words:
            return text
        if issubclass(self.kind, Registered):
            return self._member(text)
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            return self.check(self.kind(text) if self.kind in (int, float) else text)
        except (ValueError, KeyError):
            raise self._refusal(text) from None

    def wanted(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if issubclass(self.kind, Registered):
            return f"the name of {one_of(self.kind)} with its settings"
        noun = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[self.kind]
        limits = []
        if self.above > -math.inf:
            limits.append(f"above {self.above:g}")
        if self.low > -math.inf:
            limits.append(f"at least {self.low:g}")
        if self.high < math.inf:
            limits.append(f"at most {self.high:g}")
        return " ".join([noun, " and ".join(limits)]).strip() + "".join(f", or {word}" for word in self.words)


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether `name=one|other`, or for a bare name that it is neither None nor zero; None counts as `auto`."""
    name, _, accepted = condition.partition("=")
    value = values.get(name)
    if not accepted:
        return bool(value)
    text = AUTO if value is None else value.name if isinstance(value, Registered) else str(value)
    return text in accepted.split("|")


# ---- from the fields of a dataclass ----------------------------------------------------------------------------------

_OPTION = "option"


def option(
    default: Any,
    help: str,
    *,
    name: str = "",
    choices: tuple[str, ...] = (),
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    needs: str = "",
) -> Any:
    """Return a dataclass field that is an option.

    Args:
        default: Default value.
        help: Meaning of the option in one sentence, with its unit.
        name: Name of the option; by default the name of the field.
        choices: Allowed texts; a Literal type of the field says the same.
        low: Least value allowed.
        above: Values must be greater than this.
        high: Largest value allowed.
        needs: Condition on another option without which this one has no effect, such as `then=fedprox`,
            `solver=steps|auto` (auto: also if it is not given), or a bare name: that one is neither zero nor left out.
    """
    facts = {"name": name, "help": help, "choices": choices, "low": low, "above": above, "high": high}
    facts["needs"] = (needs,) if needs else ()
    if isinstance(default, list | dict):
        raise TypeError("the default of an option must be immutable")
    return field(default=default, metadata={_OPTION: facts})


class OptionGroup:
    """Base of nested values whose settings are options of the value that contains them.

    By default every field that is an option belongs to the group. A family whose members have different fields
    overrides all three methods.
    """

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """Return the options of the group; their defaults are those of `default`."""
        return options_of(cls, default)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        """Return the value with these options.

        Args:
            values: Options by name, also those of other groups.
            default: Value that supplies what the options do not name.
            declared: Default of the field, whose options `group_options` returned.
        """
        return from_options(cls, values, default)

    def to_group(self, default: Any) -> dict[str, Any]:
        """Return the options that give this value where `default` is the field's default."""
        return to_options(self)


def options_of(kind: Any, default: Any = None) -> tuple[Option, ...]:
    """Return the options of a dataclass; `default` is an instance whose values are the defaults."""
    return _default_options(kind) if default is None else _options_with_defaults(kind, default)


@cache
def _default_options(kind: Any) -> tuple[Option, ...]:
    """Return the options with the defaults of the fields, which are the same each time."""
    return _options_with_defaults(kind, None)


def _options_with_defaults(kind: Any, default: Any) -> tuple[Option, ...]:
    found: list[Option] = []
    for each, declared, group in _fields_of(kind):
        value = _default(each) if default is None else getattr(default, each.name)
        if declared is not None:
            found.append(replace(declared, default=value))
        elif group is not None:
            found.extend(group.group_options(value))
    return tuple(found)


def options_by_field(kind: Any) -> dict[str, tuple[Option, ...]]:
    """Return the options of a dataclass by the field that holds the nested value; those of its own under ""."""
    found: dict[str, tuple[Option, ...]] = {"": ()}
    for each, declared, group in _fields_of(kind):
        if declared is not None:
            found[""] += (replace(declared, default=_default(each)),)
        elif group is not None:
            found[each.name] = group.group_options(_default(each))
    return found


def from_options(kind: Any, values: Mapping[str, Any], default: Any = None) -> Any:
    """Return the dataclass with these options, which are checked; names that it does not have are ignored.

    Args:
        kind: The dataclass.
        values: Options by name.
        default: An instance that supplies what the options do not name; by default the fields' defaults do.
    """
    given: dict[str, Any] = {}
    for each, declared, group in _fields_of(kind):
        before = _default(each) if default is None else getattr(default, each.name)
        if declared is not None:
            value = values.get(declared.name)
            given[each.name] = before if value is None else declared.check(value)
        elif group is not None:
            given[each.name] = group.from_group(values, before, _default(each))
        elif default is not None:
            given[each.name] = before
    return kind(**given)


def to_options(value: Any) -> dict[str, Any]:
    """Return the options that give this value; those that are None are left out."""
    found: dict[str, Any] = {}
    for each, declared, group in _fields_of(type(value)):
        own = getattr(value, each.name)
        if declared is not None:
            if own is not None:
                found[declared.name] = own
        elif group is not None:
            found |= own.to_group(_default(each))
    return found


def check_fields(value: Any) -> None:
    """Check the options of a dataclass instance and bring them into their types; called by its `__post_init__`.

    Raises:
        ConfigError: if a value is of another type, out of range or not one of the choices.
    """
    for each, declared, group in _fields_of(type(value)):
        own = getattr(value, each.name)
        if declared is not None:
            checked = declared.check(own)
        elif group is not None:
            checked = _checked_group(each.name, group, own)
        else:
            continue
        if checked is not own:
            object.__setattr__(value, each.name, checked)


def _checked_group(name: str, hint: Any, value: object) -> object:
    """A nested value; a family's text or plain form is as good as the member itself."""
    if isinstance(value, hint):
        return value
    if issubclass(hint, Registered) and isinstance(value, str | Mapping):
        return Option(name, hint, "").check(value)
    raise ConfigError(f"{name} must be a value of type {hint.__name__}, got {shown(value)}")


def plain_value(value: object) -> Any:
    """Return an option's value as TOML and JSON hold it: a member of a family becomes a table, or its bare name."""
    if isinstance(value, tuple):
        return [plain_value(each) for each in value]
    return short_plain(value) if isinstance(value, Registered) else value


def _fields_of(kind: Any) -> tuple[tuple[Field[Any], Option | None, Any], ...]:
    """The fields that the constructor of a dataclass takes, each with the option or the group of options that it is."""
    return _cached_fields(kind)


@cache
def _cached_fields(kind: type) -> tuple[tuple[Field[Any], Option | None, Any], ...]:
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        if each.init:
            hint = hints[each.name]
            declared = _declared(each, hint) if _OPTION in each.metadata else None
            group = hint if isinstance(hint, type) and issubclass(hint, OptionGroup) else None
            found.append((each, declared, group))
    return tuple(found)


def _default(each: Field[Any]) -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return None if each.default is MISSING else each.default


def _declared(each: Field[Any], hint: Any) -> Option:
    """Return the option that a field declares, without a default."""
    facts = each.metadata[_OPTION]
    several = get_origin(hint) is tuple
    kind, choices, words = _kind(get_args(hint)[0] if several else hint)
    return Option(
        facts["name"] or each.name,
        kind,
        facts["help"],
        None,
        facts["choices"] or choices,
        facts["low"],
        facts["above"],
        facts["high"],
        words,
        several,
        needs=facts["needs"],
    )


def _kind(hint: Any) -> tuple[type, tuple[str, ...], tuple[str, ...]]:
    """The type of an option, its choices, and words that may stand instead of a number, from a field's annotation."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not types.NoneType]
        words = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
        numbers = [part for part in parts if get_origin(part) is not Literal]
        if numbers:
            return numbers[0], (), words
        return str, words, ()
    if get_origin(hint) is Literal:
        return str, get_args(hint), ()
    return hint, (), ()


def options_of_function(function: Callable[..., object], but: frozenset[str] = frozenset()) -> tuple[Option, ...]:
    """Return the options that the keyword parameters of a function are; their help is in the `Args` of its docstring.

    Args:
        function: A function whose parameters have types and defaults.
        but: Names of parameters that are no options.
    """
    hints, text = get_type_hints(function), inspect.getdoc(function) or ""
    found: list[Option] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in but:
            continue
        if each.default is each.empty or each.name not in hints:
            raise ConfigError(f"{function.__name__}: the parameter {each.name} needs a type and a default")
        kind, choices, words = _kind(hints[each.name])
        described = re.search(rf"^ +{each.name}: (.+(?:\n {{8,}}.+)*)", text, re.MULTILINE)
        help = " ".join(described[1].split()).rstrip(".") if described else ""
        found.append(Option(each.name, kind, help, each.default, choices, words=words))
    return tuple(found)


# ---- checks ----------------------------------------------------------------------------------------------------------


SEED = Option("seed", int, "seed of all random numbers", 0, low=0, high=LARGEST)


def check_seed(seed: object) -> int:
    """Return the seed as a plain whole number.

    Raises:
        ConfigError: if it is anything else.
    """
    checked = SEED.check(seed)
    if not isinstance(checked, int):
        raise ConfigError(f"seed must be a whole number at least 0, got {shown(seed)}")
    return checked


def check_all(given: Mapping[str, object], options: Iterable[Option], owner: str) -> dict[str, object]:
    """Check names and values; an unknown name gets the nearest valid one."""
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            raise unknown_name(f"option of {owner}", name, known)
    return {name: known[name].check(value) for name, value in given.items() if value is not None}


def without_effect(
    options: Iterable[Option], values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the options that are set but have no effect, with the condition that is not met.

    Options that have their default value are not mentioned: a stored configuration names them all.

    Args:
        options: Options of a value.
        values: The options that give it, as `to_options` returns them.
        defaults: Default values, if they are not those of the options.
    """
    unset = {each.name: each.default for each in options} | dict(defaults or {})
    unmet = {each.name: each.unmet(values) for each in options if values.get(each.name) not in (None, unset[each.name])}
    return {name: condition for name, condition in unmet.items() if condition}


def plain_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are set as plain values that TOML can store."""
    plain = {
        name: value.item() if isinstance(value, np.generic) else plain_value(value) for name, value in options.items()
    }
    return {name: value for name, value in plain.items() if value is not None}
