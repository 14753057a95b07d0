"""FedAMP: every client has a model that is pulled towards the models of similar clients. (Huang et al. 2021)

paper                        here
w_i                          clusters.params, one row for each client
u_i = sum_j xi_ij w_j        the model that client i receives: computed in `_attended`, not stored
xi_ij = alpha A'(|w_i-w_j|^2), j != i    xi_ii = 1 - sum of the others    alpha  alpha, the step on the cloud models
A(x) = 1 - exp(-x / sigma)   A'(x) = exp(-x / sigma) / sigma              sigma  sigma
lambda                       lam; client i takes local steps from u_i on F_i(w) + lambda / (2 alpha) |w - u_i|^2

The paper chooses alpha so small that xi_ii stays positive. Here a client's weights of the others are scaled to sum to
one if they exceed it, so that u_i is always a mean of models and a large alpha cannot diverge. A client that does not
answer in a round keeps w_i. The server holds one model for each client and sees all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.clusters import flat, unflat
from coterie.core.registry import register
from coterie.core.state import ServerState
from coterie.methods.base import TieredMethod
from coterie.methods.groups import FoundGroups, OneModelEach
from coterie.methods.round import Step
from coterie.methods.run import Run
from coterie.methods.settings import PRIVACY_OPTIONS
from coterie.options import option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import Parameters


@register("fedamp")
@dataclass(frozen=True, kw_only=True)
class FedAMP(TieredMethod):
    """Every client trains a personal model from a mean of all models, weighted by their similarity to its own.

    u_i <- mean of all w_j by similarity to w_i; w_i <- local steps from u_i, pulled towards u_i.

    Example:
        >>> import coterie
        >>> from coterie.methods import FedAMP
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, FedAMP(sigma=0.5), learner="logistic", rounds=2)
        >>> len(result.models)
        8
    """

    alpha: float = option(1.0, "step size of the server's attention step (alpha)", above=0)
    sigma: float = option(1.0, "squared distance of two models at which their attention falls to 1/e (sigma)", above=0)
    lam: float = option(0.1, "strength of the regularisation (lambda); the proximal weight is lambda / alpha", low=0)

    summary: ClassVar[str] = "every client trains a model that is pulled towards similar clients' models"
    citation: ClassVar[str] = (
        "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, 2021"
    )
    groups: ClassVar[FoundGroups] = OneModelEach()
    no_twin: ClassVar[str] = "K is the number of clients by definition"
    refuses: ClassVar[frozenset[str]] = (
        frozenset({"clusters", "averaging", "client_weight", "divide_by", "combine", "restarts", "shared"})
        | {"server_lr", "server_optimizer", "exchange", "init"}
        | PRIVACY_OPTIONS
    )

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="members", client_weight="uniform")

    def tiers(self) -> Tiers:
        # because of the distance, clients send their updates separately, which is what the server sees of them
        return self.compose(
            assignment=Assigned(), distance=Parameters(), local=replace(self.local, prox=self.lam / self.alpha)
        )

    def step(self, run: Run, state: ServerState) -> Step:
        """Send u_i and receive w_i; a client that does not answer keeps its w_i."""
        before = state.clusters
        models = flat(before.params)
        received = unflat(self._attended(models.double()).to(models), before.params)
        step = super().step(run, replace(state, clusters=replace(before, params=received)))
        answered = torch.from_numpy(step.positions).to(models.device)
        params = {
            name: p.index_copy(0, answered, step.state.clusters.params[name][answered])
            for name, p in before.params.items()
        }
        return replace(step, state=replace(step.state, clusters=replace(before, params=params)))

    def _attended(self, models: Tensor) -> Tensor:
        """Return u_i (m, P), the means of the models w_j (m, P), weighted by their similarity to w_i."""
        apart = torch.cdist(models, models, compute_mode="donot_use_mm_for_euclid_dist").square()
        attention = self.alpha / self.sigma * torch.exp(-apart / self.sigma)
        attention.fill_diagonal_(0)
        attention = attention / attention.sum(dim=1, keepdim=True).clamp_min(1)
        return models + attention @ models - attention.sum(dim=1, keepdim=True) * models
