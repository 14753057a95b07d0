"""Nodes that are killed, late, slow or restarted, as real processes over TLS with keys."""

import shutil

import pytest

from tests.faults.app.faulty.data import names, population
from tests.faults.make import Faulty, assert_as_replayed, faulty, lost_in, reasons, wait_until

pytestmark = pytest.mark.slow_processes

NODES = 3
GONE = names(1, of=NODES)
"""The clients of the node that something happens to."""
GRACE = 10.0
"""Seconds for a node to sign off."""


def sees(it: Faulty, node: int, line: str) -> None:
    wait_until(f"node {node} begins with {line!r}", lambda: line in it.begun(node))


def test_a_node_killed_in_mid_round_is_missing_until_it_is_started_again(tmp_path):
    with faulty(tmp_path, "ifca", rounds=6, nodes=NODES) as it:
        it.order(1, {1: "hold"})
        it.order(0, {3: "hold"})
        run = it.submit()
        sees(it, 1, "round 1")
        it.federation.nodes[1].kill()
        sees(it, 0, "round 3")  # Flower has found out, and two rounds went on without the node
        before = it.federation.node_ids[1]
        it.federation.start_node(1)
        assert it.federation.control.nodes()[before] == "online", "its key gives it the id that it had"
        it.go(3)
        ended = it.completed(run)
    missing = [sorted(record["missing"]) for record in ended.records]
    assert missing == [[], sorted(GONE), sorted(GONE), sorted(GONE), [], []]
    assert "answered with error 5" in reasons(ended.records[1])
    assert "which is not connected" in reasons(ended.records[2])
    assert_as_replayed(ended, population(*range(NODES), of=NODES), "ifca")


def test_a_node_that_starts_late_takes_part_from_the_next_round(tmp_path):
    with faulty(tmp_path, "ifca", rounds=4, nodes=NODES, start=(0, 2)) as it:
        it.order(0, {1: "hold"})
        run = it.submit(nodes=2, wait=1.0, expected=",".join(GONE))
        sees(it, 0, "round 1")
        it.federation.start_node(1)
        it.go(1)
        ended = it.completed(run)
    assert [sorted(record["missing"]) for record in ended.records] == [sorted(GONE), sorted(GONE), [], []]
    assert f"{len(GONE)} clients have not come yet" in reasons(ended.records[0])
    assert_as_replayed(ended, population(*range(NODES), of=NODES), "ifca")


def test_a_slow_node_does_not_work_through_the_rounds_that_it_has_missed(tmp_path):
    with faulty(tmp_path, "ifca", rounds=8, nodes=NODES) as it:
        deadline = max(30.0, 4 * it.start_seconds)
        it.order(1, {1: "hold"})
        it.order(0, {4: "hold"})
        run = it.submit(deadline=deadline)
        sees(it, 0, "round 4")
        missed = it.records()
        it.go(1)
        wait_until("the slow node is free and gives a sign", lambda: it.begun(1).count("hello") > 1)
        it.go(4)
        ended = it.completed(run)
        begun = it.begun(1)
    assert f"has not answered within {deadline:g} s" in reasons(missed[1])
    assert missed[1]["seconds"] >= deadline
    for record in missed[2:4]:
        assert "is still busy with an earlier exchange and was not asked" in reasons(record)
        assert record["seconds"] < deadline, "nobody waits for it twice"
    took_part = [record["round"] for record in ended.records if not {*GONE} & {*record["missing"]}]
    assert took_part[0] == 0
    assert took_part[-1] == 7, "it is back in the end"
    assert [line for line in begun if line.startswith("round")] == [f"round {r}" for r in sorted({*took_part, 1})]
    assert_as_replayed(ended, population(*range(NODES), of=NODES), "ifca")


@pytest.mark.parametrize("fate", ["kept", "lost"])
def test_a_node_restarted_with_what_its_clients_keep(fate, tmp_path):
    with faulty(tmp_path, "fedem", rounds=5, nodes=NODES) as it:
        it.order(0, {2: "hold"})
        run = it.submit(checkpoint_every=1)
        node = it.federation.nodes[1]
        sees(it, 1, "round 2")
        answers = len(it.begun(1))
        wait_until("the node has answered", lambda: node.log.read_text().count("Sent successfully") == answers)
        node.end(GRACE)
        assert any(it.federation.states(1).rglob("*.safetensors"))
        if fate == "lost":
            shutil.rmtree(it.federation.states(1))
        it.federation.start_node(1)
        it.go(2)
        ended = it.completed(run)
    assert [record["missing"] for record in ended.records] == [[]] * 5
    expected = [[], [], [], sorted(GONE) if fate == "lost" else [], []]
    assert [sorted(lost_in(record)) for record in ended.records] == expected
    assert_as_replayed(ended, population(*range(NODES), of=NODES), "fedem")
