"""Heads of linear regressions on one subspace, solved for, while the subspace is learned. (Guo, Tang, Lin 2025, app. B)

paper                    here
B-hat (d x c), theta_k   clusters.body, clusters.params of learner representation:width=c
omega_ijk in {0, 1}      the client's group, known (linear-heads), or its cluster of least loss (linear-heads-found)
eq. 48                   theta_k by least squares on the pooled samples of cluster k, B as it is
eq. 49                   B - (eta/N) sum_k (X_k^T X_k B theta_k - X_k^T y_k) theta_k^T       eta  lr
eq. 50                   B-hat R = B by QR
N, N_k                   samples: client_weight=samples

The appendix takes theta^{t+1} in eq. 49, as here. It is one exchange a round: clients of a cluster add up X^T X B and
X^T y, and the server does the rest (`server/solved_heads.py`). A head is kept as R theta, so that the models after a
round predict what B theta does before the QR; the next round does not depend on it, but for the choice of a cluster.
"""

from __future__ import annotations

from typing import Any

from coterie.errors import ConfigError
from coterie.learners.local_training import PooledHeads
from coterie.methods.base import Entry, parts
from coterie.options import Options
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def linear_heads(options: Options) -> Method:
    """theta_k solved on B; a gradient step on B; QR. The true groups are known, as the appendix has it."""
    return Method(
        "linear-heads",
        Conditional(),
        Assigned(),
        Fixed(options.clusters),
        groups=Groups("truth"),
        **_solved(options),
    )


def linear_heads_found(options: Options) -> Method:
    """The same, and every client joins the cluster whose head fits it best."""
    return Method("linear-heads-found", Conditional(), LowestLoss(), Fixed(options.clusters), **_solved(options))


def _solved(options: Options) -> dict[str, Any]:
    """The parts, with heads that are solved for on a shared body."""
    if not options.learner.startswith("representation"):
        raise ConfigError(
            f"heads are solved for on a linear representation, but the learner is {options.learner}: use "
            "representation:width=4"
        )
    return {**parts(options), "work": PooledHeads(lr=options.lr), "shared": ("body",)}


REFUSED = frozenset({"local_steps", "local_epochs", "batch_size", "augment", "exchange", "averaging", "shared"})
REFUSED |= {"combine", "poison"}
PAPER = (
    "Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved Methodologies, "
    "2025 (appendix B)"
)
SEES = (
    "X^T X B and X^T y of its samples, and its training loss; only sums over the clients of a cluster are used, so "
    "secure aggregation could hide them. As B moves from round to round they tell more and more of X^T X"
)


def _entry(name: str, **more: Any) -> Entry:
    return Entry(
        name=name,
        paper=PAPER,
        learners=("representation",),
        sees=SEES,
        **more,
    )


ENTRIES = (
    _entry(
        "linear-heads",
        summary="one linear subspace for all and a solved head for each true group",
        compose=linear_heads,
        refuses=REFUSED | {"clusters", "restarts", "start"},
        defaults=lambda given: {"client_weight": "samples", "averaging": "members"},
        no_twin="with one group it is least squares through a subspace, which no other method does",
        reveals={"cluster": "its true group, which the server knew before"},
        groups="truth",
    ),
    _entry(
        "linear-heads-found",
        summary="one linear subspace for all and a solved head for each cluster; clients join the head that fits best",
        compose=linear_heads_found,
        refuses=REFUSED,
        defaults=lambda given: {"clusters": 2, "client_weight": "samples", "averaging": "members"},
        twin="linear-heads",
        reveals={"cluster": "which cluster the client chose"},
    ),
)
