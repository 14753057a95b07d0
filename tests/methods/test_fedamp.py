"""FedAMP against a plain loop, and the effect of its attention."""

import numpy as np
import pytest

import coterie
from coterie.core.keys import hash_ids
from coterie.core.sampling import choose
from coterie.errors import ConfigError
from coterie.methods import FedAMP
from tests.methods.test_ifca import arrays_of, population


def first_model(data, seed):
    """Return the model that all clients start from."""
    return coterie.fit(data, "fedavg", learner="linear", rounds=1, lr=1e-300, seed=seed).models[0]["weight"]


def plain_fedamp(data, start, *, rounds, lr, steps, alpha, sigma, lam, share, seed):
    """The paper's algorithm, client by client; weights for others that sum to more than one are scaled to one."""
    w = np.tile(start, (len(data.clients), 1))
    for t in range(rounds):
        before = w.copy()
        for i in choose(hash_ids(data.clients), share, seed, t):
            xi = alpha / sigma * np.exp(-((before - before[i]) ** 2).sum(axis=1) / sigma)
            xi[i] = 0
            xi = xi / max(1.0, xi.sum())
            xi[i] = 1 - xi.sum()
            u, (x, y) = xi @ before, arrays_of(data)[i]
            theta = u
            for _ in range(steps):
                theta = theta - lr * (x.T @ (x @ theta - y) / len(y) + lam / alpha * (theta - u))
            w[i] = theta
    return w


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("alpha", "sigma"), [(0.05, 2.0), (3.0, 0.5)])
def test_equals_the_plain_loop(share, alpha, sigma):
    data, seed = population(), 3
    method = FedAMP(alpha=alpha, sigma=sigma, lam=0.04)
    result = coterie.fit(
        *(data, method),
        **{"learner": "linear", "rounds": 6, "lr": 0.1, "local_steps": 3, "participation": share, "seed": seed},
    )
    settings = {"alpha": alpha, "sigma": sigma, "lam": 0.04, "share": share, "seed": seed}
    expected = plain_fedamp(data, first_model(data, seed), rounds=6, lr=0.1, steps=3, **settings)
    np.testing.assert_allclose([m["weight"] for m in result.models], expected, rtol=1e-9)


def test_clients_of_one_group_end_nearer_to_each_other():
    data = population(noise=1.0)
    fitted = {
        name: np.array([m["weight"] for m in coterie.fit(data, method, learner="linear", rounds=30, lr=0.1).models])
        for name, method in (("fedamp", FedAMP(sigma=2.0)), ("local", "local"))
    }
    apart = {name: np.linalg.norm(w[:, None] - w[None], axis=2) for name, w in fitted.items()}
    same = np.equal.outer(data.truth, data.truth) & ~np.eye(8, dtype=bool)
    assert apart["fedamp"][same].max() < apart["fedamp"][~same & ~np.eye(8, dtype=bool)].min()
    assert apart["fedamp"][same].mean() < 0.5 * apart["local"][same].mean(), "attention draws a group together"


def test_without_attention_clients_train_alone():
    """With attention near zero and no pull, the models are those of local training."""
    common = {"learner": "linear", "rounds": 4, "lr": 0.1, "seed": 5}
    alone = coterie.fit(population(), "local", **common)
    found = coterie.fit(population(), FedAMP(sigma=1e-12, alpha=1e-20, lam=0.0), **common)
    for one, other in zip(found.models, alone.models, strict=True):
        np.testing.assert_allclose(one["weight"], other["weight"], rtol=1e-9)


def test_sent_models_are_declared():
    result = coterie.fit(population(), "fedamp", learner="linear", rounds=2)
    assert result.metrics["bytes_up"] > 0
    assert "change" in FedAMP().reveals()
    with pytest.raises(ConfigError, match="does not support differential privacy"):
        coterie.fit(population(), "fedamp", privacy="local", privacy_epsilon=1.0)
