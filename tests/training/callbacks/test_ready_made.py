"""Early stopping, the CSV file and functions as callbacks."""

from __future__ import annotations

import csv

import pytest

from coterie.callbacks import Callback, CSVLogger, EarlyStopping, Lambda, TrackerWarning, TrainingRun
from coterie.core.plain import from_text, to_text
from coterie.errors import ConfigError
from tests.training.callbacks.driving import play, result, run_in
from tests.training.test_stopping import plain_stop

RUN = TrainingRun({}, None, 0, 100)


def last_round(callback, values, figure="loss"):
    """The round after which the callback ends a run with these values; None if it never does."""
    callback.on_start(RUN)
    for number, value in enumerate(values):
        if callback.on_round(RUN, {"round": number} | ({} if value is ... else {figure: value})):
            return number
    return None


# ---- early stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "patience"),
    [([3, 2, 1, 1, 1, 1], 2), ([3, 2, 1, 1, 0.5, 1, 1], 2), ([1, 0.99995, 0.9999, 0.9998], 3), ([3, 2, 1], 1)],
)
def test_a_run_ends_after_measurements_without_improvement(values, patience):
    assert last_round(EarlyStopping(patience=patience), values) == plain_stop(values, patience)[0]


def test_rounds_without_the_figure_do_not_count():
    assert last_round(EarlyStopping(patience=2), [1, ..., ..., 1, ..., 1]) == 5


def test_an_infinite_figure_is_not_an_improvement():
    assert last_round(EarlyStopping(patience=2), [1, None, None]) == 2


def test_higher_may_be_better():
    assert last_round(EarlyStopping("accuracy", 2, mode="max"), [0.1, 0.2, 0.3, 0.3, 0.2], "accuracy") == 4
    assert last_round(EarlyStopping("accuracy", 2, mode="max"), [0.1, 0.2, 0.3, 0.4, 0.5], "accuracy") is None
    assert last_round(EarlyStopping("accuracy", 2, mode="max"), [0.5, None, None], "accuracy") == 2


def test_the_tolerance_is_a_fraction_of_the_best_value():
    values = [100, 95, 90.5, 86]
    assert last_round(EarlyStopping(patience=2, tolerance=0.1), values) == 2
    assert last_round(EarlyStopping(patience=2, tolerance=0), values) is None


def test_a_second_run_starts_from_scratch():
    callback = EarlyStopping(patience=2)
    assert last_round(callback, [1, 1, 1]) == 2
    assert last_round(callback, [5, 4, 4, 4]) == 3


def test_a_resumed_run_stops_where_it_would_have_stopped():
    """The rounds before the first one of the process count."""
    records = result().records
    callback = EarlyStopping(patience=2, tolerance=10.0)  # nothing counts as an improvement on the first round
    callback.on_start(run_in(None, 2))
    assert callback.on_round(run_in(None), records[2])
    callback.on_start(run_in(None))
    assert not callback.on_round(run_in(None), records[0])


def test_a_figure_that_was_never_measured_is_reported():
    with pytest.warns(UserWarning, match=r"no round measured 'acuracy': the last round has .*loss"):
        play(EarlyStopping("acuracy"), run_in(None))
    play(EarlyStopping(), run_in(None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must not be negative"),
        ({"tolerance": float("nan")}, "tolerance must not be negative"),
        ({"mode": "up"}, "mode must be one of min, max"),
    ],
)
def test_settings_of_early_stopping_are_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        EarlyStopping(**settings)


def test_early_stopping_can_be_written_as_text():
    callback = EarlyStopping("accuracy", 3, 0.01, "max")
    assert from_text(Callback, to_text(callback)) == callback
    assert from_text(Callback, "early-stopping") == EarlyStopping()


# ---- the CSV file ----------------------------------------------------------------------------------------------------


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_has_a_row_for_every_round(tmp_path):
    path = tmp_path / "new" / "rounds.csv"
    play(CSVLogger(str(path)), run_in(None))
    found = rows(path)
    assert [int(row["round"]) for row in found] == [0, 1, 2, 3]
    assert [float(row["loss"]) for row in found] == [record["loss"] for record in result().records]
    assert [row["sizes/0"] for row in found] == [str(record["sizes"][0]) for record in result().records]


def test_later_figures_get_a_column(tmp_path):
    path = tmp_path / "rounds.csv"
    records = [{"round": 0, "loss": 2.0}, {"round": 1, "loss": 1.0, "rmse": 0.5}, {"round": 2, "loss": 0.5}]
    play(CSVLogger(str(path)), RUN, records)
    assert path.read_text() == "round,loss,rmse\n0,2,\n1,1,0.5\n2,0.5,\n"


def test_a_resumed_run_continues_the_file(tmp_path):
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    play(CSVLogger(str(whole)), run_in(None))
    play(CSVLogger(str(cut)), run_in(None), result().records[:3], error=KeyboardInterrupt())
    with open(cut, "a") as file:
        file.write("3,0.")  # killed while writing
    play(CSVLogger(str(cut)), run_in(None, first_round=2))
    assert cut.read_text() == whole.read_text()


def test_a_new_run_replaces_the_file(tmp_path):
    path = tmp_path / "rounds.csv"
    path.write_text("anything")
    play(CSVLogger(str(path)), run_in(None))
    assert len(rows(path)) == 4


def test_a_file_that_cannot_be_written_does_not_end_a_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(TrackerWarning, match="csv failed") as seen:
        play(CSVLogger(str(tmp_path / "file" / "rounds.csv")), run_in(None))
    assert len(seen) == 1


# ---- functions -------------------------------------------------------------------------------------------------------


def test_functions_are_called_with_their_arguments():
    calls = []
    callback = Lambda(
        lambda record: record["round"] == 2,
        on_start=calls.append,
        on_end=calls.append,
        on_error=calls.append,
    )
    run, error = run_in(None), ValueError()
    callback.on_start(run)
    assert [callback.on_round(run, record) for record in result().records] == [False, False, True, False]
    callback.on_end(run, result())
    callback.on_error(run, error)
    assert calls == [run, result(), error]


def test_callbacks_do_nothing_by_default():
    for callback in (Callback(), Lambda()):
        play(callback, run_in(None))
        assert callback.on_round(run_in(None), {"round": 0}) is None
        callback.on_error(run_in(None), ValueError())


def test_the_csv_file_is_in_the_run_folder_or_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (None, tmp_path / "run"):
        play(CSVLogger(), run_in(folder))
        with open((folder or tmp_path) / "rounds.csv", newline="") as file:
            assert len(list(csv.DictReader(file))) == len(result().records)
