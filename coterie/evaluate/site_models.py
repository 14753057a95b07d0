"""Statistical models for the data of many sites, fitted with sums over clients and one small row for each client.

All of them are generalised linear models with coefficients theta (p, q), the last row an intercept, and an intercept
u_i (q,) for each client: outputs are X_i theta + u_i. They differ in the variance tau^2 of the u_i:

- pooled: tau^2 = 0, one model for all;
- site intercepts: tau^2 is infinite for a regression (dummy variables, the within estimator) and large for a
  classification, where a client with one class only would have an infinite intercept;
- mixed: tau^2 is estimated. For a regression by restricted maximum likelihood, which is exact: the sums X^T X, X^T y
  and y^T y and for each client n_i, the sum of its features and of its targets say everything. For a classification by
  Laplace's approximation: a logistic regression with penalised intercepts, whose variance is updated from the
  intercepts and the curvature of their posterior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coterie.client.tasks import SiteMoments
from coterie.core.clusters import Clusters
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.errors import TrainingError
from coterie.evaluate.regression import design

Floats = npt.NDArray[np.float64]

RIDGE = 1.0
"""Weight of half the squared slopes in the summed log-loss of a classification, as scikit-learn has by default."""
WEAK = 10.0
"""Variance of site intercepts of a classification: a weak penalty, which keeps them finite."""
LEAST_VARIANCE, MOST_VARIANCE = 1e-4, 100.0
"""Limits of the estimated variance of the intercepts of a classification, in squared log-odds."""
EXCHANGES = 40
"""Largest number of Newton steps; usually five to fifteen are needed."""
SETTLED = 1e-6
"""The search ends when the expected decrease of a Newton step is below this share of the loss."""
ROUNDING = 1e-9
"""Share of the squares of a feature below which it counts as constant within clients."""
GRID = np.concatenate([[0.0], np.logspace(-4, 4, 65)])
"""Ratios of variances tau^2 / sigma^2 at which the restricted likelihood is computed first."""


@dataclass(frozen=True)
class SiteModel:
    """A model with an intercept for each client."""

    theta: Floats
    """Coefficients, the last row the common intercept, (p, q)."""
    intercepts: Floats
    """Deviation of each client's intercept, (m, q); 0 for clients that did not answer."""
    deviation: float | None = None
    """Standard deviation tau of the intercepts, if it was estimated."""


@dataclass(frozen=True)
class Moments:
    """Derivatives of the loss at a model: sums, and rows for each client; r are residuals."""

    hessian: Floats
    """Hessian of the loss, (q p, q p)."""
    gradient: Floats
    """Gradient of the log-likelihood, X^T r for least squares, (q p,)."""
    loss: float
    samples: int
    answered: Positions
    slope: Floats
    """Derivative of the log-likelihood by the intercepts of the g clients that answered, the sum of r, (g, q)."""
    bend: Floats
    """Second derivative of the loss by the intercepts: n_i for least squares, (g, q, q)."""
    cross: Floats
    """Mixed second derivative: the sum of the features for least squares, (g, q, q p)."""


def ask_moments(federation: Federation, model: SiteModel, asked: Positions, round_: int, rows: bool = True) -> Moments:
    """Ask these clients for the derivatives of the loss of a model on their training samples.

    Raises:
        TrainingError: if no client answered.
    """
    own = torch.from_numpy(model.intercepts[asked])
    common = {"theta": torch.from_numpy(model.theta)}
    broadcast = Broadcast(round_, Clusters({}, K=1), each={"intercept": own}, common=common)
    reply = federation.ask(SiteMoments(rows), broadcast, asked).reply
    if not reply.clients:
        raise TrainingError(f"none of the {len(asked)} clients answered when asked for sums: try again later")
    sums = {name: value.numpy() for name, value in reply.sums.items()}
    p, q = model.theta.shape
    empty = {"slope": np.zeros((0, q)), "bend": np.zeros((0, q, q)), "cross": np.zeros((0, q, q * p))}
    found = {name: value.numpy() for name, value in reply.rows.items()} if rows else empty
    return Moments(
        sums["hessian"],
        sums["gradient"],
        float(sums["loss"]),
        int(sums["samples"]),
        positions_of(federation, reply.clients),
        found["slope"],
        found["bend"],
        found["cross"],
    )


def vector(theta: Floats) -> Floats:
    """Return coefficients (p, q) as a vector (q p,)."""
    return theta.T.reshape(-1)


def matrix(values: Floats, like: Floats) -> Floats:
    """Return a vector (q p,) as coefficients (p, q)."""
    return values.reshape(like.shape[1], like.shape[0]).T.copy()


# ---- regression ----------------------------------------------------------------------------------------------


