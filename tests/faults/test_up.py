"""`coterie flower up` as users start it: signals, a killed SuperLink, apps that cannot load their data, typos."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.flower.local.app import write_app
from coterie.training.runs.folder import RunFolder
from tests.faults.make import PATIENCE, processes_of, wait_until

pytestmark = pytest.mark.slow_processes

CLIENT = """
import coterie
from coterie.flower.node import make_client_app

def load(context):
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    return coterie.scenario("opposite-labels", clients=6, seed=1).training_only().take(range(node, 6, nodes))

app = make_client_app(load)
"""
OPTIONS = {"clusters": 2, "rounds": 3, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3, "init": "random"}
"""Options of a run with `fedem`, whose clients keep states."""


class Up:
    """One app, one run folder, and the command that starts and resumes its run."""

    def __init__(self, folder: Path, client: str = CLIENT) -> None:
        self.app, self.out, self.work = folder / "app", folder / "run", folder / "run.flower"
        self.said = folder / "said.txt"
        write_app(self.app)
        (self.app / "client_app.py").write_text(client)
        settings = {"method": "fedem", "learner": "logistic", "evaluate-every": 99, **OPTIONS}
        self._flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]

    @contextmanager
    def started(self, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start the command as a process, which is killed afterwards."""
        self.said.write_text("")
        program = [sys.executable, "-c", "from coterie.cli.main import main; main()"]
        command = [*program, "flower", "up", str(self.app), "--nodes", "2"]
        with open(self.said, "ab") as said:
            process = subprocess.Popen(
                [*command, "--out", str(self.out), *self._flags, *flags],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def ends(self, process: subprocess.Popen[bytes], code: int) -> str:
        """Wait for the end of the command and return its output; check that all its processes have ended."""
        assert process.wait(PATIENCE) == code, self.said.read_text()
        wait_until("all processes have ended", lambda: processes_of(self.work) == [], 10.0)
        text = self.said.read_text()
        assert "Traceback" not in text
        return text

    def records(self) -> int:
        return len(RunFolder(self.out).records()) if self.out.is_dir() else 0

    def waits(self, process: subprocess.Popen[bytes], what: str, ready: Callable[[], bool]) -> None:
        """Wait while the command runs; its early end is a failure."""
        wait_until(what, lambda: ready() or process.poll() is not None)
        assert process.poll() is None, self.said.read_text()

    def has_done(self, process: subprocess.Popen[bytes], rounds: int) -> None:
        self.waits(process, f"{rounds} rounds are done", lambda: self.records() >= rounds)

    def superlink(self) -> int:
        """Return the process id of the SuperLink."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:  # the process may end meanwhile
                continue
            if b"flower-superlink" in command and f"FLWR_HOME={self.work}/".encode() in environment:
                return int(folder.name)
        raise AssertionError("there is no SuperLink")


def test_a_run_gives_the_same_result_after_every_kind_of_interruption(tmp_path):
    up = Up(tmp_path)
    with up.started() as process:
        up.waits(process, "processes are being started", lambda: "SuperLink is ready at" in up.said.read_text())
        process.send_signal(signal.SIGINT)  # Ctrl-C
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)  # a second Ctrl-C
        assert "resume with 'coterie flower up" in up.ends(process, 130)
    assert up.records() == 0
    with up.started() as process:
        up.has_done(process, 1)
        process.send_signal(signal.SIGTERM)
        assert "resume with 'coterie flower up" in up.ends(process, 143)
    done = up.records()
    assert 1 <= done < OPTIONS["rounds"]
    with up.started() as process:
        up.has_done(process, done + 1)
        os.kill(up.superlink(), signal.SIGKILL)
        assert "error: superlink has ended with exit code -9" in up.ends(process, 2)
    with up.started() as process:
        up.ends(process, 0)
    data = coterie.scenario("opposite-labels", clients=6, seed=1).training_only()
    undisturbed = coterie.fit(data, "fedem", learner="logistic", **OPTIONS)
    for found, expected in zip(coterie.load(up.out).models, undisturbed.models, strict=True):
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)
    with up.started() as process:
        assert up.ends(process, 2).count("\n") == 1, "a finished run is refused with one sentence"


def test_an_app_that_cannot_load_its_data_ends_the_run_with_the_reason(tmp_path):
    up = Up(tmp_path, CLIENT.replace("return", "open('/no/such/ward.csv'); return"))
    with up.started("--set", f"wait={PATIENCE}") as process:
        started = time.monotonic()
        text = up.ends(process, 2)
    assert time.monotonic() - started < PATIENCE / 2, "the run waited for nodes that cannot work"
    *shown, error = text.splitlines()
    for node in (0, 1):
        assert any(line.startswith(f"node {node} ") and "No such file or directory" in line for line in shown)
    assert error.startswith("error: ")
    assert "FileNotFoundError" in error
    assert not up.out.exists()


def test_a_typo_is_reported_at_once(tmp_path):
    up = Up(tmp_path)
    with up.started("--set", "clustres=3") as process:
        text = up.ends(process, 2)
    assert text == "error: unknown option 'clustres' of method fedem: did you mean 'clusters'?\n"
    assert not up.work.exists()
