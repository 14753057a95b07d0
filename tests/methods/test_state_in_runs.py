"""A custom array follows splits, merges and races of real runs; the choice among equal restarts is deterministic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.core.state import ServerState, best_restart
from coterie.core.state_array import Inherit, Share, StateArray
from coterie.testing.checks import small_federation
from coterie.training.concluding import conclude
from coterie.training.fitting import Initialized, initialize
from coterie.training.loop import train
from coterie.training.planning import prepare
from coterie.training.runs.checkpoint import newest_checkpoint, save_checkpoint

METHODS = {
    "cfl": {"eps1": 5.0, "eps2": 0.01, "warmup": 2, "least": 3},
    "icfl": {"alpha0": 0.85},
    "stocfl": {"tau": 0.5, "participation": 0.5},
    "hcfl+": {"learner": "mlp:hidden=6", "rho": 0.05, "participation": 0.4, "max_clusters": 5},
}


def initialized_with(method: str, learner: str = "logistic", **options: object) -> Initialized:
    """A run with two more arrays: the ancestors of each cluster, and an amount of 1 in all clusters together."""
    settings = {"rounds": 6, "lr": 0.3, "local_steps": 3, "seed": 1, "dtype": "float64"} | options
    initialized = initialize(prepare(small_federation("logistic"), method, learner, settings))
    R, K = initialized.state.clusters.restarts, initialized.state.clusters.K
    more = {
        "mine/ancestors": StateArray(
            torch.eye(K, dtype=torch.float64).repeat(R, 1, 1), ("restart", "cluster", None), Inherit()
        ),
        "mine/amount": StateArray(torch.full((K,), 1 / K, dtype=torch.float64), ("cluster",), Share()),
    }
    return replace(initialized, state=initialized.state.with_arrays(more))


def play(initialized: Initialized, state: ServerState | None = None):
    plan = initialized.plan
    return list(train(plan.method, plan.run, state or initialized.state))


@pytest.mark.parametrize("method", METHODS)
def test_a_custom_array_follows_every_regroup(method):
    initialized = initialized_with(method, **METHODS[method])
    done = play(initialized)
    events = [event for one in done for event in one.events]
    assert events, "or nothing is tested"
    ancestors, amount = (
        initialized.state.arrays["mine/ancestors"].value[0],
        initialized.state.arrays["mine/amount"].value,
    )
    plain_amount = amount.tolist()
    for event in events:
        parents = event["parents"]
        children = [sum(k in p for p in parents) for k in range(event["before"])]
        plain_amount = [sum(plain_amount[k] / children[k] for k in p) for p in parents]
    last = done[-1].state
    assert last.arrays["mine/amount"].value.tolist() == pytest.approx(plain_amount, abs=1e-12)
    found = last.arrays["mine/ancestors"].value
    assert found.shape == (1, last.clusters.K, ancestors.shape[1])
    sums = found.sum(dim=2).flatten().tolist()  # an average of ancestors, or nothing for a cluster without any
    assert all(one == pytest.approx(1, abs=1e-12) or one == 0 for one in sums)


def test_a_custom_array_is_resumed_bit_by_bit(tmp_path):
    initialized = initialized_with("cfl", **METHODS["cfl"])
    whole = play(initialized)
    save_checkpoint(tmp_path, whole[2].state)
    found = newest_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    resumed = play(initialized, found[0])[-1].state
    last = whole[-1].state
    assert resumed.clusters.K == last.clusters.K > whole[2].state.clusters.K
    assert resumed.arrays.keys() == last.arrays.keys()
    assert all(torch.equal(array.value, last.arrays[name].value) for name, array in resumed.arrays.items())


def test_the_winner_of_a_race_takes_its_arrays_along():
    initialized = initialized_with("ifca", clusters=2, restarts=3, race=2)
    before = torch.arange(12.0, dtype=torch.float64).reshape(3, 2, 2)
    mine = initialized.state.arrays["mine/ancestors"].with_value(before)
    done = play(replace(initialized, state=initialized.state.with_arrays({"mine/ancestors": mine})))
    winner = best_restart(done[1].state.loss)
    assert [one.state.clusters.restarts for one in done] == [3, 3, 1, 1, 1, 1]
    assert torch.equal(done[-1].state.arrays["mine/ancestors"].value, before[winner : winner + 1])


@pytest.mark.parametrize("noise", [0.0, 1e-13, -1e-13])
def test_of_restarts_equal_up_to_rounding_the_first_wins(noise):
    initialized = initialized_with("ifca", clusters=2, restarts=2)
    last = play(initialized)[-1].state
    best = last.clusters.restart(best_restart(last.loss)).params
    params = {name: torch.cat([p, p * (1 + noise)]) for name, p in best.items()}
    twins = replace(last, clusters=replace(last.clusters, params=params))
    result = conclude(initialized.plan, twins, {}, [])
    assert result.metrics["restart"] == 0
