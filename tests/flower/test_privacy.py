"""Private runs over a Grid: secret noise, no requests for figures, and nodes that set their own limits."""

from __future__ import annotations

from collections import Counter

import pytest

from coterie.client.tasks import Evaluate
from coterie.errors import ConfigError, TrainingError
from coterie.flower.guard import Guard
from coterie.flower.node import make_client_app
from coterie.flower.wire import task_of
from coterie.privacy.accountant import Answer, epsilon
from coterie.testing.checks import Case
from coterie.training.fitting import carry_out, continue_plan
from coterie.training.runs.folder import RunFolder
from tests.flower.make import NODES, clients_behind_a_grid, federation_of, grid_of, part_of, with_federation

pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")

LOCAL = {"privacy": "local", "privacy_noise": 4.0, "privacy_choice": 0.5, "init": "random", "rounds": 3}
CENTRAL = {"privacy": "central", "privacy_noise": 4.0, "init": "random", "rounds": 3}
LITTLE_NOISE = {**CENTRAL, "privacy_noise": 0.1}
"""With more noise, all noisy counts of a run can be so low that every cluster keeps its first model."""


def plan_of(options, data=None):
    return Case("ifca", "linear", options).plan(data)


@pytest.mark.parametrize("options", [LOCAL, LITTLE_NOISE], ids=["local", "central"])
def test_noise_is_reproducible_in_simulations_only(options):
    plan = plan_of(options)
    simulated = [carry_out(plan_of(options)).models for _ in range(2)]
    remote = [carry_out(plan_of(options, clients_behind_a_grid(plan))).models for _ in range(2)]
    weights = [[model["weight"].tolist() for model in models] for models in (*simulated, *remote)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    assert weights[2] != weights[3]


def test_clients_with_local_privacy_are_only_asked_for_local_rounds():
    plan = plan_of(LOCAL)
    federation, tasks = federation_of(plan), Counter()
    grid = grid_of(federation)
    grid.deliver = lambda message, answer: tasks.update([task_of(message.content)]) or [(0.0, answer)]
    found = carry_out(with_federation(plan, federation))
    assert set(tasks) == {"local-round"}
    assert tasks["local-round"] == 3 * len(NODES)
    assert [record["epsilon"] for record in found.records] == [epsilon(Answer(2.0, 0.5), n, 1e-5) for n in (1, 2, 3)]
    assert all(record["loss"] is None and "rmse" not in record for record in found.records)
    assert all(row["score"] is None for row in found.clients)
    assert [row["cluster"] for row in found.clients] == found.records[-1]["assignments"]  # from their last answers


def test_rounds_that_are_repeated_after_a_resume_count_twice(tmp_path):
    def kill(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    plan = plan_of(LOCAL)
    plan = with_federation(plan, federation_of(plan))
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, tmp_path / "run", [kill])
    found = continue_plan(plan, RunFolder.open(tmp_path / "run"))
    # rounds 0 and 1 before the kill, 0 to 2 after it: the only checkpoint was that before the first round
    assert RunFolder.open(tmp_path / "run").asked() == [0, 1, 0, 1, 2]
    assert found.metrics["epsilon"] == epsilon(Answer(2.0, 0.5), 5, 1e-5)


def guarded(plan, folder, guard):
    """Return the plan with a guard at every node."""
    federation = federation_of(plan)
    for node, places in NODES.items():
        data = part_of(plan.data, places)
        grid_of(federation).apps[node] = make_client_app(
            lambda context, data=data: data, state_folder=folder, guard=guard
        )
    return with_federation(plan, federation)


def test_a_guard_limits_the_answers_over_all_runs(tmp_path):
    guard = Guard(noise=4.0, answers=4, choice=0.5)
    plan = guarded(plan_of(LOCAL), tmp_path, guard)
    assert carry_out(plan).metrics["epsilon"] <= guard.epsilon(1e-5)
    again = carry_out(guarded(plan_of({**LOCAL, "rounds": 2}), tmp_path, guard))
    assert [record["answered"] for record in again.records] == [9, 0]
    assert "has already given the 4 answers" in again.records[1]["notes"][0]["reason"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({**LOCAL, "privacy_noise": 3.9}, "at least 4, but the run has 3.9"),
        ({**LOCAL, "privacy_choice": 0.6}, "of at most 0.5, but the run has privacy_choice=0.6"),
        (CENTRAL, "answers only requests with local differential privacy"),
        ({"init": "random", "rounds": 3}, "answers only requests with local differential privacy"),
    ],
)
def test_a_guard_refuses_requests_that_are_not_private_enough(tmp_path, options, why):
    guard = Guard(noise=4.0, answers=4, choice=0.5)
    with pytest.raises(TrainingError, match=why):
        carry_out(guarded(plan_of(options), tmp_path, guard))
    assert not (tmp_path / "answers").exists()
    with pytest.raises(ConfigError, match="'evaluate' has none"):
        guard.check(Evaluate())
