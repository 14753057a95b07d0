"""How improbable a model finds a sample, from its loss there."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learners.base import Learner


def deviance(learner: Learner, losses: Tensor, usual: Tensor) -> Tensor:
    """-log p(y|x) of losses (..., S): cross-entropy is that already; a squared error becomes a Gaussian's.

    usual: the mean loss (S,) that the Gaussian's variance is taken from. Where it is not known, infinite, every model
    explains everything equally.
    """
    if learner.classes is not None:
        return losses
    known = usual.to(losses)
    unit = learner.loss(losses.new_ones(1, 1), losses.new_zeros(1, 1)).item()  # 1/2, or 1 without the half
    density = losses / (2 * known) + (2 * torch.pi * known / unit).log() / 2
    return torch.where(known.isfinite(), density, 0.0)
