"""Tests of whether clients differ, and in which aspects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.client.aspects import ASPECTS, DOUBTS, parts_of
from coterie.client.tasks import ShiftDraws, ShiftScores
from coterie.core.clusters import Params
from coterie.core.keys import Purpose, generator, key_for
from coterie.diagnosis.pooled import Pooled
from coterie.diagnosis.session import Floats, Session
from coterie.diagnosis.values import Estimate, Shift, ShiftKind, ShiftTest

LEVEL = 0.05
DRAWS = 199
"""Number of sets of random signs from which p-values are computed."""
TIE = 1e-5
"""Difference of standardised statistics below which they count as equal: draws in which all signs of a client are
equal repeat the statistic up to rounding errors."""
MOST_HIDDEN = 100.0
"""Upper bound of squared differences, relative to the noise of a sample, where the data give none."""
RESAMPLES = 400
"""Number of bootstrap samples of clients, for intervals."""


@dataclass(frozen=True)
class Scores:
    """Statistics of the clients at the pooled fits."""

    pairs: Floats
    """U of every client for every aspect, (m, aspects)."""
    score: Tensor
    """Score of the pooled model, (m, p)."""
    hessian: Tensor
    """Sum of the information of the pooled model, (p, p)."""
    meat: Tensor
    """Sum of the squares of the samples' scores, (p, p)."""
    drawn: Floats
    """Statistics with random signs, (aspects, weights, draws)."""
    sizes: Floats
    """n_i, (m,)."""


def ask_scores(session: Session, pooled: Pooled, seed: int, draws: int = DRAWS) -> Scores:
    """Return the statistics of all aspects with and without random signs; two exchanges.

    Raises:
        TrainingError: if no client answers.
    """
    reply = session.ask(ShiftScores(seed, draws), pooled.common, pooled.scalars)
    refits = {f"refit/{name}": _refit(reply.sums, name) for name in ASPECTS}
    pairs, score = reply.rows["pairs"], reply.rows["score"]
    sizes = session.sizes.astype(np.float64)
    drawn = session.ask(ShiftDraws(seed, draws), {**pooled.common, **refits}, pooled.scalars).sums["statistics"]
    return Scores(
        (pairs[..., 0] - pairs[..., 1]).numpy(),
        score,
        reply.sums["hessian/model"],
        reply.sums["meat"],
        drawn.numpy(),
        sizes,
    )


def _refit(sums: Params | Mapping[str, Tensor], name: str) -> Tensor:
    """Return the change of the pooled fit that the random signs cause, (draws, k c)."""
    total, hessian = sums[f"signed/{name}"], sums[f"hessian/{name}"]
    inverse = torch.linalg.pinv(hessian, rtol=1e-10, hermitian=True)
    k = len(inverse)
    return torch.einsum("ij,djc->dic", inverse, total.reshape(len(total), k, -1)).flatten(1)


# ---- tests ---------------------------------------------------------------------------------------------------


def p_value(pairs: Floats, sizes: Floats, drawn: Floats) -> tuple[float, float]:
    """Return the statistic and the p-value of the hypothesis that clients do not differ.

    The statistic is the largest of several weighted sums of pairs, each standardised by the draws. For the p-value the
    sums of the data are standardised together with those of the draws, so that all are treated alike: their rank is
    uniform if they are exchangeable, for any number of draws.

    Args:
        pairs: U of every client, (m,).
        sizes: n_i, (m,).
        drawn: Weighted sums of U with random signs, (weights, draws).
    """
    weights = 1 / (1 + np.array(DOUBTS)[:, None] * sizes)
    center, spread = drawn.mean(axis=1), drawn.std(axis=1)
    known = spread > 1e-9  # the scores are in standard deviations; a perfect fit leaves rounding errors only
    if not known.any():
        return 0.0, 1.0
    sums = weights @ pairs
    statistic = ((sums - center)[known] / spread[known]).max()
    every = np.concatenate([sums[known, None], drawn[known]], axis=1)
    largest = ((every - every.mean(axis=1, keepdims=True)) / every.std(axis=1, keepdims=True)).max(axis=0)
    return float(statistic), float((largest >= largest[0] - TIE).mean())


