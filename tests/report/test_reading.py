"""Run folders and comparisons, finished and not."""

from __future__ import annotations

import pytest

from coterie.errors import RunError
from coterie.report.reading import count_unfinished, read_run, read_runs
from coterie.training.runs.folder import RunFolder


def _summary(run):
    clients = [client.to_json() for client in run.clients]
    return {"metrics": run.metrics.to_json(), "clients": clients, "features": [2], "classes": 2}


def _write(path, run, finished=True):
    folder = RunFolder.create(path, run.config, "digest")
    for record in run.records:
        folder.append(record)
    if finished:
        folder.finish([], _summary(run))
    return path


def test_a_single_run_reads_back(tmp_path, make_run):
    run = make_run(seed=4)
    (found,) = read_runs(_write(tmp_path / "run", run))
    assert found == run
    assert (found.method, found.seed, found.scenario, found.score_name) == ("ifca", 4, "rotated-digits", "accuracy")
    assert found.score == pytest.approx(0.85)


def test_a_comparison_leaves_out_what_is_not_finished(tmp_path, make_run):
    _write(tmp_path / "jobs" / "ifca-seed0", make_run())
    _write(tmp_path / "jobs" / "ifca-seed1", make_run(seed=1))
    _write(tmp_path / "jobs" / "ifca-seed2", make_run(seed=2), finished=False)
    (tmp_path / "jobs" / "notes.txt").write_text("not a run")
    assert [run.seed for run in read_runs(tmp_path)] == [0, 1]
    assert count_unfinished(tmp_path) == 1


def test_errors_are_one_clear_line(tmp_path, make_run):
    with pytest.raises(RunError, match="neither a run nor a comparison") as caught:
        read_runs(tmp_path)
    assert "\n" not in str(caught.value)
    unfinished = _write(tmp_path / "jobs" / "ifca-seed0", make_run(), finished=False)
    with pytest.raises(RunError, match="holds no finished run \\(1 unfinished\\)"):
        read_runs(tmp_path)
    with pytest.raises(RunError, match="not finished"):
        read_run(unfinished)
