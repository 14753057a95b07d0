"""A run's folder: created once, appended to, read back, finished."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.errors import RunError
from coterie.runs.folder import RunFolder, alone_in, read_toml
from coterie.server.loop import ServerState

CONFIG = {"method": "ifca", "lr": 0.1, "clusters": 2}


def create(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, "f00d")


def state(round_: int) -> ServerState:
    clusters = Clusters({"weight": torch.full((2, 1), float(round_))}, 2)
    return ServerState(
        round_, clusters, torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.ones(1)
    )


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_folder_knows_its_config_and_data(tmp_path):
    folder = create(tmp_path / "deep" / "run")
    assert RunFolder.open(folder.path).config == CONFIG
    assert folder.fingerprint == "f00d"
    assert {"python", "torch", "numpy", "threads", "platform"} <= folder.versions.keys()
    assert folder.records() == []
    assert not folder.finished


def test_an_empty_folder_may_be_used(tmp_path):
    assert create(tmp_path).config == CONFIG


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "sub").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match="exists already: choose another folder with out, or go on with 'coterie resume"):
        create(tmp_path)
    assert snapshot(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sub", "thesis.txt"]


def test_a_folder_of_a_run_is_refused_and_left_alone(tmp_path):
    create(tmp_path / "run").append({"round": 0})
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_a_file_in_the_way_is_refused_and_left_alone(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError):
        create(tmp_path / "file" / "run")


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"is no run folder: it has no config\.toml"):
        RunFolder.open(tmp_path)


def test_records_come_back_in_order(tmp_path):
    folder = create(tmp_path)
    for t in range(3):
        folder.append({"round": t, "loss": 1 / (t + 1), "missing": []})
    assert folder.records() == [{"round": t, "loss": 1 / (t + 1), "missing": []} for t in range(3)]


@pytest.mark.parametrize("tail", [b'{"round": 2, "lo', b'{"round"', b"\x00\x00\x00\x00", b"\xff"])
def test_a_half_written_last_line_is_left_out(tmp_path, tail):
    folder = create(tmp_path)
    folder.append({"round": 0})
    folder.append({"round": 1})
    with open(folder.path / "records.jsonl", "ab") as file:
        file.write(tail)
    assert [r["round"] for r in folder.records()] == [0, 1]


@pytest.mark.parametrize("line", ["3", "null", "[]", '"text"'])
def test_a_line_that_is_no_record_is_left_out(tmp_path, line):
    folder = create(tmp_path)
    folder.append({"round": 0})
    with open(folder.path / "records.jsonl", "a") as file:
        file.write(line + "\n")
    assert [r["round"] for r in folder.records()] == [0]


def test_records_after_a_gap_are_left_out(tmp_path):
    folder = create(tmp_path)
    for t in (0, 1, 3):
        folder.append({"round": t})
    assert [r["round"] for r in folder.records()] == [0, 1]


def test_a_record_that_is_not_finite_is_refused_and_not_written(tmp_path):
    folder = create(tmp_path)
    folder.append({"round": 0})
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.append({"round": 1, "loss": float("inf")})
    assert (folder.path / "records.jsonl").read_text() == '{"round": 0}\n'


def test_going_on_drops_records_after_the_checkpoint(tmp_path):
    folder = create(tmp_path)
    for t in range(5):
        folder.append({"round": t})
        if t == 2:
            folder.checkpoint(state(3))
    found, records = folder.last_state(pytest.fail)
    assert found is not None
    assert found.round == 3
    assert [r["round"] for r in records] == [0, 1, 2]
    assert folder.records() == records


def test_going_on_without_a_checkpoint_starts_anew(tmp_path):
    folder = create(tmp_path)
    folder.append({"round": 0})
    assert folder.last_state(pytest.fail) == (None, [])
    assert folder.records() == []


def test_a_checkpoint_ahead_of_the_records_is_not_used(tmp_path):
    folder = create(tmp_path)
    for t in range(2):
        folder.append({"round": t})
    for t in (2, 4):
        folder.checkpoint(state(t))
    found, records = folder.last_state(pytest.fail)
    assert found is not None
    assert (found.round, len(records)) == (2, 2)


def test_a_damaged_checkpoint_means_going_on_from_the_one_before(tmp_path):
    folder = create(tmp_path)
    for t in range(4):
        folder.append({"round": t})
        folder.checkpoint(state(t + 1))
    (folder.path / "checkpoints" / "round-000004.safetensors").write_bytes(b"")
    warnings: list[str] = []
    found, records = folder.last_state(warnings.append)
    assert found is not None
    assert (found.round, len(records), len(warnings)) == (3, 3, 1)


def test_final_models_come_back_bit_by_bit_and_in_order(tmp_path):
    folder = create(tmp_path)
    models = [{"layer0.weight": torch.randn(3, 2), "b": torch.randn((), dtype=torch.float64)} for _ in range(12)]
    folder.finish(models, {"metrics": {"loss": 1.0}})
    assert folder.finished
    assert folder.result == {"metrics": {"loss": 1.0}}
    back = folder.models()
    assert len(back) == 12
    for found, expected in zip(back, models, strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_an_unfinished_run_has_no_result(tmp_path):
    folder = create(tmp_path)
    with pytest.raises(RunError, match="is not finished: go on with 'coterie resume"):
        _ = folder.result


def test_damaged_files_are_named(tmp_path):
    folder = create(tmp_path)
    folder.finish([{"w": torch.zeros(1)}], {})
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json cannot be read .* run it again"):
        _ = folder.result
    (tmp_path / "models.safetensors").write_bytes(b"abc")
    with pytest.raises(RunError, match="the final models cannot be read"):
        folder.models()
    (tmp_path / "config.toml").write_text("= 3")
    with pytest.raises(RunError, match=r"config\.toml is no valid TOML"):
        _ = folder.config
    with pytest.raises(RunError, match=r"nothing\.toml cannot be read"):
        read_toml(tmp_path / "nothing.toml")


def test_config_without_a_digest_is_an_error_that_names_the_file(tmp_path):
    folder = create(tmp_path)
    (tmp_path / "versions.json").write_text(json.dumps({"python": "3"}))
    with pytest.raises(RunError):
        _ = folder.fingerprint


def test_a_folder_is_one_runs_at_a_time(tmp_path):
    with alone_in(tmp_path):
        with pytest.raises(RunError, match="is being written to by another process"), alone_in(tmp_path):
            pass
        assert list(tmp_path.iterdir()) == []
    with alone_in(tmp_path):
        pass
