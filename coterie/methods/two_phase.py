"""Two phases: moment descent for coarse models, then FedX-clustering. (Su, Xu, Yang 2022)

paper          here
phase 1        start=moment-descent and its options (see methods/moment_descent.py); start=random leaves it out
theta_t        clusters.params                      eta  lr (auto: 0.9 / max_i |X_i|^2 / n_i)     s  local_steps
z_it, eq. (8)  the cluster of least squared error   w_i = n_i / N  averaging=all, client_weight=samples
lambda_it      one cluster, eq. (8); with soft the lambda that also pays for its entropy
FedAvg-based   phase2=fedavg: s gradient steps      FedProx-based  phase2=fedprox: one proximal step of length eta

With averaging=all a cluster moves at the pace of its share of the data, as in the paper; averaging=members is IFCA's
option II, which is faster and is less often stuck from a random start.
"""

from __future__ import annotations

from dataclasses import replace

from coterie.learners.local_training import LocalTraining, ProximalStep
from coterie.methods.base import Entry, parts
from coterie.options import AUTO, Option, Options
from coterie.tiers.assignment import LowestLoss, SoftmaxLoss
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed
from coterie.training.starts import MOMENT_DESCENT, MOMENT_OPTIONS


def two_phase(options: Options) -> Method:
    """Each client joins its cluster by least loss and refines that model; theta <- sum_i (n_i / N) theta_i."""
    common = parts(options)
    work = common.pop("work")
    if options.own["phase2"] == "fedprox":
        work = _proximal(work, options)
    soft = options.own.get("soft")
    weights = LowestLoss() if soft is None else SoftmaxLoss(soft)
    return Method("two-phase", Conditional(), weights, Fixed(options.clusters), work=work, **common)


def _proximal(work: LocalTraining, options: Options) -> LocalTraining:
    """argmin of L_i(theta) + |theta - theta_t|^2 / (2 eta): solved for linear models, by gradient steps for others."""
    if options.learner.startswith("linear"):
        return ProximalStep(lr=options.lr)
    # s steps of length lr go about as far as one proximal step of s times the length
    return replace(work, prox=1 / (options.lr * (options.local_steps or 1)))


ENTRY = Entry(
    name="two-phase",
    summary="coarse models by moment descent, then clients join and refine them",
    paper="Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression, 2022",
    compose=two_phase,
    refuses=frozenset({"exchange", "shared"}),
    options=(
        Option("phase2", str, "local work: gradient steps, or one proximal step", "fedavg", ("fedavg", "fedprox")),
        Option(
            "soft",
            float,
            "temperature: a client trains every model, weighted by exp(-mean loss / temperature); unset: only its best",
            None,
            above=0,
        ),
        *MOMENT_OPTIONS,
    ),
    defaults=lambda given: {"clusters": 2, "client_weight": "samples", "averaging": "all", "local_steps": 5},
    prefers=lambda given: {"start": MOMENT_DESCENT, "lr": AUTO, "restarts": 1},
    twin="fedavg",
    reveals={
        "cluster": "which cluster the client chose",
        "curvature": "with lr=auto: the largest eigenvalue of X^T X / n",
    },
)
