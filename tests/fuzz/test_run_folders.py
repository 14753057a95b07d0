"""Damage to any file of a run folder is reported in one sentence, or changes nothing."""

from __future__ import annotations

import itertools
import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.errors import CoterieError
from coterie.privacy.accountant import Answer, epsilon
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.training.fitting import carry_out, continue_plan
from coterie.training.planning import prepare
from coterie.training.runs.folder import RunFolder
from tests.fuzz.cases import cases, refusal
from tests.fuzz.test_io_faults import RUNS, data, outcome, without_time

KINDS = ("plain", "patience", "auto", "two-phase", "keeping", "private", "one-shot")
SHAPES = (b"{}", b"[]", b"null", b"3", b'"text"', b'{"files": 3}', b'{"round": "x", "sha256": 1}', b"[" * 100_000)


class StopError(Exception):
    """Error that simulates a kill."""


def stop(record):
    if record["round"] == 1:
        raise StopError


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[tuple[str, bool], Path]:
    """Return a finished and an unfinished run of each kind; the latter has records after its last checkpoint."""
    place = tmp_path_factory.mktemp("folders")
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            method, options = RUNS[kind]
            if method != "odcl":
                options = {**options, "rounds": 4, "checkpoint_every": 1}
            made[kind, True] = place / kind / "finished"
            coterie.fit(data(), method, learner="linear", out=made[kind, True], **options)
            if method != "odcl":
                made[kind, False] = place / kind / "unfinished"
                with pytest.raises(StopError):
                    coterie.fit(data(), method, learner="linear", out=made[kind, False], callbacks=[stop], **options)
    return made


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def flip(path: Path, random: np.random.Generator, folder: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))


def truncate(path: Path, random: np.random.Generator, folder: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.integers(len(content) + 1)])


