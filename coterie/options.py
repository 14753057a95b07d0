"""Options that are derived from the fields of dataclasses and have one name everywhere.

`option(default, help, ...)` turns a field of a dataclass into an option with the same name as keyword argument, TOML
key and command-line flag. `OptionGroup` is the base class of nested values whose fields are options of the value that
contains them: the local training of a method contributes `local_steps`, `batch_size`, `lr` and so on. The same fields
therefore serve `IFCA(local=FullBatch(steps=5))`, `fit(data, "ifca", local_steps=5)`, `--local-steps 5` and TOML files.
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
"""Type of a setting whose value may be chosen from the data."""
AUTO: Auto = "auto"
"""Value of a setting that is chosen from the data."""
LARGEST = 2**63 - 1
"""Largest integer that TOML files and arrays can hold."""


@dataclass(frozen=True)
class Option:
    """Name, type, allowed values and help text of an option.

    Example:
        >>> lr = Option("lr", float, "learning rate", default=0.1, above=0)
        >>> lr.flag
        '--lr'
        >>> lr.read("0.5")
        0.5
        >>> lr.wanted()
        'a number above 0'
    """

    name: str
    kind: type
    """int, float, str, bool, or a family of named values such as `Optimizer`."""
    help: str
    default: object = None
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    """Smallest allowed value."""
    above: float = -math.inf
    """Exclusive lower bound."""
    high: float = math.inf
    """Largest allowed value."""
    words: tuple[str, ...] = ()
    """Texts that are allowed instead of a number."""
    several: bool = False
    """Whether the value is a sequence of members of the family; in text form they are joined by ` + `."""
    listed: bool = False
    """Whether the value is a comma-separated list of names; its flag may be repeated."""
    needs: tuple[str, ...] = ()
    """Conditions on other options without which this one has no effect: `then=fedprox`, `solver=steps|auto`, or a bare
    name such as `race`, which means not zero."""

    @property
    def flag(self) -> str:
        """Flag of the option on the command line."""
        return "--" + self.name.replace("_", "-")

    def check(self, value: object) -> object:
        """Return the value converted to the type of the option; NumPy scalars become Python numbers.

        Args:
            value: Value of the option; None is returned as it is.

        Raises:
            ConfigError: if the value has the wrong type, is out of range or is not one of the choices.
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
        """Return one or several members of the option's family, given as objects, texts or plain forms."""
        if self.several:
            if isinstance(value, str):
                # a plus sign inside a number such as 1e+20 is followed by a digit
                value = [part for part in re.split(r"\s*\+\s*(?!\d)", value.strip()) if part]
            parts = value if isinstance(value, list | tuple) else [value]
            return tuple(replace(self, several=False)._member(part) for part in parts)
        if isinstance(value, self.kind):
            return value
        if isinstance(value, str):
            return from_text(self.kind, value)
        return from_plain(self.kind, value, self.name)

    def _converted(self, value: int | float) -> object:
        """Return a number as a float or as text, if that is the type of the option."""
        try:
            if self.kind is float:
                return float(value)
            return str(value) if self.kind is str else value  # samples=50 in Python means the same as "50"
        except (OverflowError, ValueError):  # larger than any float, or more digits than Python converts
            raise self._refusal(value) from None

    def _check_text(self, value: str) -> None:
        if self.choices and value not in self.choices:
            raise unknown_name(self.name, value, self.choices)
        if "\0" in value or not is_unicode(value):
            raise ConfigError(f"{self.name} must be UTF-8 text without NUL characters, got {shown(value)}")

    def _check_range(self, value: int | float) -> None:
        if not (self.low <= value <= self.high and self.above < value < math.inf):  # also refuses NaN
            raise self._refusal(value)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{self.name} must be a whole number below 2^63, got {shown(value)}")

    def _refusal(self, value: object) -> ConfigError:
        return ConfigError(f"{self.name} must be {self.wanted()}, got {shown(value)}")

    def unmet(self, values: Mapping[str, Any]) -> str:
        """Return the first condition in `needs` that these values do not meet; empty if the option has an effect."""
        return next((condition for condition in self.needs if not _holds(condition, values)), "")

    def read(self, text: str) -> object:
        """Return the value that a text describes, such as the argument of a flag.

        Raises:
            ConfigError: if the text is not an allowed value.
        """
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
        """Return a description of the allowed values."""
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
    """Return whether a condition holds.

    The condition `name=one|other` holds if the option has one of these values, where None counts as `auto`. A bare
    `name` holds if the option is neither None nor zero.
    """
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
        default: Default value; it must be immutable.
        help: Meaning of the option in one sentence, with its unit.
        name: Name of the option; by default the name of the field.
        choices: Allowed texts; not needed if the field has a Literal type.
        low: Smallest allowed value.
        above: Exclusive lower bound.
        high: Largest allowed value.
        needs: Condition on another option without which this one has no effect: `then=fedprox`, `solver=steps|auto`
            (where auto includes an option that is not set), or a bare name, which means set and not zero.

    Returns:
        A field for the body of a dataclass.

    Raises:
        TypeError: if the default is mutable.

    Example:
        >>> from dataclasses import dataclass
        >>> from coterie.extend import option
        >>> @dataclass(frozen=True)
        ... class Settings:
        ...     lr: float = option(0.1, "learning rate", above=0)
        >>> Settings(lr=0.5)
        Settings(lr=0.5)
    """
    facts = {"name": name, "help": help, "choices": choices, "low": low, "above": above, "high": high}
    facts["needs"] = (needs,) if needs else ()
    if isinstance(default, list | dict):
        raise TypeError("the default of an option must be immutable")
    return field(default=default, metadata={_OPTION: facts})


class OptionGroup:
    """Base class of nested values whose fields are options of the value that contains them.

    By default every field that is an option belongs to the group. A family whose members have different fields
    overrides all three methods.
    """

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """Return the options of the group, with the values of `default` as defaults."""
        return options_of(cls, default)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        """Return the value with these options.

        Args:
            values: Options by name; options of other groups are ignored.
            default: Value that provides all settings that `values` does not contain.
            declared: Default of the field, which was passed to `group_options`.
        """
        return from_options(cls, values, default)

    def to_group(self, default: Any) -> dict[str, Any]:
        """Return the options that describe this value, where `default` is the default of the field."""
        return to_options(self)


def options_of(kind: Any, default: Any = None) -> tuple[Option, ...]:
    """Return the options of a dataclass.

    Args:
        kind: The dataclass.
        default: Instance whose values are the defaults of the options; by default, those of the fields.
    """
    return _default_options(kind) if default is None else _options_with_defaults(kind, default)


@cache
def _default_options(kind: Any) -> tuple[Option, ...]:
    """Return the options of a dataclass with the defaults of its fields."""
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
    """Return the options of a dataclass by field: those of nested values under their field, all others under ""."""
    found: dict[str, tuple[Option, ...]] = {"": ()}
    for each, declared, group in _fields_of(kind):
        if declared is not None:
            found[""] += (replace(declared, default=_default(each)),)
        elif group is not None:
            found[each.name] = group.group_options(_default(each))
    return found


def from_options(kind: Any, values: Mapping[str, Any], default: Any = None) -> Any:
    """Return an instance of a dataclass with these options.

    Args:
        kind: The dataclass.
        values: Options by name; names that the dataclass does not have are ignored.
        default: Instance that provides all settings that `values` does not contain; by default, the defaults of the
            fields are used.

    Raises:
        ConfigError: if a value is not allowed.
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
    """Return the options that describe this value, without those that are None."""
    found: dict[str, Any] = {}
    for each, declared, group in _fields_of(type(value)):
        current = getattr(value, each.name)
        if declared is not None:
            if current is not None:
                found[declared.name] = current
        elif group is not None:
            found |= current.to_group(_default(each))
    return found


