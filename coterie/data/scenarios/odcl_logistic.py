"""The logistic data of ODCL, appendix D.1: four groups in the plane, each with a different covariance.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022.

paper             here
theta*_k, b*_k    true_models, two weights and the intercept (0)      m   clients
Sigma_k           COVARIANCES                                         n   samples
y in {-1, +1}     labels 0 and 1                                      C   l2 of the learner
"""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.data.sizes import by_shares

MODELS = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
COVARIANCES = np.array([[[1, 0], [0, 1]], [[2, 1], [1, 2]], [[2, 1], [1, 2]], [[2, 0], [0, 2]]], dtype=np.float64)
"""The third is printed as [[1, 2], [2, 1]], with eigenvalues 3 and -1; numpy draws by svd as from this one."""
TEST_SAMPLES = 500
"""Number of held-out samples of each group."""
RECOMMENDED: dict[str, object] = {"clusters": 4, "learner": "logistic:l2=1e-05", "rounds": 20, "local_steps": 10}
RECOMMENDED |= {"lr": 1.0, "restarts": 5}


def odcl_logistic(*, clients: int = 100, samples: int = 1000, seed: int = 0) -> FederatedDataset:
    """P(y = 1) = 1 / (1 + exp(-<x, theta_k>)), x ~ N(0, Sigma_k) in the plane; four groups, equal up to one client.

    Sigma_3 is read as [[2, 1], [1, 2]], since the printed matrix is no covariance. Every client's samples are fresh:
    the paper has 100000 points in each group, too few for 25 clients with more than 4000. The true models are those
    that make the labels, weights and then the intercept; the population optimum under the penalty C = 1e-5 of the paper
    (l2 of the learner, which spares the intercept) lies within 2e-4 of them. There are 500 held-out samples for each
    group.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    groups = len(MODELS)
    truth = random.permutation(np.repeat(np.arange(groups), by_shares(clients, [1.0] * groups)))
    roots = np.linalg.cholesky(COVARIANCES)

    def draw(group_of_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.einsum("nde,ne->nd", roots[group_of_row], random.standard_normal((len(group_of_row), 2)))
        logit = np.einsum("nd,nd->n", x, MODELS[group_of_row, :2]) + MODELS[group_of_row, 2]
        return x, (random.random(len(x)) < 1 / (1 + np.exp(-logit))).astype(np.int64)

    ids = client_ids(clients)
    return FederatedDataset(
        "odcl-logistic",
        stack_shard(ids, *draw(np.repeat(truth, samples)), [samples] * clients),
        test=group_tests(ids, *draw(np.repeat(np.arange(groups), TEST_SAMPLES)), truth, TEST_SAMPLES),
        truth=truth,
        true_models=MODELS,
        options={"clients": clients, "samples": samples},
        group_names=tuple(f"weights {a:g}, {b:g}" for a, b, _ in MODELS),
    )
