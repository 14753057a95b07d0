"""A file is either complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from coterie.files import write_atomically, write_json
from coterie.training.runs.files import tensor_bytes, write_toml


def test_a_write_leaves_the_file_and_nothing_else(tmp_path: Path):
    write_atomically(tmp_path / "a", b"one")
    write_atomically(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def fail(*args: object) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch, step):
    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "a", b"new and much longer")
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_no_partial_file(tmp_path: Path, monkeypatch, step):
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_the_content_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch):
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (steps.append("fsync"), fsync(f)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("replace"), replace(a, b)))
    write_atomically(tmp_path / "a", b"x")
    assert steps == ["fsync", "replace", "fsync"]  # the last one is the folder's


def test_json_refuses_unsupported_values(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_json_and_toml_are_plain_text(tmp_path: Path):
    write_json(tmp_path / "a.json", {"k": [1, None]})
    write_toml(tmp_path / "a.toml", {"lr": 0.1, "name": "x"})
    assert (tmp_path / "a.json").read_text().split() == ["{", '"k":', "[", "1,", "null", "]", "}"]
    assert (tmp_path / "a.toml").read_text() == 'lr = 0.1\nname = "x"\n'


def test_tensor_bytes_take_views_too():
    table = torch.arange(6.0).reshape(2, 3)
    back = load(tensor_bytes({"row": table[1], "column": table[:, 0].clone()}))
    assert back["row"].tolist() == [3, 4, 5]
    assert back["column"].tolist() == [0, 3]
