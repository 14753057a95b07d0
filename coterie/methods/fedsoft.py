"""FedSoft: every client trains a personal model, pulled towards its mixture of clusters. (Ruan, Joe-Wong 2022)

paper                       here
c_s                         clusters.params              w_k  a client's personal model, kept by it between rounds
n_ks / n_k = u_ks           the share of its samples that c_s explains best, counted every `count_every` rounds (tau)
sigma                       `least_share`, for a cluster that explains no sample best; the shares are then normalised
h_k = f_k + (lambda/2) sum_s u_ks |w - c_s|^2     one proximal term: up to a constant (lambda/2) |w - sum_s u_ks c_s|^2
v_ks = u_ks n_k / sum       c_s <- sum_k v_ks w_k over all clients that answered (the paper draws some per cluster)

A client's first model is its mixture. HCFL's text computes the shares from distances between parameters, and its
authors' code counts the largest loss; counts of the lowest loss follow the method's own paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import CountShares
from coterie.tiers.composition import Tiers


@register("fedsoft")
@dataclass(frozen=True, kw_only=True)
class FedSoft(TieredMethod):
    """Every client trains a personal model, pulled towards its mixture of the clusters' models.

    u_ik: share of samples with lowest loss at c_k; W_i <- steps on f_i + (lam/2)|W_i - sum u_ik c_k|^2; c_k <- mean.
    """

    clusters: int | Auto = option(3, "number of clusters (K); auto: as many as init=odcl finds", low=1)
    lam: float = option(0.1, "strength of the pull towards the mixture (lambda)", low=0)
    count_every: int = option(1, "number of rounds between two counts of the shares (tau)", low=1)
    least_share: float = option(1e-4, "share of a cluster that explains no sample best (sigma)", above=0, high=1)

    summary: ClassVar[str] = "a personal model for every client, pulled towards its mixture of the clusters' models"
    citation: ClassVar[str] = (
        "Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, 2022"
    )
    no_twin: ClassVar[str] = "its clients continue from their personal models, those of FedAvg from the global one"
    refuses: ClassVar[frozenset[str]] = frozenset(
        {"combine", "exchange", "shared", "averaging", "divide_by", "restarts"}
    )

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="responsibility", client_weight="samples")

    def tiers(self) -> Tiers:
        return self.compose(
            assignment=CountShares(self.count_every, self.least_share),
            averaging=self.soft_averaging,
            local=replace(self.local, prox=self.lam),
        )
