"""A table of one's own on the command line: run, resume, compare, sweep, and mistakes."""

from __future__ import annotations

import io
import json
import runpy
import sys

import numpy as np
import pytest

from coterie.cli import show
from coterie.cli.table import print_columns
from coterie.cli.terminal import Terminal
from coterie.core.schema import ColumnNote
from coterie.data.guessing import guess_columns
from coterie.experiments.compare import run_job
from coterie.experiments.sweep import SweepPlan, plan_sweep
from coterie.training.result import load
from coterie.training.runs.folder import read_toml

FLAGS = ["--table", "pupils.csv", "--client", "school", "--target", "score"]


@pytest.fixture(autouse=True)
def pupils(tmp_path):
    """Eight schools of two kinds: the score rises with x in some and falls in the others."""
    random = np.random.default_rng(0)
    lines = ["school,x,kind,score"]
    for row in range(160):
        x = random.normal()
        lines.append(f"s{row % 8},{x},{'ab'[row % 2]},{5 + (4 if row % 8 < 4 else -4) * x + 0.1 * random.normal()}")
    (tmp_path / "pupils.csv").write_text("\n".join(lines))


def test_a_table_needs_no_scenario_name_and_its_run_says_how_to_repeat_it(coterie, tmp_path):
    code, out, _ = coterie("run", *FLAGS, "--clusters", 2, "--rounds", 60, "--out", "run")
    assert code == 0
    assert "2 of 2 in use, 8 clients" in out
    config = read_toml(tmp_path / "run" / "config.toml")
    assert config["scenario"] == "table"
    assert config["learner"].startswith("linear:bias=true")
    assert config["table"] == str(tmp_path / "pupils.csv"), "in full, to be found from any folder"
    code, again, _ = coterie("run", "--config", "run/config.toml", "--out", "again")
    assert code == 0
    assert out.splitlines()[:3] == again.splitlines()[:3]
    assert "--table" in (tmp_path / "run" / "report.html").read_text()


def test_named_features_and_the_share_held_out(coterie, tmp_path):
    code, _, _ = coterie(
        "run", "table", *FLAGS, "--features", "x,kind", "--holdout", 0.5, "--rounds", 2, "--out", "run"
    )
    assert code == 0
    config = read_toml(tmp_path / "run" / "config.toml")
    assert (config["features"], config["holdout"]) == ("x,kind", 0.5)


def test_an_interrupted_run_is_built_again_from_its_folder(coterie, tmp_path, monkeypatch):
    import coterie as library

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    data = library.scenario("table", table="pupils.csv", client="school", target="score")
    with pytest.raises(KeyboardInterrupt):
        library.fit(data, "ifca", clusters=2, rounds=6, out=tmp_path / "cut", callbacks=[stop])
    whole = library.fit(data, "ifca", clusters=2, rounds=6)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, _ = coterie("resume", tmp_path / "cut")
    assert code == 0
    assert library.load(tmp_path / "cut").assignments == whole.assignments


