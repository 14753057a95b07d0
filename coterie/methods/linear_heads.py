"""Heads of linear regressions on one subspace, solved exactly while the subspace is learned. (Guo et al. 2025, app. B)

paper                    here
B-hat (d x c), theta_k   clusters.body, clusters.params of learner representation:width=c
omega_ijk in {0, 1}      the client's group, known (linear-heads), or its cluster of lowest loss (linear-heads-found)
eq. 48                   theta_k by least squares on the pooled samples of cluster k, with fixed B
eq. 49                   B - (eta/N) sum_k (X_k^T X_k B theta_k - X_k^T y_k) theta_k^T       eta  lr
eq. 50                   B-hat R = B by QR
N, N_k                   samples: client_weight=samples

As in the appendix, eq. 49 uses theta^{t+1}. A round is one exchange: the clients of a cluster add up X^T X B and X^T y,
and the server does the rest (`solve_heads`). A head is stored as R theta, so that the models after a round predict what
B theta does before the QR decomposition; apart from the choice of clusters, the next round does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining, PooledHeads
from coterie.learners.representation import Representation
from coterie.methods.base import Method, TieredMethod
from coterie.methods.groups import FoundGroups, TrueGroups
from coterie.options import Auto, option
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.composition import Tiers

REFUSED = frozenset({"local_steps", "local_epochs", "batch_size", "augment", "optimizer", "exchange", "shared"})
REFUSED |= {"averaging", "divide_by", "combine", "poison", "server_optimizer"}


@dataclass(frozen=True, kw_only=True)
class _SolvedHeads(TieredMethod):
    """Base class of both methods: heads that are solved exactly on a shared body."""

    local: LocalTraining = PooledHeads()

    citation: ClassVar[str] = (
        "Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved "
        "Methodologies, 2025 (appendix B)"
    )
    learners: ClassVar[tuple[str, ...] | None] = ("representation",)

    def for_learner(self, learner: Learner) -> Method:
        if not isinstance(learner, Representation):
            raise ConfigError(
                f"{self.name} solves heads on a linear representation, but the learner is {learner.spec}: use "
                "representation:width=4"
            )
        return self


@register("linear-heads")
@dataclass(frozen=True, kw_only=True)
class LinearHeads(_SolvedHeads):
    """One linear subspace for all clients, and a head for each true group, as in the appendix.

    theta_k by least squares on B; a gradient step on B; QR.

    Example:
        >>> import coterie
        >>> from coterie.methods import LinearHeads
        >>> data = coterie.scenario("linear-representation", clients=8)
        >>> result = coterie.fit(data, LinearHeads(), rounds=2)
        >>> result.metrics["clusters"]
        8
    """

    summary: ClassVar[str] = "one linear subspace for all, and an exactly solved head for each true group"
    groups: ClassVar[FoundGroups] = TrueGroups()
    no_twin: ClassVar[str] = "with one group it is least squares on a subspace, which is no other method"
    refuses: ClassVar[frozenset[str]] = REFUSED | {"clusters", "restarts", "init"}

    def tiers(self) -> Tiers:
        return self.compose(assignment=Assigned(), shared=("body",))


@register("linear-heads-found")
@dataclass(frozen=True, kw_only=True)
class LinearHeadsFound(_SolvedHeads):
    """One linear subspace for all clients, and a head for each cluster; clients join the head that fits them best.

    k_i = argmin_k F_i(B theta_k); theta_k by least squares on B; a gradient step on B; QR.

    Example:
        >>> import coterie
        >>> from coterie.methods import LinearHeadsFound
        >>> data = coterie.scenario("linear-representation", clients=8)
        >>> result = coterie.fit(data, LinearHeadsFound(clusters=3), rounds=2)
        >>> len(result.models)
        3
    """

    clusters: int | Auto = option(2, "number of clusters (K)", low=1)

    summary: ClassVar[str] = (
        "one linear subspace for all, and a solved head for each cluster; clients join the head that fits best"
    )
    twin: ClassVar[str | None] = "linear-heads"
    refuses: ClassVar[frozenset[str]] = REFUSED

    def tiers(self) -> Tiers:
        return self.compose(assignment=LowestLoss(), shared=("body",))