def check_fields(value: Any) -> None:
    """Check the options of a dataclass instance and convert them to their types; called by its `__post_init__`.

    Args:
        value: The instance; converted values replace those of its fields.

    Raises:
        ConfigError: if a value has the wrong type, is out of range or is not one of the choices.
    """
    for each, declared, group in _fields_of(type(value)):
        current = getattr(value, each.name)
        if declared is not None:
            checked = declared.check(current)
        elif group is not None:
            checked = _checked_group(each.name, group, current)
        else:
            continue
        if checked is not current:
            object.__setattr__(value, each.name, checked)


def _checked_group(name: str, hint: Any, value: object) -> object:
    """Return a nested value, which may be given as the object itself or as the text or plain form of a member."""
    if isinstance(value, hint):
        return value
    if issubclass(hint, Registered) and isinstance(value, str | Mapping):
        return Option(name, hint, "").check(value)
    raise ConfigError(f"{name} must be a value of type {hint.__name__}, got {shown(value)}")


def plain_value(value: object) -> Any:
    """Return an option's value in the form of TOML and JSON: a member of a family becomes a table or its bare name."""
    if isinstance(value, tuple):
        return [plain_value(each) for each in value]
    return short_plain(value) if isinstance(value, Registered) else value


def _fields_of(kind: Any) -> tuple[tuple[Field[Any], Option | None, Any], ...]:
    """Return the constructor fields of a dataclass, each with its option or its group of options."""
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
    """Derive from an annotation the type of an option, its choices, and texts that are allowed instead of a number."""
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


