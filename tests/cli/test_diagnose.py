"""`coterie diagnose` and `coterie run --method auto` on the command line."""

import json
import tomllib

import pytest

from coterie.cli import diagnose as diagnose_commands
from coterie.diagnosis.values import Diagnosis
from coterie.training import planning
from tests.diagnosis.made import alike, grouped

SMALL = ["mixed-regression", "--clients", "9", "--dimension", "2"]


@pytest.fixture
def found(monkeypatch):
    """Replace the statistics by a fixed diagnosis, and record the calls."""
    calls = []

    def diagnose(data, *, seed=0, network=True):
        calls.append(seed)
        return grouped()

    monkeypatch.setattr(diagnose_commands, "diagnose", diagnose)
    monkeypatch.setattr(planning, "diagnose", diagnose)
    return calls


def test_the_five_answers_and_the_command_are_printed(coterie, found, tmp_path):
    code, out, _ = coterie("diagnose", *SMALL)
    assert code == 0
    assert [line[0] for line in out.splitlines() if line[:1].isdigit()] == ["1", "2", "3", "4", "5"]
    assert "One model does not fit all clients (p ≤ 0.005)" in out
    command = "coterie run mixed-regression --dimension 2 --clients 9"
    assert any(line.strip().startswith("coterie run mixed-regression") for line in out.splitlines()), command
    assert "--method ifca --clusters 3 --restarts 2" in out
    assert list(tmp_path.iterdir()) == []


def test_the_printed_command_runs(coterie, found):
    _, out, _ = coterie("diagnose", *SMALL)
    (line,) = [line.strip() for line in out.splitlines() if line.strip().startswith("coterie run")]
    code, _, _ = coterie(*line.split()[1:], "--rounds", "1", "--out", "run")
    assert code == 0


def test_json_replaces_the_text_output(coterie, found):
    code, out, _ = coterie("diagnose", *SMALL, "--json", "-")
    assert code == 0
    assert Diagnosis.from_json(out) == grouped()


def test_out_writes_json_and_a_page(coterie, found, tmp_path):
    code, out, _ = coterie("diagnose", *SMALL, "--out", "a/b")
    assert code == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"diagnosis.json", "diagnosis.html"}
    assert "a/b/diagnosis.html" in out
    assert "coterie run mixed-regression" in (tmp_path / "a" / "b" / "diagnosis.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diagnose"], "no scenario is named"),
        (["diagnose", "mixed-regresion"], "did you mean"),
        (["diagnose", *SMALL, "--train-images", "4"], "but not of scenario mixed-regression: leave it out"),
        (["diagnose", *SMALL, "--rounds", "4"], "No such option"),
        (["diagnose", *SMALL, "--out", "file"], "is a file, but --out needs a folder"),
        (["run", *SMALL, "--method", "auto", "--privacy", "central"], "does not support differential privacy"),
        (["compare", *SMALL, "--methods", "auto,fedavg"], "method=auto works only for a single run"),
    ],
)
def test_user_errors_are_found_before_clients_are_asked(coterie, found, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    code, _, err = coterie(*arguments)
    assert code == 2
    assert message in err
    assert found == []


def test_run_auto_prints_the_recommendation_and_stores_the_diagnosis(coterie, found, tmp_path):
    code, out, err = coterie("run", *SMALL, "--method", "auto", "--rounds", "2", "--restarts", "1")
    folder = tmp_path / "runs" / "mixed-regression-ifca-seed0"
    assert code == 0
    assert "diagnosis: Use the method ifca with clusters = 3 and restarts = 2." in err
    assert "chosen by a diagnosis" in out
    assert {"diagnosis.json", "diagnosis.html"} <= {path.name for path in folder.iterdir()}
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["method"], config["clusters"], config["restarts"]) == ("ifca", 3, 1)
    assert len(found) == 1
    assert coterie("resume", folder)[0] == 0
    assert coterie("run", "--config", folder / "config.toml", "--out", "again")[0] == 0
    assert len(found) == 1


def test_run_auto_in_a_config_file(coterie, found, tmp_path):
    (tmp_path / "run.toml").write_text('scenario = "mixed-regression"\nmethod = "auto"\nrounds = 1\nclients = 9\n')
    code, out, _ = coterie("run", "--config", "run.toml", "--json", "-")
    assert code == 0
    assert json.loads(out)["config"]["method"] == "ifca"


def test_run_auto_refuses_an_option_that_the_method_does_not_have(coterie, monkeypatch):
    monkeypatch.setattr(planning, "diagnose", lambda *_, **__: alike())
    code, _, err = coterie("run", *SMALL, "--method", "auto", "--clusters", "3")
    assert code == 2
    assert "recommends method fedavg, which has no option clusters" in err
