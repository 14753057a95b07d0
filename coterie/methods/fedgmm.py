"""FedGMM: every client is its own mixture of Gaussians of the features and models of the labels. (Wu et al. 2023)

paper                 here
theta_m2              clusters.params, K = M2          pi_c(m1, m2)  the client's weights, kept by the client
mu_m1, Sigma_m1       Gaussians of the embedding, diagonal, sent to everybody; `gaussians` = M1, by default as many as
                      models, each paired with every model
gamma(m1, m2)         responsibilities of a client's samples, once a round, in log space
                      with gaussians=tied each cluster has one Gaussian of its own (m1 = m2)

A density of d features outweighs one label: where Gaussian and model are one component (gaussians=tied), samples go by
what they look like, and clients that label the same inputs in another way are never told apart. Paired with every
model, Gaussians describe p(x) by themselves, and a client's models are told apart by p(y|x). Tied ones are for groups
that differ in p(x) alone.

The embedding is never trained. The Gaussians come from the sums of gamma, gamma z and gamma z^2 over clients: the
variance is that of all samples together, where the paper averages the clients' own variances. Floor of a variance:
1e-3 of the pooled one (ours). The first Gaussians come from what the first models make of the labels, or, paired with
every model, from random directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.methods.fedem import MixtureMethod
from coterie.options import option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.objective import EMBEDDINGS, Joint

SEVERAL = 3
"""Gaussians where the number of clusters is found."""


@register("fedgmm")
@dataclass(frozen=True, kw_only=True)
class FedGMM(MixtureMethod):
    """gamma_jab ~ pi_ab N(z_j; mu_a, Sigma_a) p_b(y_j|x_j); pi = mean of gamma; theta_b by its share of gamma."""

    gaussians: int | Literal["tied"] | None = option(
        None,
        "number of Gaussians, each paired with every model (M1), by default as many as clusters (3 where their number "
        "is found); tied: one for each cluster, which only its own model is paired with",
        low=1,
    )
    embedding: str = option(
        "auto",
        "what the Gaussians model: inputs, 32 random mixtures of them, or the input of the head of the first model at "
        "the start (for pretrained networks); auto: inputs up to 64 numbers, else random",
        choices=EMBEDDINGS,
    )

    summary: ClassVar[str] = "mixtures that also model what samples look like, so that newcomers need no labels"
    citation: ClassVar[str] = (
        "Wu, Zhang, Yu, Liu, Bao, Wang, Wang: Personalized Federated Learning under Mixture of Distributions, 2023"
    )
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="responsibility", client_weight="samples")

    @property
    def placing(self) -> Placing:
        return "density"

    def tiers(self) -> Tiers:
        if self.gaussians == "tied":
            return self.mixture(Joint(self.embedding))
        return self.mixture(Joint(self.embedding, self.gaussians or self.count or SEVERAL))
