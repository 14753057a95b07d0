"""The linear data of ODCL, section 5: few active features, entries of the true models from an interval for each group.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022.

paper      here
u*_k       true_models, entries uniform in the k-th interval      m   clients
epsilon    noise, N(0, 1)                                         n   samples
K          as many as there are intervals                         d   dimension
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.data.sizes import by_shares, described_sizes
from coterie.errors import ConfigError

ACTIVE = 5
"""Number of features of a sample that are not zero."""
TEST_SAMPLES = 500
"""Number of held-out samples of each group."""
TEN = "1:2,4:5,7:8,10:11,13:14,-2:-1,-5:-4,-8:-7,-11:-10,-14:-13"
"""Intervals of section 5."""
RECOMMENDED: dict[str, object] = {"learner": "linear", "rounds": 50, "local_steps": 10, "lr": 0.1}
RECOMMENDED |= {"restarts": 10}


def odcl_linear(
    *,
    clients: int = 100,
    samples: str = "400",
    dimension: int = 20,
    intervals: str = TEN,
    noise: float = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """y = <x, u_k> + noise N(0, 1); five random features of each sample are N(0, 1), the others 0.

    The entries of the true model u_k are uniform in the k-th interval; there are as many groups as intervals, of equal
    size up to one client. The paper's other choices: `1:2` for one group, `1:2,4:5,-2:-1,-5:-4` or the first four
    for four. E[x x^T] is 5/d times the identity. A seed's groups and true models are the same for all `samples`
    and `noise`. There are 500 held-out samples for each group.
    """
    return sparse_regression(
        "odcl-linear",
        intervals,
        clients=clients,
        samples=samples,
        dimension=dimension,
        noise=noise,
        seed=seed,
        options={
            "clients": clients,
            "samples": samples,
            "dimension": dimension,
            "intervals": intervals,
            "noise": noise,
        },
    )


def sparse_regression(
    name: str,
    intervals: str,
    *,
    clients: int,
    samples: str,
    dimension: int,
    noise: float,
    seed: int,
    options: Mapping[str, object],
) -> FederatedDataset:
    """Return one group for each interval, in their order; see `odcl_linear`."""
    random = generator(key_for(seed, Purpose.SCENARIO))
    low, high = _ends(intervals)
    groups = len(low)
    truth = random.permutation(np.repeat(np.arange(groups), by_shares(clients, [1.0] * groups)))
    models = random.uniform(low[:, None], high[:, None], (groups, dimension))
    sizes = described_sizes(samples, clients, random)

    def draw(group_of_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = _sparse_features(random, len(group_of_row), dimension)
        y = np.einsum("nd,nd->n", x, models[group_of_row])
        return x, y + noise * random.standard_normal(len(y))

    ids = client_ids(clients)
    return FederatedDataset(
        name,
        stack_shard(ids, *draw(np.repeat(truth, sizes)), sizes),
        test=group_tests(ids, *draw(np.repeat(np.arange(groups), TEST_SAMPLES)), truth, TEST_SAMPLES),
        truth=truth,
        true_models=models,
        options=options,
        recommended={"clusters": groups},
        group_names=tuple(f"{a:g} to {b:g}" for a, b in zip(low, high, strict=True)),
    )


def _ends(intervals: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper ends (K,) of a text such as `1:2,-2:-1`."""
    try:
        low, high = np.array([[float(end) for end in part.split(":")] for part in intervals.split(",")]).T
    except ValueError:
        raise ConfigError(f"intervals must look like 1:2,-2:-1 with one for each group, got {intervals!r}") from None
    if not (np.isfinite([low, high]).all() and (low <= high).all()):
        raise ConfigError(f"intervals={intervals!r}: ends must be finite, and the first must not exceed the second")
    return low, high


def _sparse_features(random: np.random.Generator, rows: int, dimension: int) -> np.ndarray:
    """Return features (rows, d): `ACTIVE` random features of each row are N(0, 1), the others 0."""
    lots = random.random((rows, dimension))
    last_active = np.partition(lots, ACTIVE - 1, axis=1)[:, ACTIVE - 1 : ACTIVE]
    x: np.ndarray = np.where(lots <= last_active, random.standard_normal((rows, dimension)), 0.0)
    return x
