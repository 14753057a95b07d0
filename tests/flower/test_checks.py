"""Checks of answers: mass, losses and norms of changes, compared with the request and with other nodes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, Slots, Spec
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.flower.checks import CheckHistory, SentRequest, check_answers
from coterie.flower.wire import Answer, answer_content
from coterie.testing.checks import Case
from coterie.training.fitting import initialize
from tests.flower.make import at_node, edited, federation_of, with_change

MODELS = {"w": torch.zeros(2, 3, dtype=torch.float64)}
FORM = Expected(
    {"samples": Spec((), low=0, whole=True, total="samples")},
    {"clusters": Slots(2, {"change/w": Spec((3,)), "mass": Spec((), low=0, total="mass")})},
    {"cluster": Spec((1,), torch.int64, 0, 1)},
)
SIZES = {"a": 3, "b": 5}


def asked_of(models=MODELS, uniform=False, **options):
    clusters = replace(initialize(PLAN).state.clusters, params=models)
    return SentRequest("local-round", clusters, SIZES, replace(FORM, uniform=uniform), trains=True, **options)


def reply_of(length: float, mass: float = 1.0) -> Answer:
    """Return an answer with both clients in cluster 0 and a mean change of this norm."""
    change = torch.tensor([[length * mass, 0.0, 0.0]], dtype=torch.float64)
    sums = Slotted(torch.tensor([0]), {"change/w": change, "mass": torch.tensor([mass]).double()}, torch.tensor([2]))
    rows = {"cluster": torch.zeros(2, 1, dtype=torch.int64)}
    return Answer(Reply(("a", "b"), {"samples": torch.tensor(8.0).double()}, {"clusters": sums}, rows))


PLAN = Case("ifca", "linear", {"init": "random"}).plan()


def refused(answers, history=None, **options) -> dict[int, str]:
    contents = {node: answer_content("local-round", answer) for node, answer in enumerate(answers)}
    asked = asked_of(**options)
    return check_answers(contents, dict.fromkeys(contents, asked), history)[1]


@pytest.mark.parametrize(
    ("uniform", "mass", "why"),
    [
        (True, 2.0, ""),
        (True, 2.1, "reports 2.1 clients in 'clusters', but there are 2"),
        (True, 8.0, "reports 8 clients in 'clusters', but there are 2"),
        (False, 8.0, ""),
        (False, 8.1, "reports 8.1 samples in 'clusters', but there are 8"),
        (True, -1.0, "has -1 in 'clusters/mass', but values must be from 0 to inf"),
    ],
)
def test_the_mass_of_a_client_is_at_most_one_or_its_samples(uniform, mass, why):
    assert refused([reply_of(1.0, mass)], uniform=uniform).get(0, "") == why


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_a_node_cannot_increase_its_weight_in_the_mean(weight):
    plan = Case("ifca", "linear", {"init": "random", "client_weight": weight}).plan()
    for factor, accepted in ((1.0, 9), (1.01, 7)):
        fault = edited(with_change(lambda mass, factor=factor: mass * factor, "mass"))
        federation = federation_of(plan, deliver=at_node(5, fault))
        broadcast = Broadcast(0, initialize(plan).state.clusters, scalars={"lr": 0.05})
        assert len(federation.ask(plan.tiers.task(3, 1), broadcast, np.arange(9)).reply.clients) == accepted


@pytest.mark.parametrize(
    ("only", "why"),
    [
        ([[0], [0]], ""),
        ([[ALL], [0]], ""),
        ([[1], [0]], "has clients in other clusters than they were assigned to"),
        ([[1], [ALL]], "has clients in other clusters than they were assigned to"),
    ],
)
def test_clients_must_stay_in_the_cluster_that_the_server_assigned(only, why):
    assert refused([reply_of(1.0)], uniform=True, only=torch.tensor(only)).get(0, "") == why


def test_clients_may_change_only_models_that_they_were_sent():
    answer = reply_of(1.0)
    sums = replace(answer.reply.slotted["clusters"], slots=torch.tensor([1]))
    other = replace(answer, reply=replace(answer.reply, slotted={"clusters": sums}))
    why = "has changes of models that none of its clients was sent"
    assert refused([other], uniform=True, only=torch.tensor([[0], [0]])) == {0: why}
    assert refused([other], uniform=True, only=torch.tensor([[ALL], [0]])) == {}


# ---- norms compared with those of other nodes ---------------------------------------------------------------------


def test_a_change_that_is_many_times_larger_than_usual_is_refused():
    lengths = [1.0, 2.0, 3.0, 4001.0]  # the median is 2.5
    assert refused([reply_of(n) for n in lengths], change_factor=1000.0) == {
        3: "changes a model by 4e+03, which is more than 1000 times what is usual (2.5)"
    }
    assert refused([reply_of(n) for n in lengths], change_factor=2000.0) == {}
    assert refused([reply_of(n) for n in lengths]) == {}
    assert (
        refused([reply_of(n) for n in (1.0, 1e9)], change_factor=1000.0) == {}
    )  # with two nodes it is unknown which one is wrong


def test_changes_are_compared_with_earlier_exchanges_once_most_clients_have_converged():
    history = CheckHistory()
    assert refused([reply_of(n) for n in (1.0, 2.0, 3.0)], history, change_factor=100.0) == {}
    assert history.longest == 2.0
    assert refused([reply_of(n) for n in (1e-12, 1e-12, 5.0)], history, change_factor=100.0) == {}
    assert list(refused([reply_of(n) for n in (1e-12, 1e-12, 201.0)], history, change_factor=100.0)) == [2]
    # without a history, as after a resume, a change as long as a model is not unusual
    models = {"w": torch.full((2, 3), 10.0, dtype=torch.float64)}  # norm sqrt(300) = 17.3
    assert refused([reply_of(n) for n in (0.0, 0.0, 17.0)], models=models, change_factor=100.0) == {}
    assert list(refused([reply_of(n) for n in (0.0, 0.0, 18.0)], models=models, change_factor=100.0)) == [2]
    assert refused([reply_of(n) for n in (0.0, 0.0, 18.0)], change_factor=100.0) == {}  # nothing to compare with


def test_a_node_that_does_not_clip_is_refused():
    pytest.importorskip("dp_accounting")
    options = {"privacy": "central", "privacy_noise": 1.0, "privacy_clip": 0.5, "init": "random", "rounds": 1}
    plan = Case("ifca", "linear", options).plan()
    federation = federation_of(plan, deliver=at_node(5, edited(with_change(lambda change: change * 1e3))))
    broadcast = Broadcast(0, initialize(plan).state.clusters, scalars={"lr": 0.05})
    replies = federation.ask(plan.tiers.task(3, 1), broadcast, np.arange(9))
    assert len(replies.reply.clients) == 7
    assert "but at most 0.5005 is allowed" in replies.notes[0].reason


# ---- values that are not finite -----------------------------------------------------------------------------------


def scored(*values):
    answers = [Answer(Reply(("a", "b"), rows={"losses": torch.tensor(v, dtype=torch.float64)})) for v in values]
    asked = asked_of()
    form = Expected(rows={"losses": Spec((2,), low=0, missing="shared")})
    asked = replace(asked, task="score", expected=form, trains=False)
    contents = {node: answer_content("score", answer) for node, answer in enumerate(answers)}
    return list(check_answers(contents, dict.fromkeys(contents, asked))[1])


INF, NAN = torch.inf, torch.nan


def test_a_score_may_be_infinite_only_where_most_scores_are():
    assert scored([[1, 2], [1, 2]], [[1, INF], [1, 2]], [[3, 4], [5, 6]]) == [1]
    assert scored([[1, 2], [1, 2]], [[1, 1e101], [1, 2]], [[3, 4], [5, 6]]) == [1]
    assert scored([[1, 2], [1, 2]], [[NAN, NAN], [1, 2]]) == [1]
    assert scored([[1, INF], [1, INF]], [[1, INF], [1, INF]], [[3, INF], [5, 6]]) == []  # that model has diverged
    assert scored([[1, INF], [1, INF]], [[INF, INF], [1, INF]], [[3, INF], [5, 6]]) == [1]
    assert scored([[INF, NAN], [1, 1]]) == []  # a single node cannot be compared


@register("answer-42")
@dataclass(frozen=True)
class Answer42(Task):
    """A user-defined task that declares no form of its reply."""

    value: float

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        return Reply(clients.train.ids, rows={"answer": torch.full((len(clients.train), 1), self.value)})


def test_every_task_but_those_of_a_user_declares_the_form_of_its_reply():
    shipped = {name: task for name, task in Task.members.items() if task.__module__.startswith("coterie.client.")}
    declaring = {name for name, task in shipped.items() if task.expected_reply is not Task.expected_reply}
    assert {"local-round", "score", "evaluate", "summary"} <= declaring
    assert declaring == set(shipped)


@pytest.mark.parametrize(("value", "answered"), [(42.0, 9), (float("nan"), 0)])
def test_a_task_of_a_user_is_checked_for_finite_values_only(value, answered):
    broadcast = Broadcast(0, initialize(PLAN).state.clusters)
    replies = federation_of(PLAN).ask(Answer42(value), broadcast, np.arange(9))
    assert len(replies.reply.clients) == answered
    assert all("not finite" in note.reason for note in replies.notes)
    if answered:
        assert replies.reply.rows["answer"].flatten().tolist() == [42] * 9
        for engine in (Simulated, Sequential):
            same = engine(PLAN.federation.group).ask(Answer42(value), broadcast, np.arange(9)).reply
            assert torch.equal(same.rows["answer"], replies.reply.rows["answer"])
