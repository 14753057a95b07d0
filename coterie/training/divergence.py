"""Whether a training diverged: the one verdict that the result, the terminal, the report, comparisons and sweeps share.

A sound training ends with a training loss below that of a model that ignores its input, and below that of the models it
started from. One that ends far above both has diverged: its models are not to be used, however certain the figures look
that are computed from them. docs/divergence.md says how the margins were chosen.
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
"""In a record's `stopped`: the round ended the training because no client had a finite update."""
NAMED = 3
"""Clients that a sentence names."""
MARGIN = 3.0
"""A training loss this many times the reference counts as diverged."""
FAR = 1e6
"""First models that are worse than a model that ignores its input excuse a loss this many times as great, no more."""
WIDE_MARGIN = 100.0
"""The same where sound models can be far above it: on held-out samples, after a change of clusters, with noise."""


@dataclass(frozen=True)
class Outcome:
    """What is known of a training when it has ended; None for what nobody could be asked."""

    models_finite: bool
    updates_finite: bool
    """False when a round ended the training because no client had a finite update."""
    loss: float | None
    """Mean training loss; infinite or NaN where it is for some client."""
    trained: float | None
    """The same under the models that clients last trained, which they may have left for better ones since."""
    unfit: Sequence[str]
    """The clients whose training loss is not finite."""
    evaluated: float | None
    """Mean loss of the models that clients predict with, on held-out samples if there are any."""
    reference: float | None
    """The loss that a sound training stays below; see `reference`."""
    noised: bool = False
    """Whether the run is private, so that noise alone makes models worse."""


def reference(classes: int | None, zero: float | None, first: float | None, first_untrained: bool) -> float | None:
    """Return the loss that a sound training stays below, from what the server knows anyway; None if it knows nothing.

    Args:
        classes: Number of classes; None for numbers.
        zero: For numbers, the training loss of a model that always predicts 0, where that is known. For classes it is
            log(C): every class has the same probability.
        first: The training loss that the first round recorded.
        first_untrained: Whether `first` is the loss of models that no client has trained. If it is, a training that has
            only just begun may still be near it, as long as that is not hopelessly far; if not, it may be that of a
            divergence and only counts for want of anything else.
    """
    if classes is not None:
        zero = math.log(max(2, classes))
    # targets that are all 0, or whose squares are, have no scale to compare with
    zero, first = (value if value is not None and 0 < value < math.inf else None for value in (zero, first))
    if zero is None or first is None:
        return first if zero is None else zero
    return max(zero, min(first, FAR * zero)) if first_untrained else zero


def why_diverged(outcome: Outcome) -> str | None:
    """Return what shows that the training diverged, as half a sentence, or None if nothing does."""
    if not outcome.updates_finite:
        return "no client had a finite update any more"
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
    nothing = f"that of models that have learned nothing is {known:.3g}"
    if loss is not None and loss > (WIDE_MARGIN if outcome.noised else MARGIN) * known:
        return f"the training loss is {loss:.3g}, {nothing}"
    for what, value in (("last trained", outcome.trained), ("predict with", outcome.evaluated)):
        if value is not None and not value <= WIDE_MARGIN * known:
            return f"the loss of the models that clients {what} is {value:.3g}, {nothing}"
    return None


def sentence(why: str, lr: float | None, automatic: bool) -> str:
    """Return what happened, why, and what to do; `automatic` says whether lr was found by lr="auto"."""
    now = "" if lr is None else f" (now {lr:g})"
    auto = "" if automatic else ', leave it out (lr="auto" finds it)'
    return f"the training diverged, do not use its models: {why}; lower lr{now}{auto} or standardise the columns"


@contextmanager
def overflow_refused() -> Iterator[None]:
    """Turn errors of arithmetic and linear algebra, which extreme numbers lead to, into one sentence for the user."""
    try:
        yield
    except (ArithmeticError, np.linalg.LinAlgError, TorchLinAlgError) as error:
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TrainingError(
            f"the computation failed on numbers that are too large or too small ({said}): standardise the columns and "
            "the targets, or lower lr"
        ) from error
