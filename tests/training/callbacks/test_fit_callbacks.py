"""Callbacks that the training loop itself calls."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch

import coterie
from coterie.callbacks import Callback, CSVLogger, EarlyStopping, Lambda, TensorBoard, TrainingRun
from coterie.privacy.accountant import Answer, epsilon
from coterie.training.callbacks.base import Progress
from coterie.training.callbacks.internal import PrivacyBudget, StateRelease
from coterie.training.callbacks.tracking import IDENTITIES
from coterie.training.fitting import _patience, initialize
from coterie.training.planning import prepare
from coterie.training.records import RoundRecord
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

    started, *rounds, failed = first.calls
    assert started == ("start", 0, ROUNDS, "ifca", folder)
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


# ---- order of calls --------------------------------------------------------------------------------------------------


class Ordered(Callback):
    """Writes every call to a common list."""

    def __init__(self, name, calls):
        self.name_, self.calls = name, calls

    def on_start(self, run):
        self.calls.append((self.name_, "start", len(run.records)))

    def on_round_start(self, run, round_):
        self.calls.append((self.name_, "round start", round_))
        assert [record["round"] for record in run.records] == list(range(round_))

    def on_round(self, run, record):
        self.calls.append((self.name_, "round", record["round"]))

    def on_end(self, run, result):
        self.calls.append((self.name_, "end", len(run.records)))

    def on_error(self, run, error):
        self.calls.append((self.name_, "error", type(error).__name__))


def both(*event):
    return [("a", *event), ("b", *event)]


def test_callbacks_are_called_in_the_given_order():
    calls = []
    coterie.fit(data(), "ifca", clusters=2, rounds=2, callbacks=[Ordered("a", calls), Ordered("b", calls)])
    rounds = [call for number in range(2) for call in (*both("round start", number), *both("round", number))]
    assert calls == [*both("start", 0), *rounds, *both("end", 2)]


def test_a_method_without_rounds_still_starts_and_ends():
    calls = []
    coterie.fit(data(), "odcl", clusters=2, callbacks=[Ordered("a", calls)])
    assert calls == [("a", "start", 0), ("a", "end", 0)]


def test_a_callback_that_stops_lets_the_others_see_the_round_and_the_end():
    calls = []
    stops = Lambda(lambda record: record["round"] == 1)
    stopped = coterie.fit(data(), **SETTINGS, callbacks=[stops, Ordered("a", calls)])
    assert calls[-2:] == [("a", "round", 1), ("a", "end", 2)]
    assert stopped.metrics["stopped"] == stopped.records[-1]["stopped"] == "callback"
    assert "stopped" not in coterie.fit(data(), **SETTINGS, callbacks=[lambda record: record["round"] == 3]).metrics


@pytest.mark.parametrize("where", ["on_start", "on_round_start", "on_round"])
def test_a_callback_that_raises_leaves_a_folder_that_can_be_resumed(tmp_path, where):
    """Also if the error looks arithmetic: it comes from the callback and not from the data."""
    calls = []

    class Broken(Callback):
        pass

    def broken(self, run, *given):
        if where == "on_start" or len(run.records) == 2:
            raise ZeroDivisionError("a mistake in the callback")

    setattr(Broken, where, broken)
    with pytest.raises(ZeroDivisionError, match="a mistake in the callback"):
        coterie.fit(data(), **SETTINGS, out=tmp_path / "run", callbacks=[Ordered("a", calls), Broken()])
    assert calls[-1] == ("a", "error", "ZeroDivisionError")
    assert ("a", "end", ROUNDS) not in calls
    seen = []
    resumed = coterie.resume(tmp_path / "run", data(), callbacks=[seen.append])
    assert [record["round"] for record in seen] == list(range(0 if where == "on_start" else 2, ROUNDS))
    assert [record["loss"] for record in resumed.records] == [record["loss"] for record in result().records]


def test_a_resumed_run_shows_its_earlier_records(tmp_path):
    def interrupt(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    calls = []
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data(), **SETTINGS, out=tmp_path / "run", callbacks=[Ordered("a", calls), interrupt])
    assert calls[-1] == ("a", "error", "KeyboardInterrupt")
    calls.clear()
    coterie.resume(tmp_path / "run", data(), callbacks=[Ordered("a", calls)])
    assert calls == [("a", "start", 3), ("a", "round start", 3), ("a", "round", 3), ("a", "end", 4)]
    calls.clear()
    coterie.resume(tmp_path / "run", data(), callbacks=[Ordered("a", calls)])
    assert calls == [], "a finished run is only loaded"


@pytest.mark.filterwarnings("ignore:clusters=auto")
def test_trial_runs_call_no_callbacks():
    calls, trials = [], []
    auto = {"clusters": "auto", "max_clusters": 2, "choose_seeds": 1, "choose_rounds": 1, "rounds": 2}
    given = {"callbacks": [Ordered("a", calls)], "on_trial": lambda *at: trials.append(at)}
    coterie.fit(data(), "ifca", **auto, **given)
    assert [call[1:] for call in calls if call[1] == "round"] == [("round", 0), ("round", 1)]
    assert [call[1] for call in calls].count("start") == [call[1] for call in calls].count("end") == 1
    assert trials == [(0, 2), (1, 2), (2, 2)]


def test_other_objects_than_callbacks_are_refused_before_the_first_round():
    with pytest.raises(
        coterie.ConfigError, match=r"must be functions or derive from coterie\.callbacks\.Callback, got str"
    ):
        coterie.fit(data(), **SETTINGS, callbacks=["csv"])


# ---- callbacks of every run ------------------------------------------------------------------------------------------


def test_the_folder_is_written_before_callbacks_see_the_end(tmp_path):
    found = []
    ended = Lambda(on_end=lambda result: found.append(coterie.load(tmp_path / "run").metrics == result.metrics))
    coterie.fit(data(), **SETTINGS, out=tmp_path / "run", callbacks=[ended])
    assert found == [True]


def test_checkpoints_are_written_every_few_rounds_and_after_the_last(tmp_path):
    class Checkpoints(Callback):
        def __init__(self):
            self.seen = []

        def on_round_start(self, run, round_):
            self.seen.append(sorted(int(path.stem[-6:]) for path in (run.folder / "checkpoints").glob("*.json")))

    watcher = Checkpoints()
    coterie.fit(data(), **SETTINGS | {"rounds": 5, "checkpoint_every": 2}, out=tmp_path / "run", callbacks=[watcher])
    assert watcher.seen == [[0], [0], [0, 2], [0, 2], [0, 2, 4]]
    last = max(int(path.stem[-6:]) for path in (tmp_path / "run" / "checkpoints").glob("*.json"))
    assert last == 5


def test_patience_keeps_the_best_models_with_validation_samples():
    options = {**SETTINGS, "rounds": 40, "lr": 0.9, "local_steps": 1, "validation": 0.3, "patience": 2}
    plan = prepare(data(), options.pop("method"), None, options)
    (patience,) = _patience(plan)
    assert (patience.watch.figure, patience.watch.patience, patience.keeps_best) == ("validation_loss", 2, True)
    (patience,) = _patience(prepare(data(), "ifca", None, {"clusters": 2, "patience": 3}))
    assert (patience.watch.figure, patience.watch.patience, patience.keeps_best) == ("loss", 3, False)
    assert _patience(prepare(data(), "ifca", None, {"clusters": 2, "rounds": 30})) == []
    (settled,) = _patience(prepare(data(), "ifca", None, {"clusters": 2}))
    assert settled.settling.least == 20 + 5  # those of the race come before


def test_the_privacy_budget_counts_a_round_before_its_clients_are_asked():
    pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")
    plan = prepare(data(), "fedavg", None, {"privacy": "central", "privacy_noise": 8.0, "rounds": 3})
    budget = PrivacyBudget(plan, None)
    run = TrainingRun(plan.config, None, 0, 3, [], Progress(plan, initialize(plan).state))
    budget.on_start(run)
    spent = [budget.spending.epsilon]
    for round_ in range(2):
        budget.on_round_start(run, round_)
        spent.append(budget.spending.epsilon)
    assert spent == [epsilon(Answer(4.0), count, 1e-5) for count in range(3)]
    assert not budget.on_round(run, RoundRecord(round=1)), "there is no limit to exceed"
    resumed = PrivacyBudget(plan, None)
    resumed.on_start(replace(run, progress=Progress(plan, replace(initialize(plan).state, round=2))))
    assert resumed.spending.epsilon == spent[-1]


def test_states_are_released_only_if_remote_clients_keep_some():
    class RemoteClients:
        store = None

        def __init__(self):
            self.released = []

        def release(self, accepted):
            self.released.append(accepted.tolist())

    for method, released in (("fedem", [[4] * 6]), ("ifca", [])):
        plan = prepare(data(), method, None, {"clusters": 2, "rounds": 3})
        state = initialize(plan).state.with_values(accepted=torch.full((6,), 5))
        remote = RemoteClients()
        away = replace(plan, run=replace(plan.run, federation=remote))
        best = state.with_values(accepted=torch.full((6,), 4))
        StateRelease(None).on_round(TrainingRun({}, None, 0, 3, [], Progress(away, state, best)), RoundRecord(round=2))
        assert remote.released == released
        StateRelease(None).on_round(TrainingRun({}, None, 0, 3, [], Progress(plan, state, best)), RoundRecord(round=2))
