"""Linear regressions that have a few directions in common: the setting of appendix B of the HCFL paper.

Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved Methodologies, 2025.

paper                     here
B* (d x c)                true_basis, orthonormal columns                     d   dimension
theta*_k, |.| = sqrt(c)   B* theta*_k are true_models (assumption 3)          c   width
sigma                     noise                                               K   groups
max_k N_k / min_k N_k     imbalance; between them shares fall geometrically   M   clients
"""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.data.sizes import by_shares
from coterie.errors import ConfigError

TEST_SAMPLES = 500
"""Number of held-out samples of each group."""
RECOMMENDED: dict[str, object] = {"rounds": 200}


def linear_representation(
    *,
    clients: int = 40,
    samples: int = 100,
    dimension: int = 30,
    width: int = 4,
    groups: int = 8,
    noise: float = 0.0,
    drift: float = 0.0,
    imbalance: float = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """y = theta_i^T B*^T x + noise N(0, 1), x ~ N(0, I); theta_i = theta*_k + drift N(0, I) for a client of group k.

    Groups have equally many clients, and `samples` is the mean over clients; with `imbalance` the clients of the first
    group have this many times the samples of those of the last. There are 500 held-out samples for each group, without
    drift.
    """
    if not width <= min(dimension, groups):
        raise ConfigError(
            f"width={width} needs at least as many features and groups, since c directions show only in c different "
            f"heads (assumption 2); got dimension={dimension}, groups={groups}"
        )
    random = generator(key_for(seed, Purpose.SCENARIO))
    truth = random.permutation(np.repeat(np.arange(groups), by_shares(clients, [1.0] * groups)))
    basis = np.linalg.qr(random.standard_normal((dimension, width)))[0]
    heads = random.standard_normal((groups, width))
    heads *= np.sqrt(width) / np.linalg.norm(heads, axis=1, keepdims=True)
    own = heads[truth] + drift * random.standard_normal((clients, width))
    sizes = _sizes(truth, samples, imbalance)

    def draw(head_of_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((len(head_of_row), dimension))
        y = np.einsum("nc,nc->n", x @ basis, head_of_row)
        return x, y + noise * random.standard_normal(len(y))

    ids = client_ids(clients)
    train = stack_shard(ids, *draw(np.repeat(own, sizes, axis=0)), sizes.tolist())
    held_out = draw(np.repeat(heads, TEST_SAMPLES, axis=0))
    return FederatedDataset(
        "linear-representation",
        train,
        test=group_tests(ids, *held_out, truth, TEST_SAMPLES),
        truth=truth,
        true_models=heads @ basis.T,
        true_basis=basis,
        options={
            "clients": clients,
            "samples": samples,
            "dimension": dimension,
            "width": width,
            "groups": groups,
            "noise": noise,
            "drift": drift,
            "imbalance": imbalance,
        },
        # the mean of theta theta^T has trace c, so a step of 1/c is never too long
        recommended={"clusters": groups, "learner": f"representation:width={width}", "lr": 1 / width},
        group_names=tuple(f"group {index}" for index in range(groups)),
    )


def _sizes(truth: np.ndarray, samples: int, imbalance: float) -> np.ndarray:
    """Return the sizes (m,), equal in a group; between groups from `imbalance` to 1, with a mean of `samples`."""
    shares = np.geomspace(imbalance, 1, int(truth.max()) + 1)[truth]
    sizes: np.ndarray = np.rint(shares / shares.mean() * samples).astype(np.int64)
    if sizes.min() < 1:
        raise ConfigError(
            f"imbalance={imbalance:g} would leave clients of the last group without samples: give more than "
            f"samples={samples}"
        )
    return sizes
