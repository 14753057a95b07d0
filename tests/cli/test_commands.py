"""Commands on the command line: output, files, exit codes and user errors."""

import json
import re
import tomllib

import pytest

from coterie.experiments.compare import jobs_of, plan_comparison, run_job

QUICK = ["--clients", "8", "--rounds", "3", "--restarts", "1"]


def test_run_writes_a_folder_and_prints_its_path(coterie, tmp_path):
    code, out, _ = coterie("run", "rotated-digits", "--method", "ifca", *QUICK)
    folder = tmp_path / "runs" / "rotated-digits-ifca-seed0"
    assert code == 0
    assert "runs/rotated-digits-ifca-seed0/report.html" in out
    names = {
        "config.toml",
        "versions.json",
        "manifest.json",
        "records.jsonl",
        "checkpoints",
        "models.safetensors",
        "result.json",
        "report.html",
    }
    assert {path.name for path in folder.iterdir()} == names
    assert len((folder / "records.jsonl").read_text().splitlines()) == 3
    assert re.search(r"accuracy +0\.\d{4}", out)
    assert re.search(r"certainty +\d of 8 clients belong to their cluster", out)


def test_the_default_folder_is_always_a_new_one(coterie, tmp_path):
    for _ in range(2):
        assert coterie("run", "rotated-digits", "--method", "fedavg", "--clients", "4", "--rounds", "1")[0] == 0
    assert (tmp_path / "runs" / "rotated-digits-fedavg-seed0-2" / "result.json").is_file()


def test_a_stored_config_gives_the_same_result(coterie, tmp_path):
    coterie(
        "run", "mixed-regression", "--clients", 12, "--dimension", 3, "--rounds", 4, "--out", "one", "--noise", "0.1"
    )
    code, _, _ = coterie("run", "--config", "one/config.toml", "--out", "two")
    assert code == 0
    assert (tmp_path / "one" / "config.toml").read_text() == (tmp_path / "two" / "config.toml").read_text()
    assert (tmp_path / "one" / "models.safetensors").read_bytes() == (
        tmp_path / "two" / "models.safetensors"
    ).read_bytes()


def test_a_flag_overrides_the_config(coterie, tmp_path):
    (tmp_path / "run.toml").write_text('scenario = "mixed-regression"\nmethod = "fedavg"\nrounds = 2\nclients = 9\n')
    code, _, _ = coterie("run", "--config", "run.toml", "--rounds", 3, "--out", "run")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert code == 0
    assert (config["rounds"], config["clients"], config["method"]) == (3, 9, "fedavg")


def test_json_goes_to_a_file_or_to_standard_output(coterie, tmp_path):
    coterie("run", "rotated-digits", *QUICK, "--out", "a", "--json", "result.json")
    written = json.loads((tmp_path / "result.json").read_text())
    _, out, _ = coterie("run", "rotated-digits", *QUICK, "--out", "b", "--json", "-")
    printed = json.loads(out)
    assert len(printed["clients"]) == 8
    assert printed["clients"] == written["clients"]
    assert printed["config"]["clusters"] == 4


def test_compare_prints_a_row_for_each_method_and_writes_one_report(coterie, tmp_path):
    code, out, _ = coterie(
        "compare", "rotated-digits", "--methods", "fedavg,ifca", "--seeds", 2, *QUICK, "--clusters", 4, "--out", "both",
        "--jobs", 1,
    )  # fmt: skip
    assert code == 0
    assert {path.name for path in (tmp_path / "both" / "jobs").iterdir()} == {
        "fedavg-seed0", "fedavg-seed1", "ifca-seed0", "ifca-seed1",
    }  # fmt: skip
    assert re.search(r"^fedavg .*±", out, re.MULTILINE)
    assert re.search(r"^ifca .*±", out, re.MULTILINE)
    assert (tmp_path / "both" / "report.html").is_file()
    one = json.loads((tmp_path / "both" / "jobs" / "ifca-seed0" / "result.json").read_text())["metrics"]["accuracy"]
    two = json.loads((tmp_path / "both" / "jobs" / "ifca-seed1" / "result.json").read_text())["metrics"]["accuracy"]
    assert f"{50 * (one + two):.1f}" in out


