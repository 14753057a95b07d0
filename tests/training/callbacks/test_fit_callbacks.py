"""Callbacks that the training loop itself calls."""

from __future__ import annotations

import csv
import json

import pytest

import coterie
from coterie.callbacks import Callback, CSVLogger, EarlyStopping, Lambda, TensorBoard
from coterie.training.callbacks.tracking import IDENTITIES
from tests.training.callbacks.driving import ROUNDS, data, result

SETTINGS = {"method": "ifca", "clusters": 2, "rounds": ROUNDS, "checkpoint_every": 1}


class Seen(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, run):
        self.calls.append(("start", run.first_round, run.rounds, run.config["method"], run.folder))

    def on_round(self, run, record):
        self.calls.append(("round", record["round"]))

    def on_end(self, run, result):
        self.calls.append(("end", result.metrics["rounds"]))

    def on_error(self, run, error):
        self.calls.append(("error", str(error)))


def test_a_run_calls_its_callbacks_through_interruption_resume_and_end(tmp_path):
    def interrupt(record):
        if record["round"] == 2:
            raise RuntimeError("power failure")

    folder, path = tmp_path / "run", tmp_path / "rounds.csv"
    first, second = Seen(), Seen()
    trackers = [CSVLogger(str(path)), TensorBoard()]
    with pytest.raises(RuntimeError, match="power failure"):
        coterie.fit(data(), **SETTINGS, out=folder, callbacks=[*trackers, first, Lambda(interrupt)])
    coterie.resume(folder, data(), callbacks=[*trackers, second])

    begun, *rounds, failed = first.calls
    assert begun == ("start", 0, ROUNDS, "ifca", folder)
    assert rounds == [("round", number) for number in range(3)]
    assert failed == ("error", "power failure")
    resumed = second.calls[0][1]
    assert resumed == 2  # the checkpoint after the second round
    assert second.calls == [
        ("start", resumed, ROUNDS, "ifca", folder),
        *(("round", number) for number in range(resumed, ROUNDS)),
        ("end", ROUNDS),
    ]
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["round"]), float(row["loss"])) for row in rows] == [
        (record["round"], record["loss"]) for record in result().records
    ]
    assert json.loads((folder / IDENTITIES).read_text())["tensorboard"] == {"folder": str(folder / "tensorboard")}

    stopped = coterie.fit(data(), **SETTINGS, callbacks=[EarlyStopping(patience=1, tolerance=10.0)])
    assert len(stopped.records) == 2
    assert stopped.metrics["stopped"]