def test_compare_and_sweep_take_a_table_too(coterie, tmp_path):
    one = ["--rounds", 2, "--jobs", 1]
    code, out, _ = coterie("compare", *FLAGS, "--methods", "fedavg,local", "--seeds", 2, *one, "--out", "both")
    assert code == 0
    assert "fedavg" in out
    assert len(list((tmp_path / "both" / "jobs").iterdir())) == 4
    table = {"table": "pupils.csv", "client": "school", "target": "score"}
    asked = SweepPlan("table", "ifca", {"clusters": [1, 2]}, [0], 0.2, {**table, "rounds": 2})
    plan_sweep(asked, tmp_path / "swept")
    for job in asked.all_jobs(tmp_path / "swept"):
        run_job(job)
    code, out, _ = coterie("sweep", *FLAGS, "--over", "clusters=1,2", *one, "--out", "swept")
    assert code == 0
    assert "--table pupils.csv" in out or f"--table {tmp_path / 'pupils.csv'}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "no scenario is named"),
        (["compare", "--methods", "fedavg"], "no scenario is named"),
        (["run", "table"], "add --table, --client, --target"),
        (
            ["run", "--table", "pupils.csv", "--client", "school"],
            "perhaps: coterie run --table pupils.csv --client school --target score",
        ),
        (["run", *FLAGS[:2], "--client", "shool", "--target", "score"], "did you mean 'school'?"),
        (["run", *FLAGS, "--holdout", "1.5"], "holdout must be a number at least 0 and at most 0.9"),
        (["run", "--table", "nowhere.csv", "--client", "a", "--target", "b"], "nowhere.csv is no file"),
        (["run", "rotated-digits", *FLAGS], "--table is an option of table, but not of"),
        (["run", "mixed-regression", "--features", "gausian"], "must be one of gaussian, rademacher"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2_and_makes_no_folder(coterie, tmp_path, arguments, message):
    code, out, err = coterie(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pupils.csv"]


def test_a_path_is_a_table_and_every_column_is_noted(coterie, tmp_path):
    code, _, err = coterie("run", "pupils.csv", *FLAGS[2:], "--rounds", 1, "--out", "run")
    assert code == 0
    lines = [" ".join(line.split()) for line in err.splitlines()[:4]]
    assert lines[0] == "school client 8 clients, 160 rows"
    assert lines[1].startswith("x used number: mean ")
    assert lines[2].startswith("kind used category: reference 'a', features for b; the same in all rows of each client")
    assert lines[3].startswith("score target regression: mean ")
    kept = json.loads((tmp_path / "run" / "result.json").read_text())["columns"]
    assert [(note["column"], note["action"]) for note in kept] == [
        ("school", "client"), ("x", "used"), ("kind", "used"), ("score", "target")
    ]  # fmt: skip


def test_a_flag_of_columns_may_be_repeated(coterie, tmp_path):
    code, _, err = coterie("run", *FLAGS, "--features", "kind", "--features", "x", "--rounds", 1, "--out", "run")
    assert code == 0
    assert read_toml(tmp_path / "run" / "config.toml")["features"] == "kind,x"
    assert "dropped" not in err
    code, _, err = coterie("run", *FLAGS, "--drop", "kind", "--rounds", 1, "--out", "less")
    assert code == 0
    assert "left out by --drop" in err


@pytest.mark.parametrize("flag", ["--client", "--target", "--task", "--table", "--missing", "--method"])
def test_a_name_that_is_given_twice_is_refused(coterie, flag):
    """Otherwise the last one would count, and the first one would be ignored in silence."""
    command, values = (
        ["run", "--table", "pupils.csv"],
        {"--task": "regression", "--missing": "impute", "--method": "local"},
    )
    value = values.get(flag, "kind")
    code, _, err = coterie(*command, flag, value, flag, value)
    assert code == 2
    assert f"{flag} is given more than once, but it takes one value" in err


def test_a_number_that_is_given_twice_overrides_the_first(coterie):
    code, out, _ = coterie("run", *FLAGS, "--clusters", 2, "--rounds", 1, "--rounds", 3, "--out", "run")
    assert code == 0
    assert "3 rounds" in out


@pytest.mark.parametrize(("width", "title"), [(50, "their intervals are in the report"), (200, "with 95 % intervals")])
def test_coefficients_are_never_cut(coterie, tmp_path, width, title):
    """In a narrow window intervals are left to the report."""
    coterie("run", *FLAGS, "--clusters", 3, "--rounds", 3, "--out", "run")
    console = Terminal(width=width)
    with console.capture() as printed:
        show.result(console, load(tmp_path / "run"))
    coefficients = printed.get().partition("Coefficients, ")[2]
    assert coefficients.startswith(title)
    assert "…" not in coefficients


def test_the_task_and_missing_values_are_decided_by_flags(coterie, tmp_path):
    lines = ["site,x,ill", *(f"s{i % 4},{'' if i == 5 else i % 7},{i % 3}" for i in range(60))]
    (tmp_path / "ill.csv").write_text("\n".join(lines))
    command = ["run", "ill.csv", "--client", "site", "--target", "ill", "--rounds", 1]
    code, _, err = coterie(*command, "--out", "numbers")
    assert code == 0
    assert "3 different whole numbers: if they are classes, choose --task classification" in err
    code, out, err = coterie(*command, "--task", "classification", "--out", "classes")
    assert code == 0
    assert "classification: 3 classes (0, 1, 2)" in err
    assert "accuracy" in out
    code, _, err = coterie(*command, "--missing", "refuse")
    assert code == 2
    assert "column 'x' has 1 missing value:" in err


def test_the_columns_that_are_missing_are_asked_for_at_a_terminal(coterie, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("shool\nschool\n\n"))
    code, _, err = coterie("run", "pupils.csv", "--rounds", 1, "--out", "run")
    assert code == 0
    assert "columns of pupils.csv: school, x, kind, score" in err
    assert "did you mean 'school'?" in err
    config = read_toml(tmp_path / "run" / "config.toml")
    assert (config["client"], config["target"]) == ("school", "score")


def test_many_columns_are_not_all_printed(capsys):
    print_columns(Terminal(stderr=True), [ColumnNote(f"c{i}", "used", "number") for i in range(43)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 41
    assert lines[-1] == "... 3 more columns"


def test_help_has_both_meanings_of_features(coterie):
    words = " ".join(coterie("run", "--help")[1].split())
    assert "(mixed-regression) distribution of the features (gaussian, rademacher); (table) columns" in words


def test_help_has_both_meanings_of_noise(coterie):
    words = " ".join(coterie("run", "--help")[1].split())
    assert "share of wrong training labels" in words
    assert words.count("standard deviation of the noise (sigma)") == 1  # several scenarios share this text


def test_the_last_column_with_the_name_of_a_target_is_suggested():
    columns = {
        "store": ["a", "b"] * 10,
        "price": list(range(20)),
        "sales": [x / 2 for x in range(20)],
        "day": ["m"] * 20,
    }
    assert guess_columns(columns).target == "sales"


@pytest.mark.parametrize("module", ["coterie.cli", "coterie.cli.main"])
def test_the_command_line_runs_as_a_module(module, monkeypatch, capsys):
    """A module that does nothing and exits with 0 would look like success."""
    monkeypatch.setattr(sys, "argv", ["coterie", "--version"])
    parent, _, name = module.rpartition(".")
    monkeypatch.setattr(sys.modules[parent], name, sys.modules[module])  # which the import below replaces
    monkeypatch.delitem(sys.modules, module)  # it is run, not imported
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    assert "coterie" in capsys.readouterr().out