def drop_a_line(path: Path, random: np.random.Generator, folder: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        del lines[random.integers(len(lines))]
    path.write_bytes(b"".join(lines))


def swap(path: Path, random: np.random.Generator, folder: Path) -> None:
    files = files_of(folder)
    other = files[random.integers(len(files))]
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


def append(path: Path, random: np.random.Generator, folder: Path) -> None:
    path.write_bytes(path.read_bytes() + random.bytes(int(random.integers(1, 50))))


def make_folder(path: Path, random: np.random.Generator, folder: Path) -> None:
    path.unlink()
    path.mkdir()


def reshape(path: Path, random: np.random.Generator, folder: Path) -> None:
    path.write_bytes(SHAPES[random.integers(len(SHAPES))])


Damage = Callable[[Path, np.random.Generator, Path], None]
DAMAGES: dict[str, Damage] = {
    "flip": flip,
    "truncate": truncate,
    "delete": lambda path, random, folder: path.unlink(),
    "drop a line": drop_a_line,
    "swap": swap,
    "empty": lambda path, random, folder: path.write_bytes(b""),
    "append": append,
    "folder": make_folder,
    "shape": reshape,
}


def damaged(folder: Path, random: np.random.Generator, kind: str | None = None) -> tuple[str, str]:
    """Damage one file in this or a random way; return the name of the file and the damage."""
    files = files_of(folder)
    path = files[random.integers(len(files))]
    kind = kind or list(DAMAGES)[random.integers(len(DAMAGES))]
    DAMAGES[kind](path, random, folder)
    return path.relative_to(folder).as_posix(), kind


def resumed(folder: Path) -> object:
    coterie.resume(folder, data(), warn=lambda text: None)
    return outcome(folder)


def predicted(folder: Path) -> object:
    result = coterie.load(folder)
    return [result.predict(np.ones((1, 2)), cluster=k).tolist() for k in range(len(result.models))]


def reported(folder: Path) -> object:
    (run,) = read_runs(folder)
    return (run.config, run.records, run.metrics, run.clients)


ACTIONS: dict[str, Callable[[Path], object]] = {
    "resume": resumed,
    "load": lambda folder: without_time(coterie.load(folder).summary()),
    "predict": predicted,
    "report": reported,
}


PLACES = [(kind, True) for kind in KINDS] + [(kind, False) for kind in KINDS if RUNS[kind][0] != "odcl"]
ROUND = math.lcm(len(PLACES), len(DAMAGES))
"""Number of cases in which every damage is applied to every folder."""


def nth(number: int) -> tuple[str, bool, str, str]:
    """Return the kind of run, whether it is finished, the damage and the action of a case."""
    place, damage = number % len(PLACES), number % len(DAMAGES)
    kind, finished = PLACES[place]
    action = list(ACTIONS)[(place + damage + number // ROUND) % len(ACTIONS)] if finished else "resume"
    return kind, finished, list(DAMAGES)[damage], action


def test_all_pairs_of_folder_damage_and_action_occur():
    found = {nth(number) for number in range(ROUND)}
    assert {(kind, finished, damage) for kind, finished, damage, _ in found} == {
        (*place, damage) for place in PLACES for damage in DAMAGES
    }
    ended = [(kind, damage, action) for kind, finished, damage, action in found if finished]
    assert {(kind, action) for kind, _, action in ended} == set(itertools.product(KINDS, ACTIONS))
    assert {(damage, action) for _, damage, action in ended} == set(itertools.product(DAMAGES, ACTIONS))


def test_damage_is_reported_or_changes_nothing(folders, tmp_path):
    expected: dict[tuple[str, str], object] = {}
    refused = 0
    for number, (label, random) in enumerate(cases("run folders", 400, few=ROUND)):
        kind, finished, how, action = nth(number)
        folder = tmp_path / "copy"
        shutil.copytree(folders[kind, finished], folder)
        if (kind, action) not in expected:
            expected[kind, action] = ACTIONS[action](folders[kind, True])
        name, damage = damaged(folder, random, how)
        label = f"{label}: {damage} {name} of a {kind} run, finished: {finished}, {action}"
        found, error = refusal(label, lambda action=action, folder=folder: ACTIONS[action](folder))
        if error is None:
            assert alike(found, expected[kind, action]), label
        else:
            refused += 1
            assert str(folder) in str(error), f"{label}: {error}"
            if damage != "swap" and name != "result.json":
                assert Path(name).name in str(error), f"{label}: {error}"
        shutil.rmtree(folder)
    assert refused > 50


def alike(found: object, expected: object) -> bool:
    """Return whether outcomes are equal, except for checkpoints and other files that a finished run does not need."""
    if isinstance(found, dict) and "names" in found and isinstance(expected, dict):
        needed = {name for name in expected if name not in ("names", "trials.jsonl") and "/" not in name}
        return all(found[name] == expected[name] for name in needed)
    return found == expected


def test_the_page_of_a_damaged_run_is_refused_or_the_same(folders, tmp_path):
    clean = write_report(read_runs(folders["plain", True]), tmp_path / "clean.html").read_text()
    for label, random in cases("damaged pages", 8):
        folder = tmp_path / "copy"
        shutil.copytree(folders["plain", True], folder)
        damaged(folder, random)
        page, error = refusal(label, lambda folder=folder: write_report(read_runs(folder), tmp_path / "page.html"))
        assert error is not None or page.read_text() == clean, label
        shutil.rmtree(folder)


# ---- privacy -------------------------------------------------------------------------------------------------------


class Remote:
    """Simulated clients that count as remote clients, whose every answer costs privacy budget."""

    def __init__(self, inner) -> None:
        self.inner, self.asked = inner, 0

    def ask(self, task, broadcast, clients):
        self.asked += task.name == "local-round"
        return self.inner.ask(task, broadcast, clients)

    def __getattr__(self, name):
        return getattr(self.inner, name)


PRIVATE = {"clusters": 2, "lr": 0.1, "privacy": "local", "privacy_noise": 4.0, "privacy_choice": 0.5, "rounds": 4}


def remote_plan(checkpoint_every: int):
    options = {**PRIVATE, "checkpoint_every": checkpoint_every}
    plan = prepare(data(), "ifca", "linear", options | {"init": "random"})
    return replace(plan, run=replace(plan.run, federation=Remote(plan.federation)))


def test_the_spent_privacy_budget_is_never_reported_too_low_after_damage(tmp_path):
    pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")
    counts = {"refused": 0, "resumed": 0, "more": 0}
    for label, random in cases("privacy ledger", 120, few=50):
        plan, out = remote_plan(int(random.integers(1, 4))), tmp_path / "run"
        last = int(random.integers(4))

        def kill(record, last=last):
            if record["round"] == last:
                raise StopError

        with pytest.raises(StopError):
            carry_out(plan, out, [kill])
        done = [damaged(out, random) for _ in range(random.integers(1, 4))]
        if random.random() < 0.5:
            ledger = out / "asked.json"
            path = ledger if ledger.is_file() else files_of(out)[0]
            damage = list(DAMAGES)[random.integers(len(DAMAGES))]
            DAMAGES[damage](path, random, out)
            done.append((path.name, damage))
        result, error = refusal(
            f"{label}: {done}",
            lambda plan=plan, out=out: continue_plan(plan, RunFolder.open(out), warn=lambda text: None),
        )
        spent = epsilon(Answer(2.0, 0.5), plan.federation.asked, 1e-5)
        if result is None:
            assert error is not None
            counts["refused"] += 1
        else:
            assert result.metrics["epsilon"] >= spent, f"{label}: {done}"
            assert coterie.load(out).metrics["epsilon"] == result.metrics["epsilon"]
            counts["resumed"] += 1
            counts["more"] += plan.federation.asked > 4
        shutil.rmtree(out)
    assert min(counts.values()) > 5, counts


@pytest.mark.parametrize("name", ["asked.json", "manifest.json"])
@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage != "swap"])
def test_a_private_run_without_its_ledger_is_refused(tmp_path, name, damage):
    pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")
    plan = remote_plan(1)
    with pytest.raises(StopError):
        carry_out(plan, tmp_path / "run", [stop])
    path = tmp_path / "run" / name
    before = path.read_bytes()
    DAMAGES[damage](path, np.random.default_rng(0), tmp_path / "run")
    if path.is_file() and path.read_bytes() == before:
        return
    with pytest.raises(CoterieError, match=name):
        continue_plan(plan, RunFolder.open(tmp_path / "run"))


def test_an_older_ledger_is_refused(tmp_path):
    pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")
    plan, out = remote_plan(2), tmp_path / "run"
    older = {}

    def keep(record):
        older[record["round"]] = (out / "asked.json").read_bytes()
        if record["round"] == 3:
            raise StopError

    with pytest.raises(StopError):
        carry_out(plan, out, [keep])
    for before in (0, 1):
        (out / "asked.json").write_bytes(older[before])
        with pytest.raises(CoterieError, match="contains fewer rounds than the records"):
            continue_plan(plan, RunFolder.open(out))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
