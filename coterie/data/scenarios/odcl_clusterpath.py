"""The linear data of ODCL, appendices D.2 and D.3: four groups whose intervals touch.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022.
"""

from __future__ import annotations

from coterie.core.dataset import FederatedDataset
from coterie.data.scenarios.odcl_linear import sparse_regression

FOUR = "0:1,1:2,-1:0,-2:-1"
DIMENSION = 20
NOISE = 1.0


def odcl_clusterpath(*, clients: int = 100, samples: str = "400", seed: int = 0) -> FederatedDataset:
    """Like odcl-linear with d = 20, noise 1 and the intervals `0:1,1:2,-1:0,-2:-1`.

    The paper's |C_k| = m/K = 10 is a slip: 100 clients in four groups are 25 each.
    """
    return sparse_regression(
        "odcl-clusterpath",
        FOUR,
        clients=clients,
        samples=samples,
        dimension=DIMENSION,
        noise=NOISE,
        seed=seed,
        options={"clients": clients, "samples": samples},
    )
