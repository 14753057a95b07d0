"""Faulty answers are dropped or refused with a reason, and the round continues with the other nodes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import time

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict

from coterie.client.tasks import Evaluate
from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters
from coterie.core.federation import Federation, Replies
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.shard import Positions
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError, InputError, TrainingError
from coterie.flower.admission import Admission
from coterie.flower.checks import longest_change
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.engine import FlowerFederation
from coterie.flower.exchange import Exchange
from coterie.flower.in_process import InProcessGrid, at_once
from coterie.flower.node import make_client_app
from coterie.flower.schema import RequiredSchema
from coterie.flower.wire import read_request, task_of
from coterie.testing.checks import Case
from coterie.training.fitting import initialize
from tests.flower.make import (
    NODES,
    Clock,
    app_of,
    at_node,
    edited,
    federation_of,
    grid_of,
    part_of,
    terms_of,
    with_change,
)

CASE = Case("ifca", "linear", {"init": "random"})
PLAN = CASE.plan()
CLIENTS = PLAN.data.clients
OF_5 = ("site-1", "site-2")
ALL_CLIENTS = np.arange(len(CLIENTS))
MASS = torch.tensor([1.0, 4.0], dtype=torch.float64)
SOFT_CASE = Case("fedem", "linear", {"evaluate_every": 9})
SOFT = SOFT_CASE.plan()


def ask(federation: Federation, asked: Positions = ALL_CLIENTS) -> Replies:
    """Return the replies to the first round."""
    broadcast = Broadcast(0, initialize(PLAN).state.clusters, scalars={"lr": 0.05})
    return federation.ask(PLAN.tiers.task(3, 1), broadcast, asked)


def expected(without: Sequence[str]) -> Reply:
    """Return the reply of a simulation in which these clients never answer."""
    return ask(Simulated(PLAN.federation.group, missing={0: without})).reply


def assert_same(reply: Reply, other: Reply) -> None:
    assert reply.clients == other.clients
    torch.testing.assert_close(reply.sums, other.sums, rtol=1e-9, atol=0)
    torch.testing.assert_close(reply.rows, other.rows, rtol=0, atol=0)
    ours, theirs = reply.slotted["clusters"], other.slotted["clusters"]
    assert ours.slots.tolist() == theirs.slots.tolist()
    assert ours.counts.tolist() == theirs.counts.tolist()
    torch.testing.assert_close(ours.arrays, theirs.arrays, rtol=1e-9, atol=1e-12)


def reasons(replies: Replies) -> str:
    return " | ".join(note.reason for note in replies.notes)


def test_without_faults_the_reply_equals_the_simulation():
    replies = ask(federation_of(PLAN))
    assert_same(replies.reply, expected(()))
    assert replies.notes == ()


# ---- missing, late and duplicate answers --------------------------------------------------------------------------


def dropped(message, answer):
    return []


def late(message, answer):
    return [(12.0, answer)]


def failed(message, answer):
    return [(0.0, Message(Error(8, "Traceback\n  at line 3\nBoomError: no memory"), reply_to=message))]


def over(message, answer):
    """By the clock of a SuperLink a message may expire a little earlier."""
    return [(0.0, Message(Error(3, "Message Unavailable"), reply_to=message))]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (dropped, "node 5 has not answered within 10 s"),
        (late, "node 5 has not answered within 10 s"),
        (failed, "node 5 answered with error 8: BoomError: no memory"),
        (over, "node 5 has not answered within 10 s"),
    ],
)
def test_clients_without_an_answer_are_missing(fault, reason):
    replies = ask(federation_of(PLAN, deliver=at_node(5, fault)))
    assert_same(replies.reply, expected(OF_5))
    assert replies.reply.rejected == ()
    assert reasons(replies) == reason
    assert replies.notes[0].plain() == {"node": "5", "clients": list(OF_5), "reason": reason}


def test_a_duplicate_answer_counts_once():
    federation = federation_of(PLAN, deliver=at_node(5, lambda message, answer: [(0.0, answer), (0.0, answer)]))
    replies = ask(federation)
    assert_same(replies.reply, expected(()))
    assert reasons(replies) == "node 5 answered twice or without a request: dropped"


def test_a_late_node_is_not_asked_until_it_answers_a_probe():
    asked: list[tuple[str, float]] = []
    delays = iter([25.0, 4.0])  # the work, and then the first probe

    def slow(message, answer):
        if message.metadata.dst_node_id != 5:
            return at_once(message, answer)
        asked.append((task_of(message.content), message.metadata.ttl))
        return [(next(delays, 0.0), answer)]

    federation = federation_of(PLAN)
    grid_of(federation).deliver = slow
    clock, sleep = federation.exchange.clock, federation.exchange.sleep
    assert ask(federation).reply.clients == expected(OF_5).clients
    assert clock() == 10
    busy = "node 5 is still busy with an earlier exchange and was not asked"
    second = ask(federation)
    assert reasons(second) == busy
    assert_same(second.reply, expected(OF_5))
    only = ask(federation_of(PLAN, nodes={11: NODES[11], 7: NODES[7]}, expected=OF_5))
    assert second.bytes_down == only.bytes_down  # nothing was sent to it
    assert clock() == 10  # the exchange did not wait for it
    sleep(2.0)
    assert reasons(ask(federation)) == busy  # the message has expired: the node is sent a probe
    sleep(2.0)
    assert reasons(ask(federation)) == busy
    sleep(3.0)
    assert_same(ask(federation).reply, expected(()))
    assert asked == [("local-round", 10), ("list-clients", 20), ("local-round", 10)]


def test_a_node_that_answers_a_probe_late_takes_part_again():
    delays = iter([25.0, 12.0])  # the work; the probe waits until the node has finished it

    def slow(message, answer):
        return [(next(delays, 0.0) if message.metadata.dst_node_id == 5 else 0.0, answer)]

    federation = federation_of(PLAN)
    grid_of(federation).deliver = slow
    assert ask(federation).reply.clients == expected(OF_5).clients
    for wait in (1.0, 13.0):  # the answer to the probe takes longer than a deadline
        federation.exchange.sleep(wait)
        replies = ask(federation)
    assert_same(replies.reply, expected(()))


def test_an_answer_between_two_exchanges_is_dropped():
    federation = federation_of(PLAN, deliver=at_node(5, lambda message, answer: [(9.8, answer)]))
    clock, sleep = federation.exchange.clock, federation.exchange.sleep
    grid_of(federation).clock = lambda: 0.97 * clock()  # the exchange ends shortly before the message expires
    assert ask(federation).reply.clients == expected(OF_5).clients
    sleep(0.2)
    grid_of(federation).deliver = at_once
    replies = ask(federation)
    assert reasons(replies) == "node 5 answered an earlier exchange after its deadline: dropped"
    assert_same(replies.reply, expected(()))


def test_if_all_nodes_are_busy_the_exchange_waits_for_one():
    delays = iter([12.0] * 3 + [3.0] * 3)
    federation = federation_of(PLAN)
    grid_of(federation).deliver = lambda message, answer: [(next(delays, 0.0), answer)]
    assert ask(federation).reply.clients == ()
    second = ask(federation)  # expired at 10 s, the probe is answered 3 s later, then the answers arrive
    assert_same(second.reply, expected(()))
    assert reasons(second) == ""
    assert 13 <= federation.exchange.clock() < 14


def test_a_disconnected_node_is_missing_and_may_reconnect():
    federation = federation_of(PLAN)
    app = grid_of(federation).apps.pop(5)
    replies = ask(federation)
    assert_same(replies.reply, expected(OF_5))
    assert reasons(replies) == "2 clients belong to node 5, which is not connected"
    grid_of(federation).apps[5] = app
    assert_same(ask(federation).reply, expected(()))


def test_the_order_of_arriving_answers_changes_nothing():
    one = ask(federation_of(PLAN)).reply
    slow = at_node(11, lambda message, answer: [(3.0, answer)])
    other = ask(federation_of(PLAN, deliver=slow)).reply
    assert torch.equal(
        one.slotted["clusters"].arrays["change/weight"], other.slotted["clusters"].arrays["change/weight"]
    )
    assert one.clients == other.clients == CLIENTS


# ---- wrong answers ------------------------------------------------------------------------------------------------


def with_slots(edit):
    return lambda reply: replace(
        reply, slotted={"clusters": replace(reply.slotted["clusters"], slots=edit(reply.slotted["clusters"].slots))}
    )


def with_row(name, edit):
    return lambda reply: replace(reply, rows={**reply.rows, name: edit(reply.rows["cluster"])})


def content(edit):
    """Change the records of an answer."""

    def deliver(message, answer):
        edit(answer.content)
        return [(0.0, answer)]

    return deliver


WRONG = {
    "NaN": (edited(with_change(lambda c: c * torch.nan)), "values in 'clusters/change/weight' that are not finite"),
    "shape": (edited(with_change(lambda c: c[:, :-1])), r"float64 \(15,\), but the run has float64 \(16,\)"),
    "dtype": (edited(with_change(lambda c: c.float())), r"float32 \(16,\), but the run has float64"),
    "no sums": (edited(lambda r: replace(r, sums={})), "lacks 'sums/loss'"),
    "more sums": (
        edited(lambda r: replace(r, sums={**r.sums, "more": torch.zeros(3)})),
        "has 'sums/more', which was not requested",
    ),
    "mass of another shape": (
        edited(with_change(lambda m: m[:, None], "mass")),
        r"has 'clusters/mass' as float64 \(1,\), but the run has float64 \(\)",
    ),
    "K": (edited(with_slots(lambda slots: slots + 2)), "has slot [23] of 'clusters', but there are 2"),
    "cluster": (
        edited(with_row("cluster", lambda c: c + 2)),
        "has [23] in 'rows/cluster', but values must be from 0 to 1",
    ),
    "rows": (edited(with_row("more", lambda c: c[:1])), r"has 'more' of shape \(1, 1\) for 2 clients"),
    "undeclared": (edited(with_row("more", lambda c: c.double())), "'rows/more', which was not requested"),
    "foreign": (edited(lambda r: replace(r, clients=("site-0", "site-2"))), "client 'site-0', which was not asked"),
    "twice": (edited(lambda r: replace(r, clients=("site-1", "site-1"))), "lists a client twice"),
    "norm": (edited(with_change(lambda c: c * 1e6)), "changes a model by .*e.*, but at most 100 is allowed"),
    "mass": (edited(with_change(lambda m: m * 1e3, "mass")), "reports .*000 clients in 'clusters', but there are 2"),
    "order": (edited(with_slots(lambda slots: slots.flip(0) if len(slots) > 1 else slots - 1)), "slot"),
    "no config": (content(lambda c: c.pop("config")), "sent an unexpected message: .*ConfigRecord named 'config'"),
    "no array": (content(lambda c: c["arrays"].pop("small")), "the header lists 6 arrays, but 0 were sent"),
    "empty": (content(RecordDict.clear), "this one has nothing"),
}


def test_a_message_that_flower_cannot_decode_does_not_affect_others(monkeypatch):
    federation = federation_of(PLAN)
    pull = InProcessGrid.pull_messages

    def fails(self, message_ids):
        """Fail for all messages that are pulled together, as Flower's grids do."""
        found = list(pull(self, message_ids))
        if any(message.metadata.src_node_id == 5 for message in found):
            raise MemoryError
        return found

    monkeypatch.setattr(InProcessGrid, "pull_messages", fails)
    monkeypatch.setattr(InProcessGrid, "_answer", from_its_node(InProcessGrid._answer))
    replies = ask(federation)
    assert_same(replies.reply, expected(OF_5))
    assert reasons(replies) == "node 5 sent a message that Flower cannot decode (MemoryError): refused"


