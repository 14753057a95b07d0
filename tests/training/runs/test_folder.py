"""A run's folder: created once, appended to, read back, finished."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.core.state import ServerState
from coterie.errors import RunError
from coterie.training.records import RoundRecord
from coterie.training.runs.folder import RunFolder, read_toml
from coterie.training.runs.locking import alone_in

CONFIG = {"method": "ifca", "lr": 0.1, "clusters": 2}


def create(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, "f00d")


def state(round_: int) -> ServerState:
    clusters = Clusters({"weight": torch.full((2, 1), float(round_))}, 2)
    return replace(ServerState.fresh(clusters, 3), round=round_)


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_folder_contains_its_config_and_data(tmp_path):
    folder = create(tmp_path / "deep" / "run")
    assert RunFolder.open(folder.path).config == CONFIG
    assert folder.fingerprint == "f00d"
    assert {"python", "torch", "numpy", "threads", "platform"} <= folder.versions.keys()
    assert folder.records() == []
    assert not folder.finished


def test_an_empty_folder_may_be_used(tmp_path):
    assert create(tmp_path).config == CONFIG


def test_a_folder_with_content_is_refused_and_not_changed(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "sub").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(
        RunError,
        match="exists already and is not empty: choose another folder, or resume the run in it with 'coterie resume",
    ):
        create(tmp_path)
    assert snapshot(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sub", "thesis.txt"]


def test_a_folder_of_a_run_is_refused_and_not_changed(tmp_path):
    create(tmp_path / "run").append(RoundRecord(round=0))
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_an_existing_file_is_refused_and_not_changed(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "precious"


def test_a_folder_that_cannot_be_created_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError):
        create(tmp_path / "file" / "run")


def test_other_folders_than_run_folders_are_refused(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        RunFolder.open(tmp_path)


def test_records_come_back_in_order(tmp_path):
    folder = create(tmp_path)
    for t in range(3):
        folder.append(RoundRecord(round=t, loss=1 / (t + 1), missing=[]))
    assert folder.records() == [RoundRecord(round=t, loss=1 / (t + 1), missing=[]) for t in range(3)]


@pytest.mark.parametrize("tail", [b'{"round": 2, "lo', b'{"round"', b"\x00\x00\x00\x00", b"\xff"])
def test_an_incomplete_last_line_is_left_out(tmp_path, tail):
    folder = create(tmp_path)
    folder.append(RoundRecord(round=0))
    folder.append(RoundRecord(round=1))
    with open(folder.path / "records.jsonl", "ab") as file:
        file.write(tail)
    assert [r["round"] for r in folder.records()] == [0, 1]


@pytest.mark.parametrize("line", ["3", "null", "[]", '"text"'])
def test_a_line_without_a_record_is_left_out(tmp_path, line):
    folder = create(tmp_path)
    folder.append(RoundRecord(round=0))
    with open(folder.path / "records.jsonl", "a") as file:
        file.write(line + "\n")
    assert [r["round"] for r in folder.records()] == [0]


def test_records_after_a_gap_are_left_out(tmp_path):
    folder = create(tmp_path)
    for t in (0, 1, 3):
        folder.append(RoundRecord(round=t))
    assert [r["round"] for r in folder.records()] == [0, 1]


def test_a_record_with_infinite_figures_is_refused_and_not_written(tmp_path):
    folder = create(tmp_path)
    folder.append(RoundRecord(round=0))
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.append(RoundRecord(round=1, loss=float("inf")))
    assert folder.records() == [RoundRecord(round=0)]
    assert (folder.path / "records.jsonl").read_text().count("\n") == 1


def test_resuming_drops_records_after_the_checkpoint(tmp_path):
    folder = create(tmp_path)
    for t in range(5):
        folder.append(RoundRecord(round=t))
        if t == 2:
            folder.checkpoint(state(3))
    found, records, _ = folder.last_state(pytest.fail)
    assert found is not None
    assert found.round == 3
    assert [r["round"] for r in records] == [0, 1, 2]
    assert folder.records() == records


def test_resuming_without_a_checkpoint_starts_again(tmp_path):
    folder = create(tmp_path)
    folder.append(RoundRecord(round=0))
    assert folder.last_state(pytest.fail) == (None, [], None)
    assert folder.records() == []


def test_a_checkpoint_ahead_of_the_records_is_not_used(tmp_path):
    folder = create(tmp_path)
    for t in range(2):
        folder.append(RoundRecord(round=t))
    for t in (2, 4):
        folder.checkpoint(state(t))
    warnings: list[str] = []
    found, records, _ = folder.last_state(warnings.append)
    assert found is not None
    assert (found.round, len(records)) == (2, 2)
    assert warnings == ["checkpoint round-000004 is damaged (records.jsonl does not match it); using the one before it"]


def test_with_a_damaged_checkpoint_the_run_resumes_from_the_one_before(tmp_path):
    folder = create(tmp_path)
    for t in range(4):
        folder.append(RoundRecord(round=t))
        folder.checkpoint(state(t + 1))
    (folder.path / "checkpoints" / "round-000004.safetensors").write_bytes(b"")
    warnings: list[str] = []
    found, records, _ = folder.last_state(warnings.append)
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
    with pytest.raises(RunError, match="is not finished: continue it with 'coterie resume"):
        _ = folder.result


def finished(path: Path) -> RunFolder:
    folder = create(path)
    folder.initialize({"curvature": 2.0}, {"lr": 0.5}, state(0))
    folder.append(RoundRecord(round=0))
    folder.checkpoint(state(1), best=state(1))
    folder.finish([{"w": torch.zeros(1)}], {"metrics": {}}, {"extra": torch.ones(1)})
    return folder


def test_settled_options_are_in_the_config_and_not_in_its_file(tmp_path):
    folder = RunFolder.open(finished(tmp_path).path)
    assert folder.config == {**CONFIG, "lr": 0.5}
    assert folder.asked_config == CONFIG
    assert folder.findings == {"curvature": 2.0}


VERIFIED = [
    "config.toml",
    "versions.json",
    "manifest.json",
    "initialization.json",
    "records.jsonl",
    "models.safetensors",
    "extra.safetensors",
    "result.json",
    "checkpoints/round-000001.json",
    "best/round-000001.json",
]


@pytest.mark.parametrize("name", VERIFIED)
def test_one_flipped_bit_of_a_finished_run_is_found_and_named(tmp_path, name):
    path = finished(tmp_path).path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(RunError, match=f"{name} (is damaged|cannot be read)"):
        _ = RunFolder.open(tmp_path).result


@pytest.mark.parametrize("name", [name for name in VERIFIED if "/" not in name])
def test_a_missing_file_of_a_finished_run_is_named(tmp_path, name):
    (finished(tmp_path).path / name).unlink()
    with pytest.raises(RunError, match=name if name != "result.json" else "is not finished"):
        _ = RunFolder.open(tmp_path).result


def test_a_finished_run_needs_no_checkpoints(tmp_path):
    folder = finished(tmp_path)
    shutil.rmtree(folder.path / "checkpoints")
    assert RunFolder.open(tmp_path).result == {"metrics": {}}


def test_a_folder_of_an_earlier_version_is_read_with_a_warning_and_not_resumed(tmp_path):
    folder = finished(tmp_path)
    (tmp_path / "manifest.json").unlink()
    facts = json.loads((tmp_path / "versions.json").read_text())
    del facts["folder_format"]
    (tmp_path / "versions.json").write_text(json.dumps(facts))
    with pytest.warns(UserWarning, match="its files cannot be verified"):
        assert RunFolder.open(tmp_path).result == {"metrics": {}}
    with pytest.raises(RunError, match="started by another version of Coterie and cannot be resumed"):
        folder.last_state(pytest.fail)


def test_damaged_files_are_named(tmp_path):
    folder = create(tmp_path)
    folder.finish([{"w": torch.zeros(1)}], {})
    (tmp_path / "models.safetensors").write_bytes(b"abc")
    with pytest.raises(RunError, match="the final models cannot be read"):
        folder.models()
    (tmp_path / "config.toml").write_text("= 3")
    with pytest.raises(RunError, match=r"config\.toml is not valid TOML"):
        _ = folder.config
    with pytest.raises(RunError, match=r"nothing\.toml cannot be read"):
        read_toml(tmp_path / "nothing.toml")


def test_a_config_without_a_digest_is_an_error_that_names_the_file(tmp_path):
    folder = create(tmp_path)
    (tmp_path / "versions.json").write_text(json.dumps({"python": "3"}))
    with pytest.raises(RunError):
        _ = folder.fingerprint


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    with alone_in(tmp_path):
        with pytest.raises(RunError, match="is being written to by another process"), alone_in(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with alone_in(tmp_path):
        pass


HALVES = [
    (),
    ("versions.json",),
    ("versions.json", "manifest.json"),
    ("versions.json", "manifest.json", "config.toml"),
    ("versions.json", f"manifest.json.{'0' * 16}.tmp"),
]


@pytest.mark.parametrize("names", HALVES, ids=lambda names: "+".join(names) or "nothing")
def test_an_interrupted_creation_is_repeated(tmp_path, names):
    whole = create(tmp_path / "whole").path
    half = tmp_path / "half"
    half.mkdir()
    (half / ".lock").touch()
    for name in names:
        (half / name).write_bytes((whole / name.removesuffix(f".{'0' * 16}.tmp")).read_bytes())
    create(half)
    assert snapshot(half) == snapshot(whole)


@pytest.mark.parametrize("name", ["notes.txt", "config.toml", "manifest.json", "trials.jsonl", "versions.json"])
def test_other_files_are_never_mistaken_for_a_creation(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path)
    assert snapshot(tmp_path) == {name: b"{}"}


def test_a_failed_initialisation_leaves_no_folder_behind(tmp_path):
    with RunFolder.claim(tmp_path / "run", CONFIG, "f00d") as folder:
        folder.abandon()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_processes_are_removed_and_files_of_the_user_are_not(tmp_path):
    folder = finished(tmp_path)
    leftovers = [f"result.json.{'a' * 16}.tmp", f"checkpoints/round-000009.json.{'b' * 16}.tmp"]
    for name in [*leftovers, "mine.tmp"]:
        (tmp_path / name).touch()
    with folder.alone():
        assert not any((tmp_path / name).exists() for name in leftovers)
        assert (tmp_path / "mine.tmp").exists()
