"""Mixtures of the clients' differences from the pooled model: a few points, a smooth spread, or both.

The log likelihood of client i is close to s_i^T d - d^T H_i d / 2 for a difference d of its coefficients, exactly so
for a regression. Clients with few samples have a small H_i and count accordingly. A mixture has K centres with shares;
the differences of the clients of a centre may spread around it with variances t (r,), which integrates out to the same
form with a smaller H_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.diagnosis.session import Floats

STARTS = 6
STEPS, SHORT_STEPS, SPREAD_STEPS = 200, 8, 60
SETTLED = 1e-7
NEGLIGIBLE = 1e-4
"""Variance between clients, relative to the noise of a sample, below which a direction counts as without spread."""


@dataclass(frozen=True)
class Evidence:
    """Quadratic log likelihoods of the clients, in directions with unit information for an average sample."""

    score: Floats
    """s_i, (m, r)."""
    information: Floats
    """H_i, (m, r, r)."""

    def of_centres(self, centres: Floats) -> Floats:
        """Return the log likelihood of every client for every centre (K, r), relative to the pooled model, (m, K)."""
        bent = np.einsum("kr,mrs,ks->mk", centres, self.information, centres, optimize=True)
        return np.asarray(self.score @ centres.T - bent / 2)

    def spread_by(self, variances: Floats) -> tuple[Evidence, Floats, Floats]:
        """Return the evidence about centres around which the clients spread with variances (r,).

        Returns:
            The evidence about the centres, the constants of the clients (m,), and the covariances of a client's
            difference from its centre given its samples, (m, r, r).
        """
        root = np.sqrt(variances)
        inner = np.eye(len(root)) + root[:, None] * self.information * root
        covariance = root[:, None] * np.linalg.inv(inner) * root
        carried = self.information @ covariance
        score = self.score - np.einsum("mrs,ms->mr", carried, self.score)
        information = self.information - carried @ self.information
        gain = np.einsum("mr,mrs,ms->m", self.score, covariance, self.score, optimize=True)
        return Evidence(score, information), (gain - np.linalg.slogdet(inner)[1]) / 2, covariance


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture."""

    centres: Floats
    """Centres, (K, r)."""
    shares: Floats
    """Share of each centre, (K,)."""
    variances: Floats
    """Spread around the centres, (r,); all 0 for points."""
    memberships: Floats
    """Probability of each centre for each client, (m, K)."""
    criterion: float
    """-2 log evidence, with Laplace's approximation for the centres and the usual penalty for the rest."""

    @property
    def clusters(self) -> int:
        return len(self.centres)


def fit_points(
    evidence: Evidence,
    clusters: int,
    before: Mixture | None,
    random: np.random.Generator,
    centres: Floats | None = None,
) -> Mixture:
    """Return the best mixture of K points from several initial values.

    Args:
        evidence: Evidence of the clients.
        clusters: Number of points (K).
        before: Mixture of K - 1 points; with the worst fitting client added it is one of the initial values.
        random: Generator of the other initial values.
        centres: Centres (K, r) that are one more initial value.
    """
    own = _shrunken(evidence)
    starts = [_spread_starts(evidence, own, clusters, random) for _ in range(STARTS if clusters > 1 else 1)]
    if before is not None:
        missed = evidence_of_own(evidence, own) - evidence.of_centres(before.centres).max(axis=1)
        starts.append(np.vstack([before.centres, own[missed.argmax()]]))
    if centres is not None:
        starts.append(centres)
    zeros = np.zeros(len(evidence.score))
    tried = [_maximise(evidence, zeros, start, SHORT_STEPS) for start in starts]
    best = max(tried, key=lambda found: found[2])
    centres, shares, _ = _maximise(evidence, zeros, best[0], STEPS, best[1])
    return _mixture(evidence, centres, shares, np.zeros(evidence.score.shape[1]))


