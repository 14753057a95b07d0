"""How often a run is evaluated if the user does not say it."""

from __future__ import annotations

import math

import numpy as np

from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.shard import Positions
from coterie.methods.settings import RunSettings
from coterie.tiers.composition import Tiers

SHARE = 0.05
"""Largest share of a run's time that evaluation may take with evaluate_every=auto, estimated from sample counts."""
FIRST_ROUNDS = 10
"""Number of initial rounds that are all evaluated with evaluate_every=auto."""


def usual_interval(data: ClientDirectory, sizes: Positions, tiers: Tiers, settings: RunSettings) -> int:
    """Return the number of rounds between evaluations such that they take at most `SHARE` of the time.

    It depends on the settings and on sample counts only, so that repeated and resumed runs are evaluated after the same
    rounds. Remote clients, whose test samples are unknown, are evaluated in every round, and so are runs that end after
    some evaluations without improvement.

    Args:
        data: The clients.
        sizes: Number of training samples of each client, (m,).
        tiers: Composition of the method.
        settings: Settings of the run.
    """
    counts_evaluations = settings.patience is not None and settings.validation is not None
    if counts_evaluations or not isinstance(data, FederatedDataset):
        return 1
    K, new = tiers.K or 1, data.newcomers
    evaluated = 0.0 if data.test is None else float(data.test.sizes.sum())
    evaluated += (settings.validation or 0.0) * float(data.sizes.sum())
    evaluated += 0 if new is None else K * float(new.support.sizes.sum() + new.query.sizes.sum())
    return max(1, math.ceil(evaluated / (SHARE * settings.participation * _trained(sizes, tiers))))


def _trained(sizes: Positions, tiers: Tiers) -> float:
    """Return the number of predictions and gradients of single samples in a round, which take about the same time."""
    chosen = 1 if tiers.assignment.assigned or tiers.assignment.single else tiers.K or 1
    batch = tiers.local.batch_size_for(int(sizes.max()))
    steps = tiers.local.steps_for(-(-sizes // batch))
    in_steps = float(np.minimum(steps * batch, steps * sizes).sum())
    return tiers.restarts * (chosen * float(sizes.sum()) + 2 * in_steps)
