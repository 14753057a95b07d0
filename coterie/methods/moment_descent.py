"""Federated moment descent: coarse models of k regressions from any start. Phase 1 of Su, Xu, Yang 2022.

paper           here
H, n_H          anchors (ceil(3 k ln k) unless given), drawn among clients with anchor_samples samples
T, T_1          iterations, subspace_rounds
theta_0         start_norm times a random direction (0: the origin)
Delta, epsilon  delta, epsilon; read off the anchors where they are not given
alpha, beta     alpha, beta; the step is alpha / (2 beta^2), or half over the mean eigenvalue of the covariance
Y, A            moments: all pairs of a client's samples (ours), or two points of fresh clients (the paper's letter)
remark 2        private_anchors: noise on every client's own two copies of the anchors' estimates

It is no composition of tiers: `server/moment_descent.py` and `client/moments.py` are its two halves. Here it ends with
the coarse models; `two-phase` goes on with them, and start=moment-descent puts it before any other method.
"""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import COMMON, Options
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed
from coterie.training.starts import MOMENT_DESCENT, MOMENT_OPTIONS

KEPT = {"clusters", "learner", "engine", "device", "dtype", "seed", "validation"}
"""The common options that mean something before the first round."""


def moment_descent(options: Options) -> Method:
    """No rounds follow: every client joins the coarse model that fits it best."""
    return Method("moment-descent", Conditional(), LowestLoss(), Fixed(options.clusters), **parts(options))


ENTRY = Entry(
    name="moment-descent",
    summary="coarse models of linear regressions from any start, by a few anchor clients",
    paper="Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression, 2022 (phase 1)",
    compose=moment_descent,
    refuses=frozenset({option.name for option in COMMON} - KEPT),
    options=MOMENT_OPTIONS,
    defaults=lambda given: {"clusters": 2, "rounds": 0, "client_weight": "uniform", "averaging": "members"},
    prefers=lambda given: {"start": MOMENT_DESCENT},
    learners=("linear",),
    no_twin="one model needs no anchors; what is found for K=1 is no average of the clients' models",
)
