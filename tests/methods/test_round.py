"""One round of a composition of tiers, over a federation that answers from a script."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.core.clusters import Clusters
from coterie.core.messages import ALL, Reply
from coterie.core.state import UNKNOWN, ServerState
from coterie.tiers.assignment import Assigned
from tests.methods.scripted import IDS, SEED, TIERS, always, answer, known, play


def test_a_round_asks_aggregates_and_remembers():
    federation, done = play(always({"a": 0, "b": 1, "c": 1}), 2)
    assert [r.state.round for r in done] == [1, 2]
    assert done[0].state.clusters.params["w"].flatten().tolist() == [1, 1]
    assert done[1].state.clusters.params["w"].flatten().tolist() == [2, 2]
    assert done[0].state.choice.flatten().tolist() == [0, 1, 1]
    assert done[0].state.loss.tolist() == [1]
    assert (done[0].answered, done[0].missing, done[0].rejected) == (3, (), ())
    assert (done[0].bytes_up, done[0].bytes_down) == (7, 11)
    task, broadcast, names = federation.asked[1]
    assert (task, names) == (TIERS.task(SEED, 2), list(IDS))
    assert (broadcast.round, broadcast.only) == (1, None)
    assert broadcast.clusters.params["w"].flatten().tolist() == [1, 1]


def test_the_step_size_decays_on_its_way_to_the_clients():
    federation, _ = play(always({"a": 0, "b": 1, "c": 1}), 3)
    assert [b.scalars["lr"] for _, b, _ in federation.asked] == [0.5, 0.25, 0.125]


def test_with_gradients_the_server_applies_the_step_size():
    tiers = replace(TIERS, exchange="gradient", local=replace(TIERS.local, steps=1))
    federation, done = play(always({"a": 0, "b": 1, "c": 1}), 2, tiers)
    assert [b.scalars["lr"] for _, b, _ in federation.asked] == [1.0, 1.0]
    # 0.5 * 1, then 0.25 * 1 more
    assert done[1].state.clusters.params["w"].flatten().tolist() == [0.75, 0.75]


CHOICES = [
    {"a": 0, "b": 0, "c": 1},
    {"a": 0, "b": 1, "c": 1},
    {"a": 1, "b": 1, "c": 1},
    {"a": 1, "b": 1, "c": 1},
]


def changing(t: int, names: list[str]) -> Reply:
    return answer({n: [CHOICES[t][n]] for n in names})


def test_moved_counts_changes_but_not_first_assignments():
    _, done = play(changing, 4)
    assert [r.moved.tolist() for r in done] == [[0], [1], [1], [0]]


def test_steady_counts_answers_without_a_change():
    _, done = play(changing, 4)
    # c never changes; b changes in round 1; a in round 2
    assert [r.state.steady.tolist() for r in done] == [[0, 0, 0], [1, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_client_is_steady_only_if_no_restart_changed_its_cluster():
    def script(t, names):
        return answer({"a": [0, t % 2], "b": [0, 0], "c": [1, 1]}, restarts=2)

    _, done = play(script, 3, replace(TIERS, restarts=2))
    assert done[2].state.steady.tolist() == [0, 2, 2]
    assert done[2].moved.tolist() == [0, 1]
    assert done[2].state.loss.tolist() == [1, 2]


def test_missing_and_rejected_clients_keep_what_is_known_of_them():
    def script(t, names):
        if t == 1:
            return answer({"b": [0]}, rejected=("c",))
        return answer({"a": [0], "b": [1], "c": [1]})

    _, done = play(script, 3)
    assert (done[1].answered, done[1].missing, done[1].rejected) == (1, ("a",), ("c",))
    assert done[1].state.choice.flatten().tolist() == [0, 0, 1]
    assert done[1].state.steady.tolist() == [0, 0, 0]
    assert done[1].moved.tolist() == [1]
    assert done[2].state.steady.tolist() == [1, 0, 1]  # a and c kept their cluster between their answers


def test_a_client_that_never_answered_stays_unknown():
    _, done = play(lambda t, names: answer({"b": [1]}), 1)
    assert done[0].state.choice.flatten().tolist() == [UNKNOWN, 1, UNKNOWN]


def test_replies_may_come_in_any_order():
    def turned(t, names):
        return answer({"c": [1], "a": [0], "b": [1]})

    _, done = play(turned, 1)
    assert done[0].state.choice.flatten().tolist() == [0, 1, 1]


def test_only_participants_count_as_missing():
    def script(t, names):
        return answer({names[0]: [0]})

    federation, done = play(script, 4, participation=0.67)
    for (_, _, names), round_ in zip(federation.asked, done, strict=True):
        assert len(names) == 2
        assert round_.missing == (names[1],)


# ---- stable clients receive only their own model ---------------------------------------------------------------


def test_steady_clients_receive_their_own_model_and_all_models_every_nth_round():
    federation, done = play(changing_forever, 8, replace(TIERS, stable_after=3))
    sent = [None if b.only is None else b.only.flatten().tolist() for _, b, _ in federation.asked]
    # b keeps cluster 1 from round 0 on: its third answer without a change is in round 3, known from round 4 on.
    # a changes every round. c keeps cluster 0. Rounds 0, 3, 6 are refreshed.
    assert sent[:4] == [None, [ALL, ALL, ALL], [ALL, ALL, ALL], None]
    assert sent[4:] == [[ALL, 1, 0], [ALL, 1, 0], None, [ALL, 1, 0]]
    assert done[-1].state.steady.tolist() == [0, 7, 7]


def changing_forever(t: int, names: list[str]) -> Reply:
    return answer({"a": [t % 2], "b": [1], "c": [0]})


def test_personal_models_are_slots_of_their_restart():
    def script(t, names):
        return answer({n: [1, 0] for n in names}, restarts=2)

    federation, _ = play(script, 4, replace(TIERS, restarts=2, stable_after=2))
    only = federation.asked[3][1].only
    assert only is not None
    assert only.tolist() == [[1, 2]] * 3  # model 1 of restart 0, model 0 of restart 1


def test_assigned_clients_receive_their_group():
    tiers = replace(TIERS, assignment=Assigned())
    federation, _ = play(always({"a": 1, "b": 0, "c": 1}), 2, tiers, known([1, 0, 1]))
    assert all(b.only.tolist() == [[1], [0], [1]] for _, b, _ in federation.asked)


# ---- the best restart ------------------------------------------------------------------------------------------------


def test_one_restart_is_kept():
    def script(t, names):
        return answer({"a": [0, 1], "b": [1, 1], "c": [1, 0]}, restarts=2)

    _, done = play(script, 1, replace(TIERS, restarts=2))
    kept = done[0].state.keep_restart(1)
    assert (kept.clusters.restarts, kept.choice.tolist()) == (1, [[1], [1], [0]])
    assert kept.round == 1


def test_a_fresh_state_has_no_assignments():
    state = ServerState.fresh(Clusters({"w": torch.zeros(4, 1)}, 2, 2), 3)
    assert state.round == 0
    assert state.choice.tolist() == [[UNKNOWN] * 2] * 3
    assert state.steady.tolist() == [0, 0, 0]
