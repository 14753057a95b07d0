"""Consequences of the structure: which clients can be placed in a group, and the expected gain of groups."""

from __future__ import annotations

import math

import numpy as np

from coterie.client.aspects import ASPECTS
from coterie.diagnosis.held_out import HeldOut
from coterie.diagnosis.mixture import Mixture
from coterie.diagnosis.pooled import Pooled
from coterie.diagnosis.session import Floats
from coterie.diagnosis.shift import Scores, information_scale, resampled_counts, squared_interval
from coterie.diagnosis.structure import Differences, Found, pair_distances, posterior_means
from coterie.diagnosis.values import ClientDiagnosis, Estimate, Gain, Power, PowerPoint

SURE = 0.95
SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 2000, 5000, 10_000)
MOST_SAMPLES = 10_000_000


# ---- power ---------------------------------------------------------------------------------------------------


def placing_probability(mixture: Mixture, noise: float, samples: float) -> float:
    """Return the probability that a client with this many samples is placed in its group, averaged over groups.

    The log likelihood ratio of two groups given the features is normal with mean half its variance D^2, so that a pair
    is confused with probability Phi(-D / 2). D^2 grows with the squares of n random features, which makes the
    probability over features that of a t distribution with n degrees of freedom. All other groups are added up.
    """
    from scipy.special import stdtr  # slow to import

    information = samples / noise
    weights = information / (1 + mixture.variances * information)
    scaled = mixture.centres * np.sqrt(weights)
    distance = np.linalg.norm(scaled[:, None] - scaled[None], axis=2)
    confused = stdtr(samples, -distance / 2)
    np.fill_diagonal(confused, 0)
    right = np.maximum(1 - confused.sum(axis=1), 1 / mixture.clusters)
    return float((mixture.shares * right).sum() / mixture.shares.sum())


def find_power(found: Found, differences: Differences, pooled: Pooled, unit: str) -> Power:
    """Return the number of samples that a client needs to be placed in its group.

    Args:
        found: The structure.
        differences: Evidence of the clients.
        pooled: The pooled fits.
        unit: Unit of the separation.
    """
    mixture = found.mixture
    if found.structure.kind != "groups":
        return Power(None, unit, (), None, 0)
    coefficients = mixture.centres @ differences.directions.numpy().T
    separation = float(pair_distances(coefficients).min()) * pooled.prediction_scale
    curve = tuple(PowerPoint(n, placing_probability(mixture, differences.noise, n)) for n in SIZES)
    placed = int((mixture.memberships.max(axis=1) >= SURE).sum())
    return Power(separation, unit, curve, _samples_needed(mixture, differences.noise), placed)


def _samples_needed(mixture: Mixture, noise: float) -> int | None:
    """Return the smallest number of samples with a probability of 95 %, by bisection; None if there is none."""
    low, high = 0, 1
    while placing_probability(mixture, noise, high) < SURE:
        low, high = high, 2 * high
        if high > MOST_SAMPLES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if placing_probability(mixture, noise, middle) >= SURE else (middle, high)
    return high


# ---- gain ----------------------------------------------------------------------------------------------------


def find_gain(held_out: HeldOut, found: Found, scores: Scores, pooled: Pooled, seed: int) -> Gain:
    """Return the expected gain of groups over one model and over local models, on new samples of the same clients.

    Args:
        held_out: Cross-validated losses.
        found: The structure.
        scores: Scores of the tests.
        pooled: The pooled fits.
        seed: Seed of the bootstrap over clients.
    """
    regression = pooled.classes is None
    scale = 2 * pooled.scalars["y_scale"] ** 2 if regression else 1.0
    one, n = held_out.one, held_out.sizes
    groups = one if held_out.groups is None else held_out.groups
    models = 1 if found.groups is None else found.groups.clusters
    counts = resampled_counts(len(n), seed)

    def gain(before: Floats, after: Floats) -> Estimate:
        return _per_sample((before - after) * scale, n, counts, models)

    loss = float(one.sum() / n.sum()) * scale
    over_one = gain(one, groups)
    most = max(_most_over_one(scores, pooled, seed), over_one.high)
    return Gain(
        "mean squared error" if regression else "log loss",
        loss,
        over_one,
        gain(held_out.local, groups),
        min(most, loss),
        None if found.groups is None else found.groups.clusters,
        gain(one, held_out.personal),
    )


