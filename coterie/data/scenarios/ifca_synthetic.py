"""The synthetic data of IFCA, section 6.1, as its authors' public code makes it.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020.

paper      here
theta*_j   true_models, norm times a vector of zeros and ones      m   clients
R          norm                                                    n   samples
sigma      noise                                                   d   dimension
p          groups
"""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.errors import ConfigError

TEST_SAMPLES = 500
"""Number of held-out samples of each group."""
RECOMMENDED: dict[str, object] = {"learner": "linear:half=false,start=zero-one", "exchange": "gradient", "lr": 0.1}
RECOMMENDED |= {"rounds": 300, "restarts": 10}


def ifca_synthetic(
    *,
    clients: int = 100,
    samples: int = 100,
    dimension: int = 1000,
    groups: int = 2,
    norm: float = 1.0,
    noise: float = 0.1,
    seed: int = 0,
) -> FederatedDataset:
    """y = <x, theta*_j> + noise N(0, 1), x ~ N(0, I), groups of equal size, 500 held-out samples for each group.

    theta*_j is `norm` (the paper's R) times a vector of independent zeros and ones. The paper's text scales it to
    length R instead; then a model of zeros would count as a success if R is below 0.6 sigma, so the reading of
    the public code is taken: its length is about R sqrt(d/2).
    """
    if clients % groups:
        raise ConfigError(
            f"clients must be a multiple of groups={groups}, since groups are of equal size; got {clients}"
        )
    random = generator(key_for(seed, Purpose.SCENARIO))
    truth = random.permutation(np.repeat(np.arange(groups), clients // groups))
    models = norm * random.integers(0, 2, (groups, dimension)).astype(np.float64)

    def draw(group: np.ndarray, each: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `each` samples for every entry of `group`, entry by entry."""
        x = random.standard_normal((len(group), each, dimension))
        y = np.einsum("gnd,gd->gn", x, models[group]) + noise * random.standard_normal((len(group), each))
        return x.reshape(-1, dimension), y.reshape(-1)

    ids = client_ids(clients)
    return FederatedDataset(
        "ifca-synthetic",
        stack_shard(ids, *draw(truth, samples), [samples] * clients),
        test=group_tests(ids, *draw(np.arange(groups), TEST_SAMPLES), truth, TEST_SAMPLES),
        truth=truth,
        true_models=models,
        options={
            "clients": clients,
            "samples": samples,
            "dimension": dimension,
            "groups": groups,
            "norm": norm,
            "noise": noise,
        },
        recommended={"clusters": groups},
        group_names=tuple(f"group {index}" for index in range(groups)),
    )
