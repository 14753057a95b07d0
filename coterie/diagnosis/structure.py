"""Whether the differences between clients form groups or a smooth spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.tasks import ScoreRows
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.shard import Positions
from coterie.diagnosis.mixture import Evidence, Mixture, fit_points, fit_spread
from coterie.diagnosis.pooled import Pooled, model_arrays
from coterie.diagnosis.session import Floats, Session
from coterie.diagnosis.shift import Scores
from coterie.diagnosis.values import Candidate, Structure, StructureKind

MOST_DIRECTIONS = 24
MOST_CLUSTERS = 12
SMALLEST_GROUP = 3
"""Smallest number of clients of a group; less if there are fewer than 12 clients."""
PRIOR_SAMPLES = 20.0
"""Weight of the common noise variance in the noise variance of a client, in samples."""
DECISIVE = 6.0
"""Difference of criteria from which one description is preferred to another; odds of about 20 to 1."""
LEAST_SPREAD, MOST_SPREAD = 1e-6, 25.0
"""Bounds of the variances between clients, relative to the noise of a sample, of the priors of posterior modes."""
GAP = 3.0
"""Distance of two groups in standard deviations of the spread inside, from which they are groups; two normal
distributions of equal size have two modes from 2 on."""


@dataclass(frozen=True)
class Differences:
    """Evidence about the clients' differences from the pooled model."""

    evidence: Evidence
    training: tuple[Evidence, ...]
    """For each fold the evidence of all samples outside the fold."""
    meat: Floats
    """Sum of squares of the samples' scores, (m, r, r), in the same directions; without the noise variances."""
    raw: Evidence
    """Evidence that is not divided by the noise variances."""
    directions: Tensor
    """Directions, (p, r), which turn coordinates into coefficients."""
    noise: float
    """Variance of the noise inside clients, relative to the residuals of the pooled model; 1 for classes."""
    noises: Floats
    """Variance of the noise of every client, (m,)."""


def ask_differences(session: Session, pooled: Pooled, scores: Scores, seed: int) -> Differences:
    """Return the evidence about each client's difference from the pooled model; one exchange, three for classes.

    The log likelihood of classes is not quadratic. A first expansion at the pooled model gives a smooth spread of the
    clients. Two further expansions are at the posterior modes of the clients for this spread, as in Laplace's
    approximation: an expansion at the pooled model is wrong for clients that are far from it.

    Raises:
        TrainingError: if no client answers.
    """
    directions = main_directions(scores, pooled.samples)
    found = _expanded(session, pooled, directions, None, seed)
    if pooled.classes is None:
        return found
    random = generator(key_for(0, Purpose.DIAGNOSIS, 3))
    for _ in range(2):
        smooth = fit_spread(found.evidence, fit_points(found.evidence, 1, None, random), common=False)
        variances = torch.from_numpy(smooth.variances).clamp(LEAST_SPREAD, MOST_SPREAD)
        found = _expanded(session, pooled, directions, 1 / variances, seed)
    return found


def posterior_means(evidence: Evidence, variances: Floats) -> Floats:
    """Return the posterior mean of each client's difference for a smooth spread with these variances, (m, r)."""
    _, _, covariance = evidence.spread_by(np.maximum(variances, LEAST_SPREAD))
    return np.asarray(np.einsum("mrs,ms->mr", covariance, evidence.score))


def _expanded(session: Session, pooled: Pooled, directions: Tensor, precision: Tensor | None, seed: int) -> Differences:
    """Return the evidence from expansions at the pooled model, or at posterior modes for priors of this precision."""
    common = {**model_arrays(pooled), "directions": directions}
    if precision is not None:
        common["precision"] = precision
    rows = session.ask(ScoreRows(seed, precision is not None), common, pooled.scalars).rows
    by_fold, change = rows["information"].numpy(), rows["change"].numpy()
    scores = rows["score"].numpy() + np.einsum("mfrs,ms->mfr", by_fold, change)
    raw = Evidence(scores.sum(axis=1), by_fold.sum(axis=1))
    sizes = session.sizes.astype(np.float64)
    noises, noise = np.ones(len(sizes)), 1.0
    if pooled.classes is None:
        noises, noise = noise_variances(raw, rows["rss"].numpy(), sizes)

    def scaled(score: Floats, information: Floats) -> Evidence:
        return Evidence(score / noises[:, None], information / noises[:, None, None])

    training = tuple(
        scaled(raw.score - scores[:, fold], raw.information - by_fold[:, fold]) for fold in range(scores.shape[1])
    )
    return Differences(
        scaled(raw.score, raw.information), training, rows["meat"].numpy(), raw, directions, noise, noises
    )


