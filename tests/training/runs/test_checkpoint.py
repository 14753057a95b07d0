"""Checkpoints are restored bit by bit; a damaged one is skipped and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from coterie.core.clusters import Clusters
from coterie.core.state import ServerState
from coterie.training.runs.checkpoint import KEEP, newest_checkpoint, save_checkpoint
from tests.core.states import states


def state(round_: int, body: bool = False, restarts: int = 1) -> ServerState:
    random = torch.Generator().manual_seed(round_)
    params = {
        "weight": torch.randn(2 * restarts, 3, generator=random, dtype=torch.float64),
        "bias": torch.randn(2 * restarts, generator=random),
    }
    shared = {"base": torch.randn(restarts, 4, generator=random)} if body else None
    fresh = ServerState.fresh(Clusters(params, 2, restarts, shared), 5)
    values = fresh.with_values(
        choice=torch.randint(-1, 2, (5, restarts), generator=random),
        steady=torch.arange(5) + round_,
        loss=torch.rand(restarts, generator=random, dtype=torch.float64),
    )
    return replace(values, round=round_)


def newest(folder: Path, before: int = 10**6) -> tuple[ServerState | None, list[str]]:
    warnings: list[str] = []

    def check(facts) -> None:
        if facts["round"] > before:
            raise ValueError("too late")

    found = newest_checkpoint(folder, warnings.append, check)
    return None if found is None else found[0], warnings


def assert_same(a: ServerState | None, b: ServerState) -> None:
    assert a is not None
    assert (a.round, a.clusters.K, a.clusters.restarts) == (b.round, b.clusters.K, b.clusters.restarts)
    assert list(a.arrays) == list(b.arrays)
    for name, array in a.arrays.items():
        assert (array.axes, array.rule) == (b.arrays[name].axes, b.arrays[name].rule)
    assert (a.clusters.body is None) == (b.clusters.body is None)
    assert (a.clusters.overall is None) == (b.clusters.overall is None)
    for found, expected in (
        (a.clusters.params, b.clusters.params),
        (a.clusters.shared, b.clusters.shared),
        (a.clusters.overall or {}, b.clusters.overall or {}),
        (a.under(""), b.under("")),
        (a.clients, b.clients),
    ):
        assert found.keys() == expected.keys()
        for name in found:
            assert (found[name].dtype, found[name].shape) == (expected[name].dtype, expected[name].shape)
            assert found[name].numpy().tobytes() == expected[name].numpy().tobytes()


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("restarts", [1, 3])
def test_a_checkpoint_comes_back_bit_by_bit(tmp_path, body, restarts):
    save_checkpoint(tmp_path / "c", state(7, body, restarts))
    found, warnings = newest(tmp_path / "c")
    assert_same(found, state(7, body, restarts))
    assert warnings == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states())
def test_any_array_comes_back_bit_by_bit_with_its_axes_and_its_rule(tmp_path, anything):
    kept = replace(anything, clients={"weights": torch.rand(3, 2)}, round=7)
    save_checkpoint(tmp_path / "c", kept)
    found, warnings = newest(tmp_path / "c")
    assert_same(found, kept)
    assert warnings == []


def test_arrays_that_are_views_of_others_come_back(tmp_path):
    settled = state(3, body=True, restarts=3).keep_restart(1)
    save_checkpoint(tmp_path, settled)
    assert_same(newest(tmp_path)[0], settled)


def test_infinite_values_come_back_too(tmp_path):
    odd = state(1)
    odd.clusters.params["bias"][:] = torch.tensor([torch.nan, -0.0])
    save_checkpoint(tmp_path, odd)
    assert_same(newest(tmp_path)[0], odd)


def test_only_the_last_few_are_kept(tmp_path):
    for t in (10, 20, 30, 40, 50):
        save_checkpoint(tmp_path, state(t))
    assert KEEP == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"round-0000{t}.{kind}" for t in (30, 40, 50) for kind in ("json", "safetensors")
    ]
    assert_same(newest(tmp_path)[0], state(50))


def test_a_new_checkpoint_is_never_the_one_dropped(tmp_path):
    for t in (20, 30, 40):
        save_checkpoint(tmp_path, state(t))
    save_checkpoint(tmp_path, state(10))  # a run that had to resume from an earlier round
    assert_same(newest(tmp_path, before=10)[0], state(10))


def test_the_newest_that_passes_the_check_is_used(tmp_path):
    for t in (10, 20, 30):
        save_checkpoint(tmp_path, state(t))
    assert_same(newest(tmp_path, before=29)[0], state(20))
    assert_same(newest(tmp_path, before=30)[0], state(30))
    found, warnings = newest(tmp_path, before=9)
    assert found is None
    assert len(warnings) == 3
    assert warnings[0] == "checkpoint round-000030 is damaged (too late); using the one before it"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGE = {
    "half json": ("json", cut),
    "one bit of the json": ("json", lambda p: p.write_text(p.read_text().replace('"K": 2', '"K": 3'))),
    "empty json": ("json", lambda p: p.write_bytes(b"")),
    "no text": ("json", lambda p: p.write_bytes(b"\xff\xfe\x00")),
    "other json": ("json", lambda p: p.write_text("[1, 2]")),
    "json without facts": ("json", lambda p: p.write_text("{}")),
    "half arrays": ("safetensors", cut),
    "one bit of the arrays": ("safetensors", flip),
    "no arrays": ("safetensors", lambda p: p.unlink()),
    "empty arrays": ("safetensors", lambda p: p.write_bytes(b"")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path, damage):
    for t in (10, 20):
        save_checkpoint(tmp_path, state(t))
    kind, spoil = DAMAGE[damage]
    spoil(tmp_path / f"round-000020.{kind}")
    found, warnings = newest(tmp_path)
    assert_same(found, state(10))
    assert len(warnings) == 1
    assert warnings[0].startswith("checkpoint round-000020 is damaged")


def test_a_checkpoint_without_its_json_never_counted(tmp_path):
    for t in (10, 20):
        save_checkpoint(tmp_path, state(t))
    (tmp_path / "round-000020.json").unlink()
    found, _ = newest(tmp_path)
    assert_same(found, state(10))


def test_two_damaged_ones_are_both_named(tmp_path):
    for t in (10, 20, 30):
        save_checkpoint(tmp_path, state(t))
    for t in (20, 30):
        cut(tmp_path / f"round-0000{t}.json")
    found, warnings = newest(tmp_path)
    assert_same(found, state(10))
    assert len(warnings) == 2


def test_without_an_intact_checkpoint_there_is_none(tmp_path):
    assert newest(tmp_path / "nowhere") == (None, [])
    save_checkpoint(tmp_path, state(10))
    cut(tmp_path / "round-000010.json")
    found, warnings = newest(tmp_path)
    assert found is None
    assert len(warnings) == 1


def test_a_leftover_of_a_killed_write_is_not_a_checkpoint(tmp_path):
    save_checkpoint(tmp_path, state(10))
    (tmp_path / "round-000020.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "round-000020.json.tmp").write_bytes(b"half")
    found, warnings = newest(tmp_path)
    assert_same(found, state(10))
    assert warnings == []
