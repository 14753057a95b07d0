"""Shards in parallel threads: equal results up to rounding, reproducible to the last bit, no duplicate models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import Broadcast, Reply
from coterie.core.task import Task
from coterie.engines import simulated
from coterie.engines.in_shards import InShards
from coterie.engines.simulated import Simulated
from coterie.learners import make_learner
from coterie.learners.local_training import FullBatch
from coterie.testing.checks import CHECKS, Case
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.composition import Tiers
from tests.core.make import make_shard, regression_data

LINEAR = make_learner("linear", Profile((3,), None))
TASK = Tiers(assignment=LowestLoss(), K=2, local=FullBatch(steps=2)).task(0, 1)


@pytest.fixture
def two_threads(monkeypatch):
    """Use two threads for any amount of work."""
    monkeypatch.setattr(simulated, "PART_BYTES", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Watched(ClientGroup):
    """Record the number of clients, models and threads of every shard."""

    seen: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, positions: np.ndarray, remember: bool = True) -> ClientGroup:
        return Watched(self.learner, self.train.take(positions), None, seen=self.seen)

    def carries_out(self, task: Task) -> Task:
        return WatchedTask(task)


@dataclass(frozen=True)
class WatchedTask(Task):
    task: Task

    def run(self, clients: Watched, broadcast: Broadcast) -> Reply:
        held = broadcast.clusters.params["weight"].shape[0]
        clients.seen.append((len(clients.train), held, torch.get_num_threads()))
        return self.task.run(clients, broadcast)


def watched(clients: int) -> Simulated:
    return Simulated(Watched(LINEAR, make_shard(regression_data([4] * clients, 3)), None))


def own_models(clients: int) -> Broadcast:
    """Return one model for each client, as in the method `local`."""
    clusters = Clusters(LINEAR.start(range(clients), torch.float64), clients)
    return Broadcast(0, clusters, torch.arange(clients)[:, None], {"lr": 0.1})


def test_a_part_contains_only_the_models_of_its_clients(two_threads):
    federation = watched(7)
    reply = federation.ask(TASK, own_models(7), np.arange(7)).reply
    assert sorted(federation.group.seen) == [(3, 3, 1), (4, 4, 1)]
    assert reply.slotted["clusters"].slots.tolist() == list(range(7))
    assert reply.clients == federation.clients


def test_one_client_is_served_by_one_thread(two_threads):
    federation = watched(5)
    sent = own_models(5)
    reply = federation.ask(TASK, Broadcast(0, sent.clusters, sent.only[3:4], sent.scalars), np.array([3])).reply
    assert federation.group.seen == [(1, 1, 1)]
    assert reply.clients == ("c3",)


def test_a_small_amount_of_work_is_done_by_one_thread(two_threads, monkeypatch):
    monkeypatch.setattr(simulated, "PART_BYTES", 1 << 20)
    federation = watched(6)
    federation.ask(TASK, own_models(6), np.arange(6))
    assert federation.group.seen == [(6, 6, 1)]


@pytest.mark.parametrize(
    ("spec", "features", "products"),
    [
        ("mlp:hidden=5-4", (3,), 3 * 5 + 5 * 4 + 4 * 2),
        # 16 pixels, 2 channels and 9 weights; 4 pixels, 4 channels and 18 weights; 4-6-2
        ("cnn:channels=2,hidden=6", (4, 4), 16 * 2 * 9 + 4 * 4 * 18 + 4 * 6 + 6 * 2),
        ("cnn:channels=2,hidden=6,kernel=2", (4, 4), 4 * 4 * 2 + 1 * 8 * 4 + 4 * 6 + 6 * 2),
    ],
)
def test_networks_use_threads_according_to_their_multiplications(spec, features, products, two_threads, monkeypatch):
    monkeypatch.setattr(simulated, "PART_BYTES", 1 << 30)
    learner = make_learner(spec, Profile(features, 2))
    assert learner.products == products
    shard = make_shard([(torch.zeros((5, *features)).numpy(), torch.zeros(5).numpy().astype(int))] * 4)
    federation = Simulated(ClientGroup(learner, shard, None))
    for part, count in ((10 * products, 2), (10 * products + 1, 1)):
        monkeypatch.setattr(simulated, "PART_PRODUCTS", part)
        assert federation._shard_count(np.arange(4), 2) == count


@pytest.mark.parametrize("check", ["seed", "client_order", "engines", "silent_client", "resume"])
@pytest.mark.parametrize(("method", "learner"), [("ifca", "mlp"), ("local", "linear")])
def test_methods_pass_their_checks_in_two_threads(method, learner, check, two_threads):
    CHECKS[check](Case(method, learner, {}))


def test_two_threads_equal_one_to_rounding(two_threads):
    case = Case("ifca", "mlp", {"restarts": 2, "race": 0})
    side_by_side, in_turn = case.run(), case.run(federation=partial(InShards, shards=1))
    for one, other in zip(side_by_side.models, in_turn.models, strict=True):
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-10, atol=1e-12)


def test_records_say_how_the_work_was_done(two_threads):
    assert {record["path"] for record in Case("fedavg", "logistic").run().records} == {"by-hand"}
    ragged = Case("ifca", "mlp", {"local_steps": 5}).run()  # n = 1 to 30: the Gram form pays for the small ones only
    assert {record["path"] for record in ragged.records} == {"by-hand+gram"}
