"""Rows of slots, restarts and the shared body."""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters, row_bytes

# two restarts of three clusters; the model of slot s is (10 s, 10 s + 1)
HEAD = torch.arange(6.0)[:, None] * 10 + torch.arange(2.0)


def plain() -> Clusters:
    return Clusters({"weight": HEAD}, K=3, restarts=2)


def with_body() -> Clusters:
    return Clusters({"weight": HEAD}, K=3, restarts=2, body={"base": torch.tensor([[100.0], [200.0]])})


def test_at_returns_the_model_of_each_slot():
    found = plain().at(torch.tensor([[4, 0], [5, 5]]))
    assert found["weight"].tolist() == [[[40, 41], [0, 1]], [[50, 51], [50, 51]]]


def test_at_gives_the_body_of_the_slots_restart():
    found = with_body().at(torch.tensor([2, 3]))  # slot 2 is in restart 0, slot 3 in restart 1
    assert found["weight"].tolist() == [[20, 21], [30, 31]]
    assert found["base"].tolist() == [[100], [200]]


def test_kept_slots_are_found_under_their_old_numbers():
    kept = with_body().keep(torch.tensor([1, 5]))
    assert kept.params["weight"].tolist() == [[10, 11], [50, 51]]
    found = kept.at(torch.tensor([5, 1, 5]))
    assert found["weight"].tolist() == [[50, 51], [10, 11], [50, 51]]
    assert found["base"].tolist() == [[200], [100], [200]]


def test_keeping_twice_is_keeping_once():
    twice = plain().keep(torch.tensor([1, 4, 5])).keep(torch.tensor([4, 5]))
    assert twice.slots is not None
    assert twice.slots.tolist() == [4, 5]
    assert twice.params["weight"].tolist() == [[40, 41], [50, 51]]


def test_all_models_of_kept_slots_have_the_body_of_their_restart():
    found = with_body().keep(torch.tensor([0, 4])).all_models()
    assert found["weight"].tolist() == [[0, 1], [40, 41]]
    assert found["base"].tolist() == [[100], [200]]


def test_all_models_without_a_body_is_no_copy():
    assert plain().all_models()["weight"] is HEAD


def test_all_models_repeats_the_body_for_every_slot():
    assert with_body().all_models()["base"].flatten().tolist() == [100, 100, 100, 200, 200, 200]


def test_a_restart_can_be_kept_separately():
    restart = with_body().restart(1)
    assert (restart.K, restart.restarts) == (3, 1)
    assert restart.params["weight"].tolist() == [[30, 31], [40, 41], [50, 51]]
    assert restart.body is not None
    assert restart.body["base"].tolist() == [[200]]
    assert plain().restart(0).body is None


def test_there_is_one_complete_model_for_each_cluster():
    models = with_body().restart(1).models()
    assert [m["weight"].tolist() for m in models] == [[30, 31], [40, 41], [50, 51]]
    assert [m["base"].tolist() for m in models] == [[200]] * 3


def test_bytes_are_those_of_one_slot_and_one_restart():
    assert with_body().slot_bytes == 2 * 4  # two float32
    assert with_body().body_bytes == 4
    assert plain().body_bytes == 0
    assert row_bytes({"a": torch.zeros(5, 2, 3, dtype=torch.float64), "b": torch.zeros(5, dtype=torch.int64)}) == 56
