"""FlexCFL against a plain loop, client migration, and the step between groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core.keys import hash_ids
from coterie.core.sampling import choose
from coterie.methods import FedGroup, FlexCFL
from coterie.methods.flexcfl import better_groups
from coterie.testing.checks import CHECKS, Case
from coterie.training.fitting import execute, initialize
from coterie.training.planning import prepare
from tests.methods.test_ifca import arrays_of, population

SETTINGS = {"rounds": 6, "lr": 0.05, "local_steps": 3, "seed": 2}


def plain_flexcfl(data, models, groups, *, rounds, lr, local_steps, seed, share, method):
    """Rounds after the cold start, client by client; returns models, groups and the number of moves."""
    clients, moves = arrays_of(data), 0
    for t in range(rounds):
        asked = choose(hash_ids(data.clients), share, seed, t)
        if t and t % method.migrate_every == 0:
            for i in asked:
                x, y = clients[i]
                losses = [np.mean((x @ m - y) ** 2) / 2 for m in models]
                if min(losses) < (1 - method.tau) * losses[groups[i]]:
                    groups[i] = int(np.argmin(losses))
                    moves += 1
        sums, mass = np.zeros_like(models), np.zeros(len(models))
        for i in asked:
            x, y = clients[i]
            theta = models[groups[i]]
            for _ in range(local_steps):
                theta = theta - lr * x.T @ (x @ theta - y) / len(y)
            sums[groups[i]] += len(y) * (theta - models[groups[i]])
            mass[groups[i]] += len(y)
        models = models + sums / np.maximum(mass, 1)[:, None]
        units = models / np.linalg.norm(models, axis=1, keepdims=True)
        models = np.array([m + method.eta_g * (units.sum(axis=0) - u) for m, u in zip(models, units, strict=True)])
    return models, groups, moves


def misplaced(data, method, share=1.0):
    """A run after its cold start, with client c0 in the wrong group."""
    started = initialize(prepare(data, method, "linear", {**SETTINGS, "participation": share}))
    choice = started.state.choice.clone()
    choice[0] = 1 - choice[0]
    return replace(started, state=started.state.with_values(choice=choice))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_equals_the_plain_loop(share):
    data = population()
    method = FlexCFL(clusters=2, pretrain_steps=5, migrate_every=2, eta_g=0.03)
    started = misplaced(data, method, share)
    result = execute(started, None)
    models = started.state.clusters.params["weight"].numpy()
    groups = started.state.choice[:, 0].numpy().copy()
    expected, groups, moves = plain_flexcfl(data, models, groups, share=share, method=method, **SETTINGS)
    np.testing.assert_allclose([m["weight"] for m in result.models], expected, rtol=1e-9)
    assert list(result.assignments.values()) == groups.tolist()
    assert sum(record["moved"] for record in result.records) == moves
    assert moves >= 1


def test_a_misplaced_client_moves_to_its_group():
    data = population()
    moving = execute(misplaced(data, FlexCFL(clusters=2, migrate_every=2)), None)
    staying = execute(misplaced(data, FlexCFL(clusters=2, migrate_every=0)), None)
    group = moving.assignments
    assert group["c0"] == group["c2"] != group["c1"]
    assert [record["moved"] for record in moving.records] == [0, 0, 1, 0, 0, 0]
    assert staying.assignments["c0"] == staying.assignments["c1"]
    assert moving.metrics["bytes_down"] > staying.metrics["bytes_down"], "the models sent for migration are counted"


def test_without_migration_and_step_it_is_fedgroup():
    common = {"learner": "linear", **SETTINGS}
    one = coterie.fit(population(), FlexCFL(clusters=2, migrate_every=0, eta_g=0.0), **common)
    two = coterie.fit(population(), FedGroup(clusters=2), **common)
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(one.models, two.models, strict=True))


def test_only_a_clear_gain_moves_a_client():
    losses = torch.tensor([[1.0, 0.95], [1.0, 0.8], [0.5, 0.5], [2.0, 1.0], [torch.inf, 3.0]])
    present = torch.tensor([0, 0, 1, -1, 0])
    assert better_groups(losses, present, 0.1).tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("check", CHECKS)
def test_checks_with_a_migration_in_every_round(check):
    CHECKS[check](Case("flexcfl", "linear", {"migrate_every": 1, "tau": 0.0, "eta_g": 0.1}))
