"""Choice of the learning rate before the first round (`lr=auto`).

Linear and logistic models with full-batch steps need one exchange: every client sends the largest eigenvalue of its
features' second moments. Multiplied by the learner's bound of the loss's second derivative, this gives a bound L of the
client's curvature, and steps of `STABLE` / L cannot overshoot.

All other learners use a range test. Some clients run one local training from the first model with each of several
learning rates and send the sums of their losses. The largest rate whose loss is near the lowest, and falls for nearly
all of these clients, is chosen, with a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from coterie.client.tasks.curvature import Curvature
from coterie.client.tasks.range_test import RangeTest
from coterie.core.clusters import Clusters
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.errors import SilenceError, TrainingError
from coterie.learners.local_training import FIXED_RATE
from coterie.learners.minimum import GeneralisedLinear
from coterie.methods.asking import Cost
from coterie.methods.initializers import one_model
from coterie.methods.run import BEFORE, Run

RATE = "learning_rate"
"""Key of the learning rate in the record of what happened before the first round."""
STABLE = 0.9
"""gamma: the automatic learning rate times the largest curvature of a client; below 1 every local step is stable."""
GRID = tuple(float(f"{10 ** (step / 2):.2g}") for step in range(-8, 3))
"""Learning rates of a range test: 0.0001, 0.00032, 0.001, ..., 10."""
ASKED = 8
"""Number of clients in a range test."""
NEAR = 0.1
"""A loss is near the lowest one if it gives up at most this share of the decrease."""
MOST_WORSE = 0.1
"""Largest share of clients whose loss may not fall."""
MARGIN = 2.0
"""Divisor of the rate that the range test finds, because later steps are less stable than the first ones."""
APART = 100.0
"""Ratio of a feature's scale to the median scale above which the user is warned of slow training."""


@dataclass(frozen=True)
class FoundRate:
    """A learning rate and how it was found."""

    lr: float
    rule: str
    """How it was found: `curvature`, `range-test`, `optimizer` or `fixed`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)

    @property
    def found(self) -> dict[str, Any]:
        """The findings, for the record."""
        return {"lr": self.lr, "rule": self.rule, **self.facts, **asdict(self.cost)}


def find_rate(run: Run) -> FoundRate:
    """Return the learning rate of a run with `lr=auto`.

    Raises:
        TrainingError: if no learning rate reduces the loss.
        SilenceError: if no client answers.
    """
    work, learner = run.tiers.local, run.learner
    if work.pools_heads:
        return FoundRate(FIXED_RATE, "fixed")
    if learner.curvature is not None and work.optimizer.usual_rate is None and work.full_batch_steps is not None:
        return _from_curvature(run, learner.curvature)
    if work.optimizer.usual_rate is not None:
        return FoundRate(work.optimizer.usual_rate, "optimizer")
    return _from_range_test(run)


def _from_curvature(run: Run, bound: float) -> FoundRate:
    """Return the rate with which every full-batch step of every client is stable."""
    cost, work = Cost(), run.tiers.local
    all_clients = np.arange(len(run.federation.clients))
    reply = cost.count(run.federation.ask(Curvature(run.tiers.resample), Broadcast(0, Clusters({}, K=1)), all_clients))
    if not reply.clients:
        raise SilenceError("lr=auto: no client answered: check the clients, or set lr")
    largest = float(reply.rows["curvature"].max()) * bound
    if not np.isfinite(largest):
        raise TrainingError("lr=auto: the squares of the features are not finite: standardise the columns, or set lr")
    curvature = max(largest, float(np.finfo(np.float32).tiny))
    lr = STABLE / (curvature + work.prox) / work.optimizer.lengthening
    scales = np.sqrt((reply.sums["squares"] / reply.sums["samples"]).numpy())
    assert isinstance(run.learner, GeneralisedLinear), "learners with a curvature are"
    notes = _scales_note(scales[:-1] if run.learner.bias else scales)
    return FoundRate(lr, "curvature", {"curvature": curvature}, notes, cost)


def _scales_note(scales: np.ndarray) -> tuple[str, ...]:
    """Return a warning if a feature is much larger than most, by root mean squares; zero columns do not count."""
    present = np.sort(scales[scales > 0])
    if not len(present) or not present[-1] > APART * present[(len(present) - 1) // 2]:
        return ()
    usual = present[(len(present) - 1) // 2]
    return (
        f"feature {int(scales.argmax())} is {present[-1] / usual:.2g} times as large as the median feature (root mean "
        f"squares {present[-1]:.3g} and {usual:.3g}): gradient steps short enough for this feature hardly change the "
        "other coefficients, so training is slow; standardise the features (from_table does)",
    )


def _from_range_test(run: Run) -> FoundRate:
    """Return the rate with which some clients train best, with a margin."""
    cost, work = Cost(), replace(run.tiers.local, lr=FIXED_RATE)
    sent = Broadcast(BEFORE, Clusters(one_model(run), K=1))
    reply = cost.count(run.federation.ask(RangeTest(work, GRID, run.seed), sent, _some(run)))
    if not reply.clients:
        raise SilenceError("lr=auto: no client answered: check the clients, or set lr")
    count = len(reply.clients)
    before, after = float(reply.sums["before"]) / count, reply.sums["after"].numpy() / count
    worse = reply.sums["worse"].numpy() / count
    losses = {"tried": list(GRID), "losses": after.tolist(), "loss_before": before, "asked": count}
    best = best_rate(before, after, worse)
    if best is None:
        raise TrainingError(
            f"lr=auto: no learning rate from {GRID[0]:g} to {GRID[-1]:g} reduced the clients' loss "
            f"(it is {before:.3g}): standardise the features and the targets, or set lr"
        )
    return FoundRate(GRID[best] / MARGIN, "range-test", losses, (), cost)


def best_rate(before: float, after: np.ndarray, worse: np.ndarray) -> int | None:
    """Return the index of the largest rate whose loss is near the lowest one, or None if no loss falls.

    Args:
        before: Mean loss before training.
        after: Mean loss after training with each rate, (G,), in the order of the rates.
        worse: Share of the clients whose loss has not fallen, (G,).
    """
    sound = np.isfinite(after) & (worse <= MOST_WORSE) & (after < before)
    if not sound.any():
        return None
    least = after[sound].min()
    near = sound & (after <= least + NEAR * (before - least))
    return int(np.flatnonzero(near)[-1])


def _some(run: Run) -> Positions:
    """Return the positions of the clients in a range test: those with the smallest keys."""
    keys = keys_for_clients(run.seed, Purpose.RATE, 0, run.federation.hashes)
    return np.sort(np.argsort(keys, kind="stable")[:ASKED])
