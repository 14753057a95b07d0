"""Clients that join, leave and change their group: alarms, reassignment in the records, a warm start."""

from __future__ import annotations

import numpy as np
import pytest

import coterie


@pytest.fixture(scope="module")
def first():
    data = coterie.scenario("drift", clients=24, seed=1)
    result = coterie.fit(data, "ifca", restarts=5, rounds=25, seed=1)
    assert result.metrics["ari"] == 1
    return result


def test_phases_keep_some_clients_and_move_others():
    before, after = (coterie.scenario("drift", clients=40, phase=phase, seed=3) for phase in (0, 1))
    notes = dict(zip(after.clients, after.client_notes, strict=True))
    assert len(before.clients) == 40
    # 4 leave, 4 join, 4 turn
    assert len(after.clients) == 40
    assert sorted(notes.values()).count("new") == sorted(notes.values()).count("turned") == 4
    then = dict(zip(before.clients, before.truth, strict=True))
    for client, group in zip(after.clients, after.truth, strict=True):
        assert (client not in then) == (notes[client] == "new")
        if client in then:
            assert (group != then[client]) == (notes[client] == "turned")
    assert not np.array_equal(before.train.x[:60], after.train.x[:60]), "samples are fresh in every phase"


def test_alarms_name_drifted_clients_and_a_warm_start_moves_them(first, tmp_path):
    later = coterie.scenario("drift", clients=24, phase=1, change=0.2, seed=1)
    turned = {c for c, note in zip(later.clients, later.client_notes, strict=True) if note == "turned"}
    with pytest.warns(UserWarning, match=f"the group of {len(turned)} of .* clients no longer fits"):
        result = coterie.fit(later, "ifca", init=first, rounds=3, seed=1, out=tmp_path / "run")
    drift = result.metrics["drift"]
    assert {alarm["id"] for alarm in drift["alarms"]} == turned
    assert set(drift["new"]) == {c for c, note in zip(later.clients, later.client_notes, strict=True) if note == "new"}
    assert set(drift["left"]) == set(first.assignments) - set(later.clients)
    for alarm in drift["alarms"]:
        assert result.assignments[alarm["id"]] == alarm["better"] != alarm["was"]
    assert [record["reassigned"] for record in result.records] == [len(turned)] * 3
    assert result.metrics["ari"] == 1


def test_without_drift_there_is_no_alarm(first, recwarn):
    same = coterie.scenario("drift", clients=24, seed=1)
    result = coterie.fit(same, "ifca", init=first, rounds=1, seed=1)
    assert result.metrics["drift"]["alarms"] == []
    assert result.records[0]["reassigned"] == 0
    assert not [w for w in recwarn if "no longer fits" in str(w.message)]