def from_its_node(answer):
    def named(self, node, message):
        reply = answer(self, node, message)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    return named


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_refused_with_a_reason(name):
    fault, reason = WRONG[name]
    replies = ask(federation_of(PLAN, deliver=at_node(5, fault), most_change=100.0))
    assert_same(replies.reply, expected(OF_5))
    assert sorted(replies.reply.rejected) == list(OF_5)
    (note,) = replies.notes
    assert note.clients == OF_5
    assert note.reason.startswith("node 5 ")
    assert note.reason.endswith(": refused")
    assert re.search(reason, note.reason), note.reason


def test_the_norm_of_the_largest_change_by_hand():
    clusters = Clusters({"w": torch.tensor([[0.0, 0.0], [3.0, 4.0]]), "b": torch.zeros(2)}, K=2)
    sums = Slotted(
        torch.tensor([0, 1]),
        {"change/w": torch.tensor([[0.0, 4.0], [6.0, 0.0]]), "change/b": torch.tensor([3.0, 8.0]), "mass": MASS},
        torch.tensor([1, 2]),
    )
    # |(0, 4, 3)| / 1 = 5 and |(6, 0, 8)| / 4 = 2.5
    assert longest_change(Reply(("a",), slotted={"clusters": sums}), clusters) == pytest.approx(5)
    # a body is changed by all: |(18, 24)| / (1 + 4) = 6
    body = Slotted(torch.tensor([0]), {"change/deep": torch.tensor([[18.0, 24.0]])}, torch.tensor([3]))
    assert longest_change(Reply(("a",), slotted={"clusters": sums, "body": body}), clusters) == pytest.approx(6)
    assert longest_change(Reply(("a",), rows={"change": torch.tensor([[[5.0, 12.0]]])}), clusters) == pytest.approx(13)
    # models as vectors are b, w: (1, 3, 4) is 1 from the second cluster's
    own = torch.tensor([[[1.0, 3.0, 4.0]]])
    assert longest_change(Reply(("a",), rows={"model": own}), clusters) == pytest.approx(1)


