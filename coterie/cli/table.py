"""Tables on the command line: file, client and target column, and the notes on the columns."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from coterie.cli.terminal import Terminal, on_one_line
from coterie.core.schema import ColumnNote
from coterie.data.columns import SUFFIXES
from coterie.data.fitting import is_suspicious
from coterie.data.guessing import Guess, guess_columns
from coterie.errors import ConfigError, unknown_name

MOST_LINES = 40
"""Largest number of columns that are printed."""
MOST_NAMES = 30
"""Largest number of columns that a message lists."""


def scenario_and_options(source: str | None, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the scenario and the options; for a table, ask for the columns that are missing.

    Args:
        source: A scenario, the path of a table, or None.
        given: The options that were given.

    Raises:
        ConfigError: if there is neither a scenario nor a table, or if a table lacks its client or its target and there
            is no terminal to ask at.
    """
    options = dict(given)
    if source is not None and source.lower().endswith(SUFFIXES):
        if options.get("table") not in (None, source):
            raise ConfigError(f"two tables are given, {source} and {options['table']}: give one of them")
        options["table"], source = source, "table"
    if source is None and options.get("table") is None:
        raise ConfigError(
            "no scenario is named: name one ('coterie scenarios' lists them), or give a table with --table FILE, or "
            "--config FILE"
        )
    name = source or "table"
    if name == "table" and options.get("table") is not None:
        options |= _asked(str(options["table"]), options)
    return name, options


def _asked(table: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Ask for the client and the target column if they are missing."""
    absent = [name for name in ("client", "target") if given.get(name) is None]
    if not absent:
        return {}
    guess = guess_columns(table)
    if not (sys.stdin and sys.stdin.isatty()):
        raise ConfigError(_command_to_type(table, given, absent, guess))
    click.echo(f"columns of {table}: {', '.join(guess.columns)}", err=True)
    found: dict[str, str] = {}
    questions = {"client": "Which column names the client of each row?", "target": "Which column is to be predicted?"}
    for name in absent:
        found[name] = _ask(questions[name], guess.columns, getattr(guess, name))
    return found


def _ask(question: str, columns: Sequence[str], guess: str) -> str:
    def known(text: str) -> str:
        if text not in columns:
            raise click.BadParameter(str(unknown_name("column", text, columns)))
        return text

    return str(click.prompt(question, default=guess or None, value_proc=known, err=True))


def _command_to_type(table: str, given: Mapping[str, Any], absent: Sequence[str], guess: Guess) -> str:
    """Return the command to type, with guesses for the columns that are missing."""
    words = {name: str(given.get(name) or getattr(guess, name) or name.upper()) for name in ("client", "target")}
    context = click.get_current_context(silent=True)
    command = [*(context.command_path.split() if context else ["coterie", "run"]), "--table", table]
    command += [word for name, column in words.items() for word in (f"--{name}", column)]
    listed = ", ".join(guess.columns[:MOST_NAMES]) + (", ..." if len(guess.columns) > MOST_NAMES else "")
    flags = " and ".join(f"--{name}" for name in absent)
    return f"a table needs {flags}, one of its columns {listed}; perhaps: {shlex.join(command)}"


def print_columns(console: Terminal, notes: Sequence[ColumnNote]) -> None:
    """Print one line for each column of a table: its role and how it is encoded, or why it is dropped."""
    if not notes:
        return
    width = min(30, max(len(note.column) for note in notes))
    for note in notes[:MOST_LINES]:
        line = f"{on_one_line(note.column):<{width}}  {note.action:<7}  {on_one_line(note.detail)}"
        console.print(line, style="yellow" if is_suspicious(note) else "dim", highlight=False, soft_wrap=True)
    if len(notes) > MOST_LINES:
        console.print(f"... {len(notes) - MOST_LINES} more columns", style="dim", soft_wrap=True)
