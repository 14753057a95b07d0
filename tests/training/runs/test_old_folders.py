"""Run folders of the version before typed methods: finished ones are read, an unfinished one is refused with a message.

The folders under `old` were written by that version: `table` (ifca on a table), `odcl` (ifca with `start=odcl`),
`composed` (a mix with the options `weights` and `procedure`), and `unfinished` (ifca, stopped in its third round).
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.errors import ConfigError, RunError
from coterie.training.runs.files import tensor_bytes
from coterie.training.runs.folder import RunFolder

FINISHED = ("table", "odcl", "composed")
ROWS = {"income": [45.0, 60.0], "kind": ["a", "b"]}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the folders, which tests may write to."""
    return shutil.copytree(Path(__file__).parent / "old", tmp_path / "old")


def call(*arguments: object):
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_loaded_and_predicts(old: Path, name: str):
    result = coterie.load(old / name)
    assert len(result.records) == result.metrics["rounds"] == 4
    assert set(result.assignments) == {row["id"] for row in result.clients}
    assert len(result.models) == result.records[-1].get("K", 2)
    x = ROWS if name == "table" else np.array([[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]])
    for k, model in enumerate(result.models):
        said = result.predict(x, cluster=k)
        if name != "table":
            assert said == pytest.approx(x @ model["weight"], rel=1e-12)
        assert np.isfinite(said).all()
    again = coterie.resume(old / name)
    assert again.metrics == result.metrics, "a finished run is only loaded"


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_reported(old: Path, name: str, tmp_path: Path):
    done = call("report", old / name, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert coterie.load(old / name).config["method"] in page


def test_the_command_predicts_for_rows_of_a_table(old: Path, tmp_path: Path):
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(ROWS)
        writer.writerows(zip(*ROWS.values(), strict=True))
    done = call(
        "predict", old / "table", "--data", tmp_path / "rows.csv", "--cluster", 0, "--out", tmp_path / "out.csv"
    )
    assert done.exit_code == 0, done.output
    with open(tmp_path / "out.csv", newline="") as file:
        found = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert found == pytest.approx(coterie.load(old / "table").predict(ROWS, cluster=0), rel=1e-9)


def test_a_new_client_is_assigned_if_the_method_is_still_known(old: Path):
    x, y = np.eye(3), np.ones(3)
    assert coterie.load(old / "odcl").weigh(x, y).tolist() in ([0.0, 1.0], [1.0, 0.0])
    with pytest.raises(RunError, match="method 'composed', which is unknown here"):
        coterie.load(old / "composed").weigh(x, y)


def test_an_unfinished_run_is_not_resumed(old: Path):
    before = {path: path.read_bytes() for path in (old / "unfinished").rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="started by another version of Coterie and cannot be resumed") as caught:
        coterie.resume(old / "unfinished")
    assert "\n" not in str(caught.value)
    done = call("resume", old / "unfinished")
    assert isinstance(done.exception, RunError)
    assert {path: path.read_bytes() for path in before} == before


def test_models_of_a_finished_run_initialise_another(old: Path):
    data = coterie.scenario("mixed-regression", clients=8, dimension=3, samples="20", groups=2, seed=1)
    result = coterie.fit(data, "ifca", clusters=2, init=str(old / "odcl"), rounds=1, seed=1)
    assert result.metrics["drift"]["before"] == coterie.load(old / "odcl").assignments


def test_figures_and_files_have_their_present_names(old: Path):
    result = coterie.load(old / "odcl")
    assert result.metrics["initialization_seconds"] > 0
    assert "beginning_seconds" not in result.metrics
    assert RunFolder.open(old / "odcl").findings, "they are in beginning.json"


def test_extra_arrays_under_their_earlier_name_are_read(tmp_path: Path):
    folder = RunFolder(tmp_path)
    (tmp_path / "beside.safetensors").write_bytes(tensor_bytes({"means": torch.ones(2)}))
    assert folder.extra_arrays()["means"].tolist() == [1.0, 1.0]


def test_measures_cannot_have_an_earlier_name():
    with pytest.raises(ConfigError, match="'start'"):
        coterie.measure("start")(len)
