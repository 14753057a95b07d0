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

from dataclasses import replace

from coterie.methods.base import Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import CountShares
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def fedsoft(options: Options) -> Method:
    """u_ik: samples with least loss at c_k; W_i <- steps on f_i + (lam/2)|W_i - sum u_ik c_k|^2; c_k <- mean."""
    common = parts(options)
    work = replace(common.pop("work"), prox=options.own["lam"])
    common["averaging"] = replace(common["averaging"], over="responsibility")
    weights = CountShares(options.own["count_every"], options.own["least_share"])
    return Method("fedsoft", Conditional(), weights, Fixed(options.clusters), work=work, **common)


ENTRY = Entry(
    name="fedsoft",
    summary="a model for every client, held near its own mixture of the clusters' models",
    paper="Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, 2022",
    compose=fedsoft,
    refuses=frozenset({"combine", "exchange", "shared", "averaging", "restarts"}),
    options=(
        Option("lam", float, "strength of the pull to the mixture (lambda)", 0.1, low=0),
        Option("count_every", int, "rounds between two counts of the shares (tau)", 1, low=1),
        Option("least_share", float, "share of a cluster that explains no sample best (sigma)", 1e-4, above=0, high=1),
    ),
    defaults=lambda given: {"clusters": 3, "client_weight": "samples", "averaging": "responsibility"},
    no_twin="its clients go on from their own models, those of FedAvg from the common one",
    reveals={
        "cluster": "which cluster weighs most for it",
        "weights": "what part of its samples each cluster explains best",
        "model": "its own model",
    },
)
