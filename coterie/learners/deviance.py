"""Negative log-likelihoods of samples, computed from losses."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learners.base import Learner


def deviance(learner: Learner, losses: Tensor, usual: Tensor) -> Tensor:
    """Return -log p(y|x) for each loss: the cross-entropy itself, or that of a Gaussian for squared errors.

    Args:
        learner: Model family.
        losses: Losses of S models, (..., S).
        usual: Mean loss of each model, (S,), from which the variance of the Gaussian is computed. If it is unknown
            (infinite), the result is 0.
    """
    if learner.classes is not None:
        return losses
    known = usual.to(losses)
    unit = learner.loss(losses.new_ones(1, 1), losses.new_zeros(1, 1)).item()  # 1/2, or 1 without the half
    density = losses / (2 * known) + normalisation(known, unit)
    return torch.where(known.isfinite(), density, 0.0)


def normalisation(usual: Tensor, unit: float) -> Tensor:
    """Return -log p(y|x) of a Gaussian for a sample without error.

    Args:
        usual: Mean loss, which determines the variance.
        unit: Loss of an error of 1.
    """
    return (2 * torch.pi * usual / unit).log() / 2
