"""FedRC: mixtures that are told apart by p(y|x) alone, not by features or labels. (Guo, Tang, Lin 2024)

paper              here
L_k = p / (p p)    tier 1, ratio: p_k(y|x) / P_k(y)        omega_i  the client's weights, kept by the client
P_k(y)             shares of the classes in cluster k, by the server from the last counts of every client it has heard
gamma_ijk          responsibilities, once a round, in log space

All else is FedEM's.
"""

from __future__ import annotations

from coterie.errors import ConfigError
from coterie.methods.base import CHOICE_OPTIONS, Entry
from coterie.methods.fedem import ORDER, soft
from coterie.options import Options
from coterie.tiers.method import Method
from coterie.tiers.objective import Ratio


def fedrc(options: Options) -> Method:
    """gamma_jk ~ w_k p_k(y_j|x_j) / P_k(y_j); w_k = mean of gamma_jk; theta_k <- sum_i (n_i / n) theta_ik."""
    if options.learner.startswith("linear"):
        raise ConfigError("fedrc counts classes, but the targets are numbers: use fedem")
    return soft("fedrc", Ratio(), options)


ENTRY = Entry(
    name="fedrc",
    summary="mixtures told apart by what is predicted, not by which features or labels there are",
    paper="Guo, Tang, Lin: FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust "
    "Clustering, 2024",
    compose=fedrc,
    refuses=frozenset({"combine", "exchange"}),
    options=(*CHOICE_OPTIONS, ORDER),
    defaults=lambda given: {"clusters": 3, "client_weight": "samples", "averaging": "all"},
    learners=("logistic", "mlp", "cnn", "module"),
    twin="fedavg",
    reveals={
        "cluster": "which cluster weighs most for it",
        "labels": "how many samples of each class it counts in each cluster: together its label counts",
    },
    newcomers="mixture",
)
