"""A run that is killed without warning goes on from its folder and ends bit-identical."""

import json
import signal
import subprocess
import sys
import time

import pytest

import coterie

RUN = ["run", "mixed-regression", "--clients", "30", "--rounds", "300", "--checkpoint-every", "7", "--restarts", "2"]


def program(*arguments):
    return [sys.executable, "-c", "from coterie.cli.main import main; main()", *map(str, arguments)]


def records(folder):
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(program(*RUN, "--out", folder), check=True, capture_output=True)
    return folder


def kill_after(folder, rounds):
    """Start the run and kill it once so many records are there."""
    process = subprocess.Popen(program(*RUN, "--out", folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = folder / "records.jsonl"
    deadline = time.monotonic() + 120
    while not path.is_file() or path.read_bytes().count(b"\n") < rounds:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("rounds", [1, 24, 90])
def test_a_killed_run_ends_as_if_it_had_never_stopped(whole, tmp_path, rounds):
    folder = tmp_path / "run"
    kill_after(folder, rounds)
    done = subprocess.run(program("resume", folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(folder) == records(whole)
    a, b = coterie.load(folder), coterie.load(whole)
    assert a.assignments == b.assignments
    assert {k: v for k, v in a.metrics.items() if k != "seconds"} == {
        k: v for k, v in b.metrics.items() if k != "seconds"
    }


def test_a_damaged_checkpoint_is_passed_over_with_a_message(whole, tmp_path):
    folder = tmp_path / "run"
    kill_after(folder, 60)
    newest = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    done = subprocess.run(program("resume", folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {newest.stem} is damaged" in done.stderr
    assert (folder / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert records(folder) == records(whole)
