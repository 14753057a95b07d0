"""Command-line flags, derived from the options that Python and TOML use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from coterie.cli.plugins import PluginCommand
from coterie.core.registry import Registered
from coterie.data import SCENARIOS, find_scenario
from coterie.errors import ConfigError, unknown_name
from coterie.methods.base import Method, TieredMethod
from coterie.methods.settings import RUN_OPTIONS
from coterie.options import Option, options_of, plain_value
from coterie.report.commands import option_text
from coterie.training.planning import method_class
from coterie.training.runs.folder import read_toml

workers_option = click.option(
    "--workers",
    metavar="WORKERS",
    help="Processes of Dask that share the work (docs/cluster.md): local:N starts N here, tcp://HOST:PORT or "
    "tls://HOST:PORT is a running scheduler.",
)
SHARED_OPTIONS: tuple[Option, ...] = (*RUN_OPTIONS, *options_of(TieredMethod))
"""Options of runs, and options of nearly all methods: local training, averaging, server, initialisation."""
FLAGS = "coterie.flags"
"""Key of the flags in the context of a command, so that they are created once for each call."""


class SuggestingGroup(click.Group):
    """A group of commands whose error for an unknown command suggests the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise unknown_name("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


class RunCommand(PluginCommand):
    """A command with a flag for every option of runs, methods and scenarios, those of plugins included."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if FLAGS not in ctx.meta:
            ctx.meta[FLAGS] = [_flag(option, owner) for option, owner in _union()]
        *own, help_flag = super().get_params(ctx)
        return [*own, *ctx.meta[FLAGS], help_flag]


class DataCommand(PluginCommand):
    """A command with a flag for every option of scenarios and tables, those of plugins included."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if FLAGS not in ctx.meta:
            ctx.meta[FLAGS] = [_flag(option, owner) for option, owner in _merged(_scenarios())]
        *own, help_flag = super().get_params(ctx)
        return [*own, *ctx.meta[FLAGS], help_flag]


class _Value(click.ParamType):  # type: ignore[type-arg]
    """Type of a flag that takes a number or one of several words, such as `auto`."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = f"{option.kind.__name__}|{'|'.join(option.words)}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.option.read(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _flag(option: Option, owner: str) -> click.Option:
    default = "" if option.default is None else f" [default: {default_text(option)}]"
    prefix = f"({owner}) " if owner else ""
    return click.Option(
        [option.flag, option.name],
        type=_flag_type(option),
        multiple=option.listed,
        callback=_joined if option.listed else None,
        metavar=family.family.upper().replace(" ", "-") if (family := family_of(option)) else None,
        default=None,
        help=f"{prefix}{option.help}{default}",
    )


def _joined(_context: click.Context, _flag: click.Parameter, texts: tuple[str, ...]) -> str | None:
    """Return the values of a repeated flag as one list; None if it was not given."""
    return ",".join(texts) if texts else None


def _flag_type(option: Option) -> Any:
    """Return the type of a flag; members of a family stay texts, which may also name a run folder (init)."""
    if option.choices:
        return click.Choice(option.choices)
    if is_member(option):
        return str
    return _Value(option) if option.words else option.kind


def is_member(option: Option) -> bool:
    """Return whether the option takes a named value with settings, such as `adam:beta1=0.8`."""
    return family_of(option) is not None


def family_of(option: Option) -> type[Registered] | None:
    """Return the family whose members an option takes; None for numbers and texts."""
    return option.kind if issubclass(option.kind, Registered) else None


def default_text(option: Option) -> str:
    """Return the default of an option in the form of a flag's value; a dash for no default."""
    return option_text(plain_value(option.default)) or "-" if option.default is not None else "-"


def _union() -> list[tuple[Option, str]]:
    """Return all options with the methods and scenarios that have them; a shared name occurs once.

    If owners define an option differently, its flag takes any text, which the chosen owner reads.
    """
    return _merged(_owners(), SHARED_OPTIONS)


def _merged(
    owners: Iterable[tuple[str, tuple[Option, ...]]], common: Sequence[Option] = ()
) -> list[tuple[Option, str]]:
    """Return the options of all owners, each name once; the options in `common` belong to all owners."""
    shared = {option.name: [(option, "")] for option in common}
    found: dict[str, list[tuple[Option, str]]] = {}
    for owner, options in owners:
        for option in options:
            if option.name not in shared:
                found.setdefault(option.name, []).append((option, owner))
    return [_common(same) for same in [*shared.values(), *found.values()]]


def _common(same: Sequence[tuple[Option, str]]) -> tuple[Option, str]:
    """Return one option for all options of a name, with its owners.

    If kinds differ it is a text, and if defaults differ it has none. If choices or help texts differ, it has no owners,
    and its help text has a part for each text with the owners of the option that it describes.
    """
    options = [option for option, _ in same]
    first = options[0]
    alike = all((option.kind, option.words) == (first.kind, first.words) for option in options)
    choices = all(option.choices == first.choices for option in options)
    agreed = all(option.default == first.default for option in options)
    common = replace(first, default=first.default if agreed else None, listed=any(option.listed for option in options))
    if not alike:
        common = replace(common, kind=str, words=())
    if not (alike and choices):
        common = replace(common, choices=())
    owners: dict[str, list[str]] = {}
    for option, owner in same:
        owners.setdefault(option.help if choices else _help_with_choices(option), []).append(owner)
    if len(owners) == 1:
        return common, ", ".join(owner for _, owner in same)
    return replace(common, help="; ".join(f"({', '.join(names)}) {text}" for text, names in owners.items())), ""


def _help_with_choices(option: Option) -> str:
    return f"{option.help} ({', '.join(option.choices)})" if option.choices else option.help


def _owners() -> Iterable[tuple[str, tuple[Option, ...]]]:
    shared = {option.name for option in RUN_OPTIONS}
    for name, kind in Method.members.items():
        yield name, tuple(option for option in kind.options() if option.name not in shared)
    yield from _scenarios()


def _scenarios() -> Iterable[tuple[str, tuple[Option, ...]]]:
    yield from ((entry.name, entry.options) for entry in SCENARIOS.values())


def all_options() -> dict[str, Option]:
    """Return every option of runs, methods and scenarios by name."""
    return {option.name: option for option, _ in _union()}


def read_config(path: Path | None) -> dict[str, Any]:
    """Return the options of a TOML file.

    Options that take a named value with settings may be tables, such as `[init]` with `name` and its settings, or
    arrays of tables for several values (`[[procedure]]`).

    Raises:
        ConfigError: if the file cannot be read, or a name is unknown; the message suggests the nearest valid one.
    """
    if path is None:
        return {}
    values = read_toml(path)
    members = {option.name: is_member(option) for option, _ in _union()}
    known = {*members, "scenario", "method", "out"}
    for name, value in values.items():
        if name not in known:
            raise unknown_name(f"key of {path}", name, known)
        if isinstance(value, dict | list) and not members.get(name, False):
            raise ConfigError(f"{path}: {name} must be a single value, not a table or a list")
    return values


def is_complete(method: str, config: Mapping[str, Any]) -> bool:
    """Return whether a config sets every option of runs, like the config of a run folder.

    Such a config also has all settings of the method, so that recommendations of the scenario must not be added.
    """
    refused = method_class(method).refuses
    return all(each.name in config for each in RUN_OPTIONS if each.default is not None and each.name not in refused)


def split_options(
    scenario: str, methods: Iterable[str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the scenario and the options of the run.

    Raises:
        ConfigError: if neither the scenario nor a method has an option; the message names its owners.
    """
    of_scenario = {option.name: option for option in find_scenario(scenario).options}
    methods = list(methods)
    # an option that a method inherits but does not support is refused later, with the reason
    of_runs = {option.name: option for option in SHARED_OPTIONS}
    for method in reversed(methods):
        of_runs |= {option.name: option for option in method_class(method).options()}
    for name in given:
        if name not in of_scenario and name not in of_runs:
            owners = [owner for owner, options in _owners() if name in {option.name for option in options}]
            flag, listed = f"--{name.replace('_', '-')}", ", ".join(methods)
            others = f"not of scenario {scenario} or method {listed}" if methods else f"not of scenario {scenario}"
            raise ConfigError(f"{flag} is an option of {', '.join(owners)}, but {others}: leave it out")
    read = {name: _read(of_scenario.get(name) or of_runs[name], value) for name, value in given.items()}
    return (
        {name: value for name, value in read.items() if name in of_scenario},
        {name: value for name, value in read.items() if name not in of_scenario},
    )


def _read(option: Option, value: Any) -> Any:
    """Return the value of a flag that several options share, in the type of the chosen option."""
    return option.read(value) if isinstance(value, str) and not is_member(option) else value