def main_directions(scores: Scores, samples: int) -> Tensor:
    """Return directions (p, r) of unit information for an average sample, those with the largest differences first.

    Of many directions only those are kept in which clients differ by more than chance makes the largest of them: a
    direction that was chosen for its large differences looks like a spread of the clients.
    """
    mean = scores.hessian / samples
    values, vectors = torch.linalg.eigh(mean)
    kept = values > 1e-8 * values.max()
    whitening = vectors[:, kept] * values[kept].rsqrt()
    scaled = scores.score / torch.from_numpy(scores.sizes).sqrt()[:, None]
    between = whitening.T @ (scaled.T @ scaled - len(scaled) / samples * scores.meat) @ whitening
    values, order = torch.linalg.eigh(between)
    m, p = scaled.shape
    chance = (m**0.5 + p**0.5) ** 2 - m  # about the largest eigenvalue without differences
    count = min(MOST_DIRECTIONS, p) if p <= MOST_DIRECTIONS else max(2, int((values > chance).sum()))
    found: Tensor = whitening @ order.flip(1)[:, : min(count, MOST_DIRECTIONS)]
    return found


def noise_variances(raw: Evidence, rss: Floats, sizes: Floats) -> tuple[Floats, float]:
    """Return the noise variance of every client (m,) and the common one, from the residuals of the clients' own fits.

    A client with few samples has nearly the common variance. If all clients have few samples, the residuals of the
    pooled model remain, whose variance is 1.
    """
    r = raw.score.shape[1]
    fitted = np.einsum(
        "mr,mrs,ms->m", raw.score, np.linalg.pinv(raw.information, rcond=1e-8, hermitian=True), raw.score
    )
    free = np.maximum(sizes - r, 0)
    left = np.where(free > 0, np.maximum(rss - fitted, 0), 0)
    if free.sum() < max(30.0, 0.05 * sizes.sum()):
        return np.ones(len(sizes)), 1.0
    common = max(float(left.sum() / free.sum()), 1e-9)
    return (PRIOR_SAMPLES * common + left) / (PRIOR_SAMPLES + free), common


@dataclass(frozen=True)
class Found:
    """The structure with the mixture behind it."""

    structure: Structure
    mixture: Mixture
    """Groups if there are any, sorted by size; otherwise one centre with the spread of the clients."""
    continuum: Mixture
    """One centre with a smooth spread, from which the map of the clients is drawn."""
    groups: Mixture | None
    """Groups whose gain is worth measuring, also where a smooth spread is the better description; None: no groups."""


