"""Fixture that runs the program like a user."""

import sys

import pytest

from coterie.cli import data as data_commands
from coterie.cli import diagnose as diagnose_commands
from coterie.cli import main as commands
from coterie.cli import reproduce as reproduce_commands
from coterie.cli import scoreboard as scoreboard_commands
from coterie.cli import sweep as sweep_commands
from coterie.cli import tiers as tiers_commands
from coterie.cli.terminal import Terminal


@pytest.fixture
def coterie(capsys, monkeypatch, tmp_path):
    """Return a function that runs the program in an empty folder: exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(commands.TRACEBACK, "1")  # bugs raise their original exceptions
    shown = (commands, data_commands, diagnose_commands, reproduce_commands, scoreboard_commands)
    for module in (*shown, sweep_commands, tiers_commands):
        monkeypatch.setattr(module, "out", Terminal(width=200))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            commands.main()
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call
