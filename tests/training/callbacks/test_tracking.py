"""Common behaviour of trackers: their figures, names, continuation, and reports of failures."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

from coterie.callbacks import Callback, CSVLogger, MLflow, Session, TensorBoard, Tracker, TrackerWarning, WandB
from coterie.callbacks import tracker_from_text as from_command_line
from coterie.core.plain import from_text, to_text
from coterie.errors import ConfigError
from coterie.training.callbacks import tracking
from coterie.training.callbacks.tracking import IDENTITIES, cut, figures_of, flat_settings, run_name
from tests.training.callbacks.driving import play, result, run_in, stopped_early


class Memory(Session):
    def __init__(self, fails_at=None):
        self.rounds, self.outcome, self.fails_at = {}, None, fails_at

    @property
    def identity(self):
        return {"id": "first"}

    def log(self, figures, step):
        if step == self.fails_at:
            raise RuntimeError("the disk\nis full")
        self.rounds[step] = figures

    def close(self, outcome):
        self.outcome = outcome


class InMemory(Tracker):
    """A tracker that keeps its sessions; it has no name."""

    def __init__(self, fails_at=None):
        self.fails_at, self.sessions = fails_at, []

    def open(self, run, known):
        self.known = known
        self.sessions.append(Memory(self.fails_at))
        return self.sessions[-1]


# ---- figures and settings --------------------------------------------------------------------------------------------


def test_every_number_of_a_record_is_a_figure():
    record = result().records[0]
    figures = figures_of(record)
    assert figures["loss"] == record["loss"]
    assert figures["sizes/0"] + figures["sizes/1"] == 6
    assert figures["missing"] == figures["rejected"] == 0
    assert {"round", "seconds", "moved", "answered", "bytes_up", "bytes_down", "ari"} <= figures.keys()
    assert not any(name.startswith(("assignments", "path")) for name in figures)


def test_figures_are_finite_numbers():
    record = {"a": None, "b": float("nan"), "c": float("inf"), "d": True, "e": np.float32(0.5), "f": np.int64(3)}
    assert figures_of(record) == {"d": 1.0, "e": 0.5, "f": 3.0}
    assert figures_of({"x": {"y": {"z": 1}}, "shares": [0.5, None], "missing": ["a", "b"]}, "final/") == {
        "final/x/y/z": 1.0,
        "final/shares/0": 0.5,
        "final/missing": 2.0,
    }


def test_settings_become_a_flat_mapping_of_numbers_and_texts():
    config = {"a": 1, "b": None, "c": {"d": [1, 2], "e": "x" * 20}, "f": True}
    assert flat_settings(config, 10) == {"a": 1, "b": "none", "c.d": "[1, 2]", "c.e": "xxxxxxx...", "f": True}
    assert cut("1234567890", 10) == "1234567890"


def test_the_name_of_a_run_is_that_of_its_folder(tmp_path):
    assert run_name(run_in(tmp_path / "mine")) == "mine"
    assert run_name(run_in(None)) == "ifca-arrays"


# ---- the calls -------------------------------------------------------------------------------------------------------


def test_a_tracker_gets_every_round_and_the_final_figures(tmp_path):
    tracker = InMemory()
    play(tracker, run_in(tmp_path))
    (session,) = tracker.sessions
    assert list(session.rounds) == [0, 1, 2, 3]
    assert session.rounds[2]["loss"] == result().records[2]["loss"]
    assert "round" not in session.rounds[2]
    assert (session.outcome.status, session.outcome.reason, session.outcome.step) == ("finished", "", 3)
    assert session.outcome.figures["final/rmse"] == result().metrics["rmse"]


def test_a_tracker_receives_the_reason_for_the_end(tmp_path):
    tracker = InMemory()
    tracker.on_start(run_in(tmp_path))
    tracker.on_end(run_in(tmp_path), stopped_early())
    play(tracker, run_in(tmp_path), error=ValueError("no client answered"))
    early, failed = (session.outcome for session in tracker.sessions)
    assert (early.status, early.reason) == ("stopped early", "patience")
    assert (failed.status, failed.reason, failed.figures) == ("failed", "ValueError: no client answered", None)


def test_a_resumed_run_gets_the_identity_from_its_folder(tmp_path):
    class Other(InMemory):
        pass

    tracker, other = InMemory(), Other()
    tracker.on_start(run_in(tmp_path))
    assert tracker.known is None
    other.on_start(run_in(tmp_path))
    assert other.known is None  # the identity of another tracker is not taken
    again = InMemory()
    again.on_start(run_in(tmp_path, first_round=2))
    assert again.known == {"id": "first"}
    assert len(json.loads((tmp_path / IDENTITIES).read_text())) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [IDENTITIES]  # no temporary file


def test_a_failure_is_reported_once_and_the_run_continues(tmp_path):
    tracker = InMemory(fails_at=1)
    with pytest.warns(TrackerWarning, match=r"InMemory failed .* \(RuntimeError: the disk is full\)") as seen:
        play(tracker, run_in(tmp_path))
    assert len(seen) == 1
    (session,) = tracker.sessions
    assert list(session.rounds) == [0]
    assert session.outcome is None


def test_a_tracker_works_again_in_the_next_run(tmp_path):
    tracker = InMemory(fails_at=1)
    with pytest.warns(TrackerWarning):
        play(tracker, run_in(None))
    tracker.fails_at = None
    play(tracker, run_in(None))
    assert list(tracker.sessions[-1].rounds) == [0, 1, 2, 3]


def test_a_damaged_identity_file_is_a_failure_of_the_tracker_only(tmp_path):
    (tmp_path / IDENTITIES).write_text("{")
    with pytest.warns(TrackerWarning, match="JSONDecodeError"):
        play(InMemory(), run_in(tmp_path))


def test_an_interrupt_is_not_a_failure_of_the_tracker():
    class Interrupted(Memory):
        def log(self, figures, step):
            raise KeyboardInterrupt

    tracker = InMemory()
    tracker.open = lambda run, known: Interrupted()
    with pytest.raises(KeyboardInterrupt):
        play(tracker, run_in(None))


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tracker"),
    [
        ("mlflow", MLflow()),
        ("mlflow:experiment=a", MLflow(experiment="a")),
        ("mlflow:uri=sqlite:///b/c.db,run_name=d", MLflow("sqlite:///b/c.db", run_name="d")),
        ("tensorboard:folder=logs", TensorBoard("logs")),
        ("wandb:mode=online,project=p", WandB("p", "online")),
        ("csv:path=a.csv", CSVLogger("a.csv")),
    ],
)
def test_trackers_can_be_written_as_text(text, tracker):
    assert from_command_line(text) == from_text(Callback, text) == tracker
    assert from_command_line(to_text(tracker)) == tracker


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlfow", "unknown tracker 'mlfow': did you mean 'mlflow'?"),
        ("early-stopping", "unknown tracker"),
        ("mlflow:experimnt=a", "did you mean 'experiment'?"),
        ("wandb:mode=on", "mode must be one of offline, online"),
        ("csv:file=a.csv", "unknown setting 'file' of csv"),
    ],
)
def test_wrong_texts_are_refused(text, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        from_command_line(text)


def test_settings_are_checked_in_python_too():
    with pytest.raises(ConfigError, match="mode must be one of offline, online"):
        WandB(mode="on")


@pytest.mark.parametrize(("kind", "name"), [(MLflow, "mlflow"), (TensorBoard, "tensorboard"), (WandB, "wandb")])
def test_a_missing_library_is_named_with_its_extra(kind, name, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"needs the package {name}, .*: pip install 'coterie\[{name}\]'"):
        kind()


def test_no_library_is_imported_before_a_run_starts(tmp_path):
    code = (
        "import sys, coterie.callbacks as c; c.MLflow(), c.WandB(), c.TensorBoard();"
        "print({'mlflow', 'wandb', 'tensorboard'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_warnings_have_their_own_category():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TrackerWarning)
        play(InMemory(fails_at=0), run_in(None))
