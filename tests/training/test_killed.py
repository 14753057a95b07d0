"""A run that is killed without warning resumes from its folder and ends bit-identically."""

import json
import os
import re
import shutil
import signal
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from tests.io_faults import exit_code, started_child

RUN = ["run", "mixed-regression", "--clients", "30", "--rounds", "200", "--checkpoint-every", "7", "--restarts", "2"]
PATIENT = [*RUN, "--samples", "1-40", "--local-steps", "1", "--lr", "0.1", "--validation", "0.3", "--patience", "5"]


def call(*arguments):
    """Run the program in this process, where everything is already imported."""
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def records(folder):
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*RUN, "--out", folder).exit_code == 0
    return folder


def run_quietly(*arguments):
    """Run the program in a forked process, which prints nothing."""
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        cli.main(list(map(str, arguments)), standalone_mode=False)


def kill_after(folder, rounds, run=RUN):
    """Start the run and kill it after this number of records."""
    child = started_child(lambda: run_quietly(*run, "--out", folder))
    path = folder / "records.jsonl"
    deadline = time.monotonic() + 120
    while not path.is_file() or path.read_bytes().count(b"\n") < rounds:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    assert not (folder / "result.json").exists()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a killed run; tests resume a copy of it."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    kill_after(folder, 90)
    return folder


def test_a_killed_run_ends_as_if_it_had_never_stopped(whole, killed, tmp_path):
    """A real process and a real signal; tests/fuzz/test_io_faults.py kills at every step of input and output."""
    folder = shutil.copytree(killed, tmp_path / "run")
    assert call("resume", folder).exit_code == 0
    assert (folder / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(folder) == records(whole)
    a, b = coterie.load(folder), coterie.load(whole)
    assert a.assignments == b.assignments
    assert {k: v for k, v in a.metrics.items() if k != "seconds"} == {
        k: v for k, v in b.metrics.items() if k != "seconds"
    }


def test_a_killed_run_that_would_have_stopped_early_stops_in_the_same_round(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(*PATIENT, "--out", whole).exit_code == 0
    stopped = coterie.load(whole)
    assert 100 < stopped.metrics["rounds"] < 200
    kill_after(cut, 95, PATIENT)
    done = call("resume", cut)
    assert done.exit_code == 0
    assert re.search(rf"stopped +after {stopped.metrics['rounds']} of 200 rounds", done.stdout)
    assert (cut / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(cut) == records(whole)
    assert coterie.load(cut).metrics["best_rounds"] == stopped.metrics["best_rounds"]


def test_a_damaged_checkpoint_is_skipped_with_a_message(whole, killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run")
    # The header is written last: a kill between the two files leaves arrays without one, which are no checkpoint.
    newest = sorted((folder / "checkpoints").glob("*.json"))[-1].with_suffix(".safetensors")
    newest.write_bytes(newest.read_bytes()[:-20])
    done = call("resume", folder)
    assert done.exit_code == 0, done.stderr
    assert f"checkpoint {newest.stem} is damaged" in done.stderr
    assert (folder / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(folder) == records(whole)
