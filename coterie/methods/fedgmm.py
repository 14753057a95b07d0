"""FedGMM: every client is its own mixture of Gaussians of the inputs and models of the labels. (Wu et al. 2023)

paper                 here
theta_m2              clusters.params, K = M2          pi_c(m1, m2)  the client's weights, kept by the client
mu_m1, Sigma_m1       diagonal Gaussians of the embedding, sent to all clients; `gaussians` = M1, by default as many as
                      models, each paired with every model
gamma(m1, m2)         responsibilities of a client's samples, once a round, in log space
                      with gaussians=tied each cluster has its own Gaussian (m1 = m2)

The density of d features outweighs that of one label. If Gaussian and model form one component (gaussians=tied),
samples are therefore assigned by their inputs, and clients that label the same inputs differently are never separated.
If every Gaussian is paired with every model, the Gaussians describe p(x) independently, and p(y|x) separates the models
of a client. Use tied Gaussians for groups that differ in p(x) only.

The embedding is never trained. The Gaussians come from the sums of gamma, gamma z and gamma z^2 over clients: the
variance is that of all samples together, whereas the paper averages the clients' variances. Lower limit of a variance
(ours): 1e-3 of the pooled one. The first Gaussians come from the responsibilities of the first models, or, if paired
with every model, from random directions.
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
"""Number of Gaussians if the number of clusters is not known in advance."""


@register("fedgmm")
@dataclass(frozen=True, kw_only=True)
class FedGMM(MixtureMethod):
    """Every client is its own mixture of Gaussians of the inputs and models of the labels.

    gamma_jab ~ pi_ab N(z_j; mu_a, Sigma_a) p_b(y_j|x_j); pi = mean of gamma; theta_b by its share of gamma.
    """

    gaussians: int | Literal["tied"] | None = option(
        None,
        "number of Gaussians, each paired with every model (M1); by default as many as clusters (3 if their number is "
        "to be found); tied: one Gaussian for each cluster, paired only with its model",
        low=1,
    )
    embedding: str = option(
        "auto",
        "what the Gaussians model: the inputs, 32 random mixtures of them, or the input of the head of the first model "
        "before training (start, for pretrained networks); auto: inputs if there are at most 64, else random",
        choices=EMBEDDINGS,
    )

    summary: ClassVar[str] = "mixtures that also model the distribution of the inputs, so that newcomers need no labels"
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