def _most_over_one(scores: Scores, pooled: Pooled, seed: int) -> float:
    """Return the upper end of the gain of any personalisation, from the test of the model.

    A difference d of the coefficients, in directions of unit information, costs |d|^2 sigma^2 of the mean squared
    error, or |d|^2 / 2 of the log loss.
    """
    n, index = scores.sizes, ASPECTS.index("model")
    counts = resampled_counts(len(n), seed)
    between = squared_interval(scores.pairs[:, index], n * (n - 1), n, scores.drawn[index], counts)
    cost = pooled.score if pooled.classes is None else 0.5
    return max(between.high / information_scale(scores, pooled.samples), 0.0) * cost


def _per_sample(values: Floats, sizes: Floats, counts: Floats, models: int) -> Estimate:
    """Return the sum of the clients' values per sample, with an interval by bootstrap over clients.

    The interval is widened as that of a regression with as many coefficients as there are models to be fitted.

    Args:
        values: A value of each client, (m,).
        sizes: n_i, (m,).
        counts: How often each client is in each bootstrap sample, (resamples, m).
        models: Number of models that were fitted to the clients.
    """
    from scipy.special import stdtrit  # slow to import

    clients = len(values)
    free = max(clients - models, 1)
    value = float(values.sum() / sizes.sum())
    drawn = counts @ values / (counts @ sizes)
    reach = float(drawn.std() * stdtrit(free, 0.975)) * math.sqrt(clients / free)
    return Estimate(value, value - reach, value + reach)


# ---- clients -------------------------------------------------------------------------------------------------


def client_rows(
    ids: tuple[str, ...], found: Found, differences: Differences, pooled: Pooled, sizes: Floats
) -> tuple[ClientDiagnosis, ...]:
    """Return one row for each client.

    Args:
        ids: Names of the clients.
        found: The structure.
        differences: Evidence of the clients.
        pooled: The pooled fits.
        sizes: n_i, (m,).
    """
    evidence, mixture = differences.evidence, found.mixture
    own = posterior_means(evidence, found.continuum.variances)
    axes = np.linalg.svd(own - own.mean(axis=0), full_matrices=False)[2][:2]
    place = (own - own.mean(axis=0)) @ axes.T
    place = np.column_stack([place, np.zeros((len(place), 2 - place.shape[1]))])
    scale = pooled.prediction_scale
    directions = differences.directions.numpy()
    length = np.linalg.norm(own @ directions.T, axis=1) * scale
    value, error = _along(differences, axes[0])
    unit = scale * float(np.linalg.norm(directions @ axes[0]))
    grouped = found.structure.kind == "groups"
    groups, chances = mixture.memberships.argmax(axis=1), mixture.memberships.max(axis=1)
    return tuple(
        ClientDiagnosis(
            client,
            int(sizes[i]),
            Estimate(value[i] * unit, (value[i] - 1.96 * error[i]) * unit, (value[i] + 1.96 * error[i]) * unit),
            float(length[i]),
            float(place[i, 0]) * unit,
            float(place[i, 1]) * unit,
            int(groups[i]) if grouped else None,
            float(chances[i]) if grouped else None,
            bool(grouped and chances[i] >= SURE),
        )
        for i, client in enumerate(ids)
    )


def _along(differences: Differences, axis: Floats) -> tuple[list[float], list[float]]:
    """Return each client's difference along one direction and its standard error, from the client's samples alone.

    The error is that of the sandwich estimator, but at least that of the model: few samples agree by chance.
    """
    raw = differences.raw
    information = np.maximum(np.einsum("r,mrs,s->m", axis, raw.information, axis), 1e-9)
    meat = np.einsum("r,mrs,s->m", axis, differences.meat, axis)
    meat = np.maximum(meat, information * differences.noises)
    value = (raw.score @ axis) / information
    most = 1e6  # a client without information about the direction would have an infinite interval
    value, error = np.clip(value, -most, most), np.minimum(np.sqrt(meat) / information, most)
    return [float(v) for v in value], [float(e) if math.isfinite(e) else most for e in error]