def variance_between(pairs: Floats, possible: Floats, sizes: Floats, counts: Floats) -> Floats:
    """Return the mean squared length of the clients' differences for clients counted `counts` (..., m) times, (...).

    Args:
        pairs: U of every client, (m,).
        possible: Mean of U for a difference of length 1, (m,): about n_i^2.
        sizes: n_i, (m,).
        counts: How often each client counts, (..., m).
    """

    def estimate(doubt: float) -> Floats:
        weights = counts / (1 + sizes * doubt) ** 2
        return np.asarray((weights @ pairs) / np.maximum(weights @ possible, 1e-300))

    pilot = float(estimate(0.1).mean())
    return estimate(float(np.clip(pilot, 1e-3, 1.0)))


def resampled_counts(clients: int, seed: int) -> Floats:
    """Return how often each client is in each bootstrap sample, (resamples, m)."""
    random = generator(key_for(seed, Purpose.DIAGNOSIS, 1))
    return random.multinomial(clients, np.full(clients, 1 / clients), size=RESAMPLES).astype(np.float64)


def squared_interval(pairs: Floats, possible: Floats, sizes: Floats, drawn: Floats, counts: Floats) -> Estimate:
    """Return the mean squared difference between clients with an interval by bootstrap over clients.

    The upper end is at least that of the test: the largest difference that the noise could hide. If no client has two
    samples it is `MOST_HIDDEN`.

    Args:
        pairs: U of every client, (m,).
        possible: Mean of U for a difference of length 1, (m,).
        sizes: n_i, (m,).
        drawn: Weighted sums of U with random signs, (weights, draws).
        counts: How often each client is in each bootstrap sample, (resamples, m).
    """
    value = float(variance_between(pairs, possible, sizes, np.ones(len(sizes))))
    resampled = variance_between(pairs, possible, sizes, counts)
    low, high = np.quantile(resampled, (0.025, 0.975))
    weights = 1 / (1 + np.array(DOUBTS)[:, None] * sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        hidden = (np.maximum(weights @ pairs, 0) + 1.96 * drawn.std(axis=1)) / (weights @ possible)
    hidden = np.where(weights @ possible > 0, hidden, MOST_HIDDEN)
    return Estimate(max(0.0, value), max(0.0, float(low)), max(float(hidden.min()), float(high), value))


def _test(scores: Scores, aspect: str, possible: Floats, scale: float, unit: str, counts: Floats) -> ShiftTest:
    index = ASPECTS.index(aspect)
    pairs, n = scores.pairs[:, index], scores.sizes
    statistic, p = p_value(pairs, n, scores.drawn[index])
    squared = squared_interval(pairs, possible, n, scores.drawn[index], counts)
    rejects = p <= LEVEL
    low = squared.low**0.5 * scale if rejects else 0.0
    return ShiftTest(statistic, p, rejects, Estimate(squared.value**0.5 * scale, low, squared.high**0.5 * scale), unit)


def model_differs(shift: Shift) -> bool:
    """Return whether the test of the model rejects, or that of the slopes at a quarter of the level."""
    return shift.model.rejects or shift.relation.p_value < shift.level / 4


def information_scale(scores: Scores, samples: int) -> float:
    """Return the mean information of a sample about a coefficient: 1 for a regression, less for large logits."""
    return float(torch.trace(scores.hessian)) / (samples * len(scores.hessian))


def find_shift(scores: Scores, pooled: Pooled, target: str, seed: int) -> Shift:
    """Return the tests of all aspects and the kind of shift.

    Args:
        scores: Statistics of the clients.
        pooled: The pooled fits.
        target: Name of the target, for the unit of the effects.
        seed: Seed of the bootstrap.
    """
    unit = "log-odds" if pooled.classes is not None else (target or "units of the target")
    scale = pooled.prediction_scale / information_scale(scores, pooled.samples)
    share = "share of a class" if pooled.classes is not None else "share of an eighth of the targets"
    moments = pooled.common["moment_map"].shape[1]
    n = scores.sizes
    counts = resampled_counts(len(n), seed)
    pairs = n * (n - 1)
    slopes = n * np.maximum(n - 3, 0) if pooled.classes is None else (n - 1) * np.maximum(n - 2, 0)
    if pooled.classes is not None and pooled.contrasts == 1:
        slopes = _pairs_of_parts(n)
    tests = {
        "model": _test(scores, "model", pairs, scale, unit, counts),
        "relation": _test(scores, "relation", slopes, scale, unit, counts),
        "features": _test(scores, "features", pairs, moments**-0.5, "standard deviations", counts),
        "labels": _test(scores, "labels", pairs, pooled.label_scale, share, counts),
        "conditional": _test(scores, "conditional", pairs, moments**-0.5, "standard deviations", counts),
    }
    whole = tests["model"].effect.value
    of_slopes = tests["relation"].effect.value / whole if whole > 0 else 1.0
    kind = kind_of_shift({name: test.p_value for name, test in tests.items()}, of_slopes)
    return Shift(
        tests["relation"],
        tests["features"],
        tests["labels"],
        tests["model"],
        tests["conditional"],
        kind,
        LEVEL,
        _SENTENCES[kind],
    )


HIDDEN_SLOPES = 0.25
"""Squared effect of the slopes, as a share of the mean squared error that groups leave, above which the labels are not
the only difference of a regression. In drawn federations whose labels alone differ it is below 0.1."""
SMALL_SLOPES = 1 / 3
"""Largest effect of the slopes, as a share of that of the whole model, that a difference in the labels may cause. In
drawn federations whose labels alone differ it stays below 0.3."""


def _pairs_of_parts(sizes: Floats) -> Floats:
    """Return the approximate number of pairs of differences between labels in the parts of each client, (m,)."""
    _, real = parts_of(torch.from_numpy(sizes))
    inside = (real.sum(dim=2) - 1).clamp(min=0).double()
    return np.asarray(inside.sum(dim=1).pow(2) - inside.pow(2).sum(dim=1))


_SENTENCES: Mapping[ShiftKind, str] = {
    "none": "No difference between the clients was found.",
    "labels": "The clients differ in how frequent the labels are; the features of a label are the same everywhere.",
    "features": "The clients differ in their features; the same features mean the same target everywhere.",
    "relation": "The clients differ in the relation between features and target; their features are alike.",
    "several": "The clients differ in their features and in the relation between features and target.",
}


def without_hidden_slopes(shift: Shift, left: float) -> Shift:
    """Return the shift of a regression, where large differences of the slopes cannot be those of the labels.

    If the targets of the clients do not overlap, p(x|y) cannot be compared between clients and seems to be the same.

    Args:
        shift: The tests.
        left: Mean squared error that remains with a model for each group.
    """
    found = shift.relation.p_value < shift.level / 4 and shift.relation.effect.value**2 > HIDDEN_SLOPES * left
    if shift.kind != "labels" or not found:
        return shift
    kind: ShiftKind = "several" if shift.features.p_value < shift.level / 4 else "relation"
    return replace(shift, kind=kind, sentence=_SENTENCES[kind])


def kind_of_shift(p: Mapping[str, float], slopes: float, level: float = LEVEL) -> ShiftKind:
    """Return the kind of shift from the p-values of all aspects.

    A difference in one aspect causes others: labels that are more frequent bring their features along and move the
    intercept of p(y|x); other features bring other labels. Hence the order of the questions. The level is shared
    among the four tests that can raise an alarm.

    Args:
        p: P-value of each aspect.
        slopes: Effect of the slopes as a share of the effect of the whole model. If the targets of clients do not
            overlap, p(x|y) cannot be compared between them, and seems to be the same; large differences of the slopes
            show that the labels are not the only difference.
        level: Level of the diagnosis.
    """
    strict = level / 4
    found = {name: value < strict for name, value in p.items()}
    slopes_differ = found["relation"] and slopes > SMALL_SLOPES
    if found["labels"] and not found["conditional"] and not slopes_differ:  # p(x|y) is the same: only p(y) differs
        return "labels"
    if found["relation"]:
        return "several" if found["features"] else "relation"
    if found["model"]:  # only the intercepts differ
        if not found["conditional"]:
            return "labels"
        return "several" if found["features"] else "relation"
    if found["features"]:
        return "features"
    return "labels" if found["labels"] else "none"
