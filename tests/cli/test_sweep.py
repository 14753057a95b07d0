"""`coterie sweep` on the command line, also in parallel processes."""

import json
import re
import shlex
import tomllib

import numpy as np
import pytest

import coterie as library
from coterie.experiments.compare import run_job
from coterie.experiments.sweep import SweepPlan, plan_sweep
from coterie.report.formats import score as score_text

QUICK = ["mixed-regression", "--clients", 9, "--dimension", 3, "--rounds", 4, "--restarts", 1]
SWEPT = ["--over", "lr=0.001,0.1,0.3", "--over", "local_steps=1,5"]


def plain_scores(seed):
    """Return validation scores of the same combinations from `fit`, without test data."""
    data = library.scenario("mixed-regression", clients=9, dimension=3, seed=seed)
    options = {"rounds": 4, "restarts": 1, "validation": 0.2, "seed": seed}
    return {
        (lr, steps): library.fit(data, "ifca", lr=lr, local_steps=steps, **options).metrics["validation_rmse"]
        for lr in (0.001, 0.1, 0.3)
        for steps in (1, 5)
    }


def test_a_sweep_ranks_all_combinations_and_prints_a_command_that_trains_the_best(coterie, tmp_path):
    code, out, _ = coterie("sweep", *QUICK, *SWEPT, "--seeds", 2, "--out", "found", "--json", "found.json")
    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == json.loads((tmp_path / "found" / "sweep.json").read_text())
    by_seed = [plain_scores(seed) for seed in (0, 1)]
    for cell in found["cells"]:
        expected = [scores[cell["options"]["lr"], cell["options"]["local_steps"]] for scores in by_seed]
        assert cell["scores"] == pytest.approx(expected, rel=1e-12)
        assert cell["score"] == pytest.approx(np.mean(expected))
        assert cell["sd"] == pytest.approx(np.std(expected, ddof=1))
    order = [cell["score"] for cell in found["cells"]]
    assert order == sorted(order)
    assert found["best"] == found["cells"][0]["options"]
    assert f"best    lr={found['best']['lr']}, local_steps={found['best']['local_steps']}" in out
    assert "±" in out
    command = shlex.split(found["command"].replace("\\\n", " "))
    assert command[0] == "coterie"
    assert "--validation" not in command
    code, _, err = coterie(*command[1:], "--out", "best")
    assert code == 0, err
    config = tomllib.loads((tmp_path / "best" / "config.toml").read_text())
    (job,) = (tmp_path / "found" / "jobs").glob(f"*-lr={config['lr']},local_steps={config['local_steps']}-seed0")
    swept = tomllib.loads((job / "config.toml").read_text())
    assert swept.pop("validation") == 0.2
    assert config == swept


def test_an_interrupted_sweep_is_resumed_by_either_command(coterie, tmp_path):
    options = {"clients": 9, "dimension": 3, "rounds": 4, "restarts": 1}
    asked = SweepPlan("mixed-regression", "ifca", {"lr": [0.05, 0.1]}, [0], 0.2, options)
    plan_sweep(asked, tmp_path / "cut")
    done, missing = asked.all_jobs(tmp_path / "cut")
    run_job(done)
    kept = (done.folder / "result.json").stat().st_mtime_ns
    data = library.scenario("mixed-regression", clients=9, dimension=3)
    best = library.sweep(data, over={"lr": [0.05, 0.1]}, rounds=4, restarts=1)
    expected = [str(best.best["lr"]), score_text(best.cells[0].score.mean, "rmse")]
    arguments = ["sweep", *QUICK, "--over", "lr=0.05,0.1", "--out", "cut", "--jobs", 1]
    for again in (["resume", "cut"], arguments):
        (missing.folder / "result.json").unlink(missing_ok=True)
        code, out, _ = coterie(*again)
        assert code == 0
        assert out.splitlines()[1].split()[:2] == expected
        assert missing.finished
        assert (done.folder / "result.json").stat().st_mtime_ns == kept
    code, out, _ = coterie(*arguments, "--json", "-")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "cut" / "sweep.json").read_text()), "JSON alone is printed"
    code, _, err = coterie(*arguments[:-4], "--noise", "0.9", "--out", "cut")
    assert code == 2
    assert "cut has another sweep" in err


def test_a_failed_combination_is_reported(coterie, tmp_path):
    swept = ["--over", "lr=0.1,1e30", "--rounds", 40, "--json", "found.json", "--jobs", 1]
    code, out, _ = coterie("sweep", *QUICK, *swept)
    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["cells"][1]["failed"].endswith("or standardise the columns")
    assert "failed  lr=1e+30: " in out
    assert "note    the best lr, 0.1, is the smallest value that was tried: smaller ones may be better" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to sweep"),
        (["--over", "lr"], "--over must look like lr=0.01,0.1,1, got 'lr'"),
        (["--over", "lr="], "lr has no values to try"),
        (["--over", "lr=0.1", "--over", "lr=0.2"], "--over lr is given twice"),
        (["--over", "lr=fast"], "lr must be a number above 0, or auto, got 'fast'"),
        (["--over", "resample=perhaps"], "resample must be true or false, got 'perhaps'"),
        (["--over", "lrr=1"], "unknown option 'lrr' of method ifca: did you mean 'lr'?"),
        (["--over", "noise=0.1"], "noise changes the data of mixed-regression"),
        (["--method", "fedavg", "--over", "clusters=2,3"], "clusters has no meaning for method fedavg"),
        (["--over", "lr=0.1", "--lr", "0.2"], "lr is both set and swept"),
        (["--over", "lr=0.1", "--mu", "1"], ", but not of scenario mixed-regression or method ifca: leave it out"),
        (["--over", "lr=0.1", "--out", "taken"], "taken exists already"),
    ],
)
def test_user_errors_are_one_line_and_write_nothing(coterie, tmp_path, arguments, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = coterie("sweep", "mixed-regression", "--clients", 6, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_prints_why_it_stopped_and_which_models_it_chose(coterie):
    options = ["--lr", "1e-9", "--patience", 2, "--rounds", 50]
    _, out, _ = coterie("run", *QUICK, *options)
    assert re.search(r"stopped +after 3 of 50 rounds: no better training loss in 2 rounds", out)
    assert not re.search(r"^models ", out, re.M)
    _, out, _ = coterie("run", *QUICK, *options, "--validation", 0.25)
    assert re.search(r"stopped +after 3 of 50 rounds: no better validation loss in 2 evaluations", out)
    assert re.search(r"models +those after 1 rounds", out)
    assert "on 25 % of the training samples" in out
