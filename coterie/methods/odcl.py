"""ODCL: one round. Clients solve their own problems, the server clusters the solutions and averages inside clusters.

(Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022)

paper                 here
theta-hat_i           a client's own solution: solver (exact: algorithm 1; sgd: theorem 2, remark 16)
C, eta                clustering and its settings; K for all but convex clustering
theta-bar_k           clusters.params, the mean over the cluster: client_weight=uniform as in the paper, or samples
lambda, (12), (13)    lam, or convex_grid and convex_rule for the path of appendix C; lam=oracle13 needs the truth
T, R, mu_f            sgd_steps, sgd_radius, sgd_mu

All of it happens before the first round (`server/one_shot.py`, `client/solve.py`), so start=odcl puts it before any
other method. The yardsticks of the paper are in `methods/one_shot_yardsticks.py`. ALL-for-ALL is left out: it has to be
told who belongs together.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.methods.base import Entry, parts
from coterie.options import AUTO, COMMON, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed
from coterie.training.starts import ODCL, ODCL_OPTIONS

PAPER = (
    "Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous "
    "Environments, 2022"
)
SOLVING = {
    "learner",
    "engine",
    "device",
    "dtype",
    "seed",
    "validation",
    "client_weight",
    "local_steps",
    "local_epochs",
    "batch_size",
    "augment",
    "lr",
    "finetune",
}
"""The common options that mean something without rounds; the last six to solver=steps, or to finetune and its steps."""


def odcl(options: Options) -> Method:
    """No rounds follow: every client keeps the mean of its cluster."""
    return Method("odcl", Conditional(), Assigned(), Fixed(options.clusters), groups=Groups("start"), **parts(options))


def prefers(given: Mapping[str, object]) -> Mapping[str, object]:
    """The start that it is; convex clustering needs no K."""
    return {"start": ODCL, "restarts": 1} | ({"clusters": AUTO} if given.get("clustering") == "convex" else {})


ENTRY = Entry(
    name="odcl",
    summary="one round: clients' own solutions are clustered and averaged",
    paper=PAPER,
    compose=odcl,
    refuses=frozenset({option.name for option in COMMON} - SOLVING - {"clusters"}),
    options=ODCL_OPTIONS,
    defaults=lambda given: {"clusters": 2, "rounds": 0, "client_weight": "uniform", "averaging": "members"},
    prefers=prefers,
    twin="naive-averaging",
)
