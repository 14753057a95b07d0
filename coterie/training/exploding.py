"""Exploding losses: when to end such a training, and how to retry if the learning rate was found automatically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.methods.rates import RATE
from coterie.training import divergence
from coterie.training.planning import Plan
from coterie.training.records import RoundRecord

EXPLODED = "exploded"
"""Value of a record's `stopped`: the training loss was far too high for several rounds and did not fall."""
ROUNDS = 3
"""Number of consecutive rounds after which an exploding training ends."""
LOWER = 8.0
"""Divisor of an automatically found learning rate that led to a divergence."""
MOST_TIMES = 3
"""Largest number of times that the learning rate is lowered."""


def reference_of(plan: Plan, records: Sequence[RoundRecord], running: bool = False) -> float | None:
    """Return the training loss below which a good run stays; None if nothing is known.

    Args:
        plan: The run.
        records: Records of its rounds so far.
        running: Whether the run continues. If so, the loss of the first round also counts if it was recorded during
            training, because an exploding loss soon exceeds it too.
    """
    clean = not plan.method.initializer.models_trained and (running or plan.tiers.local.full_batch_steps is not None)
    first = next((record.loss for record in records if record.loss is not None), None)
    return divergence.reference(plan.learner.classes, plan.loss_of_zero, first, clean)


def has_exploded(plan: Plan, records: Sequence[RoundRecord]) -> bool:
    """Return whether the loss of the last rounds is far too high, or not finite, and has not fallen."""
    last = [record.loss for record in records[-ROUNDS:]]
    if len(last) < ROUNDS or (last[-1] is not None and last[0] is not None and last[-1] < last[0]):
        return False
    if any(record.answered == 0 for record in records[-ROUNDS:]):
        return False
    finite = [loss for loss in last if loss is not None]
    if not finite:
        return any(record.loss is not None for record in records)  # otherwise clients do not send losses
    known = reference_of(plan, records, running=True)
    margin = divergence.WIDE_MARGIN if plan.tiers.privacy is not None else divergence.MARGIN
    if known is None or len(finite) < ROUNDS:
        return False
    return all(loss > margin * known for loss in finite) and finite[-1] >= finite[0]


def lowered_rate(found: Mapping[str, Any], records: Sequence[RoundRecord]) -> Mapping[str, Any] | None:
    """Return the findings with a lower learning rate for another attempt, or None if there is none.

    Args:
        found: Findings of the initialisation.
        records: Records of the rounds so far; their cost is added to the findings.
    """
    rate = found.get(RATE)
    diverged = bool(records) and records[-1].stopped in (EXPLODED, divergence.DIVERGED)
    if rate is None or not diverged or len(rate.get("diverged_with", ())) >= MOST_TIMES:
        return None
    again = {
        **rate,
        "lr": rate["lr"] / LOWER,
        "diverged_with": [*rate.get("diverged_with", ()), rate["lr"]],
        "exchanges": rate["exchanges"] + len(records),
        "bytes_up": rate["bytes_up"] + sum(record.bytes_up for record in records),
        "bytes_down": rate["bytes_down"] + sum(record.bytes_down for record in records),
    }
    spent = sum(record.seconds for record in records)
    return {**found, RATE: again, "initialization_seconds": round(found.get("initialization_seconds", 0) + spent, 6)}
