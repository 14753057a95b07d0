"""Attacks by simulated clients: choice of attackers, false changes, and no effect on other clients."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import coterie
from coterie.core.keys import hash_ids
from coterie.core.messages import Broadcast
from coterie.engines.attacks import LabelFlip, Noise, Scale, SignFlip, attackers_of, with_false_labels
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError
from coterie.testing.checks import Case, small_federation
from coterie.training.fitting import initialize
from coterie.training.planning import prepare
from coterie.training.result import Result

SMALL = {"clusters": 2, "rounds": 3, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3}


def plan_of(poison, **options):
    return prepare(small_federation("linear"), "ifca", "linear", SMALL | {"poison": poison} | options)


def names(plan):
    return {client for client, attacking in zip(plan.data.clients, plan.attacking.tolist(), strict=True) if attacking}


def test_attackers_depend_on_ids_and_the_seed_only():
    ids = [f"c{i}" for i in range(50)]
    drawn = attackers_of(SignFlip(0.3), 7, hash_ids(ids))
    assert drawn.sum() == 15
    backwards = attackers_of(Scale(0.3), 7, hash_ids(ids[::-1]))
    assert np.array_equal(drawn, backwards[::-1])
    assert not np.array_equal(drawn, attackers_of(SignFlip(0.3), 8, hash_ids(ids)))


def test_false_changes_by_hand():
    change = torch.tensor([3.0, -4.0], dtype=torch.float64)
    assert SignFlip(strength=2).falsify(change, 1).tolist() == [-6.0, 8.0]
    assert Scale(strength=3).falsify(change, 1).tolist() == [9.0, -12.0]
    noise = Noise(strength=10).falsify(change, 1)
    assert float(noise.norm()) == pytest.approx(50)  # ten times the length 5
    assert torch.equal(noise, Noise(strength=10).falsify(change, 1))
    assert not torch.equal(noise, Noise(strength=10).falsify(change, 2))


def test_false_labels_are_in_the_training_samples_of_attackers_only():
    for kind, flipped in (("mlp", lambda y: 2 - y), ("linear", lambda y: -y)):
        data = small_federation(kind)
        lying = attackers_of(LabelFlip(0.3), 3, data.train.hashes)
        false = with_false_labels(data, lying)
        assert torch.equal(false.test.y, data.test.y)
        for i, attacking in enumerate(lying):
            rows = slice(data.train.starts[i], data.train.stops[i])
            expected = flipped(data.train.y[rows]) if attacking else data.train.y[rows]
            assert torch.equal(false.train.y[rows], expected)


@pytest.mark.parametrize("each", [False, True])
def test_only_the_changes_of_attackers_are_false(each):
    """With 10 times the changes of attackers, the sum is the honest sum plus 9 times their changes."""
    options = {"combine": "median"} if each else {}
    honest, poisoned = plan_of(None, **options), plan_of("scale:share=0.4,strength=10", **options)
    all_clients, state = np.arange(9), initialize(honest).state
    broadcast = Broadcast(0, state.clusters, scalars={"lr": 0.05})
    task = honest.tiers.task(3, honest.rounds)
    true, false = (plan.federation.ask(task, broadcast, all_clients).reply for plan in (honest, poisoned))
    alone = poisoned.federation.group.take(np.flatnonzero(poisoned.attacking.numpy()))
    lied = Simulated(replace(honest.federation.group, train=alone.train, test=None, memory=None)).ask(
        task, broadcast.to(np.arange(len(alone.train))), np.arange(len(alone.train))
    )
    assert len(lied.reply.clients) == 4
    if each:
        for client, reported in zip(false.clients, false.rows["change"], strict=True):
            factor = 10 if client in lied.reply.clients else 1
            assert torch.allclose(reported, factor * true.rows["change"][true.clients.index(client)], rtol=1e-12)
    else:
        found, expected = (_dense(reply) for reply in (false, true))
        assert torch.allclose(found, expected + 9 * _dense(lied.reply), rtol=1e-9, atol=1e-12)
    assert torch.allclose(false.sums["loss"], true.sums["loss"], rtol=1e-12)
    where = [false.clients.index(client) for client in true.clients]
    assert torch.equal(false.rows["cluster"][where], true.rows["cluster"])


def _dense(reply):
    part = reply.slotted["clusters"]
    return torch.zeros(2, 16, dtype=torch.float64).index_add_(0, part.slots, part.arrays["change/weight"])


@pytest.mark.parametrize("combine", ["mean", "trimmed:share=0.3"])
def test_shards_engines_and_order_do_not_matter(combine):
    case = Case("ifca", "linear", {"poison": "noise:share=0.3,strength=2", "combine": combine, "restarts": 2})
    plain = case.run()
    others = [
        case.run(federation=partial(InShards, shards=3)),
        case.run(federation=Sequential),
        case.run(case.plan(case.data(order=[4, 0, 8, 2, 6, 1, 7, 3, 5]))),
    ]
    for other in others:
        for one, two in zip(plain.models, other.models, strict=True):
            assert np.abs(one["weight"] - two["weight"]).max() < 1e-9
        assert _attackers(other) == _attackers(plain)
    assert others[1].metrics["bytes_up"] == plain.metrics["bytes_up"]


def _attackers(result: Result) -> set[str]:
    return {row["id"] for row in result.clients if row.get("attacker")}


def test_scores_and_agreement_are_those_of_honest_clients(tmp_path):
    plan = plan_of("sign-flip:share=0.3")
    result = coterie.fit(
        plan.data, "ifca", learner="linear", poison="sign-flip:share=0.3", out=tmp_path / "run", **SMALL
    )
    assert _attackers(result) == names(plan)
    assert result.metrics["attackers"] == 3
    scores = [row["score"] for row in result.clients]
    assert [score is None for score in scores] == plan.attacking.tolist()
    known = [score for score in scores if score is not None]
    assert result.metrics["rmse"] == pytest.approx(np.mean(known))
    truth = plan.data.truth[~plan.attacking.numpy()]
    found = [row["cluster"] for row in result.clients if not row.get("attacker")]
    assert result.metrics["ari"] == pytest.approx(adjusted_rand_score(truth, found))
    assert coterie.resume(tmp_path / "run", plan.data).config["poison"] == "sign-flip:share=0.3"


REFUSED = [
    ("ifca", "sign-flop", "did you mean 'sign-flip'"),
    ("ifca", "noise:share=1", "above 0 and below 1"),
    ("ifca", "noise:strength=0", "strength must be above 0"),
    ("ifca", "noise:share=0.01", "means 0 attackers"),
    ("fedsoft", "scale:share=0.3", "use poison=label-flip"),
    ("odcl", "label-flip", "has no meaning for method odcl"),
]


@pytest.mark.parametrize(("method", "poison", "sentence"), REFUSED)
def test_refusals_say_what_to_do(method, poison, sentence):
    with pytest.raises(ConfigError, match=sentence):
        coterie.fit(small_federation("linear"), method, learner="linear", poison=poison)
