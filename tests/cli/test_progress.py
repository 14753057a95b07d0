"""The progress bar of a run, for trial runs and then for rounds."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coterie.cli.folders import resumable
from coterie.cli.progress import RunBar, run_progress
from coterie.cli.terminal import Terminal


def test_the_bar_shows_trial_runs_and_then_rounds():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with run_progress(console, 50, "ifca") as bar:
        task = bar.bars.tasks[bar.task]
        bar.trial(4, 18)  # an earlier process has finished four
        assert (task.completed, task.total, task.fields["unit"]) == (4, 18, "trial runs at most")
        assert task.time_remaining is None, "nothing is known about the speed yet"
        bar.trial(5, 18)
        bar.trial(6, 18)
        assert task.time_remaining is not None
        bar.trial(15, 15)  # larger numbers of clusters are not tried
        assert (task.completed, task.total, task.description) == (0, 50, "ifca")


@pytest.mark.parametrize("written", [True, False])
def test_an_interruption_names_a_command_that_works(tmp_path, capsys, written):
    folder = tmp_path / "run"
    if written:
        folder.mkdir()
    with pytest.raises(SystemExit) as ended, resumable(folder, Terminal(stderr=True)):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    printed = capsys.readouterr().err
    assert ("coterie resume" in printed) is written
    assert ("nothing has been written yet" in printed) is not written


@pytest.mark.filterwarnings("ignore:clusters=auto")  # six clients are too few to decide
def test_trial_runs_that_were_interrupted_are_continued_by_the_suggested_command(coterie, tmp_path, monkeypatch):
    """This also works without --out, since the command line always has a run folder."""
    shown = RunBar.trial

    def interrupt(bar: RunBar, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt
        shown(bar, done, total)

    few = ["--clients", 6, "--dimension", 2, "--rounds", 4, "--max-clusters", 2, "--choose-seeds", 2]
    with monkeypatch.context() as patched:
        patched.setattr(RunBar, "trial", interrupt)
        code, _, err = coterie("run", "mixed-regression", "--method", "ifca", "--clusters", "auto", *few)
    assert code == 130
    command = err.partition("continue with 'coterie ")[2].partition("'")[0].split()
    trials = tmp_path / command[1] / "trials.jsonl"
    kept_trials = trials.read_bytes()
    assert kept_trials.count(b"\n") == 2
    code, out, _ = coterie(*command)
    assert code == 0
    assert "Numbers of clusters tried" in out
    assert trials.read_bytes().startswith(kept_trials)
