"""Real worker processes that are killed or cannot start, and scripts without a main guard."""

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.errors import RunError, StorageError, TrainingError
from coterie.experiments.compare import jobs_of, plan_comparison, run_comparison, run_job
from coterie.experiments.pools import Processes
from coterie.experiments.processes import RESTARTS, UNGUARDED, WORKER, in_processes
from coterie.training.runs.folder import RunFolder
from tests.experiments.work import Dies, Leaves, Pid, Raises


def watch_nothing(jobs):
    pass


def test_a_job_whose_process_is_killed_runs_again_and_the_others_are_unaffected(tmp_path):
    jobs = ["a:0", f"b:{RESTARTS}", "c:0", f"d:{RESTARTS + 1}", "e:0"]
    outcomes = dict(in_processes(Dies(tmp_path), jobs, 2, watch_nothing))
    lost = outcomes.pop("d:3")
    assert outcomes == {"a:0": "A", "b:2": "B", "c:0": "C", "e:0": "E"}
    assert isinstance(lost, RunError)
    assert str(lost).startswith("its process was killed by SIGKILL 3 times, perhaps because memory ran out:")
    attempts = {path.name: len(path.read_text()) for path in tmp_path.iterdir()}
    assert attempts == {"a": 1, "b": 3, "c": 1, "d": 3, "e": 1}


def test_every_abnormal_end_counts_as_killed(tmp_path):
    [(_, outcome)] = in_processes(Dies(tmp_path, signal.SIGSEGV), ["a:9"], 1, watch_nothing)
    assert "SIGSEGV" in str(outcome)
    [(_, outcome)] = in_processes(Leaves(), [7], 1, watch_nothing)
    assert "its process ended with exit code 7 3 times" in str(outcome)


def test_system_errors_are_outcomes_of_their_job():
    found = dict(in_processes(Raises(), ["memory", "torch", "full"], 1, watch_nothing))
    assert isinstance(found["memory"], TrainingError)
    assert isinstance(found["torch"], TrainingError)
    assert isinstance(found["full"], StorageError)
    assert "/runs/x cannot be read or written (No space left on device): free some space" in str(found["full"])
    assert all(len(str(error).splitlines()) == 1 for error in found.values())


def test_a_bug_is_raised_with_its_traceback_even_if_it_cannot_be_pickled():
    with pytest.raises(RuntimeError, match="AwkwardError: awkward"):
        list(in_processes(Raises(), ["awkward"], 1, watch_nothing))
    with pytest.raises(KeyError) as raised:
        list(in_processes(Raises(), ["unknown"], 1, watch_nothing))
    assert "in __call__" in raised.value.__notes__[0]


def test_processes_are_reused_and_end_with_the_caller(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    outcomes = in_processes(Pid(), range(4), 1, watch_nothing)
    _, (first, threads, marked) = next(outcomes)
    assert (threads, marked) == ("1", "1")
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert WORKER not in os.environ
    assert next(outcomes)[1][0] == first
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_comparison_with_a_killed_worker_gives_the_same_result(tmp_path, monkeypatch):
    options = {"clients": 12, "rounds": 200, "checkpoint_every": 20}
    for name in ("whole", "killed"):
        plan_comparison("mixed-regression", ["fedavg"], [0], options, tmp_path / name)
    run_job(jobs_of(tmp_path / "whole")[0])
    [job] = jobs_of(tmp_path / "killed")
    killed = []

    def kill_once(job, done):
        if not killed and 30 < done < 180:
            [worker] = [child for child in children(os.getpid()) if "spawn_main" in command(child)]
            os.kill(worker, signal.SIGKILL)
            killed.append(done)

    monkeypatch.setattr("coterie.experiments.processes.POLL_SECONDS", 0.01)
    assert run_comparison(tmp_path / "killed", Processes(1), kill_once) == []
    assert killed, "the run was over before it could be killed"
    whole, again = (RunFolder.open(jobs_of(tmp_path / name)[0].folder) for name in ("whole", "killed"))
    assert (whole.path / "models.safetensors").read_bytes() == (again.path / "models.safetensors").read_bytes()
    assert job.finished


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"PPid:\t{parent}\n" in status.read_text():
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


CALLS = {
    "compare": "coterie.compare('mixed-regression', ['fedavg'], seeds=1, out='out', rounds=1, clients=6)",
    "pool": "list(in_processes(abs, [1], 1, print))",
}
HEAD = "import coterie\nfrom coterie.experiments.processes import in_processes\nprint('imported', flush=True)\n"


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(text)
    return subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", CALLS)
def test_the_error_for_a_script_without_a_main_guard_explains_what_to_do(name, tmp_path):
    ended = script(tmp_path, HEAD + CALLS[name])
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == (
        "coterie.errors.RunError: worker processes cannot be started: put the calls of your script under `if __name__ "
        '== "__main__":`, because every worker process imports it again'
    )
    assert ended.stderr.count("Traceback") == 1, "only the parent reports it"
    assert 2 <= ended.stdout.count("imported") <= 1 + (os.cpu_count() or 1), "no process starts further ones"


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("compare", lambda: coterie.compare("table", out="nowhere")),
        ("sweep", lambda: coterie.sweep("table", over={})),
        ("reproduce", lambda: coterie.reproduce("ifca-figure3")),
    ],
)
def test_functions_that_start_workers_check_for_a_main_guard_first(module, call, monkeypatch):
    def leave():
        raise SystemExit(UNGUARDED)

    monkeypatch.setattr(import_module(f"coterie.experiments.{module}"), "leave_if_importing_main", leave)
    with pytest.raises(SystemExit):
        call()


def test_the_error_for_a_script_that_workers_cannot_import_has_the_reason(tmp_path):
    guarded = f"if __name__ == '__main__':\n    {CALLS['pool']}\nelse:\n    raise ValueError('odd')"
    ended = script(tmp_path, HEAD + guarded)
    assert ended.returncode == 1
    assert "a worker process ended with exit code 1 before it was ready" in ended.stderr.strip().splitlines()[-1]


def test_ctrl_c_ends_the_workers_quietly(tmp_path):
    text = """
import sys, time
from coterie.experiments.processes import in_processes

def work(path):
    open(path, "w").write("at work")
    time.sleep(60)

if __name__ == "__main__":
    list(in_processes(work, ["one", "two"], 2, lambda jobs: None))
"""
    path = tmp_path / "script.py"
    path.write_text(text)
    program = subprocess.Popen(
        [sys.executable, path], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "two").exists() or not (tmp_path / "one").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [child for child in children(program.pid) if "spawn_main" in command(child)]
    assert len(workers) == 2
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does
    _, errors = program.communicate(timeout=30)
    assert errors.count("Traceback") == 1, errors
    assert errors.strip().endswith("KeyboardInterrupt")
    assert not any("spawn_main" in command(worker) for worker in workers)
