"""IFCA with server momentum against a plain loop, and its defaults."""

import numpy as np
import pytest

import coterie
from coterie.core.keys import hash_ids
from coterie.core.sampling import choose
from coterie.methods import IFCA, IFCAMomentum, ServerSGD
from coterie.testing.checks import Case, check_config
from tests.methods.test_ifca import arrays_of, population


def plain_momentum(data, models, *, rounds, lr, steps, beta, share, seed):
    """v_j <- beta v_j + mean change of the members of j; theta_j <- theta_j + v_j; client by client."""
    clients, velocity = arrays_of(data), [np.zeros_like(m) for m in models]
    for t in range(rounds):
        changes = [[] for _ in models]
        for i in choose(hash_ids(data.clients), share, seed, t):
            x, y = clients[i]
            best = int(np.argmin([np.mean((x @ m - y) ** 2) for m in models]))
            theta = models[best]
            for _ in range(steps):
                theta = theta - lr * x.T @ (x @ theta - y) / len(y)
            changes[best].append(theta - models[best])
        for j, members in enumerate(changes):
            if members:  # a cluster that no client chose keeps its model and its momentum
                velocity[j] = beta * velocity[j] + np.mean(members, axis=0)
                models[j] = models[j] + velocity[j]
    return models


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_equals_the_plain_loop(share):
    data, seed = population(), 2
    start = [np.array([0.5, 0.1, 0.2, -0.1]), np.array([-0.3, 0.2, -0.4, 0.1])]
    result = coterie.fit(
        *(data, IFCAMomentum(clusters=2, server=ServerSGD(momentum=0.7))),
        **{"learner": "linear", "init": [{"weight": s} for s in start], "rounds": 6, "lr": 0.05, "local_steps": 3},
        **{"participation": share, "seed": seed},
    )
    expected = plain_momentum(data, list(start), rounds=6, lr=0.05, steps=3, beta=0.7, share=share, seed=seed)
    np.testing.assert_allclose([m["weight"] for m in result.models], expected, rtol=1e-9)


def test_ifca_momentum_is_ifca_with_another_default():
    common = {"learner": "linear", "rounds": 5, "lr": 0.05, "seed": 1}
    named = coterie.fit(population(), "ifca-momentum", **common)
    by_option = coterie.fit(population(), "ifca", server_optimizer="sgd:momentum=0.9", **common)
    plain = coterie.fit(population(), IFCA(clusters=2), **common)
    assert np.array_equal(named.models[0]["weight"], by_option.models[0]["weight"])
    assert not np.array_equal(named.models[0]["weight"], plain.models[0]["weight"])


def test_momentum_can_be_switched_off_and_is_recorded():
    """Plain SGD is not the default of this method, so the configuration has to name it."""
    case = Case("ifca-momentum", "linear", {"server_optimizer": "sgd"})
    assert case.plan().tiers.server == ServerSGD()
    assert case.plan().config["server_optimizer"] == "sgd"
    check_config(case)
