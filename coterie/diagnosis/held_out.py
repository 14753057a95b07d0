"""Cross-validated losses of one model, of a model for each group, and of models for each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.own_models import FOLDS, newton_step
from coterie.client.tasks import CrossValidateAlone, CrossValidateGroups
from coterie.core.clusters import Params
from coterie.core.shard import Positions
from coterie.diagnosis.mixture import Mixture
from coterie.diagnosis.pooled import Pooled, model_arrays
from coterie.diagnosis.session import Floats, Session
from coterie.diagnosis.structure import LEAST_SPREAD, MOST_SPREAD, Differences, Found

NEWTON_STEPS = 6
LONGEST_STEP = 1.0
"""Longest Newton step of a group's model, in directions of unit information."""
SETTLED = 0.02
"""Length of Newton steps from which no more are taken."""
RIDGE = 1.0
"""Precision of the prior of the models of groups and of single clients: as much as one sample."""


@dataclass(frozen=True)
class HeldOut:
    """Summed losses of the clients (m,) on samples that were left out of the fits.

    They are log losses, or half the squared residuals of a regression in units of the pooled model's residuals.
    """

    sizes: Floats
    """n_i, (m,)."""
    one: Floats
    """Loss of one model for all clients."""
    groups: Floats | None
    """Loss of one model for each group; None if there are no groups to try."""
    personal: Floats
    """Loss of a model for each client that is shrunken to the pooled model as much as the clients are alike."""
    local: Floats
    """Loss of a model for each client, fitted to its own samples."""


def cross_validate(session: Session, pooled: Pooled, differences: Differences, found: Found, seed: int) -> HeldOut:
    """Return losses on left-out samples, by cross-validation inside the clients.

    The models of the groups start from the centres of the mixture. For each fold, every client chooses the group that
    fits its other folds best, and the models take Newton steps on the samples outside the fold, in turns.

    Args:
        session: The clients.
        pooled: The pooled fits.
        differences: Evidence of the clients, for its directions.
        found: The structure.
        seed: Seed of the folds.

    Raises:
        TrainingError: if no client answers.
    """
    common = {**model_arrays(pooled), "directions": differences.directions}
    asked: list[Positions] = []
    losses: list[Tensor] = []
    by_number = _groups(session, pooled, common, found.groups, seed)
    for number in range(by_number.shape[1]):
        asked.append(session.asked)
        losses.append(by_number[:, number])
    spread = torch.from_numpy(found.continuum.variances).clamp(LEAST_SPREAD, MOST_SPREAD)
    for precision in (1 / spread, torch.full_like(spread, RIDGE)):
        sent = {**common, "precision": precision}
        losses.append(session.ask(CrossValidateAlone(seed), sent, pooled.scalars).rows["losses"])
        asked.append(session.asked)
    rows = [row.numpy()[np.isin(then, session.asked)] for row, then in zip(losses, asked, strict=True)]
    one, *groups, personal, local = rows
    return HeldOut(session.sizes.astype(np.float64), one, groups[0] if groups else None, personal, local)


def _groups(session: Session, pooled: Pooled, common: Params, mixture: Mixture | None, seed: int) -> Tensor:
    """Return the losses of one model, and of the models of groups if there are any, (m, 1 or 2)."""
    r = common["directions"].shape[1]
    centres = np.zeros((1, r)) if mixture is None else np.vstack([np.zeros((1, r)), mixture.centres])
    numbers = (1,) if mixture is None else (1, mixture.clusters)
    ridge = torch.full((r,), RIDGE, dtype=torch.float64)
    changes = torch.from_numpy(centres).expand(FOLDS, -1, -1)
    for left in reversed(range(NEWTON_STEPS + 1)):
        sent = {**common, "changes": changes}
        reply = session.ask(CrossValidateGroups(seed, numbers), sent, pooled.scalars)
        steps = newton_step(reply.sums["score"], reply.sums["hessian"], changes, ridge)
        lengths = steps.norm(dim=2, keepdim=True)
        if left == 0 or float(lengths.max()) < SETTLED:
            break
        changes = changes + steps * (LONGEST_STEP / lengths).clamp(max=1)
    return reply.rows["losses"]
