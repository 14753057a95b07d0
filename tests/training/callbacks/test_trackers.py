"""Trackers with the real libraries, whose own readers read the output.

The libraries are imported in functions, after a tracker has switched off what they would send over the network.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from coterie.callbacks import MLflow, TensorBoard, TrackerWarning, WandB
from coterie.training.callbacks.tracking import IDENTITIES
from tests.training.callbacks.driving import ROUNDS, play, result, run_in, stopped_early

LOSSES = [(record["round"], record["loss"]) for record in result().records]
LONG = {"note": "x" * 7000, "nested": {"levels": [1, 2]}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is written to the current folder of the tests, and no server is known."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def interrupted_and_resumed(tracker, other, folder):
    """A run is killed after its third round, and resumed from a checkpoint after its second."""
    run = run_in(folder)
    tracker.on_start(run)
    for record in result().records[:3]:
        tracker.on_round(run, record)
    tracker.on_error(run, KeyboardInterrupt())
    play(other, run_in(folder, first_round=2))


# ---- MLflow ----------------------------------------------------------------------------------------------------------


class Runs:
    """The runs in a database of MLflow."""

    def __init__(self, uri, experiment="coterie"):
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        self.all = self.client.search_runs([self.client.get_experiment_by_name(experiment).experiment_id])

    def losses(self, run):
        return [(metric.step, metric.value) for metric in self.client.get_metric_history(run.info.run_id, "loss")]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """One database for all tests, since the tables take a second to create."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'new' / 'runs.db'}"


def test_mlflow_has_the_settings_the_rounds_and_the_result(folder, database):
    play(MLflow(database, experiment="whole"), run_in(folder, **LONG))
    runs = Runs(database, "whole")
    (run,) = runs.all
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["method"] == "ifca"
    assert run.data.params["nested.levels"] == "[1, 2]"
    assert run.data.params["note"] == "x" * 5997 + "..."
    assert runs.losses(run) == LOSSES
    assert run.data.metrics["sizes/0"] == result().records[-1]["sizes"][0]
    assert run.data.metrics["final/rmse"] == result().metrics["rmse"]
    assert run.data.tags["coterie.status"] == "finished"


def test_mlflow_writes_many_settings_and_figures_with_odd_names(folder, database):
    run = run_in(folder, **{f"option {number}": number for number in range(250)})
    record = {"round": 0, "sizes": list(range(1500)), "weight (kg) ≤ 5": 2.0}
    play(MLflow(database, experiment="many", run_name="mine"), run, [record])
    (found,) = Runs(database, "many").all
    assert found.info.run_name == "mine"
    assert found.data.params["option 249"] == "249"
    assert found.data.metrics["sizes/1499"] == 1499
    assert found.data.metrics["weight _kg_ _ 5"] == 2


def test_mlflow_continues_a_resumed_run(folder, database):
    interrupted_and_resumed(MLflow(database, "resumed"), MLflow(database, "resumed"), folder)
    runs = Runs(database, "resumed")
    (run,) = runs.all
    assert run.info.status == "FINISHED"
    assert runs.losses(run) == LOSSES  # the repeated round appears once
    assert list(json.loads((folder / IDENTITIES).read_text()).values()) == [
        {"run_id": run.info.run_id, "uri": database}
    ]


def test_mlflow_records_how_a_run_ended(database):
    tracker = MLflow(database, "ends")
    play(tracker, run_in(None), error=ValueError("no client answered"))
    tracker.on_start(run_in(None))
    tracker.on_end(run_in(None), stopped_early())
    stopped, failed = Runs(database, "ends").all  # the last one first
    assert failed.info.status == "FAILED"
    assert failed.data.tags["coterie.reason"] == "ValueError: no client answered"
    assert stopped.info.status == "FINISHED"
    assert (stopped.data.tags["coterie.status"], stopped.data.tags["coterie.reason"]) == ("stopped early", "patience")