def test_the_loss_of_an_evaluation_may_be_infinite():
    clusters = initialize(PLAN).state.clusters
    huge = replace(clusters, params={name: p + 1e200 for name, p in clusters.params.items()})
    task, broadcast = Evaluate(), Broadcast(0, huge, each={"own": torch.zeros(9, dtype=int)})
    replies = federation_of(PLAN).ask(task, broadcast, ALL_CLIENTS)
    assert replies.reply.clients == CLIENTS
    assert bool(replies.reply.rows["loss"].isinf().all())


# ---- too few answers ----------------------------------------------------------------------------------------------


def test_below_the_quorum_no_answer_is_used():
    silent = at_node(7, dropped)  # 4 of 9 clients
    assert ask(federation_of(PLAN, deliver=silent, quorum=0.5)).reply.clients == expected(part(7)).clients
    replies = ask(federation_of(PLAN, deliver=silent, quorum=0.6))
    assert replies.reply.clients == ()
    assert "5 of 9 clients answered, but the quorum is 0.6: the answers are not used" in reasons(replies)


def part(node: int) -> tuple[str, ...]:
    return tuple(CLIENTS[i] for i in NODES[node])


def in_round(round_: int, fault, *nodes: int):
    """Apply a fault to the local round of this number."""

    def deliver(message, answer):
        hit = task_of(message.content) == "local-round" and read_request(message.content).broadcast.round == round_
        return fault(message, answer) if hit and message.metadata.dst_node_id in nodes else at_once(message, answer)

    return deliver


