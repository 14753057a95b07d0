"""A check whether the labelled samples of a new client fit any model of a run.

A new client is placed with the model of the lowest loss, and its certainty compares the models with each other.
Neither shows whether even the best model fits: with a target in another unit, exchanged labels or a group that was not
in the training data, the placement is meaningless although the certainty is high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TIMES, TIMES_A_SAMPLE = 4.0, 20.0
"""Largest ratio of squared errors to the usual ones for n samples: `TIMES + TIMES_A_SAMPLE / n`."""
LEAST_LOSS, ERRORS = 0.3, 4.0
"""A log loss is too large `ERRORS` standard errors above the usual one; a sample deviates by the usual loss, or by
`LEAST_LOSS` if that is more."""
MISFIT = "the labelled samples fit no cluster"
"""First words of the warning."""
CHANCE = 1.2
"""Multiple of the log loss of a uniform guess below which a log loss is never too large."""


@dataclass(frozen=True)
class UsualLoss:
    """Typical loss of the models on the clients that trained.

    Args:
        mean: Mean loss over the samples of all clients.
        classes: Number of classes; None where numbers are predicted.
    """

    mean: float
    classes: int | None

    @classmethod
    def of(cls, losses: Sequence[float | None], sizes: Sequence[int], classes: int | None) -> UsualLoss:
        """Return the usual loss.

        Args:
            losses: Mean loss of each client's own model on its data; None where it is not known.
            sizes: Number of samples of each client.
            classes: Number of classes; None where numbers are predicted.
        """
        known = [(loss, n) for loss, n in zip(losses, sizes, strict=True) if loss is not None and math.isfinite(loss)]
        total = sum(n for _, n in known)
        return cls(sum(loss * n for loss, n in known) / total if total else math.inf, classes)

    def limit(self, samples: int) -> float:
        """Return the mean loss beyond which this number of samples does not fit a model."""
        if self.classes is None:
            return self.mean * (TIMES + TIMES_A_SAMPLE / samples)
        above = self.mean + ERRORS * max(self.mean, LEAST_LOSS) / math.sqrt(samples)
        return max(above, CHANCE * math.log(self.classes))

    def grown(self, loss: float, usual: float | None, samples: int) -> bool:
        """Return whether labelled samples of a client that trained fit its models much worse than before.

        Args:
            loss: Mean loss of its models on the samples.
            usual: Mean loss of its models on its data in the training; None if it is not known.
            samples: Number of samples.
        """
        before = max(self.mean, usual if usual is not None and math.isfinite(usual) else 0.0)
        return loss > UsualLoss(before, self.classes).limit(samples)

    def misfit(self, losses: npt.NDArray[np.float64]) -> str:
        """Return a sentence if labelled samples fit no model; empty if they fit one.

        Args:
            losses: Loss of each model on each sample, (K, n).
        """
        best, samples = float(losses.mean(axis=1).min()), losses.shape[1]
        if not best > self.limit(samples):
            return ""
        return (
            f"{MISFIT}: their mean loss is {best:.3g} with the best model, but "
            f"{self.mean:.3g} for the clients that trained, so that cluster, certainty and predictions mean little; "
            "check units and labels, or train again with such clients"
        )