def fit_spread(evidence: Evidence, start: Mixture, common: bool) -> Mixture:
    """Return the mixture with spread around the centres of `start`.

    Args:
        evidence: Evidence of the clients.
        start: Initial mixture.
        common: Whether all directions have one variance.
    """
    r = evidence.score.shape[1]
    own = _shrunken(evidence) - start.memberships @ start.centres
    variances = np.full(r, max(float((own**2).mean()), 10 * NEGLIGIBLE))
    centres, shares = start.centres, start.shares
    for _ in range(SPREAD_STEPS):
        spread, constants, covariance = evidence.spread_by(variances)
        centres, shares, _ = _maximise(spread, constants, centres, 3, shares)
        memberships = _memberships(spread, constants, centres, shares)[0]
        pulled = evidence.score[:, None] - np.einsum("mrs,ks->mkr", evidence.information, centres)
        off = np.einsum("mrs,mks->mkr", covariance, pulled)
        second = np.einsum("mk,mkr->r", memberships, off**2) + np.einsum("mrr->r", covariance)
        found = second / len(evidence.score)
        found = np.full(r, found.mean()) if common else found
        settled = np.abs(found - variances).max() < 1e-3 * variances.max()
        variances = found
        if settled:
            break
    variances = np.where(variances < NEGLIGIBLE, 0, variances)
    spread, constants, _ = evidence.spread_by(variances)
    centres, shares, _ = _maximise(spread, constants, centres, STEPS, shares)
    return _mixture(evidence, centres, shares, variances, 1 if common else int((variances > 0).sum()))


def evidence_of_own(evidence: Evidence, own: Floats) -> Floats:
    """Return the log likelihood (m,) of every client at coefficients of its own (m, r)."""
    bent = np.einsum("mr,mrs,ms->m", own, evidence.information, own, optimize=True)
    return np.asarray((evidence.score * own).sum(axis=1) - bent / 2)


def _shrunken(evidence: Evidence) -> Floats:
    """Return the coefficients of each client, shrunken as by one more sample without a difference, (m, r)."""
    ridged = evidence.information + np.eye(evidence.score.shape[1])
    return np.asarray(np.linalg.solve(ridged, evidence.score[..., None])[..., 0])


def _spread_starts(evidence: Evidence, own: Floats, clusters: int, random: np.random.Generator) -> Floats:
    """Return the coefficients of K clients, drawn one by one with a probability proportional to the misfit."""
    alone = evidence_of_own(evidence, own)
    centres = np.zeros((0, own.shape[1]))
    missed = np.maximum(alone, 0) + 1e-12
    for _ in range(clusters):
        chosen = random.choice(len(own), p=missed / missed.sum())
        centres = np.vstack([centres, own[chosen]])
        missed = np.maximum(alone - evidence.of_centres(centres).max(axis=1), 0) + 1e-12
    return centres


def _memberships(evidence: Evidence, constants: Floats, centres: Floats, shares: Floats) -> tuple[Floats, Floats]:
    joint = np.log(np.maximum(shares, 1e-300)) + evidence.of_centres(centres)
    top = joint.max(axis=1, keepdims=True)
    weights = np.exp(joint - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total, constants + (top + np.log(total))[:, 0]


def _maximise(
    evidence: Evidence, constants: Floats, centres: Floats, steps: int, shares: Floats | None = None
) -> tuple[Floats, Floats, float]:
    """Return centres, shares and log likelihood after steps of the EM algorithm."""
    clusters, r = centres.shape
    shares = np.full(clusters, 1 / clusters) if shares is None else shares
    m = len(evidence.score)
    flat, before, value = evidence.information.reshape(m, -1), -np.inf, -np.inf
    for _ in range(steps):
        memberships, values = _memberships(evidence, constants, centres, shares)
        value = float(values.sum())
        if value - before < SETTLED * (1 + abs(value)):
            break
        before = value
        total = (memberships.T @ flat).reshape(clusters, r, r) + np.eye(r)
        centres = np.asarray(np.linalg.solve(total, (memberships.T @ evidence.score)[..., None])[..., 0], np.float64)
        shares = (memberships.sum(axis=0) + 1) / (m + clusters)
    return centres, shares, value


def _mixture(evidence: Evidence, centres: Floats, shares: Floats, variances: Floats, spreads: int = 0) -> Mixture:
    clusters, r = centres.shape
    spread, constants = evidence, np.zeros(len(evidence.score))
    if variances.any():
        spread, constants, _ = evidence.spread_by(variances)
    memberships, values = _memberships(spread, constants, centres, shares)
    total = (memberships.T @ spread.information.reshape(len(values), -1)).reshape(clusters, r, r)
    volume = np.linalg.slogdet(total + np.eye(r))[1].sum() + (centres**2).sum()
    criterion = -2 * values.sum() + volume + (clusters - 1 + spreads) * np.log(len(values))
    return Mixture(centres, shares, variances, memberships, float(criterion))