@pytest.mark.parametrize("nodes", [(5,), (5, 7, 11)], ids=["one node", "all nodes"])
def test_a_run_with_faults_equals_a_simulation_with_the_same_missing_clients(nodes, tmp_path):
    gone = [client for node in nodes for client in part(node)]
    federation = federation_of(SOFT, tmp_path, in_round(1, dropped, *nodes))
    ended = SOFT_CASE.run(SOFT, lambda side: federation)
    log = {record["round"]: record["missing"] for record in ended.records}
    assert sorted(log[1]) == sorted(gone)
    twin = SOFT_CASE.run(SOFT, partial(Simulated, missing=log))
    for a, b in zip(ended.models, twin.models, strict=True):
        np.testing.assert_allclose(a["weight"], b["weight"], rtol=1e-9, atol=1e-12)
    assert [r["missing"] for r in ended.records] == [r["missing"] for r in twin.records]
    assert [r["answered"] for r in ended.records] == [r["answered"] for r in twin.records]
    assert [r["bytes_up"] for r in ended.records] == [r["bytes_up"] for r in twin.records]
    assert (ended.records[-1]["answered"] == 9) is (len(nodes) == 3)  # a missing node is not waited for


def test_the_error_of_a_first_round_without_answers_has_the_reason():
    federation = federation_of(PLAN, deliver=in_round(0, failed, *NODES))
    with pytest.raises(
        TrainingError, match=r"none of the 9 clients that were asked has replied \(node 5 answered with"
    ):
        CASE.run(PLAN, lambda side: federation)