def options_of_function(function: Callable[..., object], exclude: frozenset[str] = frozenset()) -> tuple[Option, ...]:
    """Return options for the keyword parameters of a function.

    The help texts are read from the `Args` section of its docstring.

    Args:
        function: Function whose parameters have types and defaults.
        exclude: Names of parameters that are not options.

    Raises:
        ConfigError: if a parameter has no type or no default.
    """
    hints, text = get_type_hints(function), inspect.getdoc(function) or ""
    found: list[Option] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in exclude:
            continue
        if each.default is each.empty or each.name not in hints:
            raise ConfigError(
                f"the parameter {each.name} of {function.__name__} cannot become an option: give it a type annotation "
                "and a default value"
            )
        kind, choices, words = _kind(hints[each.name])
        described = re.search(rf"^ +{each.name}: (.+(?:\n {{8,}}.+)*)", text, re.MULTILINE)
        help = " ".join(described[1].split()).rstrip(".") if described else ""
        found.append(Option(each.name, kind, help, each.default, choices, words=words))
    return tuple(found)


# ---- checks ----------------------------------------------------------------------------------------------------------


SEED = Option("seed", int, "seed of all random numbers", 0, low=0, high=LARGEST)


def check_seed(seed: object) -> int:
    """Return the seed as a Python integer.

    Raises:
        ConfigError: if the seed is not an integer of at least 0.
    """
    checked = SEED.check(seed)
    if not isinstance(checked, int):
        raise ConfigError(f"seed must be a whole number at least 0, got {shown(seed)}")
    return checked


def check_all(given: Mapping[str, object], options: Iterable[Option], owner: str) -> dict[str, object]:
    """Return the given options, checked and without those that are None.

    Args:
        given: Options by name.
        options: Known options.
        owner: Description of the value that has these options, for error messages.

    Raises:
        ConfigError: if a name is unknown (the message suggests a similar one) or a value is not allowed.
    """
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            raise unknown_name(f"option of {owner}", name, known)
    return {name: known[name].check(value) for name, value in given.items() if value is not None}


def without_effect(
    options: Iterable[Option], values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the options that are set but have no effect, each with the condition that is not met.

    Options with their default value are not included, since a stored configuration contains all options.

    Args:
        options: Options of a value.
        values: Options that describe the value, as returned by `to_options`.
        defaults: Default values that differ from those of the options.
    """
    unset = {each.name: each.default for each in options} | dict(defaults or {})
    unmet = {each.name: each.unmet(values) for each in options if values.get(each.name) not in (None, unset[each.name])}
    return {name: condition for name, condition in unmet.items() if condition}


def plain_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are not None, as plain values that TOML can store."""
    plain = {
        name: value.item() if isinstance(value, np.generic) else plain_value(value) for name, value in options.items()
    }
    return {name: value for name, value in plain.items() if value is not None}
