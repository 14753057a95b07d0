"""The learning rate that was found before the first round, in words."""

from __future__ import annotations

from coterie.methods.rates import RATE
from coterie.training.records import Metrics


def answer(metrics: Metrics) -> str | None:
    """Return the learning rate and where it comes from, or None if it was given."""
    if RATE not in metrics:
        return None
    found = metrics[RATE]
    reasons = {
        "curvature": "from the largest curvature of a client, {curvature:.3g}",
        "range-test": "from one local training of {asked} clients with each of {trials} rates",
        "optimizer": "the usual one of the optimizer",
        "fixed": "a fixed one",
    }
    words = reasons[found["rule"]].format(**found, trials=len(found.get("tried", ())))
    before = ", ".join(f"{lr:.3g}" for lr in found.get("diverged_with", ()))
    return f"{found['lr']:.3g}, {words}" + (f"; lowered after the training diverged with {before}" if before else "")
