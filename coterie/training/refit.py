"""The last exchange of `refit`: exact least squares in every cluster.

Averages of s local steps converge to the point at which the clients' steps balance each other. This is not the
least-squares solution of the pooled samples if clients differ in their features, sizes or step lengths. The clients'
X^T X and X^T r, summed by cluster, lead from any model to that solution in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from coterie.core.state import ServerState
from coterie.evaluate.regression import ask_moments, design, newton_steps
from coterie.learners.linear import as_linear
from coterie.methods.asking import Cost
from coterie.methods.run import Run

REFIT = "refit"
"""Key of the last exchange in `Result.metrics`."""


@dataclass(frozen=True)
class Refitted:
    """The end of a run whose models are the least-squares solutions of their members' samples."""

    state: ServerState
    """The restart of lowest training loss, refitted."""
    found: Mapping[str, Any]
    """Effect and cost of the exchange, ready for JSON."""


def refitted(run: Run, state: ServerState) -> Refitted:
    """Ask every client that has trained for the sums of its last cluster, and solve for each cluster.

    Directions that the members' features leave undetermined stay unchanged, and so do clusters without members.

    Raises:
        TrainingError: if no client answers.
    """
    state, linear, cost = state.best_restart_only(), as_linear(run.learner), Cost()
    theta = linear.to_coefficients(state.clusters.all_models()).cpu()
    answered, moments = ask_moments(run.federation, theta, state.choice[:, 0], state.round, cost)
    steps = newton_steps([design(gram) for gram in moments.gram], moments)
    solved = linear.from_coefficients(theta + torch.from_numpy(steps)[..., None])
    params = {name: solved[name].to(p) for name, p in state.clusters.params.items()}
    samples = max(int(moments.samples.sum()), 1)
    fall = float((steps * moments.score).sum()) / 2
    found = {
        "clients": len(answered),
        "loss_before": float(moments.loss.sum()) / samples,
        "loss_after": (float(moments.loss.sum()) - fall) / samples,
        "longest_step": float(abs(steps).max()),
    }
    return Refitted(replace(state, clusters=replace(state.clusters, params=params)), found | asdict(cost))
