"""Cells of reproductions, the file of results, and the processes that run cells."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.data import scenario
from coterie.errors import ConfigError, RunError
from coterie.experiments.checkout import code_version
from coterie.experiments.pools import Processes
from coterie.experiments.processes import in_processes
from coterie.experiments.reproduce import find_reproduction
from coterie.experiments.reproducing import folder_of, open_cells, run_cells
from coterie.experiments.reproduction import Claim, RunCell, mean_of, spread, values_of
from coterie.experiments.results import Measured, append, read, read_lines
from coterie.training.fitting import carry_out
from coterie.training.planning import prepare
from tests.experiments.work import Square


def accuracy(cell, data, result):
    return {"accuracy": result.metrics["accuracy"], "clients": len(data.clients)}


def digits(rounds: int = 4, seed: int = 0) -> RunCell:
    options = {"rounds": rounds, "checkpoint_every": 1, "race": 0, "restarts": 1}
    return RunCell("digits ifca", seed, "rotated-digits", {"clients": 8}, "ifca", options, accuracy)


def test_a_cell_has_the_result_of_its_run(tmp_path):
    cell = digits()
    figures = cell.measure(tmp_path / "run")
    data = scenario("rotated-digits", clients=8, seed=0)
    plain = carry_out(prepare(data, "ifca", None, {**cell.options, "seed": 0}))
    assert figures == {"accuracy": plain.metrics["accuracy"], "clients": 8}
    assert cell.done(tmp_path / "run") == 4 == cell.work


def test_a_finished_cell_is_loaded_and_not_run_again(tmp_path):
    cell = digits()
    first = cell.measure(tmp_path / "run")
    before = (tmp_path / "run" / "records.jsonl").stat().st_mtime_ns
    assert cell.measure(tmp_path / "run") == first
    assert (tmp_path / "run" / "records.jsonl").stat().st_mtime_ns == before


def test_an_interrupted_cell_is_resumed_with_the_same_result(tmp_path):
    class StopError(Exception):
        pass

    def stop(record):
        if record["round"] == 1:
            raise StopError

    cell = digits()
    data = scenario("rotated-digits", clients=8, seed=0)
    with pytest.raises(StopError):
        carry_out(prepare(data, "ifca", None, {**cell.options, "seed": 0}), tmp_path / "cut", [stop])
    assert cell.done(tmp_path / "cut") == 1
    assert cell.measure(tmp_path / "cut") == cell.measure(tmp_path / "whole")


def test_a_folder_with_another_run_is_refused(tmp_path):
    digits(rounds=2).measure(tmp_path / "run")
    with pytest.raises(RunError, match="has a run with other options \\(rounds\\)"):
        digits(rounds=3).measure(tmp_path / "run")


def test_results_are_appended_and_the_last_line_of_a_cell_counts(tmp_path):
    file = tmp_path / "new" / "results.jsonl"
    append(file, "table", digits(), Measured({"accuracy": 0.5}, 1.23), "v1")
    append(file, "other", digits(), Measured({"accuracy": 0.1}, 1), "v1")
    append(file, "table", digits(seed=1), Measured({"accuracy": 0.7}, 1, resumed=True), "v1")
    append(file, "table", digits(), Measured({"accuracy": 0.6}, 1), "v2")
    assert read(file, "table") == {"digits ifca": {0: {"accuracy": 0.6}, 1: {"accuracy": 0.7}}}
    assert [json.loads(line)["seconds"] for line in file.read_text().splitlines()] == [1.2, 1, 1, 1]
    assert [(line.version, line.resumed) for line in read_lines(file)] == [
        ("v1", False),
        ("v1", False),
        ("v1", True),
        ("v2", False),
    ]
    assert read(tmp_path / "absent", "table") == {}


def test_lines_without_version_and_machine_can_be_read(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('{"reproduction": "a", "cell": "b", "seed": 0, "figures": {}, "seconds": 1.0}\n')
    [line] = read_lines(file)
    assert (line.version, line.machine, line.resumed) == (None, None, None)


def test_a_resumed_cell_is_marked(tmp_path):
    """The first half of the rounds is run before, as after an interruption."""

    class StopError(Exception):
        pass

    def stop(record):
        if record["round"] == 1:
            raise StopError

    whole, cut = digits(), digits(seed=1)
    data = scenario("rotated-digits", clients=8, seed=1)
    with pytest.raises(StopError):
        carry_out(prepare(data, "ifca", None, {**cut.options, "seed": 1}), folder_of(tmp_path, cut), [stop])
    assert run_cells("table", [whole, cut], tmp_path, tmp_path / "results.jsonl", Processes(1)) == []
    lines = read_lines(tmp_path / "results.jsonl")
    assert {line.seed: line.resumed for line in lines} == {0: False, 1: True}
    assert {line.version for line in lines} == {code_version()}


@pytest.mark.parametrize(
    ("holds", "decided", "verdict"),
    [
        (True, True, "holds"),
        (False, True, "does not hold"),
        (True, False, "undecided"),
        (False, False, "undecided"),
        (None, True, "not run"),
    ],
)
def test_verdicts_of_claims(holds, decided, verdict):
    assert Claim("a", holds, "b", decided).verdict == verdict


@pytest.mark.parametrize("line", ['{"reproduction": "a"', '["a"]', '{"reproduction": "a", "cell": "b", "seed": 0}'])
def test_the_error_for_a_damaged_line_has_its_number(tmp_path, line):
    file = tmp_path / "results.jsonl"
    append(file, "table", digits(), Measured({}, 0), "v1")
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(RunError, match=r"line 2 .* missing\): remove the line"):
        read(file, "table")


def test_spread_by_hand():
    # mean of 1, 2, 6 is 3; deviations -2, -1, 3: (4 + 1 + 9) / 2 = 7, whose root is 2.65
    assert spread([1.0, 2.0, 6.0]) == "3.00 ± 2.65 (3)"
    assert spread([94.2]) == "94.20 (1)"
    assert spread([]) == "not run"


def test_figures_over_seeds_are_in_order():
    found = {"cell": {2: {"a": 3.0}, 0: {"a": 1.0, "b": 9.0}}}
    assert values_of(found, "cell", "a") == [1.0, 3.0]
    assert mean_of(found, "cell", "a") == 2.0
    assert mean_of(found, "cell", "c") is None
    assert mean_of(found, "absent", "a") is None


def test_folders_of_cells_have_simple_and_different_names(tmp_path):
    cells = [cell for name in ("ifca-table1", "ifca-figure3") for cell in find_reproduction(name).cells(2, False)]
    names = [folder_of(tmp_path, cell).name for cell in cells]
    assert len(set(names)) == len(cells)
    assert folder_of(tmp_path, digits(seed=3)) == tmp_path / "digits-ifca-seed3"


def test_cells_with_a_result_are_left_out():
    table = find_reproduction("ifca-table1")
    everything = open_cells(table, {}, 1, False, None)
    found = {everything[0].name: {0: {"accuracy": 1.0}}}
    assert open_cells(table, found, 1, False, None) == everything[1:]
    assert {cell.name for cell in open_cells(table, found, 1, False, "CIFAR")} == {
        "rotated-cifar10 200x500 ifca",
        "rotated-cifar10 200x500 fedavg",
        "rotated-cifar10 200x500 local",
    }
    with pytest.raises(ConfigError, match="no cell of ifca-table1 contains 'imagenet' in its name"):
        open_cells(table, found, 1, False, "imagenet")


def test_processes_return_the_outcomes_of_all_jobs_including_errors():
    seen = []
    outcomes = dict(in_processes(Square(), [1, 2, 3], 2, seen.append))
    assert (outcomes[1], outcomes[2]) == (1, 4)
    assert isinstance(outcomes[3], ConfigError)
    assert set(seen[0]) <= {1, 2, 3}
    assert list(in_processes(Square(), [], None, seen.append)) == []


def test_a_bug_in_a_process_is_raised():
    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(in_processes(Square(), [4], 1, lambda waiting: None))


ORPHAN = """
import os, sys, time
from coterie.experiments.pools import Processes
from coterie.experiments.processes import in_processes

class Sleep:
    def __call__(self, path):
        open(path, "w").write(str(os.getpid()))
        time.sleep(60)

if __name__ == "__main__":
    list(in_processes(Sleep(), [sys.argv[1]], 1, lambda jobs: None))
"""


def test_processes_end_with_a_killed_parent(tmp_path):
    script, pid_file = tmp_path / "orphan.py", tmp_path / "pid"
    script.write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, script, pid_file], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (pid_file.is_file() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = int(pid_file.read_text())
    parent.kill()
    parent.wait()
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(worker)


def _is_running(pid):
    """Return whether a process is running; a zombie has ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
