"""IFCA with server momentum for every cluster. (IFCA: Ghosh et al. 2020; FedAvgM: Hsu et al. 2019)

paper           here
theta_j^(t)     clusters.params, one row for each of K clusters, with the settings of `ifca.py`
Delta theta_j   the mean update of the clients that chose cluster j
beta            server.momentum
v_j             momentum of cluster j in the server state: v_j <- beta v_j + Delta theta_j;  theta_j <- theta_j + v_j
                a cluster that no client chose in a round keeps v_j and theta_j

Any method can use any server optimizer: `server_optimizer=adam` with `ifca` is FedAdam in every cluster. This method
differs from `ifca` only in its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.ifca import IFCA
from coterie.server.optimizers import ServerOptimizer, ServerSGD


@register("ifca-momentum")
@dataclass(frozen=True, kw_only=True)
class IFCAMomentum(IFCA):
    """IFCA in which the server applies every cluster's updates with momentum.

    v_j <- beta v_j + Delta theta_j; theta_j <- theta_j + v_j.

    Example:
        >>> import coterie
        >>> from coterie.methods import IFCAMomentum, ServerSGD
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> method = IFCAMomentum(clusters=4, server=ServerSGD(momentum=0.5))
        >>> result = coterie.fit(data, method, learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    server: ServerOptimizer = ServerSGD(momentum=0.9)

    summary: ClassVar[str] = "IFCA with server momentum in every cluster"
    citation: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020; momentum as in "
        "Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, "
        "2019"
    )
