"""Mixed linear regression: y = <x, theta*_g> + noise, with the group g of a client unknown."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.data.sizes import by_shares, described_sizes
from coterie.errors import ConfigError

RECOMMENDED = {"learner": "linear", "rounds": 100, "local_steps": 5, "lr": 0.05, "restarts": 5}


def mixed_regression(
    *,
    clients: int = 120,
    samples: str = "50",
    dimension: int = 20,
    groups: int = 3,
    separation: float | None = None,
    noise: str = "0.2",
    proportions: str | None = None,
    covariance: str = "identity",
    features: str = "gaussian",
    test_samples: int = 500,
    seed: int = 0,
) -> FederatedDataset:
    """Clients of `groups` linear models in R^dimension.

    The true models are N(0, I/d), scaled so that the smallest distance between two is `separation` if it is given.
    Held-out samples are shared by the clients of a group.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    shares = _numbers("proportions", proportions, groups) if proportions else [1.0] * groups
    sigma = np.array(_numbers("noise", noise, groups))
    truth = random.permutation(np.repeat(np.arange(groups), by_shares(clients, shares)))
    sizes = described_sizes(samples, clients, random)
    models = _models(random, groups, dimension, separation)
    roots = _covariance_roots(random, groups, dimension, covariance)

    def draw(group_of_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((len(group_of_row), dimension))
        if features == "rademacher":
            x = np.sign(x)
        if roots is not None:
            for group in range(groups):
                x[group_of_row == group] @= roots[group]
        y = np.einsum("nd,nd->n", x, models[group_of_row])
        return x, y + sigma[group_of_row] * random.standard_normal(len(y))

    ids = client_ids(clients)
    train = stack_shard(ids, *draw(np.repeat(truth, sizes)), sizes.tolist())
    held_out = draw(np.repeat(np.arange(groups), test_samples))
    options = {
        "clients": clients,
        "samples": samples,
        "dimension": dimension,
        "groups": groups,
        "separation": separation,
        "noise": noise,
        "proportions": proportions,
        "covariance": covariance,
        "features": features,
        "test_samples": test_samples,
    }
    return FederatedDataset(
        "mixed-regression",
        train,
        test=group_tests(ids, *held_out, truth, test_samples),
        truth=truth,
        true_models=models,
        options={name: value for name, value in options.items() if value is not None},
        recommended={"clusters": groups},
        group_names=tuple(f"group {index}" for index in range(groups)),
    )


def _numbers(name: str, text: str, groups: int) -> list[float]:
    """Return the numbers of a text such as `0.2` (for all groups) or `0.1,0.2,0.4` (one for each)."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be numbers separated by commas, got {text!r}") from None
    if len(values) == 1:
        values *= groups
    if len(values) != groups:
        raise ConfigError(f"{name} has {len(values)} values for {groups} groups: give one, or one for each")
    if not np.isfinite(values).all() or min(values) < 0:
        raise ConfigError(f"{name} must be finite numbers of at least 0, got {text!r}")
    return values


def _models(random: np.random.Generator, groups: int, dimension: int, separation: float | None) -> np.ndarray:
    models: np.ndarray = random.standard_normal((groups, dimension)) / np.sqrt(dimension)
    if separation is not None and groups > 1:
        least = min(np.linalg.norm(models[a] - models[b]) for a, b in combinations(range(groups), 2))
        models *= separation / least
    return models


def _covariance_roots(random: np.random.Generator, groups: int, dimension: int, kind: str) -> np.ndarray | None:
    """Return square roots of the groups' covariances, with eigenvalues from 0.5 to 2 in separate directions."""
    if kind == "identity":
        return None
    spread = np.sqrt(np.geomspace(0.5, 2, dimension))
    turns = [np.linalg.qr(random.standard_normal((dimension, dimension)))[0] for _ in range(groups)]
    return np.stack([turn * spread @ turn.T for turn in turns])