def linear_models(
    federation: Federation, asked: Positions, coefficients: int, round_: int
) -> tuple[SiteModel, SiteModel, SiteModel, SiteModel]:
    """Return the constant, the pooled model, the one with site intercepts and the mixed model, from two exchanges."""
    clients = len(federation.clients)
    nothing = SiteModel(np.zeros((coefficients, 1)), np.zeros((clients, 1)))
    first = ask_moments(federation, nothing, asked, round_, rows=False)
    mean = np.zeros((coefficients, 1))
    mean[-1] = first.gradient[-1] / first.samples
    pooled = design(first.hessian).inverse @ first.gradient
    at = SiteModel(matrix(pooled, nothing.theta), nothing.intercepts)
    # residuals of the pooled model lose no digits to large targets
    found = ask_moments(federation, at, asked, round_)
    within = _with_intercepts(found, at, np.inf)
    ratio, sigma = restricted_maximum(found)
    mixed = _with_intercepts(found, at, ratio)
    deviation = float(np.sqrt(ratio) * sigma)
    return SiteModel(mean, nothing.intercepts), at, within, SiteModel(mixed.theta, mixed.intercepts, deviation)


def _shrinkage(counts: Floats, ratio: float) -> Floats:
    """Return w_i = lambda / (1 + n_i lambda), (g,), for lambda = tau^2 / sigma^2, which may be infinite."""
    return 1 / counts if np.isinf(ratio) else ratio / (1 + counts * ratio)


def _less_intercepts(found: Moments, weight: Floats) -> Floats:
    """Return X^T X without the part of the intercepts, with zeros for features that are constant within all clients."""
    cross = found.cross[:, 0]
    normal = found.hessian - (cross * weight[:, None]).T @ cross
    varies = np.diag(normal) > ROUNDING * np.diag(found.hessian)
    return np.where(np.outer(varies, varies), normal, 0.0)


def _with_intercepts(found: Moments, at: SiteModel, ratio: float) -> SiteModel:
    """Return the model with intercepts of this ratio of variances, from the moments of the pooled model."""
    counts, sums, cross = found.bend[:, 0, 0], found.slope[:, 0], found.cross[:, 0]
    weight = _shrinkage(counts, ratio)
    normal = _less_intercepts(found, weight)
    change = design(normal).inverse @ (found.gradient - cross.T @ (weight * sums))
    intercepts = at.intercepts.copy()
    intercepts[found.answered, 0] = weight * (sums - cross @ change)
    theta = at.theta + matrix(change, at.theta)
    if np.isinf(ratio):  # the level is in the intercepts; a client that did not answer has the average one
        level = float(np.average(intercepts[found.answered, 0], weights=counts))
        intercepts[found.answered, 0] -= level
        theta[-1] += level
    return SiteModel(theta, intercepts)


