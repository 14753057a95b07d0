"""Servers that are killed in mid-run: the run goes on from its checkpoint and ends as if nothing had happened."""

import json
import os
import signal

import pytest

from coterie.flower.local.processes import LocalRun
from tests.faults.app.faulty.data import population
from tests.faults.make import Faulty, assert_as_replayed, faulty, wait_until

pytestmark = pytest.mark.slow_processes

NODES = 3
ROUNDS = 5
HELD = 3
"""The round in which the server is killed; the last checkpoint is of the round before the one before."""


def in_mid_round(it: Faulty) -> LocalRun:
    """Submit the run and wait until its round is under way."""
    it.order(0, {HELD: "hold"})
    run = it.submit(checkpoint_every=2)
    wait_until("the round begins", lambda: f"round {HELD}" in it.begun(0))
    assert len(it.records()) == HELD
    return run


def assert_nothing_is_lost(it: Faulty, run: LocalRun, name: str) -> None:
    """All rounds are there, everybody has answered in all of them, and the models are those of an undisturbed run."""
    ended = it.completed(run)
    assert [record["answered"] for record in ended.records] == [9] * ROUNDS
    assert not any(record["missing"] or record["rejected"] for record in ended.records)
    assert json.loads((it.out / "federation.json").read_bytes())["run"] == name, "clients know the run by its name"
    assert_as_replayed(ended, population(*range(NODES), of=NODES), "fedem")


def name_of(it: Faulty) -> str:
    return str(json.loads((it.out / "federation.json").read_bytes())["run"])


def test_a_server_app_killed_in_mid_round_goes_on_while_a_node_still_works_for_the_dead_one(tmp_path):
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        in_mid_round(it)
        name = name_of(it)
        (pid,) = it.federation.server_apps()
        os.kill(pid, signal.SIGKILL)
        wait_until("the server's app is dead", lambda: it.federation.server_apps() == [])
        run = it.submit()
        wait_until("the new server's app is there", lambda: len(it.federation.server_apps()) == 1)
        it.go(HELD)
        assert_nothing_is_lost(it, run, name)


def test_a_superlink_killed_in_mid_round_is_started_again_and_the_run_goes_on(tmp_path):
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        in_mid_round(it)
        name, ids = name_of(it), it.federation.node_ids
        it.federation.superexec.kill()  # with the server's app
        it.federation.superlink.kill()
        it.go(HELD)
        it.federation.start_superlink()
        it.federation.start_superexec()
        assert set(it.federation.control.nodes()) == set(ids.values()), "its database knows the nodes"
        assert_nothing_is_lost(it, it.submit(), name)


def test_a_server_app_outlives_a_superlink_that_is_killed_and_started_again(tmp_path):
    """It keeps asking; with the database come back the run, its messages, and the nodes with their ids.

    All other nodes have answered: Flower loses an answer that is being sent when the SuperLink is killed, and its
    clients are missing in that round.
    """
    with faulty(tmp_path, "fedem", ROUNDS, NODES) as it:
        run = in_mid_round(it)
        name = name_of(it)
        (survivor,) = it.federation.server_apps()
        for node in range(1, NODES):
            wait_until(f"node {node} has answered", lambda node=node: has_answered(it, node))
        it.federation.superlink.kill()
        it.go(HELD)
        it.federation.start_superlink()
        assert_nothing_is_lost(it, run, name)
        assert it.federation.server_apps() in ([], [survivor]), "nobody started another one"


def has_answered(it: Faulty, node: int) -> bool:
    """Whether a node has sent the answer to the round."""
    begun = it.begun(node)
    sent = it.federation.nodes[node].log.read_text().count("Sent successfully")
    return f"round {HELD}" in begun and sent == len(begun)
