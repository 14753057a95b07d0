"""The one loop, over a federation that answers from a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from coterie.server.loop import UNKNOWN, Round, ServerState, rounds, settle
from coterie.tiers.method import Groups, Method

from coterie.core.clusters import Clusters
from coterie.core.federation import Replies
from coterie.core.keys import hash_ids
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.core.task import Task
from coterie.errors import TrainingError
from coterie.learners.local_training import FullBatch
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed

METHOD = Method("m", Conditional(), LowestLoss(), Fixed(2), FullBatch(steps=2), Averaging(), lr=0.5, lr_decay=0.5)
IDS = ("a", "b", "c")


def answer(chosen: dict[str, list[int]], restarts: int = 1, rejected: tuple[str, ...] = ()) -> Reply:
    """Everybody adds 1 to the model it chose, its loss is 1 on one sample."""
    counts: dict[int, int] = {}
    for row in chosen.values():
        for restart, k in enumerate(row):
            counts[restart * 2 + k] = counts.get(restart * 2 + k, 0) + 1
    slots = sorted(counts)
    mass = torch.tensor([float(counts[s]) for s in slots], dtype=torch.float64)
    slotted = Slotted(torch.tensor(slots), {"change/w": mass[:, None].clone(), "mass": mass}, mass.long())
    total = torch.full((restarts,), float(len(chosen)), dtype=torch.float64)
    return Reply(
        tuple(chosen),
        {"loss": total * torch.arange(1, restarts + 1), "samples": total[0]},
        {"clusters": slotted},
        {"cluster": torch.tensor(list(chosen.values())).reshape(-1, restarts)},
        rejected,
    )


@dataclass
class Scripted:
    """Answers round t with script(t, names asked) and remembers what it was asked."""

    script: Callable[[int, list[str]], Reply]
    asked: list[tuple[Task, Broadcast, list[str]]] = field(default_factory=list)
    clients: tuple[str, ...] = IDS

    @property
    def hashes(self):
        return hash_ids(self.clients)

    @property
    def sizes(self):
        return np.ones(len(self.clients), dtype=np.int64)

    def ask(self, task, broadcast, asked):
        names = [self.clients[i] for i in asked]
        self.asked.append((task, broadcast, names))
        return Replies(self.script(broadcast.round, names), bytes_up=7, bytes_down=11)


def fresh(restarts: int = 1, clients: int = 3) -> ServerState:
    return ServerState.fresh(Clusters({"w": torch.zeros(2 * restarts, 1, dtype=torch.float64)}, 2, restarts), clients)


def play(script, total: int, method: Method = METHOD, state: ServerState | None = None, groups=None):
    federation = Scripted(script)
    done = list(rounds(method, federation, state or fresh(method.restarts), total, seed=4, groups=groups))
    return federation, done


def always(chosen: dict[str, int]):
    return lambda t, names: answer({n: [chosen[n]] for n in names})


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
    assert (task, names) == (METHOD.task(4), list(IDS))
    assert (broadcast.round, broadcast.only) == (1, None)
    assert broadcast.clusters.params["w"].flatten().tolist() == [1, 1]


def test_the_step_size_decays_on_its_way_to_the_clients():
    federation, _ = play(always({"a": 0, "b": 1, "c": 1}), 3)
    assert [b.scalars["lr"] for _, b, _ in federation.asked] == [0.5, 0.25, 0.125]


def test_with_gradients_the_server_applies_the_step_size():
    method = replace(METHOD, exchange="gradient", work=FullBatch(steps=1))
    federation, done = play(always({"a": 0, "b": 1, "c": 1}), 2, method)
    assert [b.scalars["lr"] for _, b, _ in federation.asked] == [1.0, 1.0]
    # 0.5 * 1, then 0.25 * 1 more
    assert done[1].state.clusters.params["w"].flatten().tolist() == [0.75, 0.75]


def test_training_goes_on_from_the_round_of_its_state():
    state = replace(fresh(), round=3)
    federation, done = play(always({"a": 0, "b": 0, "c": 0}), 5, state=state)
    assert [b.round for _, b, _ in federation.asked] == [3, 4]
    assert done[-1].state.round == 5


def test_nothing_is_asked_when_all_rounds_are_done():
    federation, done = play(always({}), 3, state=replace(fresh(), round=3))
    assert (federation.asked, done) == ([], [])


CHOICES = [
    {"a": 0, "b": 0, "c": 1},
    {"a": 0, "b": 1, "c": 1},
    {"a": 1, "b": 1, "c": 1},
    {"a": 1, "b": 1, "c": 1},
]


def changing(t: int, names: list[str]) -> Reply:
    return answer({n: [CHOICES[t][n]] for n in names})


def test_moved_counts_clients_that_changed_and_not_those_seen_first():
    _, done = play(changing, 4)
    assert [r.moved.tolist() for r in done] == [[0], [1], [1], [0]]


def test_steady_counts_visits_without_a_change():
    _, done = play(changing, 4)
    # c never changes; b changes in round 1; a in round 2
    assert [r.state.steady.tolist() for r in done] == [[0, 0, 0], [1, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_client_is_steady_only_if_no_lane_changed():
    def script(t, names):
        return answer({"a": [0, t % 2], "b": [0, 0], "c": [1, 1]}, restarts=2)

    _, done = play(script, 3, replace(METHOD, restarts=2))
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
    assert done[2].state.steady.tolist() == [1, 0, 1]  # a and c kept their cluster between their visits


def test_a_client_never_heard_of_stays_unknown():
    _, done = play(lambda t, names: answer({"b": [1]}), 1)
    assert done[0].state.choice.flatten().tolist() == [UNKNOWN, 1, UNKNOWN]


def test_replies_may_come_in_any_order():
    def turned(t, names):
        return answer({"c": [1], "a": [0], "b": [1]})

    _, done = play(turned, 1)
    assert done[0].state.choice.flatten().tolist() == [0, 1, 1]


def test_participation_asks_so_many_and_only_they_count_as_missing():
    method = replace(METHOD, participation=0.67)

    def script(t, names):
        return answer({names[0]: [0]})

    federation, done = play(script, 4, method)
    for (_, _, names), round_ in zip(federation.asked, done, strict=True):
        assert len(names) == 2
        assert round_.missing == (names[1],)


# ---- stable clients get their own model only -----------------------------------------------------------------


def test_steady_clients_are_sent_their_own_model_and_all_every_nth_round():
    federation, done = play(changing_forever, 8, replace(METHOD, stable_after=3))
    sent = [None if b.only is None else b.only.flatten().tolist() for _, b, _ in federation.asked]
    # b keeps cluster 1 from round 0 on: its third visit without a change is round 3, known from round 4 on.
    # a changes every round. c keeps cluster 0. Rounds 0, 3, 6 are refreshed.
    assert sent[:4] == [None, [ALL, ALL, ALL], [ALL, ALL, ALL], None]
    assert sent[4:] == [[ALL, 1, 0], [ALL, 1, 0], None, [ALL, 1, 0]]
    assert done[-1].state.steady.tolist() == [0, 7, 7]


def changing_forever(t: int, names: list[str]) -> Reply:
    return answer({"a": [t % 2], "b": [1], "c": [0]})


def test_own_models_are_slots_of_their_lane():
    def script(t, names):
        return answer({n: [1, 0] for n in names}, restarts=2)

    federation, _ = play(script, 4, replace(METHOD, restarts=2, stable_after=2))
    only = federation.asked[3][1].only
    assert only is not None
    assert only.tolist() == [[1, 2]] * 3  # model 1 of restart 0, model 0 of restart 1


def test_assigned_clients_are_told_their_group():
    method = replace(METHOD, weights=Assigned(), groups=Groups("truth"))
    groups = torch.tensor([1, 0, 1])
    federation, _ = play(always({"a": 1, "b": 0, "c": 1}), 2, method, groups=groups)
    assert all(b.only.tolist() == [[1], [0], [1]] for _, b, _ in federation.asked)


def test_a_method_that_does_not_travel_costs_nothing():
    _, done = play(always({"a": 0, "b": 0, "c": 0}), 1, replace(METHOD, travels=False))
    assert (done[0].bytes_up, done[0].bytes_down) == (0, 0)


# ---- failures ------------------------------------------------------------------------------------------------


def test_a_round_without_a_finite_update_is_the_last_one():
    def script(t, names):
        return Reply((), rejected=tuple(names)) if t == 2 else answer({n: [0] for n in names})

    _, done = play(script, 5)
    assert [round_.diverged for round_ in done] == [False, False, True]
    assert (done[2].answered, done[2].rejected, done[2].state.round) == (0, IDS, 3)
    before, after = (round_.state.clusters.params for round_ in done[1:])
    assert all(torch.equal(before[name], after[name]) for name in before), "the models stay"


def test_nobody_answering_is_an_error():
    with pytest.raises(TrainingError, match="round 0: none of the 3 clients asked has answered"):
        play(lambda t, names: Reply(()), 1)


def test_a_round_that_nobody_answers_is_no_update_and_the_next_one_is_begun():
    def script(t, names):
        return Reply(()) if t == 1 else answer({n: [0] for n in names})

    federation, done = play(script, 3)
    assert [round_.answered for round_ in done] == [3, 0, 3]
    assert done[1].missing == IDS
    assert done[1].state.round == 2
    assert done[1].state.accepted.tolist() == [0, 0, 0]
    assert torch.equal(done[1].state.clusters.params["w"], done[0].state.clusters.params["w"])
    assert torch.equal(done[1].state.loss, done[0].state.loss)
    assert torch.equal(federation.asked[2][1].clusters.params["w"], done[0].state.clusters.params["w"])


def test_three_rounds_without_an_answer_end_the_run():
    def script(t, names):
        return answer({n: [0] for n in names}) if t == 0 else Reply(())

    with pytest.raises(TrainingError, match=r"round 3: for 3 rounds no answer .* the models are those of round 0"):
        play(script, 9)


def test_a_failed_round_leaves_the_state_as_it_was():
    state = fresh()
    steps = rounds(METHOD, Scripted(lambda t, names: Reply(())), state, 2, 0, None)
    with pytest.raises(TrainingError):
        next(steps)
    assert state.round == 0
    assert state.clusters.params["w"].flatten().tolist() == [0, 0]


# ---- settling ------------------------------------------------------------------------------------------------


def test_settling_keeps_one_lane():
    def script(t, names):
        return answer({"a": [0, 1], "b": [1, 1], "c": [1, 0]}, restarts=2)

    _, done = play(script, 1, replace(METHOD, restarts=2))
    last: Round = done[0]
    kept = settle(last.state, 1)
    assert (kept.clusters.restarts, kept.choice.tolist()) == (1, [[1], [1], [0]])
    assert kept.round == 1


def test_a_fresh_state_knows_nobody():
    state = ServerState.fresh(Clusters({"w": torch.zeros(4, 1)}, 2, 2), 3)
    assert state.round == 0
    assert state.choice.tolist() == [[UNKNOWN] * 2] * 3
    assert state.steady.tolist() == [0, 0, 0]