def restricted_maximum(found: Moments) -> tuple[float, float]:
    """Return the ratio tau^2 / sigma^2 with the largest restricted likelihood, and sigma.

    The likelihood is computed on a grid and then around its best point, since it may have two maxima.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    values = [_restricted(found, ratio)[0] for ratio in GRID]
    best = int(np.argmin(values))
    if best == 0:
        return 0.0, _restricted(found, 0.0)[1]
    low, high = np.log(GRID[max(best - 1, 1)]), np.log(GRID[min(best + 1, len(GRID) - 1)])
    fine = minimize_scalar(lambda log: _restricted(found, float(np.exp(log)))[0], bounds=(low, high), method="bounded")
    ratio = float(np.exp(fine.x)) if fine.fun < values[best] else float(GRID[best])
    return ratio, _restricted(found, ratio)[1]


def _restricted(found: Moments, ratio: float) -> tuple[float, float]:
    """Return minus twice the restricted log-likelihood up to a constant, and sigma, at a ratio of variances."""
    counts, sums, cross = found.bend[:, 0, 0], found.slope[:, 0], found.cross[:, 0]
    weight = _shrinkage(counts, ratio)
    normal = _less_intercepts(found, weight)
    known = design(normal)
    right = found.gradient - cross.T @ (weight * sums)
    squares = 2 * found.loss - float(weight @ sums**2) - float(right @ known.inverse @ right)
    freedom = max(found.samples - known.rank, 1)
    squares = max(squares, 1e-12 * max(2 * found.loss, 1e-300))
    eigenvalues = np.linalg.eigvalsh(normal)[::-1][: known.rank]
    determinant = float(np.log(np.maximum(eigenvalues, 1e-300)).sum())
    value = freedom * np.log(squares) + float(np.log1p(counts * ratio).sum()) + determinant
    return value, float(np.sqrt(squares / freedom))


# ---- classification ------------------------------------------------------------------------------------------


def logistic_models(
    federation: Federation, asked: Positions, coefficients: int, classes: int, round_: int
) -> tuple[SiteModel, SiteModel, SiteModel, SiteModel]:
    """Return the constant, the pooled model, the one with weakly penalised site intercepts and the mixed model."""
    columns, clients = classes - 1, len(federation.clients)
    nothing = SiteModel(np.zeros((coefficients, columns)), np.zeros((clients, columns)))
    constant, first = _base_rates(ask_moments(federation, nothing, asked, round_, rows=False), nothing, classes)
    pooled = _newton(federation, SiteModel(constant, nothing.intercepts), asked, round_, None, estimate=False)
    weak = np.full(columns, WEAK)
    site = _newton(federation, pooled, asked, round_, weak, estimate=False)
    mixed = _newton(federation, pooled, asked, round_, np.full(columns, first), estimate=True)
    return SiteModel(constant, nothing.intercepts), pooled, site, mixed


def _base_rates(found: Moments, nothing: SiteModel, classes: int) -> tuple[Floats, float]:
    """Return the model that predicts the share of each class, and a first variance of intercepts.

    At theta = 0 every class has probability 1 / C, so that the gradient by an intercept is the number of samples of its
    class less n / C. Half a sample is added to each class.
    """
    last = found.gradient.reshape(classes - 1, -1)[:, -1]
    inside = last + found.samples / classes + 0.5
    reference = found.samples - (last + found.samples / classes).sum() + 0.5
    theta = nothing.theta.copy()
    theta[-1] = np.log(np.maximum(inside, 0.5) / max(reference, 0.5))
    return theta, 0.3


def _newton(
    federation: Federation,
    start: SiteModel,
    asked: Positions,
    round_: int,
    variance: Floats | None,
    *,
    estimate: bool,
) -> SiteModel:
    """Minimise the penalised log-loss by Newton steps on all coefficients and intercepts at once.

    Args:
        federation: The clients.
        start: Model that the search starts from.
        asked: Clients that are asked.
        round_: Number of the last round.
        variance: (q,) variance of the intercepts of each class; None: there are none.
        estimate: Whether the variance is updated after every step.
    """
    penalty = np.full_like(start.theta, RIDGE)
    penalty[-1] = 0
    now, best, least, pace = start, start, np.inf, 1.0
    step: tuple[Floats, Floats] = (np.zeros_like(start.theta), np.zeros_like(start.intercepts))
    for _ in range(EXCHANGES):
        found = ask_moments(federation, now, asked, round_, rows=variance is not None)
        value = _objective(found, now, penalty, variance)
        if value > least * (1 + 1e-9) and pace > 1e-3:
            pace /= 2
            now = SiteModel(best.theta + pace * step[0], best.intercepts + pace * step[1])
            continue
        best, least, pace = now, value, 1.0
        theta, intercepts, promised = _step(found, now, penalty, variance)
        change = 0.0
        if estimate and variance is not None:
            updated = _variance(found, now, variance)
            change = float(np.abs(np.log(updated / variance)).max())
            variance = updated
            least = np.inf  # the penalty has changed, so that values before cannot be compared
        if promised <= SETTLED * (1 + value) and change < 0.01:
            break
        step = (theta, intercepts)
        now = SiteModel(best.theta + theta, best.intercepts + intercepts)
    deviation = float(np.sqrt(variance.mean())) if estimate and variance is not None else None
    return SiteModel(best.theta, best.intercepts, deviation)


def _objective(found: Moments, model: SiteModel, penalty: Floats, variance: Floats | None) -> float:
    value = found.loss + float((penalty * model.theta**2).sum()) / 2
    return value if variance is None else value + float((model.intercepts[found.answered] ** 2 / variance).sum()) / 2


def _step(found: Moments, model: SiteModel, penalty: Floats, variance: Floats | None) -> tuple[Floats, Floats, float]:
    """Return the Newton step of coefficients and intercepts, and half of the expected decrease of the loss.

    The intercepts are eliminated client by client, so that no matrix is larger than that of the coefficients.
    """
    hessian = found.hessian + np.diag(vector(penalty))
    gradient = found.gradient - vector(penalty * model.theta)
    intercepts = np.zeros_like(model.intercepts)
    if variance is None:
        change = design(hessian).inverse @ gradient
        return matrix(change, model.theta), intercepts, float(change @ gradient)
    bend = found.bend + np.diag(1 / variance)
    slope = found.slope - model.intercepts[found.answered] / variance
    solved = np.linalg.solve(bend, np.concatenate([found.cross, slope[..., None]], axis=2))
    cross, own = solved[..., :-1], solved[..., -1]
    reduced = hessian - np.einsum("gap,gar->pr", found.cross, cross)
    change = design(reduced).inverse @ (gradient - np.einsum("gap,ga->p", found.cross, own))
    intercepts[found.answered] = own - cross @ change
    promised = float(change @ gradient) + float((intercepts[found.answered] * slope).sum())
    return matrix(change, model.theta), intercepts, promised


def _variance(found: Moments, model: SiteModel, variance: Floats) -> Floats:
    """Return the mean of u_i^2 plus its posterior variance, (q,): the EM update under Laplace's approximation."""
    posterior = np.linalg.inv(found.bend + np.diag(1 / variance))
    spread = np.diagonal(posterior, axis1=1, axis2=2)
    updated = (model.intercepts[found.answered] ** 2 + spread).mean(axis=0)
    return np.asarray(np.clip(updated, LEAST_VARIANCE, MOST_VARIANCE))
