"""Detection of divergence: one decision for the result, the terminal, the report, comparisons and sweeps.

Successful training ends with a training loss below that of a model that ignores its input, and below that of the
initial models. Training that ends far above both has diverged: its models must not be used, however certain the figures
computed from them look. docs/divergence.md explains the choice of the margins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from torch.linalg import LinAlgError as TorchLinAlgError  # type: ignore[attr-defined]

from coterie.errors import TrainingError

DIVERGED = "diverged"
"""Value of a record's `stopped`: the round ended the training because no client had a finite update."""
NAMED = 3
"""Largest number of clients that a sentence names."""
MARGIN = 3.0
"""A training loss of this many times the reference counts as diverged."""
FAR = 1e3
"""Largest factor by which initial models worse than one that ignores its input may raise the reference."""
WIDE_MARGIN = 100.0
"""Margin if good models can be far above the reference: on held-out samples, after a change of clusters, with noise."""


@dataclass(frozen=True)
class Outcome:
    """Facts about a finished training; None for values that clients could not be asked for."""

    models_finite: bool
    """Whether all parameters are finite."""
    updates_finite: bool
    """Whether clients had finite updates; False if a round ended the training because none had one."""
    loss: float | None
    """Mean training loss; infinite or NaN if it is for some client."""
    trained: float | None
    """Mean training loss under the models that clients last trained, which they may have left for better ones."""
    unfit: Sequence[str]
    """The clients whose training loss is not finite."""
    evaluated: float | None
    """Mean loss of the models that clients predict with, on held-out samples if there are any."""
    reference: float | None
    """Loss below which successful training stays; see `reference`."""
    noised: bool = False
    """Whether the run is private, so that noise alone can make models worse."""


def reference(classes: int | None, zero: float | None, first: float | None, first_untrained: bool) -> float | None:
    """Return the loss below which successful training stays, from facts that the server has; None if it has none.

    Args:
        classes: Number of classes; None for a regression.
        zero: For a regression, the training loss of a model that always predicts 0, if known. For classes it is log(C),
            the loss with equal probabilities.
        first: Training loss that the first round recorded.
        first_untrained: Whether `first` is the loss of models that no client has trained. If so, training that has only
            just started may still be near it, unless it is hopelessly far; if not, it may be the loss of a divergence
            and counts only if nothing else is known.
    """
    if classes is not None:
        zero = math.log(max(2, classes))
    # targets that are all 0, or whose squares are 0, give no scale for a comparison
    zero, first = (value if value is not None and 0 < value < math.inf else None for value in (zero, first))
    if zero is None or first is None:
        return first if zero is None else zero
    return max(zero, min(first, FAR * zero)) if first_untrained else zero


def why_diverged(outcome: Outcome) -> str | None:
    """Return the evidence that the training diverged, as half a sentence, or None if there is none."""
    if not outcome.updates_finite:
        return "no client had a finite update"
    if not outcome.models_finite:
        return "the parameters are not finite"
    loss, known = outcome.loss, outcome.reference
    if outcome.unfit:
        named = ", ".join(outcome.unfit[:NAMED]) + ", ..." * (len(outcome.unfit) > NAMED)
        many = "1 client" if len(outcome.unfit) == 1 else f"{len(outcome.unfit)} clients"
        return f"the training loss of {many} ({named}) is not finite"
    if loss is not None and not math.isfinite(loss):
        return "the training loss is not finite"
    if known is None:
        return None
    nothing = f"that of models without training is {known:.3g}"
    if loss is not None and loss > (WIDE_MARGIN if outcome.noised else MARGIN) * known:
        return f"the training loss is {loss:.3g}, {nothing}"
    for what, value in (("last trained", outcome.trained), ("predict with", outcome.evaluated)):
        if value is not None and not value <= WIDE_MARGIN * known:
            return f"the loss of the models that clients {what} is {value:.3g}, {nothing}"
    return None


def sentence(why: str, lr: float | None, automatic: bool) -> str:
    """Return a message about the divergence, its reason and what to do; `automatic` is True with lr="auto"."""
    now = "" if lr is None else f" (now {lr:g})"
    auto = "" if automatic else ', leave it out (lr="auto" finds it)'
    return f"the training diverged, do not use its models: {why}; lower lr{now}{auto} or standardise the columns"


@contextmanager
def overflow_refused() -> Iterator[None]:
    """Turn arithmetic and linear algebra errors, which extreme numbers cause, into one message for the user."""
    try:
        yield
    except (ArithmeticError, np.linalg.LinAlgError, TorchLinAlgError) as error:
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TrainingError(
            f"the computation failed on numbers that are too large or too small ({said}): standardise the columns and "
            "the targets, or lower lr"
        ) from error