# ---- the client registry ------------------------------------------------------------------------------------------


def grid_with(apps) -> tuple[Exchange, InProcessGrid]:
    clock = Clock()
    grid = InProcessGrid(apps, clock=clock)
    return Exchange(grid, deadline=10, poll=0.25, clock=clock, sleep=clock.sleep), grid


def test_a_client_keeps_the_node_that_registered_it_first():
    exchange, _ = grid_with({5: app_of(PLAN, (0, 1)), 7: app_of(PLAN, (1, 2))})
    registry = ClientRegistry()
    (note,) = registry.collect(exchange, wait=1)
    assert note.reason == (
        "node 7 registers client 'site-1', which belongs to node 5: a client cannot change its node: refused"
    )
    assert registry.clients == ("site-0", "site-1")
    assert registry.bound == {"site-0": 5, "site-1": 5}
    again = ClientRegistry(bound={"site-1": 7})
    again.collect(exchange, wait=1)
    assert again.node_of("site-1") == 7
    assert again.node_of("site-0") is None


def test_the_registry_has_sizes_tests_and_shapes():
    exchange, _ = grid_with({5: app_of(PLAN, (2, 0))})
    registry = ClientRegistry(expected=["site-1"])
    registry.collect(exchange, wait=1)
    assert registry.clients == ("site-0", "site-1", "site-2")
    assert registry.sizes.tolist() == [1, 0, 5]
    assert (registry.tests > 0).tolist() == [True, False, True]
    assert registry.profile == PLAN.data.profile


def test_a_node_with_expected_clients_may_join_late():
    federation = federation_of(PLAN, nodes={11: NODES[11], 7: NODES[7]}, expected=OF_5)
    early = ask(federation)
    assert_same(early.reply, expected(OF_5))
    assert reasons(early) == "2 clients have not joined yet"
    assert federation.sizes.tolist() == [1, 0, 0, 8, 13, 21, 9, 30, 4]
    grid_of(federation).apps[5] = app_of(PLAN, NODES[5])
    assert_same(ask(federation).reply, expected(()))
    assert federation.sizes.tolist() == PLAN.federation.sizes.tolist()


def test_a_silent_new_node_delays_only_one_exchange():
    federation = federation_of(PLAN, nodes={11: NODES[11], 7: NODES[7]}, expected=OF_5)
    silent, clock, sleep = grid_of(federation), federation.exchange.clock, federation.exchange.sleep
    silent.apps[5] = app_of(PLAN, NODES[5])
    silent.deliver = at_node(5, dropped, "list-clients")
    start = clock()
    assert "node 5 has not answered within 10 s" in reasons(ask(federation))
    assert clock() - start == pytest.approx(10)
    for _ in range(3):  # the request expires, and then the probe
        assert_same(ask(federation).reply, expected(OF_5))
        sleep(21)
    assert clock() - start == pytest.approx(73)
    silent.deliver = at_once
    ask(federation)  # sends a probe
    assert_same(ask(federation).reply, expected(()))


def test_a_node_without_clients_of_the_run_is_refused_after_the_start():
    federation = federation_of(PLAN, nodes={11: NODES[11], 7: NODES[7]})
    grid_of(federation).apps[5] = app_of(PLAN, NODES[5])
    assert reasons(ask(federation, asked=np.arange(7))) == (
        "node 5 has no client of this run: list clients that may join later under expected: refused"
    )
    assert reasons(ask(federation, asked=np.arange(7))) == ""


