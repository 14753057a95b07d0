"""Writes the reference pages from the code: `python -m coterie.cli.reference docs` (or `make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coterie.cli.main import cli
from coterie.cli.show import private_forms, shown_options, suggestions
from coterie.data import SCENARIOS
from coterie.learners import LEARNERS, learner_options
from coterie.methods import METHODS
from coterie.methods.base import Entry
from coterie.options import Option
from coterie.training.measures import BUILT_IN
from coterie.training.starts import STARTS

NOTE = "<!-- Written by `make docs` from the code; do not edit. -->\n"
WIDTH = 100


def methods_page() -> str:
    """docs/methods.md: every method, scenario and learner with its options."""
    parts = [NOTE, "# Methods, scenarios, learners\n", "The same text on the command line: `coterie describe NAME`.\n"]
    parts += ["## Methods\n", _list([(entry.name, entry.summary) for entry in METHODS.values()])]
    for entry in METHODS.values():
        parts.append(_method(entry))
    parts += ["## Options common to all methods\n", _table(shown_options(METHODS["ifca"], own=False))]
    parts.append("Defaults are IFCA's; the sections above name what other methods set differently or do not take.\n")
    parts.append("## Starts\n")
    parts.append(
        "Settings follow the name, as in `--start gaussian:sd=2`. A run folder, a result or models are starts too.\n"
    )
    for start in STARTS.values():
        parts.append(f"### start={start.name}\n\n{start.summary[0].upper()}{start.summary[1:]}.\n")
        if start.options:
            parts.append(_table(start.options))
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
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in options:
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        default = "-" if option.default is None else option.default
        lines.append(f"| `{option.name}` | {default} | {option.help}{choices} |")
    return "\n".join([*lines, ""])


def _method(entry: Entry) -> str:
    lines = [f"### {entry.name}\n", f"{entry.summary[0].upper()}{entry.summary[1:]}. ({entry.paper})\n"]
    lines.append(f"    {(entry.compose.__doc__ or '').strip()}\n")
    lines.append(f"{entry.equals()}\n")
    lines.append("What the server gets to see of each client:\n")
    lines += [f"- update: {entry.seen()}"] * entry.trains
    lines += [f"- {row}: {meaning}" for row, meaning in entry.revealed().items()]
    lines.append(f"\nPrivate runs: {private_forms(entry)}.")
    defaults = {k: v for k, v in entry.defaults({}).items() if k not in {o.name for o in entry.options} | entry.refuses}
    if defaults:
        lines.append("\nSets " + ", ".join(f"`{name}={value}`" for name, value in defaults.items()) + ".")
    if entry.refuses:
        lines.append("Does not take " + ", ".join(f"`{name}`" for name in sorted(entry.refuses)) + ".")
    if entry.options:
        lines.append("\n" + _table(shown_options(entry, own=True)))
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
