"""FedGMM: every client is its own mixture of Gaussians of the features and models of the labels. (Wu et al. 2023)

paper                 here
theta_m2              clusters.params, K = M2          pi_c(m1, m2)  the client's weights, kept by the client
mu_m1, Sigma_m1       Gaussians of the embedding, diagonal, told to everybody; `gaussians` = M1, paired with every model
gamma(m1, m2)         responsibilities of a client's samples, once a round, in log space
                      without `gaussians` each cluster has one Gaussian of its own (m1 = m2)

The embedding is never trained. The Gaussians come from the sums of gamma, gamma z and gamma z^2 over clients: the
variance is that of all samples together, where the paper averages the clients' own variances. Floor of a variance:
1e-3 of the pooled one (ours). The first Gaussians come from what the first models make of the labels, or, paired with
every model, from random directions.
"""

from __future__ import annotations

from coterie.methods.base import CHOICE_OPTIONS, Entry
from coterie.methods.fedem import soft
from coterie.options import Option, Options
from coterie.tiers.method import Method
from coterie.tiers.objective import SEEN_AS, Joint


def fedgmm(options: Options) -> Method:
    """gamma_jab ~ pi_ab N(z_j; mu_a, Sigma_a) p_b(y_j|x_j); pi = mean of gamma; theta_b by its share of gamma."""
    return soft("fedgmm", Joint(options.own["embedding"], options.own["gaussians"], options.seed), options)


ENTRY = Entry(
    name="fedgmm",
    summary="mixtures that also model what samples look like, so that newcomers need no labels",
    paper="Wu, Zhang, Yu, Liu, Bao, Wang, Wang: Personalized Federated Learning under Mixture of Distributions, 2023",
    compose=fedgmm,
    refuses=frozenset({"combine", "exchange", "shared"}),
    options=(
        *CHOICE_OPTIONS,
        Option(
            "gaussians", int, "Gaussians, each paired with every model (M1); without it one for each cluster", low=1
        ),
        Option(
            "embedding",
            str,
            "what the Gaussians are of: inputs, 32 random mixtures of them, what the head of the first model is given "
            "at the start (for pretrained networks); auto: inputs up to 64 numbers, else random",
            "auto",
            SEEN_AS,
        ),
    ),
    defaults=lambda given: {"clusters": 3, "client_weight": "samples", "averaging": "responsibility"},
    twin="fedavg",
    newcomers="density",
    reveals={"cluster": "which cluster weighs most for it"},
)