def test_mlflow_uses_the_uri_of_the_environment(folder, database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    play(MLflow(experiment="environment"), run_in(folder))
    assert len(Runs(database, "environment").all) == 1
    assert not Path("mlflow.db").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    # a resumed run stays where it was started
    play(MLflow(experiment="environment"), run_in(folder, first_round=2))
    assert len(Runs(database, "environment").all) == 1


@pytest.mark.parametrize("where", ["sqlite:///{}/file/runs.db", "sqlite:///{}", "nonsense://{}"])
def test_mlflow_that_cannot_write_does_not_end_a_run(where, folder):
    (folder / "file").touch()
    with pytest.warns(TrackerWarning, match="the tracker mlflow failed") as seen:
        play(MLflow(where.format(folder)), run_in(folder))
    assert len(seen) == 1
    assert not (folder / IDENTITIES).exists()


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(found, name):
    return [(event.step, event.value) for event in found.Scalars(name)]


def text(found, name):
    (event,) = found.Tensors(f"{name}/text_summary")
    return event.tensor_proto.string_val[0].decode()


NEARLY = [(step, pytest.approx(loss, rel=1e-6)) for step, loss in LOSSES]  # TensorBoard keeps single precision


def test_tensorboard_has_the_settings_the_rounds_and_the_result(folder):
    play(TensorBoard(), run_in(folder, **LONG, formula="a|b"))
    found = events(folder / "tensorboard")
    assert scalars(found, "loss") == NEARLY
    assert scalars(found, "sizes/1") == [(r["round"], r["sizes"][1]) for r in result().records]
    assert scalars(found, "final/rmse") == [(ROUNDS - 1, pytest.approx(result().metrics["rmse"], rel=1e-6))]
    settings = text(found, "settings")
    assert "| method | ifca |" in settings
    assert r"| formula | a\|b |" in settings
    assert "x" * 5997 + "..." in settings
    assert text(found, "status") == "finished"


def test_tensorboard_continues_a_resumed_run(folder):
    interrupted_and_resumed(TensorBoard(), TensorBoard(), folder)
    assert scalars(events(folder / "tensorboard"), "loss") == NEARLY  # the repeated round appears once


def test_tensorboard_gives_every_run_its_own_folder(folder, tmp_path):
    tracker = TensorBoard(str(tmp_path / "logs"))
    play(tracker, run_in(folder))
    play(tracker, run_in(None), error=ValueError("no client answered"))
    alone, named = sorted((tmp_path / "logs").iterdir())
    assert named.name == "run"
    assert alone.name.startswith("ifca-arrays-")
    assert text(events(alone), "status") == "failed: ValueError: no client answered"
    play(TensorBoard(), run_in(None))
    assert len(list(Path("tensorboard").iterdir())) == 1


def test_tensorboard_that_cannot_write_does_not_end_a_run(folder):
    (folder / "tensorboard").touch()
    with pytest.warns(TrackerWarning, match="the tracker tensorboard failed") as seen:
        play(TensorBoard(), run_in(folder))
    assert len(seen) == 1


# ---- Weights & Biases ------------------------------------------------------------------------------------------------


BLOCK, HEADER = 32768, 7


def messages(data):
    """The messages in a file of a run, which has the format of LevelDB's logs; the library has no reader in Python."""
    assert data[:4] == b":W&B"
    at, parts = HEADER, []
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # a block ends with zeros where no header fits
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + HEADER + length > len(data):  # it is being written
            return
        parts.append(data[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def records_in(path):
    """All records of a finished run, once its last one is there: the library's process writes on after `finish`."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        records = [Record.FromString(message) for message in messages(path.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.02)
    raise AssertionError(f"{path} has no last record")


def stored(folder):
    """All records of each run in a folder, in the order of the runs."""
    paths = (folder / "wandb").glob("offline-run-*/*.wandb")
    return [records_in(path) for path in sorted(paths, key=lambda path: path.parent.name)]


def history(records, name):
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    return [(row["_step"], row[name]) for row in rows]


def opened(records):
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    return run, {item.key or item.nested_key[0]: json.loads(item.value_json) for item in run.config.update}


def summary(records):
    return {
        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
        for record in records
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }


def exit_code(records):
    return [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"]


def test_wandb_has_the_settings_the_rounds_and_the_result(folder):
    play(WandB(project="hospitals"), run_in(folder, **LONG))
    (records,) = stored(folder)
    run, config = opened(records)
    assert (run.project, run.display_name) == ("hospitals", "run")
    assert (config["method"], config["seed"], config["nested.levels"]) == ("ifca", 0, "[1, 2]")
    assert config["note"] == "x" * 5997 + "..."
    assert history(records, "loss") == LOSSES
    assert history(records, "sizes/0") == [(r["round"], r["sizes"][0]) for r in result().records]
    final = summary(records)
    assert final["final/rmse"] == result().metrics["rmse"]
    assert final["status"] == "finished"
    assert exit_code(records) == [0]


def test_wandb_continues_a_resumed_run(folder):
    interrupted_and_resumed(WandB(), WandB(), folder)
    first, second = stored(folder)
    assert opened(first)[0].run_id == opened(second)[0].run_id
    assert history(first, "loss") == LOSSES[:3]
    assert history(second, "loss") == LOSSES[2:]
    assert summary(first)["status"] == "failed"
    assert (exit_code(first), exit_code(second)) == ([1], [0])


def test_wandb_that_cannot_write_does_not_end_a_run(folder):
    (folder / "file").touch()
    with pytest.warns(TrackerWarning, match="the tracker wandb failed") as seen:
        play(WandB(folder=str(folder / "file")), run_in(folder))
    assert len(seen) == 1


# ---- no network ------------------------------------------------------------------------------------------------------

OFFLINE = """
import os, socket, warnings

def watched(real, target):
    def call(*args, **options):
        if not (args and getattr(args[0], "family", None) == socket.AF_UNIX):
            print("network:", target, args, flush=True)
        return real(*args, **options)
    return call

socket.socket.connect = watched(socket.socket.connect, "connect")
socket.getaddrinfo = watched(socket.getaddrinfo, "look up")

from coterie.callbacks import MLflow, TensorBoard, TrackerWarning, TrainingRun, WandB

warnings.simplefilter("error", TrackerWarning)
for tracker in (MLflow(), TensorBoard(), WandB()):
    run = TrainingRun({"method": "ifca"}, None, 0, 1)
    tracker.on_start(run)
    tracker.on_round(run, {"round": 0, "loss": 1.0})
    tracker.on_error(run, ValueError())

from mlflow.telemetry import get_telemetry_client

print("telemetry of mlflow:", get_telemetry_client())
print("error reports of wandb:", os.environ["WANDB_ERROR_REPORTING"])
"""


def test_by_default_everything_is_written_to_the_current_folder_and_nothing_to_a_network():
    """In a separate process, since MLflow switches its statistics off when it detects a test."""
    hidden = ("PYTEST_CURRENT_TEST", "CI", "MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", OFFLINE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["telemetry of mlflow: None", "error reports of wandb: false"], done.stderr
    assert done.stderr == ""
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["mlflow.db", "tensorboard", "wandb"]
    with closing(sqlite3.connect("mlflow.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("FAILED",)]
