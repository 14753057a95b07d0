"""The option --track for new and resumed runs."""

import csv

import pytest

from coterie.experiments.compare import jobs_of, plan_comparison, run_job
from coterie.training.runs.folder import RunFolder

DATA = ("rotated-digits", "--clients", "4", "--method", "fedavg", "--learner", "logistic", "--rounds", "3")


class KilledError(BaseException):
    """Exception that simulates a kill and that no code catches."""


def rounds_in(path):
    with path.open() as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def test_a_run_is_tracked_twice(coterie, tmp_path):
    code, _, err = coterie("run", *DATA, "--track", "csv:path=a.csv", "--track", "csv:path=b.csv", "--out", "run")
    assert code == 0, err
    assert rounds_in(tmp_path / "a.csv") == rounds_in(tmp_path / "b.csv") == [0, 1, 2]


def test_figures_are_in_the_run_folder_unless_a_path_is_given(coterie, tmp_path):
    code, _, err = coterie("run", *DATA, "--track", "csv", "--out", "run")
    assert code == 0, err
    assert rounds_in(tmp_path / "run" / "rounds.csv") == [0, 1, 2]
    assert coterie("report", "run")[0] == 0


def test_a_resumed_run_continues_its_tracker(coterie, tmp_path, monkeypatch):
    from coterie.cli.main import cli

    track = ["--track", "csv:path=a.csv"]
    monkeypatch.chdir(tmp_path)

    def kill(self, state, best=None):
        if state.round == 2:
            raise KilledError
        return checkpoint(self, state, best)

    checkpoint = RunFolder.checkpoint
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "checkpoint", kill)
        with pytest.raises(KilledError):
            cli.main(["run", *DATA, "--checkpoint-every", "1", *track, "--out", "run"], standalone_mode=False)
    assert rounds_in(tmp_path / "a.csv") == [0, 1]
    code, _, err = coterie("resume", "run", *track)
    assert code == 0, err
    assert rounds_in(tmp_path / "a.csv") == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("csw:path=a.csv", "unknown tracker 'csw': did you mean 'csv'?"),
        ("csv:file=a.csv", "unknown setting 'file' of csv"),
    ],
)
def test_a_wrong_tracker_is_refused_before_anything_is_written(coterie, tmp_path, text, message):
    code, _, err = coterie("run", *DATA, "--track", text, "--out", "run")
    assert code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_comparisons_do_not_support_trackers(coterie, tmp_path):
    plan_comparison("rotated-digits", ["fedavg"], [0], {"clients": 4, "rounds": 1}, tmp_path / "both")
    run_job(jobs_of(tmp_path / "both")[0])
    code, _, err = coterie("resume", "both", "--track", "csv:path=a.csv")
    assert code == 2
    assert "--track is only for a single run" in err
