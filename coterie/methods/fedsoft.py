"""FedSoft: every client trains a model of its own, held near its mixture of the clusters' models. (Ruan, Joe-Wong 2022)

paper                       here
c_s                         clusters.params              w_k  a client's own model, kept by it from round to round
n_ks / n_k = u_ks           the share of its samples that c_s explains best, counted every `count_every` rounds (tau)
sigma                       `least_share`, for a cluster that explains none best; then the shares are made to sum to one
h_k = f_k + (lambda/2) sum_s u_ks |w - c_s|^2     one proximal term: up to a constant (lambda/2) |w - sum_s u_ks c_s|^2
v_ks = u_ks n_k / sum       c_s <- sum_k v_ks w_k over all who answered (the paper draws some clients for each cluster)

A client's first model is its mixture. HCFL's text takes the shares from distances between parameters, its authors'
code counts the largest loss; counts of the least loss are what the method's own paper does.
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
    """u_ik: samples with least loss at c_k; W_i <- steps on f_i + (lam/2)|W_i - sum u_ik c_k|^2; c_k <- mean."""

    clusters: int | Auto = option(3, "number of clusters (K); auto: as many as init=odcl finds", low=1)
    lam: float = option(0.1, "strength of the pull to the mixture (lambda)", low=0)
    count_every: int = option(1, "number of rounds between two counts of the shares (tau)", low=1)
    least_share: float = option(1e-4, "share of a cluster that explains no sample best (sigma)", above=0, high=1)

    summary: ClassVar[str] = "a model for every client, held near its own mixture of the clusters' models"
    citation: ClassVar[str] = (
        "Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, 2022"
    )
    no_twin: ClassVar[str] = "its clients go on from their own models, those of FedAvg from the common one"
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
