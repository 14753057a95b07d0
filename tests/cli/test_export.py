"""`coterie assignments`, `coterie export`, `coterie predict --client`, and files of a comparison."""

from __future__ import annotations

import csv
import importlib.util
import io

import joblib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import coterie as library
from tests.methods.test_ifca import population


def table(sites, rows, seed, labelled=True):
    """The outcome rises with the dose at even sites and falls at odd ones."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"site": np.repeat(sites, rows), "dose": random.normal(5, 2, len(sites) * rows)})
    rising = frame["site"].str[1:].astype(int) % 2 == 0
    frame["outcome"] = np.where((frame["dose"] > 5) == rising, "ill", "well") if labelled else ""
    frame["patient"] = [f"p{i}" for i in range(len(frame))]
    return frame


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = library.from_table(
        table([f"s{i}" for i in range(6)], 20, 0), client="site", target="outcome", features="dose"
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    library.fit(data, "ifca", clusters=2, rounds=30, restarts=2, out=folder)
    return folder


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_assignments_are_csv(coterie, run, tmp_path):
    code, out, err = coterie("assignments", run)
    assert (code, err) == (0, "")
    found = library.load(run)
    assert {row["id"]: int(row["cluster"]) for row in rows_of(out)} == found.assignments
    assert all(row["samples"] == "15" for row in rows_of(out))
    assert coterie("assignments", run, "--csv", "a.csv")[1] == "written  a.csv\n"
    assert (tmp_path / "a.csv").read_text() == out
    code, _, err = coterie("assignments", run, "--csv", "no/a.csv")
    assert (code, "folder does not exist" in err) == (2, True)


def test_predictions_for_many_sites_keep_ids_and_join_clusters(coterie, run, tmp_path):
    new = table(["s8"], 10, 3)
    new.loc[6:, "outcome"] = ""
    pd.concat([table(["s1", "s2"], 3, 2, labelled=False), new]).to_csv("new.csv", index=False)
    code, out, err = coterie("predict", run, "--data", "new.csv", "--client", "site", "--id", "patient")
    assert (code, err) == (0, "")
    found = rows_of(out)
    assert [row["patient"] for row in found][:3] == ["p0", "p1", "p2"]
    groups = library.load(run).assignments
    assert {(row["client"], int(row["cluster"])) for row in found} == {
        ("s1", groups["s1"]),
        ("s2", groups["s2"]),
        ("s8", groups["s2"]),
    }
    for row in found:
        assert float(row["probability ill"]) + float(row["probability well"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--client", "sit"], "unknown client column 'sit': did you mean 'site'"),
        (["--client", "s1"], "for samples that are all of client 's1' give --client-id"),
        (["--client", "site", "--cluster", "0"], "exclude each other"),
        (["--id", "patient"], "give --client COLUMN, too"),
        (
            ["--client", "site"],
            "1 client was not in the training data and cannot be assigned without labelled rows ('s9')",
        ),
    ],
)
def test_mistakes_in_predictions_for_many_sites(coterie, run, flags, message):
    table(["s1", "s9"], 2, 2, labelled=False).to_csv("new.csv", index=False)
    code, out, err = coterie("predict", run, "--data", "new.csv", *flags)
    assert (code, out) == (2, "")
    assert message in err


def test_a_target_column_that_is_empty_in_part_is_no_obstacle(coterie, run):
    table(["s1"], 2, 2, labelled=False).to_csv("new.csv", index=False)
    code, out, err = coterie("predict", run, "--data", "new.csv", "--client-id", "s1")
    assert (code, err, len(rows_of(out))) == (0, "", 2)


def test_exports(coterie, run, tmp_path):
    code, out, err = coterie("export", run, "--to", "safetensors", "--out", "m.safetensors")
    assert (code, err) == (0, "")
    assert out.split() == ["written", "m-0.safetensors", "written", "m-1.safetensors"]
    result = library.load(run)
    np.testing.assert_array_equal(load_file("m-1.safetensors")["weight"], result.models[1]["weight"])
    code, out, _ = coterie("export", run, "--to", "joblib", "--cluster", 1, "--out", "one.joblib")
    assert (code, out) == (0, "written  one.joblib\n")
    frame = table(["s1"], 5, 4)[["dose"]]
    assert joblib.load("one.joblib").predict(frame).tolist() == result.predict(frame, cluster=1).tolist()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "safetensors", "--cluster", "7"], "--cluster must be 0 to 1, got 7"),
        (["--to", "joblib", "--out", "no/such.joblib"], "its folder does not exist"),
        (["--to", "pickle"], "'pickle' is not one of"),
    ],
)
def test_mistakes_in_exports(coterie, run, flags, message):
    code, out, err = coterie("export", run, *flags)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.skipif(importlib.util.find_spec("onnx") is not None, reason="onnx is installed")
def test_onnx_says_what_to_install(coterie, run):
    assert "pip install 'coterie[export]'" in coterie("export", run, "--to", "onnx")[2]


def test_a_comparison_writes_csv_latex_and_differences(coterie, tmp_path):
    library.compare(population(), ["fedavg", "ifca"], seeds=2, out=tmp_path / "c", learner="linear", rounds=2)
    code, out, err = coterie("report", "c", "--csv", "c.csv", "--latex", "c.tex", "--against", "fedavg")
    assert code == 0, err
    assert "ifca against fedavg: rmse" in out
    assert [(row["method"], row["seed"]) for row in rows_of((tmp_path / "c.csv").read_text())] == [
        ("fedavg", "0"),
        ("fedavg", "1"),
        ("ifca", "0"),
        ("ifca", "1"),
    ]
    assert r"\toprule" in (tmp_path / "c.tex").read_text()
    code, _, err = coterie("report", "c", "--against", "local")
    assert (code, "unknown method 'local' of the comparison" in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--figure", "a.png"], "the file name of a figure must end in .svg or .pdf"),
        (["--csv", "no/a.csv"], "its folder does not exist"),
        (["--against", "local"], "unknown method 'local' of the comparison"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(coterie, tmp_path, flags, message):
    code, _, err = coterie("compare", "mixed-regression", "--methods", "fedavg,ifca", "--out", "c", *flags)
    assert code == 2
    assert message in err
    assert not (tmp_path / "c").exists()