def test_a_run_does_not_start_if_nodes_disagree_on_their_data():
    other = Case("ifca", "mlp").plan()
    apps = {5: app_of(PLAN, (0,)), 7: app_of(other, (1,)), 9: app_of(PLAN, (2,))}
    with pytest.raises(InputError, match=r"node 7 has a numeric target where node 5 has classes.*the expected form"):
        ClientRegistry().collect(grid_with(apps)[0], wait=1)
    registry = ClientRegistry(admission=Admission(required=RequiredSchema.read({"features": [4, 4], "classes": 0})))
    (note,) = registry.collect(grid_with(apps)[0], nodes=2, wait=1)
    assert note.reason == "node 7 has 3 classes, but a numeric target was expected: refused"
    assert registry.clients == ("site-0", "site-2")


def test_a_run_without_nodes_does_not_start():
    exchange, _ = grid_with({})
    with pytest.raises(TrainingError, match="only 0 of 2 nodes registered clients within 3 s: start the missing nodes"):
        ClientRegistry().collect(exchange, nodes=2, wait=3)
    assert exchange.clock() >= 3


# ---- at the node --------------------------------------------------------------------------------------------------


def test_secure_aggregation_is_refused_with_an_error():
    def secaggplus_mod(message, context, call):
        raise AssertionError

    with pytest.raises(ConfigError, match=r"mod secaggplus_mod: .* nothing would be masked: leave the mod out"):
        make_client_app(lambda context: PLAN.data, mods=[secaggplus_mod])


def test_mods_may_see_every_message():
    seen = []

    def listening(message, context, call):
        seen.append((message.metadata.message_type, len(message.content.array_records)))
        return call(message, context)

    data = part_of(PLAN.data, range(9))
    exchange, _ = grid_with({5: make_client_app(lambda context: data, mods=[listening])})
    ClientRegistry().collect(exchange, wait=1)
    assert seen == [("train", 1)]


def refusal(plan, app) -> str:
    """Return the reason of the only node for not answering."""
    exchange, _ = grid_with({5: app})
    registry = ClientRegistry()
    registry.collect(exchange, wait=1)
    federation = FlowerFederation(exchange, registry, terms_of(plan))
    clusters = initialize(plan).state.clusters
    each = {"accepted": torch.full((9,), NEVER)} if plan.tiers.assignment.keeps else {}
    return reasons(
        federation.ask(plan.tiers.task(3, 1), Broadcast(0, clusters, scalars={"lr": 0.1}, each=each), ALL_CLIENTS)
    )


def test_an_expired_message_is_not_processed(monkeypatch):
    federation = federation_of(PLAN)
    monkeypatch.setattr("coterie.flower.node.time", lambda: time() + 11)
    assert "this message expired after 10 s, before it was processed" in reasons(ask(federation))


def test_a_missing_state_folder_is_an_error():
    assert "pass state_folder to make_client_app, or set state-folder in" in refusal(SOFT, app_of(SOFT, range(9)))


def test_another_learner_at_a_node_is_an_error():
    app = make_client_app(lambda context: PLAN.data, learner="linear:bias=true")
    assert "but this node has linear:bias=true" in refusal(PLAN, app)


def test_a_server_cannot_make_a_node_read_a_file():
    settings = replace(PLAN.settings, learner="resnet18:weights=/etc/passwd")
    plan = replace(PLAN, run=replace(PLAN.run, settings=settings))
    assert "no file can be read here" in refusal(plan, make_client_app(lambda context: PLAN.data))


def test_load_must_return_data_of_clients():
    exchange, _ = grid_with({5: make_client_app(lambda context: {"a": 1})})
    with pytest.raises(TrainingError, match="load must return the result of from_arrays or raw_table, got dict"):
        ClientRegistry().collect(exchange, wait=1)


def test_invalid_settings_are_refused():
    with pytest.raises(ConfigError, match="quorum must be a share from 0 to 1"):
        federation_of(PLAN, quorum=2)
    with pytest.raises(ConfigError, match="most_change must be above 0"):
        federation_of(PLAN, most_change=0.0)
    with pytest.raises(ConfigError, match="deadline and poll must be numbers of seconds above 0"):
        Exchange(grid_of(federation_of(PLAN)), deadline=0)
