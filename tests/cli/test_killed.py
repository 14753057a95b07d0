"""Runs with `--clusters auto` from a table that a signal ends in their trial runs continue where they stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

MOST_SECONDS = 60.0
CODES = {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
COMMAND = ["run", "--table", "sites.csv", "--client", "site", "--target", "y", "--method", "ifca", "--clusters", "auto"]
COMMAND += ["--choose-seeds", "6", "--max-clusters", "3", "--rounds", "60", "--restarts", "1"]


def write_table(path: Path) -> None:
    """Write twelve sites of two kinds."""
    random = np.random.default_rng(0)
    lines = ["site,a,b,y"]
    for row in range(240):
        a, b = random.normal(size=2)
        lines.append(f"s{row % 12},{a},{b},{(3 if row % 2 else -3) * a + b + random.normal()}")
    path.write_text("\n".join(lines))


def finished_trials(folder: Path) -> int:
    file = folder / "trials.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def end_after_first_trial(folder: Path, by: signal.Signals) -> int:
    """Start the program, end it by a signal once a trial run has finished, and return its exit code."""
    command = [sys.executable, "-m", "coterie.cli", *COMMAND, "--out", folder.name]
    restore = "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.default_int_handler);"
    restore += "sys.argv = sys.argv[1:]; runpy.run_module('coterie.cli', run_name='__main__')"
    command[1:3] = ["-c", restore, "coterie"]  # a shell may have started the tests with SIGINT ignored
    with subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        began = time.monotonic()
        while not finished_trials(folder) and process.poll() is None and time.monotonic() - began < MOST_SECONDS:
            time.sleep(0.005)
        process.send_signal(by)
        process.communicate(timeout=MOST_SECONDS)
        return process.returncode


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_run_that_a_signal_ended_continues_with_the_next_trial_run(coterie, tmp_path, by):
    write_table(tmp_path / "sites.csv")
    assert end_after_first_trial(tmp_path / "cut", by) == CODES[by]
    done = finished_trials(tmp_path / "cut")
    assert done >= 1
    assert not (tmp_path / "cut" / "result.json").exists()
    kept = (tmp_path / "cut" / "trials.jsonl").read_text().splitlines()[:done]
    code, out, err = coterie("resume", "cut")
    assert code == 0, err
    assert "2 of 2 in use, 12 clients" in out
    assert (tmp_path / "cut" / "trials.jsonl").read_text().splitlines()[:done] == kept
    code, _, err = coterie(*COMMAND, "--out", "whole")
    assert code == 0, err
    cut, whole = ((tmp_path / name / "models.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == whole
