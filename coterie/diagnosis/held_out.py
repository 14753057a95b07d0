"""Cross-validated losses of one model, of a model for each group, and of models for each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.own_models import newton_step
from coterie.client.tasks import CrossValidateAlone, CrossValidateGroups
from coterie.core.clusters import Params
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.shard import Positions
from coterie.diagnosis.mixture import Mixture, fit_points
from coterie.diagnosis.pooled import Pooled, model_arrays
from coterie.diagnosis.session import Floats, Session
from coterie.diagnosis.structure import LEAST_SPREAD, MOST_SPREAD, Differences, Found

NEWTON_STEPS = 6
LONGEST_STEP = 1.0
"""Longest Newton step of a group's model, in directions of unit information."""
SETTLED = 0.02
"""Length of the longest Newton step below which the fit ends."""
RIDGE = 1.0
"""Precision of the prior of the models of groups and of single clients: the information of one sample."""


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
    """Loss of a model for each client, shrunken to the pooled model according to the spread of the clients."""
    local: Floats
    """Loss of a model for each client, fitted to its own samples."""


def cross_validate(session: Session, pooled: Pooled, differences: Differences, found: Found, seed: int) -> HeldOut:
    """Return the losses on left-out samples, by cross-validation inside the clients.

    For each fold, a mixture with as many groups as were found is fitted to the samples outside the fold. Then every
    client chooses the group that fits these samples best, and the groups' models take Newton steps on them, in turns.

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
    by_number = _groups(session, pooled, common, _initial(differences, found.groups, seed), seed)
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


def _initial(differences: Differences, groups: Mixture | None, seed: int) -> Tensor:
    """Return the initial models of each fold, (folds, L, r): one for all clients, and one for each group."""
    random = generator(key_for(seed, Purpose.DIAGNOSIS, 4))
    one = np.zeros((1, differences.directions.shape[1]))
    found = []
    for evidence in differences.training:
        if groups is None:
            found.append(one)
        else:
            fitted = fit_points(evidence, groups.clusters, None, random, groups.centres)
            found.append(np.vstack([one, fitted.centres]))
    return torch.from_numpy(np.stack(found))


def _groups(session: Session, pooled: Pooled, common: Params, changes: Tensor, seed: int) -> Tensor:
    """Return the losses of one model, and of the models of groups if there are any, (m, 1 or 2)."""
    _, models, r = changes.shape
    numbers = (1,) if models == 1 else (1, models - 1)
    ridge = torch.full((r,), RIDGE, dtype=torch.float64)
    for left in reversed(range(NEWTON_STEPS + 1)):
        sent = {**common, "changes": changes}
        reply = session.ask(CrossValidateGroups(seed, numbers), sent, pooled.scalars)
        steps = newton_step(reply.sums["score"], reply.sums["hessian"], changes, ridge)
        lengths = steps.norm(dim=2, keepdim=True)
        if left == 0 or float(lengths.max()) < SETTLED:
            break
        changes = changes + steps * (LONGEST_STEP / lengths).clamp(max=1)
    return reply.rows["losses"]
