"""Aggregation of sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.core.messages import Reply, Slotted
from coterie.core.state import ServerState
from coterie.server.aggregate import RoundReplies
from coterie.server.averaging import Averaging
from coterie.server.optimizers import ServerSGD, move_models
from coterie.tiers.assignment import LowestLoss

MEMBERS = Averaging()
SIZES = np.array([2, 6, 4, 8])  # four clients, 20 samples
ALL_CLIENTS = np.arange(len(SIZES))
# models 10, 20, 30; clients 0 and 1 chose model 0 with changes 1 and 3, client 2 chose model 2 with change 8;
# client 3 did not answer
OLD = Clusters({"w": torch.tensor([[10.0], [20.0], [30.0]], dtype=torch.float64)}, 3)


def reply(changes: list[float], mass: list[float], slots=(0, 2)) -> Reply:
    arrays = {
        "change/w": torch.tensor(changes, dtype=torch.float64)[:, None],
        "mass": torch.tensor(mass, dtype=torch.float64),
    }
    return Reply(("c0", "c1", "c2"), slotted={"clusters": Slotted(torch.tensor(slots), arrays, torch.tensor([2, 1]))})


UNIFORM = reply([1 + 3, 8], [2, 1])
SAMPLES = reply([2 * 1 + 6 * 3, 4 * 8], [8, 4])


def averaged(
    old: Clusters,
    message: Reply,
    averaging: Averaging = MEMBERS,
    server_lr: float = 1.0,
    exchange: str = "model",
) -> Clusters:
    update = LowestLoss().server_aggregate(RoundReplies(old, message, SIZES, ALL_CLIENTS, averaging))
    state = ServerState.fresh(old, len(SIZES))
    return move_models(ServerSGD(server_lr), state, update, 0.5 if exchange == "gradient" else 1.0).clusters


def moved(averaging: Averaging, message: Reply, **options) -> list[float]:
    return averaged(OLD, message, averaging, **options).params["w"].flatten().tolist()


def test_members_have_weight_one():
    # 10 + (1 + 3) / 2 = 12; 30 + 8 / 1 = 38; no client chose model 1
    assert moved(Averaging(over="members", client_weight="uniform"), UNIFORM) == [12, 20, 38]


def test_members_are_weighted_by_samples():
    # 10 + (2 * 1 + 6 * 3) / 8 = 12.5; 30 + 4 * 8 / 4 = 38
    assert moved(Averaging(over="members", client_weight="samples"), SAMPLES) == [12.5, 20, 38]


def test_all_clients_that_replied_have_weight_one():
    # 10 + 4 / 3; 30 + 8 / 3
    assert moved(Averaging(over="all", client_weight="uniform"), UNIFORM) == pytest.approx(
        [10 + 4 / 3, 20, 30 + 8 / 3], rel=1e-15
    )


def test_all_clients_that_replied_are_weighted_by_samples():
    # 10 + 20 / 12; 30 + 32 / 12
    assert moved(Averaging(over="all", client_weight="samples"), SAMPLES) == pytest.approx(
        [10 + 5 / 3, 20, 30 + 8 / 3], rel=1e-15
    )


def test_the_whole_federation_with_weight_one():
    # four clients there are: 10 + 4 / 4 = 11; 30 + 8 / 4 = 32
    assert moved(Averaging(over="all", client_weight="uniform", divide_by="federation"), UNIFORM) == [11, 20, 32]


def test_the_whole_federation_weighted_by_samples():
    # 20 samples there are: 10 + 20 / 20 = 11; 30 + 32 / 20 = 31.6
    assert moved(Averaging(over="all", client_weight="samples", divide_by="federation"), SAMPLES) == pytest.approx(
        [11, 20, 31.6]
    )


def test_divide_by_has_no_effect_on_members():
    assert moved(Averaging(over="members", client_weight="uniform", divide_by="federation"), UNIFORM) == [12, 20, 38]


def test_the_server_applies_the_step_size_to_gradients():
    # rate 0.5: 10 + 0.5 * 4 / 2 = 11; 30 + 0.5 * 8 = 34
    assert moved(MEMBERS, UNIFORM, exchange="gradient") == [11, 20, 34]


def test_the_learning_rate_of_the_server_is_a_factor():
    assert moved(MEMBERS, UNIFORM, server_lr=2.0) == [14, 20, 46]
    # 2 * 0.5 = 1: as a plain model exchange
    assert moved(MEMBERS, UNIFORM, server_lr=2.0, exchange="gradient") == [12, 20, 38]


def test_the_old_models_are_not_changed_in_place():
    moved(MEMBERS, UNIFORM)
    assert OLD.params["w"].flatten().tolist() == [10, 20, 30]


def test_parameters_of_any_shape_are_scaled_alike():
    old = Clusters({"a": torch.zeros(2, 2, 3), "b": torch.zeros(2)}, 2)
    arrays = {
        "change/a": torch.full((1, 2, 3), 6.0),
        "change/b": torch.tensor([3.0]),
        "mass": torch.tensor([3.0], dtype=torch.float64),
    }
    message = Reply(("x", "y", "z"), slotted={"clusters": Slotted(torch.tensor([1]), arrays, torch.tensor([3]))})
    new = averaged(old, message).params
    assert new["a"].tolist() == [[[0] * 3] * 2, [[2] * 3] * 2]
    assert new["b"].tolist() == [0, 1]
    assert new["a"].dtype == torch.float32


def test_restarts_are_averaged_separately():
    # restart 0: slot 0 gets 4 of mass 2, slot 1 gets 6 of mass 1; restart 1: slot 3 gets 10 of mass 2, one failed
    old = Clusters({"w": torch.zeros(4, 1, dtype=torch.float64)}, 2, restarts=2)
    arrays = {
        "change/w": torch.tensor([[4.0], [6.0], [10.0]], dtype=torch.float64),
        "mass": torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64),
    }
    slotted = Slotted(torch.tensor([0, 1, 3]), arrays, torch.tensor([2, 1, 2]))
    message = Reply(("a", "b", "c"), slotted={"clusters": slotted})
    members = averaged(old, message)
    assert members.params["w"].flatten().tolist() == [2, 6, 0, 5]
    over_all = averaged(old, message, Averaging(over="all"))
    # restart 0 has mass 3: 4/3 and 6/3; restart 1 has mass 2: nothing and 10/2
    assert over_all.params["w"].flatten().tolist() == pytest.approx([4 / 3, 2, 0, 5])


def with_body(counts: list[int], changes: list[float], slots: list[int], masses: list[float]) -> Clusters:
    old = Clusters(
        {"head": torch.zeros(4, 1, dtype=torch.float64)},
        2,
        restarts=2,
        body={"base": torch.tensor([[100.0], [200.0]], dtype=torch.float64)},
    )
    heads = {
        "change/head": torch.ones(len(slots), 1, dtype=torch.float64),
        "mass": torch.tensor(masses, dtype=torch.float64),
    }
    body = {"change/base": torch.tensor(changes, dtype=torch.float64)[:, None]}
    message = Reply(
        ("a", "b", "c"),
        slotted={
            "clusters": Slotted(torch.tensor(slots), heads, torch.ones(len(slots), dtype=torch.int64)),
            "body": Slotted(torch.tensor([0, 1]), body, torch.tensor(counts)),
        },
    )
    return averaged(old, message)


def test_the_shared_body_is_averaged_over_all_clusters_of_its_restart():
    # restart 0: mass 2 + 1 = 3, change 6 -> 102; restart 1: mass 3, change 12 -> 204
    new = with_body([3, 3], [6, 12], [0, 1, 2], [2, 1, 3])
    assert new.shared["base"].flatten().tolist() == [102, 204]


def test_the_body_of_a_restart_without_contributions_does_not_change():
    new = with_body([3, 0], [6, 0], [0, 1], [2, 1])
    assert new.shared["base"].flatten().tolist() == [102, 200]


def test_the_mean_change_is_separate_from_its_application():
    # models 10, 20, 30 move by 2, nothing and 8 with a learning rate of 1; no client trained model 1
    update = LowestLoss().server_aggregate(RoundReplies(OLD, UNIFORM, SIZES, ALL_CLIENTS))
    assert update.params["w"].flatten().tolist() == [2, 0, 8]
    assert update.reached.tolist() == [True, False, True]
    assert update.body == update.overall == {}
    applied = move_models(ServerSGD(0.25), ServerState.fresh(OLD, len(SIZES)), update)
    assert applied.clusters.params["w"].flatten().tolist() == [10.5, 20, 32]
