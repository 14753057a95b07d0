"""Command-line flags from the same options that Python and TOML use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from coterie.data import SCENARIOS, find_scenario
from coterie.errors import ConfigError, unknown_name
from coterie.methods import METHODS, find_method
from coterie.options import COMMON, Option
from coterie.training.runs.folder import read_toml

Command = Callable[..., Any]


class SuggestingGroup(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise unknown_name("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


class _Value(click.ParamType):  # type: ignore[type-arg]
    """A number, or one of the words that may stand instead."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = f"{option.kind.__name__}|{'|'.join(option.words)}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.option.read(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _flag(option: Option, owner: str) -> Callable[[Command], Command]:
    kind: Any = click.Choice(option.choices) if option.choices else _Value(option) if option.words else option.kind
    default = "" if option.default is None else f" [default: {option.default}]"
    prefix = f"({owner}) " if owner else ""
    return click.option(option.flag, option.name, type=kind, default=None, help=f"{prefix}{option.help}{default}")


def _union() -> list[tuple[Option, str]]:
    """Every option there is with who takes it; a name that several take stands once.

    Where they mean it differently the flag takes any text, which the chosen owner reads in its own way.
    """
    found: dict[str, list[tuple[Option, str]]] = {option.name: [(option, "")] for option in COMMON}
    for owner, options in _owners():
        for option in options:
            found.setdefault(option.name, []).append((option, owner))
    return [(_common([option for option, _ in same]), ", ".join(o for _, o in same if o)) for same in found.values()]


def _common(options: Sequence[Option]) -> Option:
    """One option for all of a name: text if their kinds differ, without a default if those do.

    Where kinds or choices differ, no choices are offered, and the help is that of all.
    """
    first = options[0]
    alike = all(option.kind is first.kind for option in options)
    agreed = all(option.default == first.default for option in options)
    common = replace(first, kind=first.kind if alike else str, default=first.default if agreed else None)
    if alike and all(option.choices == first.choices for option in options):
        return common
    return replace(common, choices=(), help="; or ".join(dict.fromkeys(_told(option) for option in options)))


def _told(option: Option) -> str:
    return f"{option.help} ({', '.join(option.choices)})" if option.choices else option.help


def scenario_name(said: str | None, given: Mapping[str, Any]) -> str:
    """The scenario that was named; without a name, `table` if a table was given."""
    if said is None and given.get("table") is None:
        raise ConfigError("which scenario? name one ('coterie scenarios' lists them), or give --table FILE or --config")
    return said or "table"


def _owners() -> Iterable[tuple[str, tuple[Option, ...]]]:
    yield from ((entry.name, entry.options) for entry in METHODS.values())
    yield from ((entry.name, entry.options) for entry in SCENARIOS.values())


def with_run_options(command: Command) -> Command:
    """Add every option of runs, methods and scenarios as a flag."""
    for option, owner in reversed(_union()):
        command = _flag(option, owner)(command)
    return command


def read_config(path: Path | None) -> dict[str, Any]:
    """The options of a TOML file, flat; unknown names are refused with the nearest valid one."""
    if path is None:
        return {}
    values = read_toml(path)
    known = {option.name for option, _ in _union()} | {"scenario", "method", "out"}
    for name, value in values.items():
        if name not in known:
            raise unknown_name(f"key in {path}", name, known)
        if isinstance(value, dict | list):
            raise ConfigError(f"{path}: {name} must be a single value, not a table or a list")
    return values


def split_options(
    scenario: str, methods: Iterable[str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(scenario's options, run's options); one that nobody here takes is refused with its owner's name."""
    of_scenario = {option.name for option in find_scenario(scenario).options}
    of_methods = {option.name for method in methods for option in find_method(method).accepts}
    common = {option.name for option in COMMON}
    for name in given:
        if name not in of_scenario | of_methods | common:
            owners = [owner for owner, options in _owners() if name in {option.name for option in options}]
            raise ConfigError(
                f"--{name.replace('_', '-')} belongs to {' and '.join(owners)}; "
                f"neither scenario {scenario} nor {', '.join(methods)} takes it"
            )
    for option in find_scenario(scenario).options:
        if isinstance(given.get(option.name), str):
            given = {**given, option.name: option.read(given[option.name])}
    return (
        {name: value for name, value in given.items() if name in of_scenario},
        {name: value for name, value in given.items() if name not in of_scenario},
    )
