"""Folders of comparisons and sweeps: one process wins, an interrupted creation is repeated."""

from __future__ import annotations

import os

import pytest

from coterie.errors import RunError, StorageError
from coterie.training.runs.locking import create_for_jobs
from tests.io_faults import exit_code, full_disk_from, killed_at, kinds_of_steps, started_child

ASKED = {"scenario": "drift", "seeds": [0, 1]}


def create(folder):
    create_for_jobs(folder, "compare.toml", ASKED)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_creation_killed_at_any_step_can_be_repeated(tmp_path):
    steps = kinds_of_steps(tmp_path, lambda: create(tmp_path / "whole"))
    assert names(tmp_path / "whole") == ["compare.toml", "jobs"]
    for step in range(len(steps)):
        folder = tmp_path / str(step)
        assert killed_at(step, folder, lambda folder=folder: create(folder)), steps[step]
        if not (folder / "compare.toml").is_file():
            create(folder)
        assert names(folder) == ["compare.toml", "jobs"], steps[step]


def test_a_full_disk_gives_a_message_and_the_creation_can_be_repeated(tmp_path):
    for step in range(len(kinds_of_steps(tmp_path, lambda: create(tmp_path / "whole"))) - 1):
        folder = tmp_path / str(step)
        with pytest.raises((StorageError, RunError), match="No space left on device"), full_disk_from(step, folder):
            create(folder)
        if not (folder / "compare.toml").is_file():
            create(folder)
        assert names(folder) == ["compare.toml", "jobs"]


def test_exactly_one_of_several_processes_creates_a_folder(tmp_path):
    for number in range(20):

        def race(folder=tmp_path / str(number)) -> None:
            try:
                create(folder)
            except RunError:
                os._exit(5)

        children = [started_child(race) for _ in range(3)]
        assert sorted(exit_code(child) for child in children) == [0, 5, 5]
        assert names(tmp_path / str(number)) == ["compare.toml", "jobs"]


def test_a_folder_with_other_content_is_not_changed(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]


def test_a_read_only_folder_gives_a_message(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunError, match="cannot be created: Permission denied"):
        create(tmp_path / "new")