def find_structure(differences: Differences, rejects: bool, seed: int) -> Found:
    """Return whether the differences form groups.

    Args:
        differences: Evidence of the clients.
        rejects: Whether the test found that one model does not fit all clients.
        seed: Seed of the starts of the search.
    """
    evidence = differences.evidence
    random = generator(key_for(seed, Purpose.DIAGNOSIS, 2))
    points: list[Mixture] = []
    for clusters in range(1, min(MOST_CLUSTERS, max(1, len(evidence.score) // 2)) + 1):
        points.append(fit_points(evidence, clusters, points[-1] if points else None, random))
        if clusters > 3 and points[-1].criterion > min(p.criterion for p in points) + 50:
            break
    continuum = min((fit_spread(evidence, points[0], common) for common in (True, False)), key=_criterion)
    best = _with_spread(evidence, points)
    groups = _best_groups(best) if rejects else None
    kind, chosen = _decision(points[0], groups, continuum, rejects)
    chosen = sort_groups(chosen)
    sizes = _sizes(chosen).tolist()
    structure = Structure(
        kind,
        chosen.clusters if kind == "groups" else None,
        tuple(Candidate(mixture.clusters, mixture.criterion) for mixture in best),
        continuum.criterion,
        tuple(sizes) if kind == "groups" else (),
        _sentence(kind, sizes),
    )
    return Found(structure, chosen, continuum, groups if _may_be_groups(groups, continuum, kind) else None)


def _criterion(mixture: Mixture) -> float:
    return mixture.criterion


def _with_spread(evidence: Evidence, points: list[Mixture]) -> list[Mixture]:
    """Return the mixtures for all K; those near the best get a spread inside the groups if that is better."""
    promising = sorted((p for p in points if p.clusters > 1), key=_criterion)[:2]
    least = promising[0].clusters if promising else 0
    wanted = {p.clusters for p in promising} | set(range(2, least))
    found = []
    for mixture in points:
        tried = [mixture]
        if mixture.clusters in wanted:
            tried.append(fit_spread(evidence, mixture, common=True))
        found.append(min(tried, key=_criterion))
    return found


def _may_be_groups(groups: Mixture | None, continuum: Mixture, kind: StructureKind) -> bool:
    """Return whether the gain of the groups is worth measuring.

    Any smooth spread is imitated by sufficiently many groups. K points span K - 1 directions; in as many directions, K
    points explain at most two thirds of the variance of a normal distribution.
    """
    if groups is None or kind == "groups":
        return groups is not None
    spread = continuum.variances
    directions = float(spread.sum() ** 2 / max((spread**2).sum(), 1e-300))
    return groups.clusters - 1.5 <= directions


def _best_groups(best: list[Mixture]) -> Mixture | None:
    """Return the best mixture whose groups all have enough clients; None if there is none.

    One or two clients that differ from all others are not a group.
    """
    least = min(SMALLEST_GROUP, max(1, len(best[0].memberships) // 4))
    large = (mixture for mixture in best if mixture.clusters > 1 and _sizes(mixture).min() >= least)
    return min(large, key=_criterion, default=None)


def _sizes(mixture: Mixture) -> Positions:
    """Return the number of clients of each group, (K,)."""
    return np.bincount(mixture.memberships.argmax(axis=1), minlength=mixture.clusters)


def _decision(one: Mixture, groups: Mixture | None, continuum: Mixture, rejects: bool) -> tuple[StructureKind, Mixture]:
    if not rejects:
        return "one", one
    if groups is not None and groups.criterion < min(continuum.criterion, one.criterion) - DECISIVE:
        return ("groups", groups) if _apart(groups) else ("continuum", continuum)
    if continuum.criterion < one.criterion - DECISIVE:
        decided = groups is None or continuum.criterion < groups.criterion - DECISIVE
        return ("continuum" if decided else "unclear"), continuum
    return "unclear", continuum


def _apart(groups: Mixture) -> bool:
    """Return whether all groups are far apart compared with the spread inside the groups."""
    if not groups.variances.any():
        return True
    scale = np.sqrt(np.maximum(groups.variances, 1e-4))
    return bool(pair_distances(groups.centres / scale).min() >= GAP)


def pair_distances(centres: Floats) -> Floats:
    """Return the distances of all pairs of centres (K, r), (K (K - 1) / 2,)."""
    first, second = np.triu_indices(len(centres), 1)
    return np.asarray(np.linalg.norm(centres[first] - centres[second], axis=1))


def sort_groups(mixture: Mixture) -> Mixture:
    """Return the mixture with its groups sorted by size, largest first."""
    order = np.argsort(-_sizes(mixture), kind="stable")
    return Mixture(
        mixture.centres[order],
        mixture.shares[order],
        mixture.variances,
        mixture.memberships[:, order],
        mixture.criterion,
    )


def _sentence(kind: StructureKind, sizes: list[int]) -> str:
    if kind == "groups":
        parts = ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}"
        return f"The differences form {len(sizes)} groups, of {parts} clients."
    return {
        "one": "One model fits all clients as far as the samples can tell.",
        "continuum": "The differences spread smoothly from client to client; they do not form groups.",
        "unclear": "The clients differ, but there are too few samples to tell whether the differences form groups.",
    }[kind]
