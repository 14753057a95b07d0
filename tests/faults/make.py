"""A federation of real processes whose nodes misbehave on request, and a simulation of the same events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie
from coterie.core.client_state import NEVER
from coterie.core.dataset import FederatedDataset
from coterie.core.federation import Replies
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.engines.missing import Missing
from coterie.engines.simulated import Simulated
from coterie.flower.local.processes import LocalFederation, LocalRun
from coterie.training.fitting import execute, initialize_run
from coterie.training.planning import prepare
from coterie.training.records import RoundRecord
from coterie.training.runs.folder import RunFolder

APP = Path(__file__).with_name("app")
ATTACKS = Path(__file__).parents[1] / "flower" / "attacks.py"
OPTIONS: Mapping[str, Any] = {
    "learner": "logistic:l2=0.01",
    "init": "random",
    "clusters": 2,
    "local_steps": 2,
    "lr": 0.05,
    "dtype": "float64",
    "seed": 3,
    "evaluate_every": 99,
}
PATIENCE = 900.0
"""Longest time to wait for any event, in seconds, on a busy machine."""
DEADLINE = 240.0
"""Deadline of an exchange in seconds, in tests that are not about deadlines."""


@dataclass(frozen=True)
class Faulty:
    """A federation of processes, orders for its nodes, and one run folder."""

    federation: LocalFederation
    folder: Path
    method: str
    rounds: int
    start_seconds: float
    """Time to start all processes in seconds; a message takes less time, even on a busy machine."""

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def order(self, node: int, orders: Mapping[int | str, str]) -> None:
        """Order a node what to do in rounds or other tasks, before the run is submitted."""
        (self.orders / f"node-{node}.json").write_text(json.dumps(orders))

    def release(self, round_: int) -> None:
        """Let the nodes continue that hold their answers in this round."""
        (self.orders / f"go-{round_}").touch()

    def started_messages(self, node: int) -> list[str]:
        """Return the messages that a node has started to process."""
        path = self.orders / f"node-{node}.log"
        return path.read_text().splitlines() if path.is_file() else []

    def records(self) -> list[RoundRecord]:
        return RunFolder(self.out).records() if self.out.is_dir() else []

    def submit(self, **settings: Any) -> LocalRun:
        """Start the run in the folder, or resume it."""
        config = {**OPTIONS, "method": self.method, "rounds": self.rounds, "out": str(self.out)}
        config |= {"nodes": self.federation.count, "wait": PATIENCE, "deadline": DEADLINE, **settings}
        return self.federation.submit({name.replace("_", "-"): value for name, value in config.items()})

    def completed(self, run: LocalRun) -> coterie.Result:
        """Wait for the end of a run and return its result."""
        status = run.wait(PATIENCE)
        assert status.completed, f"{status}: {run.tail(20)}"
        return coterie.load(self.out)


@contextmanager
def faulty(
    folder: Path, method: str, rounds: int, nodes: int, start: Collection[int] | None = None
) -> Iterator[Faulty]:
    """Run a federation in this folder, and check afterwards that all its processes have ended."""
    (folder / "orders").mkdir()
    config = {"orders": str(folder / "orders"), "attacks": str(ATTACKS)}
    federation = LocalFederation(APP, nodes, folder, start=start, node_config=config)
    started = time.monotonic()
    with federation:
        yield Faulty(federation, folder, method, rounds, time.monotonic() - started)
    federation.control.close()
    assert processes_of(folder) == []


def processes_of(folder: Path) -> list[str]:
    """Return the running processes of a federation in this folder, found by their environment (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may end meanwhile
            if f"FLWR_HOME={folder}/".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_until(what: str, ready: Callable[[], bool], timeout: float = PATIENCE) -> None:
    limit = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < limit, f"not true after {timeout:g} s: {what}"
        time.sleep(0.05)


# ---- simulation of the same run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed(Simulated):
    """A simulation in which clients are silent or have lost their states in the rounds of a log."""

    lost: Missing = field(default_factory=dict)

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        if task.name != "local-round":  # a client that was silent in the last round may have answered later
            return Simulated(self.group).ask(task, broadcast, asked)
        gone = self.lost.get(broadcast.round, ())
        if gone:
            anew = torch.tensor([self.clients[i] in gone for i in asked])
            accepted = broadcast.each["accepted"].masked_fill(anew, NEVER)
            broadcast = replace(broadcast, each={**broadcast.each, "accepted": accepted})
        return super().ask(task, broadcast, asked)


def replayed(data: FederatedDataset, method: str, records: Sequence[RoundRecord]) -> coterie.Result:
    """Simulate the run of these records: the same clients answer, and start anew, in the same rounds."""
    options = {name: value for name, value in OPTIONS.items() if name != "learner"}
    plan = prepare(data, method, OPTIONS["learner"], {**options, "rounds": len(records)})
    assert isinstance(plan.federation, Simulated)
    silent = {record["round"]: [*record["missing"], *record["rejected"]] for record in records}
    lost = {record["round"]: lost_in(record) for record in records}
    federation = Replayed(plan.federation.group, silent, lost=lost)
    return execute(initialize_run(replace(plan, run=replace(plan.run, federation=federation))), None)


def lost_in(record: RoundRecord) -> list[str]:
    """Return the clients that have started anew in this round, because their state was lost."""
    notes = [note for note in record.get("notes", ()) if note["reason"].endswith("they started anew")]
    return [client for note in notes for client in note["clients"]]


def assert_equals_replay(ended: coterie.Result, data: FederatedDataset, method: str) -> None:
    """Assert that the models are those of a simulation with the same missing clients."""
    twin = replayed(data, method, ended.records)
    for k, (ours, theirs) in enumerate(zip(ended.models, twin.models, strict=True)):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=f"cluster {k}, {name}")
    assert [record["answered"] for record in ended.records] == [record["answered"] for record in twin.records]


def reasons(record: RoundRecord) -> str:
    return " | ".join(note["reason"] for note in record.get("notes", ()))