def test_an_interrupted_comparison_is_resumed(coterie, tmp_path):
    options = {"clients": 6, "rounds": 3}
    for name in ("whole", "cut"):
        plan_comparison("mixed-regression", ["fedavg", "local"], [0], options, tmp_path / name)
    whole, _ = jobs_of(tmp_path / "whole")
    cut, finished = jobs_of(tmp_path / "cut")
    run_job(whole)
    run_job(finished)
    before = (finished.folder / "result.json").stat().st_mtime_ns
    code, out, _ = coterie("resume", "cut")
    assert code == 0
    assert "fedavg" in out
    assert (finished.folder / "result.json").stat().st_mtime_ns == before
    paths = [job.folder / "models.safetensors" for job in (whole, cut)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_report_can_be_written_to_another_file(coterie, tmp_path):
    coterie("run", "rotated-digits", *QUICK, "--out", "run")
    code, out, _ = coterie("report", "run", "--out", "page.html")
    assert code == 0
    assert "page.html" in out
    assert (tmp_path / "page.html").read_text() == (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["resume"], ["report"], ["methods"], ["scenarios"], ["describe"]]
)
def test_every_command_has_help(coterie, command):
    code, out, _ = coterie(*command, "--help")
    assert code == 0
    assert "Usage: coterie" in out
    if command and command[0] in ("run", "compare", "resume", "report", "describe"):
        assert f"  coterie {command[0]} " in out, "an example"


def test_describe_prints_options_paper_and_what_the_server_sees(coterie):
    _, out, _ = coterie("describe", "ifca")
    for text in ("Ghosh", "stable_after", "restarts", "What the server sees", "which cluster it chose"):
        assert text in out
    assert "separation" in coterie("describe", "mixed-regression")[1]
    assert "hidden" in coterie("describe", "mlp")[1]
    assert "rotated-digits" in coterie("scenarios")[1]
    assert "oracle" in coterie("methods")[1]
    assert "standard deviation of every parameter" in coterie("describe", "gaussian")[1]


def test_images_of_the_clients_of_a_scenario_are_drawn(coterie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert coterie("scenarios", "--show", "rotated-digits")[0] == 0
    assert (tmp_path / "rotated-digits.svg").read_text().startswith("<svg")
    code, _, error = coterie("scenarios", "--show", "odcl-linear")
    assert code == 2
    assert "a contact sheet needs images" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown command 'rnu': did you mean 'run'?"),
        (["run", "rotated-digit"], "did you mean 'rotated-digits'?"),
        (["run"], "no scenario is named"),
        (["run", "rotated-digits", "--method", "ifac"], "did you mean 'ifca'?"),
        (["run", "rotated-digits", "--clsters", "3"], "--clusters"),
        (
            ["run", "rotated-digits", "--clusters", "many"],
            "clusters must be a whole number at least 1, or auto, got 'many'",
        ),
        (["run", "rotated-digits", "--clusters", "61"], "there are only 60 clients"),
        (["run", "rotated-digits", "--clients", "10"], "must be a multiple of 4"),
        (["run", "rotated-digits", "--mu", "1"], ", but not of scenario rotated-digits or method ifca: leave it out"),
        (["run", "mixed-regression", "--samples", "lots"], "samples must look like"),
        (["run", "rotated-digits", "--learner", "linear"], "the labels are classes"),
        (["run", "--config", "absent.toml"], "absent.toml cannot be read"),
        (["run", "--config", "typo.toml"], "unknown key 'roundz' of typo.toml: did you mean 'rounds'?"),
        (["run", "--config", "broken.toml"], "broken.toml is not valid TOML"),
        (["run", "rotated-digits", "--out", "taken"], "taken exists already"),
        (["compare", "rotated-digits", "--methods", "ifca,fedavgg"], "did you mean 'fedavg'?"),
        (["compare", "rotated-digits", "--methods", "ifca,ifca"], "is listed twice"),
        (["compare", "rotated-digits", "--methods", "ifca", "--out", "taken"], "taken exists already"),
        (["resume", "taken"], "taken is not a run folder"),
        (["report", "nowhere"], "nowhere"),
        (["describe", "ifsa"], "did you mean 'ifca'?"),
    ],
)
def test_a_user_error_is_one_line_with_exit_code_2_and_writes_nothing(coterie, tmp_path, arguments, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("dear")
    (tmp_path / "typo.toml").write_text('scenario = "rotated-digits"\nroundz = 3\n')
    (tmp_path / "broken.toml").write_text("rounds = = 3\n")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    code, out, err = coterie(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len([line for line in err.splitlines() if line.lower().startswith("error")]) == 1
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "taken" / "letter.txt").read_text() == "dear"
