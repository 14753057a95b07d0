"""`coterie describe`: description of a method, a scenario, a learner or another registered member."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from coterie.cli import about
from coterie.cli.options import SHARED_OPTIONS, default_text
from coterie.core.registry import Registered
from coterie.data import SCENARIOS, ScenarioEntry
from coterie.errors import unknown_name
from coterie.learners import LEARNERS, learner_options
from coterie.methods.base import Method
from coterie.methods.run import Initializer
from coterie.options import Option


def describe(console: Console, name: str) -> None:
    """Print the description of a method, a scenario, a learner or any other member of a family.

    Args:
        console: Where to print.
        name: Name of the member; all members of this name are described.

    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest one.
    """
    members = about.members_called(name)
    if name in SCENARIOS:
        _describe_scenario(console, SCENARIOS[name])
    if name in LEARNERS:
        _describe_learner(console, name)
    for member in members:
        if issubclass(member, Method):
            _describe_method(console, member)
        else:
            _describe_member(console, member)
    if not members and name not in SCENARIOS and name not in LEARNERS:
        known = [*Method.members, *SCENARIOS, *LEARNERS, *(n for f in about.families() for n in f.members)]
        raise unknown_name("method, scenario, learner or other component", name, known)


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column in ("option", "setting"))
    return table


def _options(console: Console, title: str, options: Sequence[Option]) -> None:
    _title(console, title)
    table = _table("option", "default", "values", "meaning")
    for option in options:
        table.add_row(option.name, default_text(option), about.values_text(option), option.help)
    console.print(table)


def _describe_method(console: Console, kind: type[Method]) -> None:
    console.print(f"{kind.name}: {kind.summary}", style="bold", highlight=False)
    console.print(kind.citation, highlight=False)
    console.print("\n" + "\n".join(about.description(kind)), highlight=False, markup=False)
    console.print(kind.equals(), highlight=False)
    _title(console, "What the server sees of each client")
    for row, meaning in about.server_sees(kind).items():
        console.print(f"  {row}: {meaning}", highlight=False)
    if about.default_method(kind).exchanges:
        console.print(f"  summary: {about.TABLES_ON_NODES}", highlight=False)
    console.print(f"  private runs: {about.private_forms(kind)}", highlight=False)
    _title(console, "In Python")
    console.print(f"  {about.python_form(about.default_method(kind))}", highlight=False, markup=False)
    for title, options in about.sections(kind).items():
        _options(console, title, options)
    if issubclass(kind, Initializer):
        settings = about.initializer_settings(kind)
        first = settings[0].name if settings else ""
        _title(console, "As the initializer of another method")
        example = f"--init {kind.name}" + (f":{first}=VALUE" if first else "")
        console.print(f"  {example}; settings: {', '.join(each.name for each in settings) or 'none'}", highlight=False)


def _describe_member(console: Console, member: type[Registered]) -> None:
    console.print(f"{member.name} ({about.family_names(member)}): {about.first_sentence(member)}", style="bold")
    for paragraph in about.description(member)[1:]:
        console.print(paragraph, highlight=False, markup=False)
    settings = about.member_settings(member)
    if settings:
        _title(console, "Settings")
        table = _table("setting", "default", "values", "meaning")
        for each in settings:
            table.add_row(each.name, each.default, each.values, each.meaning)
        console.print(table)
    options = [option for kind in Method.members.values() for option in kind.options()]
    flags = about.flags_of(member, [*SHARED_OPTIONS, *options])
    text = f"{member.name}:{settings[0].name}=VALUE" if settings else member.name
    if flags:
        _title(console, "On the command line")
        console.print("  " + " or ".join(f"{flag} {text}" for flag in flags), highlight=False)
    _title(console, "In Python")
    console.print(f"  {member.__module__}.{member.__qualname__}", highlight=False)


def _describe_scenario(console: Console, entry: ScenarioEntry) -> None:
    console.print(f"{entry.name}: {entry.summary}", style="bold", highlight=False)
    console.print(" ".join((entry.build.__doc__ or "").split()), highlight=False)
    _options(console, "Options", entry.options)
    _title(console, "Recommended options of runs")
    console.print(suggestions(entry), highlight=False)


def suggestions(entry: ScenarioEntry) -> str:
    """Return the recommended run options of a scenario, on one line."""
    return ", ".join(f"{name}={value}" for name, value in entry.recommended.items())


def _describe_learner(console: Console, name: str) -> None:
    console.print(f"{name}: a learner", style="bold", highlight=False)
    console.print(" ".join((LEARNERS[name].__doc__ or "").split()), highlight=False)
    _title(console, "Settings")
    table = _table("setting", "default")
    for setting in learner_options(name).values():
        default = setting.default
        table.add_row(setting.name, "-".join(map(str, default)) if isinstance(default, tuple) else str(default).lower())
    console.print(table)
    console.print(f"\nexample: --learner {name}:{next(iter(learner_options(name)))}=...", highlight=False)
