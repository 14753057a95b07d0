"""The training loop, over a federation that answers from a script."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.core.messages import Reply
from coterie.errors import TrainingError
from coterie.methods import IFCA, Local
from coterie.training.loop import train
from tests.methods.scripted import IDS, always, answer, fresh, play, run_of


def test_training_continues_from_the_round_of_its_state():
    state = replace(fresh(), round=3)
    federation, done = play(always({"a": 0, "b": 0, "c": 0}), 5, state=state)
    assert [b.round for _, b, _ in federation.asked] == [3, 4]
    assert done[-1].state.round == 5


def test_nothing_is_asked_when_all_rounds_are_done():
    federation, done = play(always({}), 3, state=replace(fresh(), round=3))
    assert (federation.asked, done) == ([], [])


def test_a_method_without_exchanges_costs_nothing():
    _, done = play(always({"a": 0, "b": 0, "c": 0}), 1, method=Local())
    assert (done[0].bytes_up, done[0].bytes_down) == (0, 0)


def test_the_state_of_every_round_has_a_plain_layout_whatever_the_first_one_had():
    state = fresh()
    odd = {name: torch.stack([p, p], dim=-1)[..., 0] for name, p in state.clusters.params.items()}  # every second entry
    assert not all(p.is_contiguous() for p in odd.values())
    started = replace(state, clusters=replace(state.clusters, params=odd))
    federation, done = play(always({"a": 0, "b": 0, "c": 0}), 2, state=started)
    seen = [b.clusters for _, b, _ in federation.asked] + [step.state.clusters for step in done]
    assert all(p.is_contiguous() for clusters in seen for p in clusters.params.values())


# ---- failures ------------------------------------------------------------------------------------------------


def test_a_round_without_a_finite_update_is_the_last_one():
    def script(t, names):
        return Reply((), rejected=tuple(names)) if t == 2 else answer({n: [0] for n in names})

    _, done = play(script, 5)
    assert [round_.diverged for round_ in done] == [False, False, True]
    assert (done[2].answered, done[2].rejected, done[2].state.round) == (0, IDS, 3)
    before, after = (round_.state.clusters.params for round_ in done[1:])
    assert all(torch.equal(before[name], after[name]) for name in before), "the models stay"


def test_a_first_round_without_answers_is_an_error():
    with pytest.raises(TrainingError, match="round 0: none of the 3 clients that were asked has replied"):
        play(lambda t, names: Reply(()), 1)


def test_a_round_without_answers_changes_nothing_and_the_next_one_starts():
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

    with pytest.raises(
        TrainingError, match=r"round 3: no usable reply in 3 consecutive rounds; the models are those of round 0"
    ):
        play(script, 9)


def test_a_failed_round_leaves_the_state_as_it_was():
    state = fresh()
    _, run = run_of(lambda t, names: Reply(()), 2)
    steps = train(IFCA(), run, state)
    with pytest.raises(TrainingError):
        next(steps)
    assert state.round == 0
    assert state.clusters.params["w"].flatten().tolist() == [0, 0]


def test_the_number_of_each_round_is_announced_before_clients_are_asked():
    federation, run = run_of(always({"a": 0, "b": 0, "c": 0}), 5)
    asked_before = []
    steps = train(IFCA(), run, replace(fresh(), round=2), lambda t: asked_before.append((t, len(federation.asked))))
    assert len(list(steps)) == 3
    assert asked_before == [(2, 0), (3, 1), (4, 2)]
