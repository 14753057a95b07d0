"""Common parts of the reproductions of ODCL: models, their measures, and the form of a claim.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.clusters import Params
from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.experiments.reproduction import NOT_RUN, Claim, Figures
from coterie.methods.round import assigned_groups
from coterie.training.fitting import initialize
from coterie.training.loop import train
from coterie.training.planning import prepare

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PAPER = "Armacki, Bajovic, Jakovetic, Kar 2022"


@dataclass(frozen=True)
class Shot:
    """Models that a one-shot method, or one of its baselines, gives the clients."""

    models: Floats
    """Weights, then the intercept if there is one, (K, P)."""
    groups: Ints
    """Cluster of each client's model, (m,)."""


def shot(data: FederatedDataset, method: str, seed: int, options: Mapping[str, Any]) -> Shot:
    """Run a method without rounds: all its work precedes the first one. Solutions are the paper's, without a ridge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that clusters overlap, or clients have few samples, is the experiment
        started = initialize(prepare(data, method, None, {"ridge": 0.0, **options, "seed": seed}))
    known = assigned_groups(started.plan.tiers, started.state)
    groups = np.zeros(len(data.clients), np.int64) if known is None else known.numpy()
    return Shot(vectors(started.state.clusters.params), groups)


def vectors(params: Params) -> Floats:
    """Linear or logistic models {name: (K, ...)} as rows (K, P), in the order of `FederatedDataset.true_models`."""
    parts = [params[name].double().numpy() for name in ("weight", "bias") if name in params]
    return np.column_stack(parts)


def truth_of(data: ClientDirectory) -> tuple[Ints, Floats]:
    """Return the true groups (m,) and true models (K, P)."""
    assert data.truth is not None
    assert data.true_models is not None
    return data.truth, data.true_models


def normalised_mse(data: ClientDirectory, models: Floats, groups: Ints) -> float:
    """Return (1/m) sum_i |theta_i - theta*_i|^2 / |theta*_i|^2, section 5; client i has the model `groups[i]`."""
    truth, true = truth_of(data)
    own = true[truth]
    return float(np.mean(((models[groups] - own) ** 2).sum(axis=1) / (own**2).sum(axis=1)))


def is_exact(data: FederatedDataset, groups: Ints) -> bool:
    """Whether the clusters are the true groups, whatever their numbers."""
    truth, _ = truth_of(data)
    pairs = set(zip(truth.tolist(), groups.tolist(), strict=True))
    return len(pairs) == len(np.unique(truth)) == len(np.unique(groups))


def errors_by_round(
    data: FederatedDataset, method: str, seed: int, options: Mapping[str, Any], until: float = 0.0
) -> list[float]:
    """Return the normalised MSE after each round, up to the first that is at most `until` or to the last of `options`.

    A client's model is that of the cluster it chose last.
    """
    started = initialize(prepare(data, method, None, {**options, "seed": seed}))
    plan, errors = started.plan, []
    with torch.no_grad():
        for step in train(plan.method, plan.run, started.state):
            state = step.state
            errors.append(normalised_mse(data, vectors(state.clusters.params), state.choice[:, 0].numpy()))
            if errors[-1] <= until:
                break
    return errors


def kept(figures: Figures) -> Figures:
    """Return the figures with six digits, as they are stored."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figures.items()}


def first_round(errors: Sequence[float], level: float) -> int | None:
    """Return the first round, counted from 1, after which the error is at most `level`; None: never."""
    return next((t for t, error in enumerate(errors, start=1) if error <= level), None)


# ---- what is shown ---------------------------------------------------------------------------------------------


def powers(values: Sequence[float]) -> str:
    """`1.60e-02 ± 1.3e-03 (10)`: mean, standard deviation (n - 1), number of seeds."""
    if not values:
        return NOT_RUN
    deviation = f" ± {np.std(values, ddof=1):.1e}" if len(values) > 1 else ""
    return f"{np.mean(values):.2e}{deviation} ({len(values)})"


def counted(outcomes: Sequence[float]) -> str:
    """`9 of 10`."""
    return f"{sum(map(bool, outcomes))} of {len(outcomes)}" if outcomes else NOT_RUN


@dataclass(frozen=True)
class Bar:
    """A figure of a claim, and its limits."""

    label: str
    value: float | None
    """None: not run."""
    low: float
    high: float


def within(text: str, bars: Sequence[Bar], digits: int = 2) -> Claim:
    """Holds if every figure is within its limits."""
    known = [bar.low <= bar.value <= bar.high for bar in bars if bar.value is not None]
    shown = (f"{bar.label}: {NOT_RUN if bar.value is None else format(bar.value, f'.{digits}f')}" for bar in bars)
    return Claim(text, None if len(known) < len(bars) else all(known), ", ".join(shown))


def at_least(text: str, outcomes: Mapping[str, Sequence[float]], share: float) -> Claim:
    """Holds if under every label at least this share of the outcomes (0 or 1, one a seed) is 1."""
    holds = [sum(map(bool, each)) >= share * len(each) - 1e-9 for each in outcomes.values() if each]
    shown = ", ".join(f"{label}: {counted(each)}" for label, each in outcomes.items())
    return Claim(text, None if len(holds) < len(outcomes) else all(holds), shown)
