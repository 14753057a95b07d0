"""A local round in one pass gives the same reply as block by block, and is used only where it does the same."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from coterie.client import one_pass
from coterie.client.group import ClientGroup
from coterie.client.kept import KEPT_WEIGHTS
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import ALL, Broadcast
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.learners import make_learner
from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.privacy.mechanism import Privacy
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned, EMMixture, LowestLoss, SingleCluster, SoftmaxLoss
from coterie.tiers.composition import Tiers
from coterie.tiers.objective import Ratio
from tests.core.make import make_shard, regression_data

SIZES = [4, 7, 4, 2, 9, 4]
LINEAR = make_learner("linear", Profile((3,), None))
SLOTS = torch.tensor([[0], [1], [1], [0], [1], [1]])
SOME = torch.where(torch.tensor([True, False, True, True, False, False])[:, None], SLOTS, ALL)
EVERYONE = np.arange(len(SIZES))


def federation(compiles, data=None, engine=Simulated):
    shard = make_shard(regression_data(SIZES, 3) if data is None else data)
    return engine(ClientGroup(LINEAR, shard, compiles=compiles))


def ask(task, compiles, *, K=2, restarts=1, only=None, asked=EVERYONE, data=None, engine=Simulated):
    clusters = Clusters(LINEAR.start(range(K * restarts), torch.float64), K, restarts)
    broadcast = Broadcast(0, clusters, None if only is None else only[asked], {"lr": 0.1})
    return federation(compiles, data, engine).ask(task, broadcast, asked).reply


def task_of(assignment=None, local=None, K=2, **fields):
    tiers = Tiers(assignment=assignment or LowestLoss(), K=K, local=local or FullBatch(steps=2), **fields)
    return tiers.task(0, 1)


def check_same(one, other):
    assert one.clients == other.clients
    assert one.rejected == other.rejected
    assert one.nbytes == other.nbytes
    for name in other.sums:
        torch.testing.assert_close(one.sums[name], other.sums[name], rtol=1e-12, atol=0)
    assert one.rows["cluster"].equal(other.rows["cluster"])
    found, expected = one.slotted["clusters"], other.slotted["clusters"]
    assert found.slots.equal(expected.slots)
    assert found.counts.equal(expected.counts)
    for name in expected.arrays:
        torch.testing.assert_close(found.arrays[name], expected.arrays[name], rtol=1e-12, atol=1e-12)


CASES = {
    "chosen": (task_of(), {}),
    "restarts": (task_of(), {"restarts": 3}),
    "by samples": (task_of(averaging=Averaging(client_weight="samples")), {}),
    "single cluster": (task_of(SingleCluster(), K=1), {"K": 1}),
    "some clients": (task_of(), {"asked": np.array([1, 4, 5])}),
    "assigned": (task_of(Assigned()), {"only": SLOTS}),
    "assigned, one model": (task_of(Assigned()), {"only": SLOTS, "asked": np.array([1, 4])}),
    "some stable": (task_of(), {"only": SOME}),
}


@pytest.mark.parametrize("engine", [Simulated, Sequential])
@pytest.mark.parametrize("name", CASES)
def test_a_round_in_one_pass_gives_the_same_reply(name, engine):
    task, given = CASES[name]
    found, expected = ask(task, True, engine=engine, **given), ask(task, False, **given)
    assert found.paths == (one_pass.PATH,)
    assert one_pass.PATH not in expected.paths
    check_same(found, expected)


MIXTURES = {
    "1 step": {},
    "4 steps": {"local": FullBatch(steps=4)},
    "proximal": {"local": FullBatch(steps=3, prox=0.3)},
    "by samples": {"averaging": Averaging(client_weight="samples", over="responsibility")},
    "by responsibility": {"averaging": Averaging(over="responsibility")},
}


@pytest.mark.parametrize("usual", [torch.inf, 0.7], ids=["first", "later"])
@pytest.mark.parametrize("spec", ["linear", "linear:bias=true,half=false"])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_round_of_mixtures_in_one_pass_gives_the_same_reply_and_the_same_state(name, spec, usual):
    learner = make_learner(spec, Profile((3,), None))
    shard = make_shard(regression_data(SIZES, 3))
    task = task_of(**{"assignment": EMMixture(), "local": FullBatch(steps=1), **MIXTURES[name]})
    clusters = Clusters(learner.start(range(4), torch.float64), 2, restarts=2)
    replies, kept = [], []
    for compiles in (True, False):
        states = ClientStates.of(len(SIZES))
        random = torch.Generator().manual_seed(1)
        before = torch.rand(len(SIZES), 2, 2, generator=random, dtype=torch.float64).softmax(dim=2)
        states.write(EVERYONE, 0, {KEPT_WEIGHTS: before})
        accepted = torch.tensor([0, -1, 0, 0, 0, -1])  # two newcomers
        common = {"loss": torch.tensor([usual, 0.5], dtype=torch.float64)}
        broadcast = Broadcast(1, clusters, scalars={"lr": 0.1}, each={"accepted": accepted}, common=common)
        engine = Simulated(ClientGroup(learner, shard, compiles=compiles, states=states))
        replies.append(engine.ask(task, broadcast, EVERYONE).reply)
        kept.append(states.store.arrays[KEPT_WEIGHTS])
    found, expected = replies
    assert found.paths == (one_pass.PATH,)
    assert one_pass.PATH not in expected.paths
    check_same(found, expected)
    torch.testing.assert_close(*kept, rtol=1e-12, atol=1e-14)


def test_a_mixture_without_finite_losses_is_computed_block_by_block():
    data = regression_data(SIZES, 3)
    data[2] = (data[2][0] * 1e200, data[2][1])
    task, group = task_of(EMMixture()), federation(True, data).group
    clusters = Clusters(LINEAR.start(range(2), torch.float64), 2)
    each, common = {"accepted": torch.full((len(SIZES),), -1)}, {"loss": torch.tensor([1.0], dtype=torch.float64)}
    sent = Broadcast(0, clusters, scalars={"lr": 0.1}, each=each, common=common)
    alone = replace(group, states=ClientStates.of(len(SIZES)))
    reply = Simulated(alone).ask(task, sent, EVERYONE).reply
    assert one_pass.PATH not in reply.paths
    assert reply.rejected == ("c2",)


def test_a_client_whose_change_overflows_is_left_out():
    data = regression_data(SIZES, 3)
    data[2] = (data[2][0] * 1e200, data[2][1])
    found, expected = ask(task_of(), True, data=data), ask(task_of(), False, data=data)
    assert found.rejected == ("c2",)
    check_same(found, expected)


@dataclass(frozen=True)
class Contrary(LowestLoss):
    """Choose the worst cluster."""

    def client_choose(self, scores):
        return scores.argmin(dim=2)


OTHERWISE = {
    "soft": task_of(SoftmaxLoss(temperature=1.0)),
    "weights of samples": task_of(EMMixture(mu=0.4)),
    "own rule": task_of(Contrary()),
    "mini-batches": task_of(local=MiniBatch(batch_size=2)),
    "rows": replace(task_of(), send_each=True),
    "resampled": replace(task_of(), resample=1),
    "private": replace(task_of(), privacy=Privacy("central", clip=1.0, noise=1.0)),
    "objective": replace(task_of(), objective=Ratio()),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_rounds_are_computed_block_by_block(name):
    clusters = Clusters(LINEAR.start(range(2), torch.float64), 2)
    group = federation(True).group
    task = OTHERWISE[name]
    assert not one_pass.runs_in_one_pass(task, task.assignment, group, Broadcast(0, clusters))
    assert one_pass.runs_in_one_pass(task_of(), LowestLoss(), group, Broadcast(0, clusters))


def test_without_the_compiler_rounds_are_computed_block_by_block(monkeypatch):
    monkeypatch.setattr("coterie.learners.one_pass.find_spec", lambda name: None)
    from coterie.learners import one_pass as learners

    learners._has_compiler.cache_clear()
    try:
        assert ask(task_of(), True).paths == ask(task_of(), False).paths
    finally:
        learners._has_compiler.cache_clear()
