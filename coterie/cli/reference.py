"""Writes the reference pages from the code: `python -m coterie.cli.reference docs` (or `make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coterie.cli.about import (
    SECTIONS,
    default_method,
    description,
    families,
    first_sentence,
    listed_methods,
    member_settings,
    private_forms,
    python_form,
    sections,
    server_sees,
    values_text,
)
from coterie.cli.describe import suggestions
from coterie.cli.main import cli
from coterie.cli.options import default_text
from coterie.core.registry import Registered
from coterie.data import SCENARIOS
from coterie.learners import LEARNERS, learner_options
from coterie.methods.base import Method, TieredMethod
from coterie.methods.ifca import IFCA
from coterie.options import Option, options_of
from coterie.training.measures import BUILT_IN

NOTE = "<!-- Written by `make docs` from the code; do not edit. -->\n"
WIDTH = 100
COMMON = frozenset(option.name for option in options_of(TieredMethod))
NAMED = (
    *("init", "optimizer", "schedule", "server optimizer", "combine", "tracker"),
    *("objective", "assignment", "procedure step", "distance"),
)
"""Families whose members users name in options."""


def methods_page() -> str:
    """docs/methods.md: every method, scenario and learner with its options."""
    parts = [NOTE, "# Methods, scenarios, learners\n", "The same text on the command line: `coterie describe NAME`.\n"]
    parts += ["## Methods\n", _list([(kind.name, kind.summary) for kind in listed_methods()])]
    parts += [_method(kind) for kind in listed_methods()]
    parts.append("## Options that most methods have\n")
    parts.append("Defaults are IFCA's; the sections above name what other methods set differently or do not take.\n")
    for title, options in sections(IFCA).items():
        shared = [option for option in options if title != SECTIONS[""] or option.name in COMMON]
        parts.append(f"### {title if title != SECTIONS[''] else 'Exchange'}\n\n{_table(shared)}")
    parts.append("## Named values\n")
    parts.append(
        "Settings follow the name, as in `--init gaussian:sd=2`; in TOML they are a table, `init = {name = "
        '"gaussian", sd = 2}`. A run folder, a result or models are initializers, too.\n'
    )
    parts += [_family(family) for family in families() if family.family in NAMED]
    parts.append("## Scenarios\n")
    for scenario in SCENARIOS.values():
        text = " ".join((scenario.build.__doc__ or "").split())
        parts += [f"### {scenario.name}\n", f"{scenario.summary[0].upper()}{scenario.summary[1:]}. {text}\n"]
        parts.append(_table(scenario.options))
        parts.append(f"Suggests {', '.join(f'`{part}`' for part in suggestions(scenario).split(', '))}.\n")
    parts.append("## Learners\n")
    for name, build in LEARNERS.items():
        settings = ", ".join(f"`{p.name}={_default(p.default)}`" for p in learner_options(name).values())
        parts.append(f"### {name}\n\n{' '.join((build.__doc__ or '').split())} Settings: {settings}.\n")
    parts.append(
        "A function that returns a `torch.nn.Module` is a learner too: `coterie.fit(data, learner=function)`.\n"
    )
    return "\n".join(parts)


def measures_table() -> str:
    """Return the part of docs/measures.md that lists the optional figures of records and metrics."""
    moments = {"round": "round", "end": "end", "both": "round, end"}
    rows = [f"| `{each.name}` | {each.description} | {moments[each.when]} | {each.better or ''} |" for each in BUILT_IN]
    return "\n".join([NOTE, "| name | meaning | when | better |", "| --- | --- | --- | --- |", *rows, ""])


def _default(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _list(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| name | what it is |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows), ""])


def _table(options: tuple[Option, ...] | list[Option]) -> str:
    lines = ["| option | default | values | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{each.name}` | {default_text(each)} | {values_text(each)} | {each.help} |" for each in options]
    return "\n".join([*lines, ""])


def _method(kind: type[Method]) -> str:
    lines = [f"### {kind.name}\n", f"{kind.summary[0].upper()}{kind.summary[1:]}. ({kind.citation})\n"]
    lines += [f"{paragraph}\n" for paragraph in description(kind)]
    lines.append(f"{kind.equals()}\n")
    lines.append("What the server gets to see of each client:\n")
    lines += [f"- {row}: {meaning}" for row, meaning in server_sees(kind).items()]
    lines.append(f"\nPrivate runs: {private_forms(kind)}.")
    lines.append(f"\nIn Python: `{python_form(default_method(kind))}`")
    own = {option.name: option for options in sections(kind).values() for option in options}
    usual = {option.name: option.default for options in sections(IFCA).values() for option in options}
    other = [o for name, o in own.items() if name in COMMON and o.default != usual.get(name)]
    if other:
        lines.append("\nSets " + ", ".join(f"`{o.name}={default_text(o)}`" for o in other) + ".")
    if kind.refuses:
        lines.append("\nDoes not take " + ", ".join(f"`{name}`" for name in sorted(kind.refuses)) + ".")
    special = [o for title, options in sections(kind).items() if title != SECTIONS["run"] for o in options]
    special = [o for o in special if o.name not in COMMON]
    if special:
        lines.append("\n" + _table(special))
    return "\n".join([*lines, ""])


def _family(family: type[Registered]) -> str:
    """A section about the members of a family, with their settings."""
    lines = [f"### {family.family}\n"]
    for name, member in family.members.items():
        if issubclass(member, Method) and family.family != Method.family:
            lines.append(f"- `{name}`: {member.summary}; a method (above)")
            continue
        settings = ", ".join(f"`{each.name}={each.default}`" for each in member_settings(member))
        lines.append(f"- `{name}`: {first_sentence(member)}" + (f". Settings: {settings}" if settings else ""))
    return "\n".join([*lines, ""])


def cli_page() -> str:
    """docs/cli.md: the help text of every command."""
    parts = [NOTE, "# Command line\n"]
    root = click.Context(cli, info_name="coterie", terminal_width=WIDTH)
    parts.append(f"```text\n{cli.get_help(root)}\n```\n")
    for name, command in cli.commands.items():
        parts += _help(name, command, root)
    return "\n".join(parts)


def _help(name: str, command: click.Command, parent: click.Context) -> list[str]:
    """The help text of a command, and below it those of its own commands."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    parts = [f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"]
    for inner, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        parts += _help(inner, subcommand, context)
    return parts


def main() -> None:
    """Write the pages into the folder given as the only argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coterie.cli.reference FOLDER")
    folder = Path(sys.argv[1])
    (folder / "methods.md").write_text(methods_page())
    (folder / "cli.md").write_text(cli_page())
    measures = folder / "measures.md"
    measures.write_text(measures.read_text().partition(NOTE)[0] + measures_table())


if __name__ == "__main__":
    main()
