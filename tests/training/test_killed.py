"""A run that is killed without warning goes on from its folder and ends bit-identical."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli

RUN = ["run", "mixed-regression", "--clients", "30", "--rounds", "300", "--checkpoint-every", "7", "--restarts", "2"]
PATIENT = [*RUN, "--samples", "1-40", "--local-steps", "1", "--lr", "0.1", "--validation", "0.3", "--patience", "5"]


def program(*arguments):
    """The program in a process of its own, which can be killed."""
    return [sys.executable, "-c", "from coterie.cli.main import main; main()", *map(str, arguments)]


def call(*arguments):
    """The program in this process, where everything is imported already."""
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def records(folder):
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*RUN, "--out", folder).exit_code == 0
    return folder


def kill_after(folder, rounds, run=RUN):
    """Start the run and kill it once so many records are there."""
    process = subprocess.Popen(program(*run, "--out", folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = folder / "records.jsonl"
    deadline = time.monotonic() + 120
    while not path.is_file() or path.read_bytes().count(b"\n") < rounds:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()


def test_a_killed_run_ends_as_if_it_had_never_stopped(whole, tmp_path):
    """A real process and a real signal; tests/fuzz/test_io_faults.py kills at every step of input and output."""
    folder = tmp_path / "run"
    kill_after(folder, 90)
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
    assert 100 < stopped.metrics["rounds"] < 300
    kill_after(cut, 95, PATIENT)
    done = call("resume", cut)
    assert done.exit_code == 0
    assert re.search(rf"stopped +after {stopped.metrics['rounds']} of 300 rounds", done.stdout)
    assert (cut / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(cut) == records(whole)
    assert coterie.load(cut).metrics["best_rounds"] == stopped.metrics["best_rounds"]


def test_a_damaged_checkpoint_is_passed_over_with_a_message(whole, tmp_path):
    folder = tmp_path / "run"
    kill_after(folder, 60)
    newest = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    done = call("resume", folder)
    assert done.exit_code == 0, done.stderr
    assert f"checkpoint {newest.stem} is damaged" in done.stderr
    assert (folder / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(folder) == records(whole)
