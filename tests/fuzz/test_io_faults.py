"""A run that is killed, or meets a full disk, at any step of input and output is resumed with the same result."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.errors import RunError, StorageError
from tests.fuzz.cases import SCALE, SEED
from tests.io_faults import FAILED, exit_code, full_disk_from, killed_at, kinds_of_steps, started_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need fork")

COMMON = {"rounds": 2, "lr": 0.1, "checkpoint_every": 1, "local_steps": 1}
PATIENT = {"rounds": 4, "validation": 0.3, "patience": 1, "lr": 0.9, "local_steps": 3, "checkpoint_every": 2}
TRIED = {"clusters": "auto", "max_clusters": 2, "choose_seeds": 1, "choose_rounds": 1}
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("ifca", {**COMMON, "clusters": 2, "checkpoint_every": 2, "rounds": 3}),
    "patience": ("ifca", {**COMMON, **PATIENT, "clusters": 2}),
    "auto": ("ifca", {**COMMON, **TRIED}),
    "two-phase": ("two-phase", {"rounds": 2, "clusters": "auto", "lr": "auto", "checkpoint_every": 1}),
    "private": ("ifca", {**COMMON, "clusters": 2, "privacy": "local", "privacy_noise": 4.0, "privacy_choice": 0.5}),
    "one-shot": ("odcl", {"clusters": 2}),
    "keeping": ("fedem", {**COMMON, "clusters": 2}),
    "adaptive": ("cfl", {**COMMON, "rounds": 3}),
}
STEPS = 6 if SCALE > 1 else 3
"""Number of steps of a run that `make test` tries; `make fuzz` tries more."""


@functools.cache
def data():
    random = np.random.default_rng(0)
    sites = {}
    for i in range(3):
        x = random.normal(size=(12, 2))
        sites[f"site-{i}"] = (x, x @ [1.0, -1.0 if i else 1.0] + 0.1 * random.normal(size=12))
    return coterie.from_arrays(sites)


def start(kind: str, folder: Path) -> None:
    method, options = RUNS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coterie.fit(data(), method, learner="linear", out=folder, **options)


def start_or_resume(kind: str, folder: Path) -> None:
    """Start the run if the folder has none, or resume it, as a user does."""
    if not (folder / "config.toml").is_file():
        start(kind, folder)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coterie.resume(folder, data(), warn=lambda text: pytest.fail(f"a kill is no damage: {text}"))


def without_time(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_time(v) for name, v in value.items() if name not in ("seconds", "initialization_seconds")}
    return value


def outcome(folder: Path) -> dict[str, object]:
    """Return everything that must be equal in two folders of the same run."""
    assert coterie.load(folder)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    found: dict[str, object] = {"names": set(files) - {"records.jsonl", ".lock"}}
    for name, path in files.items():
        if name == "records.jsonl":
            found[name] = [without_time(json.loads(line)) for line in path.read_text().splitlines()]
        elif name.endswith((".safetensors", ".toml", "trials.jsonl")):
            found[name] = path.read_bytes()
        elif name in ("result.json", "initialization.json"):
            found[name] = without_time(json.loads(path.read_text())) | {"metrics": None}
    found["metrics"] = without_time(json.loads(files["result.json"].read_text())["metrics"])
    found.setdefault("records.jsonl", [])
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def clean(kind: str, place: Path) -> tuple[list[str], dict[str, object]]:
    """Return the steps and the outcome of an undisturbed run."""
    folder = place / f"clean-{kind}"
    return kinds_of_steps(place, lambda: start(kind, folder)), outcome(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


def some(kind: str, steps: int, purpose: int, share: float = 1.0) -> list[int]:
    """Return the steps to try, in order: all, or some of them with a fixed seed."""
    count = min(steps, round(STEPS * share * SCALE))
    random = np.random.default_rng([SEED, purpose, *kind.encode()])
    return sorted(random.choice(steps, size=max(1, count), replace=False).tolist())


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_killed_at_any_step_gives_the_same_result(kind, place, tmp_path):
    steps, expected = clean(kind, place)
    assert len(steps) > 30
    for step in some(kind, len(steps), 0):
        folder = tmp_path / str(step)
        assert killed_at(step, tmp_path, lambda folder=folder: start(kind, folder)), step
        start_or_resume(kind, folder)
        assert outcome(folder) == expected, f"killed at step {step}, {steps[step]}"
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_killed_again_during_its_resume_gives_the_same_result(kind, place, tmp_path):
    steps, expected = clean(kind, place)
    random = np.random.default_rng([SEED, 1, *kind.encode()])
    for number, step in enumerate(some(kind, len(steps), 1, 0.3)):
        folder = tmp_path / str(number)
        killed_at(step, tmp_path, lambda folder=folder: start(kind, folder))
        while killed_at(int(random.integers(5, 60)), tmp_path, lambda folder=folder: start_or_resume(kind, folder)):
            pass
        assert outcome(folder) == expected, f"killed at step {step}, {steps[step]}, and again"


ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO)


@pytest.mark.parametrize("kind", RUNS)
def test_a_full_disk_is_one_sentence_and_loses_nothing(kind, place, tmp_path):
    steps, expected = clean(kind, place)
    for number, step in enumerate(some(kind, len(steps), 2, 0.5)):
        folder, error = tmp_path / str(step), ERRORS[(number + list(RUNS).index(kind)) % len(ERRORS)]
        try:
            with full_disk_from(step, tmp_path, error):
                start(kind, folder)
        except (StorageError, RunError) as refused:
            text = str(refused)
            assert os.strerror(error) in text, f"step {step}, {steps[step]}: {text}"
            assert str(folder) in text
            assert "\n" not in text
        else:
            assert not any(kind.startswith(("open", "write", "replace")) for kind in steps[step:])
        assert not list(tmp_path.rglob("*.tmp")), f"step {step}, {steps[step]}"
        start_or_resume(kind, folder)
        assert outcome(folder) == expected, f"full from step {step}, {steps[step]}"


def race(kind: str, folder: Path) -> list[int]:
    """Start the same run in one folder from two processes at the same moment.

    Returns:
        The exit codes: 0 for the process that carried out the run, LOST for the one that was refused.
    """
    waiting, go = os.pipe()

    def run() -> None:
        os.close(go)
        os.read(waiting, 1)  # returns when the parent has closed its side, too
        try:
            start(kind, folder)
        except RunError as error:
            known = "exists already" in str(error) or "being written to by another process" in str(error)
            os._exit(LOST if known else FAILED)

    children = [started_child(run) for _ in range(2)]
    os.close(waiting)
    os.close(go)
    return sorted(exit_code(child) for child in children)


LOST = 5


def test_only_one_of_two_processes_can_start_in_the_same_new_folder(place, tmp_path):
    _, expected = clean("plain", place)
    for number in range(round(15 * SCALE) if SCALE > 1 else 6):
        folder = tmp_path / str(number) / "deep" / "run"
        if number % 3 == 1:
            folder.mkdir(parents=True)
        if number % 3 == 2:  # an interrupted creation
            killed_at(9, tmp_path, lambda folder=folder: start("plain", folder))
        assert race("plain", folder) == [0, LOST]
        assert outcome(folder) == expected
