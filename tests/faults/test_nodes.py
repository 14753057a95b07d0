"""Nodes that are killed, late, slow or restarted, as real processes over TLS with keys."""

import shutil

import pytest

from tests.faults.app.faulty.data import names, population
from tests.faults.make import Faulty, assert_equals_replay, faulty, lost_in, reasons, wait_until

pytestmark = pytest.mark.slow_processes

NODES = 3
GONE = names(1, of=NODES)
"""Clients of the faulty node."""
GRACE = 10.0
"""Time for a node to disconnect, in seconds."""


def wait_for_line(it: Faulty, node: int, line: str) -> None:
    wait_until(f"node {node} starts with {line!r}", lambda: line in it.started_messages(node))


def test_a_node_killed_during_a_round_is_missing_until_it_is_restarted(tmp_path):
    with faulty(tmp_path, "ifca", rounds=6, nodes=NODES) as it:
        it.order(1, {1: "hold"})
        it.order(0, {3: "hold"})
        run = it.submit()
        wait_for_line(it, 1, "round 1")
        it.federation.nodes[1].kill()
        wait_for_line(it, 0, "round 3")  # Flower has noticed the kill, and two rounds ended without the node
        before = it.federation.node_ids[1]
        it.federation.start_node(1)
        assert it.federation.control.nodes()[before] == "online", "the same key got another id"
        it.release(3)
        ended = it.completed(run)
    missing = [sorted(record["missing"]) for record in ended.records]
    assert missing == [[], sorted(GONE), sorted(GONE), sorted(GONE), [], []]
    assert "answered with error 5" in reasons(ended.records[1])
    assert "which is not connected" in reasons(ended.records[2])
    assert_equals_replay(ended, population(*range(NODES), of=NODES), "ifca")


def test_a_node_that_starts_late_takes_part_from_the_next_round(tmp_path):
    with faulty(tmp_path, "ifca", rounds=4, nodes=NODES, start=(0, 2)) as it:
        it.order(0, {1: "hold"})
        run = it.submit(nodes=2, wait=1.0, expected=",".join(GONE))
        wait_for_line(it, 0, "round 1")
        it.federation.start_node(1)
        it.release(1)
        ended = it.completed(run)
    assert [sorted(record["missing"]) for record in ended.records] == [sorted(GONE), sorted(GONE), [], []]
    assert f"{len(GONE)} clients have not joined yet" in reasons(ended.records[0])
    assert_equals_replay(ended, population(*range(NODES), of=NODES), "ifca")


def test_a_slow_node_skips_the_rounds_that_it_has_missed(tmp_path):
    with faulty(tmp_path, "ifca", rounds=8, nodes=NODES) as it:
        deadline = max(30.0, 4 * it.start_seconds)
        it.order(1, {1: "hold"})
        it.order(0, {4: "hold"})
        run = it.submit(deadline=deadline)
        wait_for_line(it, 0, "round 4")
        missed = it.records()
        it.release(1)
        wait_until(
            "the slow node is free and answers a probe", lambda: it.started_messages(1).count("list-clients") > 1
        )
        it.release(4)
        ended = it.completed(run)
        started = it.started_messages(1)
    assert f"has not answered within {deadline:g} s" in reasons(missed[1])
    assert missed[1]["seconds"] >= deadline
    for record in missed[2:4]:
        assert "is still busy with an earlier exchange and was not asked" in reasons(record)
        assert record["seconds"] < deadline, "the exchange waited for the node again"
    took_part = [record["round"] for record in ended.records if not {*GONE} & {*record["missing"]}]
    assert took_part[0] == 0
    assert took_part[-1] == 7, "the node did not take part again"
    assert [line for line in started if line.startswith("round")] == [f"round {r}" for r in sorted({*took_part, 1})]
    assert_equals_replay(ended, population(*range(NODES), of=NODES), "ifca")


@pytest.mark.parametrize("fate", ["kept", "lost"])
def test_a_node_restarted_with_and_without_the_states_of_its_clients(fate, tmp_path):
    with faulty(tmp_path, "fedem", rounds=5, nodes=NODES) as it:
        it.order(0, {2: "hold"})
        run = it.submit(checkpoint_every=1)
        node = it.federation.nodes[1]
        wait_for_line(it, 1, "round 2")
        answers = len(it.started_messages(1))
        wait_until("the node has answered", lambda: node.log.read_text().count("Sent successfully") == answers)
        node.end(GRACE)
        assert any(it.federation.states(1).rglob("*.safetensors"))
        if fate == "lost":
            shutil.rmtree(it.federation.states(1))
        it.federation.start_node(1)
        it.release(2)
        ended = it.completed(run)
    assert [record["missing"] for record in ended.records] == [[]] * 5
    expected = [[], [], [], sorted(GONE) if fate == "lost" else [], []]
    assert [sorted(lost_in(record)) for record in ended.records] == expected
    assert_equals_replay(ended, population(*range(NODES), of=NODES), "fedem")
