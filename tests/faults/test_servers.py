"""Servers that are killed during a run: the run is resumed from its checkpoint with the same result."""

import json
import os
import signal

import pytest

from coterie.flower.local.processes import LocalRun
from tests.faults.app.faulty.data import population
from tests.faults.make import Faulty, assert_equals_replay, faulty, wait_until

pytestmark = pytest.mark.slow_processes

NODES = 3
ROUNDS = 5
HELD = 3
"""The round in which the server is killed; the last checkpoint was written two rounds earlier."""


def start_and_wait_for_round(it: Faulty) -> LocalRun:
    """Submit the run and wait until this round has started."""
    it.order(0, {HELD: "hold"})
    run = it.submit(checkpoint_every=2)
    wait_until("the round starts", lambda: f"round {HELD}" in it.started_messages(0))
    assert len(it.records()) == HELD
    return run


def assert_nothing_is_lost(it: Faulty, run: LocalRun, name: str) -> None:
    """Assert that all clients have answered in all rounds, and that the models are those of an undisturbed run."""
    ended = it.completed(run)
    assert [record["answered"] for record in ended.records] == [9] * ROUNDS
    assert not any(record["missing"] or record["rejected"] for record in ended.records)
    assert json.loads((it.out / "federation.json").read_bytes())["run"] == name, (
        "the run has another name, under which clients have no states"
    )
    assert_equals_replay(ended, population(*range(NODES), of=NODES), "fedem")


def name_of(it: Faulty) -> str:
    return str(json.loads((it.out / "federation.json").read_bytes())["run"])


def test_a_run_is_resumed_while_a_node_still_works_for_the_killed_server_app(tmp_path):
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        start_and_wait_for_round(it)
        name = name_of(it)
        (pid,) = it.federation.server_apps()
        os.kill(pid, signal.SIGKILL)
        wait_until("the server app has ended", lambda: it.federation.server_apps() == [])
        run = it.submit()
        wait_until("the new server app runs", lambda: len(it.federation.server_apps()) == 1)
        it.release(HELD)
        assert_nothing_is_lost(it, run, name)


def test_a_run_is_resumed_after_the_superlink_was_killed_during_a_round(tmp_path):
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        start_and_wait_for_round(it)
        name, ids = name_of(it), it.federation.node_ids
        it.federation.superexec.kill()  # together with the server app
        it.federation.superlink.kill()
        it.release(HELD)
        it.federation.start_superlink()
        it.federation.start_superexec()
        assert set(it.federation.control.nodes()) == set(ids.values()), "the database has lost the nodes"
        assert_nothing_is_lost(it, it.submit(), name)


def test_a_server_app_survives_a_restart_of_the_superlink(tmp_path):
    """The app keeps asking; the database of the SuperLink has the run, its messages, and the nodes with their ids.

    All other nodes have answered before, because Flower loses an answer that is being sent when the SuperLink is
    killed, so that its clients are missing in that round.
    """
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        run = start_and_wait_for_round(it)
        name = name_of(it)
        (survivor,) = it.federation.server_apps()
        for node in range(1, NODES):
            wait_until(f"node {node} has answered", lambda node=node: has_answered(it, node))
        it.federation.superlink.kill()
        it.release(HELD)
        it.federation.start_superlink()
        assert_nothing_is_lost(it, run, name)
        assert it.federation.server_apps() in ([], [survivor]), "another server app was started"


def has_answered(it: Faulty, node: int) -> bool:
    """Return whether a node has sent the answer to the round."""
    started = it.started_messages(node)
    sent = it.federation.nodes[node].log.read_text().count("Sent successfully")
    return f"round {HELD}" in started and sent == len(started)
