"""What a statistician asks of a clustered fit of linear models: intervals, memberships, and the guides of the theory.

The clusters are taken as given: that the clients were sorted by the same data widens no interval here, so intervals
are honest where clients are sure of their cluster and too narrow where they are not.

Symbols of Su, Xu, Yang, section 4.2: gamma = eta max_i |phi(X_i)|^2 / n_i; kappa, the stability of local updates;
chi^2(n), the skewness of the sample sizes; Delta, the least distance between two models; nu of eq. (10); rho, the
smallest cluster's share of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.tasks import Curvature, RegressionMeats, RegressionMoments
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.numbers import finite_numbers
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.errors import TrainingError
from coterie.learners.base import Learner
from coterie.learners.linear import Linear

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVEL = 0.95
COLLINEAR = 1e-10
"""Features count as collinear below this eigenvalue of their matrix of cosines; its largest is between 1 and p."""
UNDETERMINED = 1e-6
"""A coefficient with a larger share than this in a direction that the data do not show is not determined by them."""
MOST_ENTRIES = 4_000_000
"""Of the K matrices p x p; with more of them no intervals are computed."""


# ---- sums that clients return --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Pooled over the clients of each cluster, with residuals r under the models that were sent."""

    clients: Ints
    """(K,)"""
    samples: Ints
    """(K,)"""
    gram: Floats
    """X^T X, (K, p, p)."""
    score: Floats
    """X^T r, (K, p)."""


@dataclass(frozen=True)
class Meats:
    """The middles of sandwiches, pooled over the clients of each cluster."""

    clients: Ints
    """(K,)"""
    by_client: Floats
    """Sum over clients of (X_i^T r_i)(X_i^T r_i)^T, (K, p, p)."""
    by_sample: Floats
    """Sum over samples of r^2 x x^T, (K, p, p)."""
    rss: Floats
    """Sum of r^2, (K,)."""


def ask_moments(federation: Federation, clusters: Clusters, own: Tensor, round_: int) -> tuple[Positions, Moments]:
    """Who answered, and their moments; `own` (m,) holds each client's cluster, or a negative number."""
    answered, found = _ask(federation, RegressionMoments(), clusters, own, round_)
    clients, samples, gram, score = (
        _dense(found, name, clusters.K) for name in ("clients", "samples", "gram", "score")
    )
    return answered, Moments(clients.astype(np.int64), samples.astype(np.int64), gram, score)


def ask_meats(federation: Federation, clusters: Clusters, own: Tensor, round_: int) -> Meats:
    """The middles of sandwiches under these models, in the same way."""
    _, found = _ask(federation, RegressionMeats(), clusters, own, round_)
    clients, *arrays = (_dense(found, name, clusters.K) for name in ("clients", "by_client", "by_sample", "rss"))
    return Meats(clients.astype(np.int64), *arrays)


def ask_curvature(federation: Federation) -> tuple[Positions, Floats]:
    """Who answered, and |phi(X_i)|^2 / n_i of each. No model is sent."""
    everybody = np.arange(len(federation.clients))
    reply = federation.ask(Curvature(), Broadcast(0, Clusters({}, K=1)), everybody).reply
    _refuse_silence(reply, len(everybody))
    return positions_of(federation, reply.clients), reply.rows["curvature"].numpy()


def _ask(federation: Federation, task: Task, clusters: Clusters, own: Tensor, round_: int) -> tuple[Positions, Slotted]:
    """Everybody who has a cluster is sent its model only."""
    asked = np.flatnonzero((own >= 0).numpy())
    rows = own[torch.from_numpy(asked)]
    reply = federation.ask(task, Broadcast(round_, clusters, rows[:, None], each={"own": rows}), asked).reply
    _refuse_silence(reply, len(asked))
    return positions_of(federation, reply.clients), reply.slotted["clusters"]


def _refuse_silence(reply: Reply, asked: int) -> None:
    if not reply.clients:
        raise TrainingError(f"none of the {asked} clients answered when asked for regression sums: try again later")


def _dense(found: Slotted, name: str, K: int) -> Floats:
    """All K slots of a sum, or of the number of clients behind it; zero where nobody contributed."""
    values = (found.counts if name == "clients" else found.arrays[name]).numpy()
    dense = np.zeros((K, *values.shape[1:]))
    dense[found.slots.numpy()] = values
    return dense


# ---- coefficients --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Design:
    """What one cluster's pooled features allow to be known."""

    inverse: Floats
    """A generalised inverse of X^T X, (p, p)."""
    rank: int
    determined: npt.NDArray[np.bool_]
    """(p,) False for a coefficient that collinear features leave open."""


@dataclass(frozen=True)
class Fit:
    """One cluster's pooled least-squares fit; NaN where nothing can be said."""

    estimate: Floats
    """(p,)"""
    errors: Floats
    """Standard errors, (p,)."""
    low: Floats
    high: Floats
    sigma: float
    """Residual standard deviation, with rank degrees of freedom taken off."""
    rank: int
    unit: str = ""
    """What counts as independent in the errors: `clients` or `samples`; empty if there are none."""
    freedom: int = 0
    """Degrees of freedom of Student's t in the intervals."""
    why: str = ""
    """Why there are no standard errors."""


def design(gram: Floats) -> Design:
    """Invert X^T X where it can be inverted; units of the features do not matter."""
    if not np.isfinite(gram).all():  # it overflowed, and says nothing
        return Design(np.zeros_like(gram), 0, np.zeros(len(gram), dtype=bool))
    norms = np.sqrt(np.diag(gram))
    scale = np.where(norms > 0, norms, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    seen = values > COLLINEAR
    basis = vectors[:, seen] / scale[:, None]
    hidden = (vectors[:, ~seen] ** 2).sum(axis=1)
    return Design((basis / values[seen]) @ basis.T, int(seen.sum()), hidden <= UNDETERMINED)


def least_squares(theta: Floats, designs: Sequence[Design], moments: Moments) -> Floats:
    """theta_k + (X^T X)^-1 X^T r: the exact pooled least squares of each cluster, from any theta (K, p).

    With collinear features, the solution that differs from theta_k only where the data say so.
    """
    steps = [each.inverse @ score for each, score in zip(designs, moments.score, strict=True)]
    return np.asarray(theta + np.stack(steps))


def coefficients(estimate: Floats, designs: Sequence[Design], moments: Moments, meats: Meats) -> list[Fit]:
    """Each cluster's least-squares estimate (K, p) with standard errors and 95 % intervals.

    `meats` are those at the estimate: models that iterate are near the least-squares solution but not on it, and their
    residuals would tell of the distance too. Standard errors are the roots of the diagonal of a sandwich
    c (X^T X)^-1 M (X^T X)^-1. With more clients g than coefficients p, clients are the independent units:
    c = g/(g-1) (n-1)/(n-p), and the intervals are by Student's t with g-1 degrees of freedom. Else samples are:
    c = n/(n-p), t with n-p. With collinear features p is the rank, and coefficients they leave open have none.

    Sandwiches by clients are somewhat narrow when clients are few and their samples alike: in simulations with p = 20
    the intervals covered the truth in 88 % of the cases with 30 clients and in 93 % with 100 (by samples: in 60 %).
    """
    return [_fit(k, estimate[k], designs[k], moments, meats) for k in range(len(estimate))]


def _fit(k: int, estimate: Floats, known: Design, moments: Moments, meats: Meats) -> Fit:
    from scipy.special import stdtrit  # slow to import

    clients, samples = int(moments.clients[k]), int(moments.samples[k])
    spare = samples - known.rank
    sigma = math.sqrt(meats.rss[k] / spare) if spare > 0 else math.nan
    unknown = np.full(len(estimate), np.nan)
    why = _why_no_errors(clients, int(meats.clients[k]), samples, known.rank)
    if why:
        return Fit(estimate if clients else unknown, unknown, unknown, unknown, sigma, known.rank, why=why)
    if clients > max(known.rank, 1):
        unit, meat, freedom = "clients", meats.by_client[k], clients - 1
        factor = clients / (clients - 1) * (samples - 1) / spare
    else:
        unit, meat, freedom, factor = "samples", meats.by_sample[k], spare, samples / spare
    variance = factor * np.diag(known.inverse @ meat @ known.inverse)
    errors = np.where(known.determined, np.sqrt(np.maximum(variance, 0)), np.nan)
    half = stdtrit(freedom, (1 + LEVEL) / 2) * errors
    return Fit(estimate, errors, estimate - half, estimate + half, sigma, known.rank, unit, freedom)


def _why_no_errors(clients: int, again: int, samples: int, rank: int) -> str:
    if clients == 0:
        return "no client belongs to it"
    if again != clients:
        return f"{clients - again} of its {clients} clients did not answer the second question"
    if samples <= rank:
        return f"it has no more samples ({samples}) than coefficients"
    return ""


def pooled_fits(
    federation: Federation, clusters: Clusters, own: Tensor, round_: int = 0
) -> tuple[Positions, Moments, list[Fit]]:
    """Ask twice: for the moments under the models, and for the meats at the least-squares estimates."""
    theta = np.nan_to_num(vectors(clusters.all_models()), posinf=0, neginf=0)  # any start will do
    answered, moments = ask_moments(federation, _models_at(clusters, theta), own, round_)
    designs = [design(gram) for gram in moments.gram]
    with np.errstate(invalid="ignore", over="ignore"):  # from sums that overflowed nothing is known: NaN
        estimate = least_squares(theta, designs, moments)
    again = torch.full_like(own, -1)
    again[torch.from_numpy(answered)] = own[torch.from_numpy(answered)]
    meats = ask_meats(federation, _models_at(clusters, estimate), again, round_)
    with np.errstate(invalid="ignore", over="ignore"):
        return answered, moments, coefficients(estimate, designs, moments, meats)


def vectors(models: Params) -> Floats:
    """AssignmentRule, and the bias as a last column if there is one: (K, p) in float64."""
    columns = [models["weight"], *(models[name][:, None] for name in ("bias",) if name in models)]
    return np.asarray(torch.cat([column.detach().double().cpu() for column in columns], dim=1).numpy())


def _models_at(clusters: Clusters, vector: Floats) -> Clusters:
    """The same clusters with these coefficients (K, p), on the device of the models."""
    values = torch.from_numpy(vector).to(clusters.params["weight"].device)
    biased = "bias" in clusters.params
    return replace(clusters, params={"weight": values[:, :-1], "bias": values[:, -1]} if biased else {"weight": values})


# ---- memberships ---------------------------------------------------------------------------------------------


def memberships(losses: Floats, sizes: Ints, own: Ints, learner: Linear) -> Floats:
    """Each client's posterior of membership in each cluster, (m, K), from its mean training losses (m, K).

    Noise is Gaussian; pi_k is the share of clients whose cluster `own` (m,) is k, sigma_k^2 the mean squared residual
    of their n samples there with p degrees of freedom taken off (over all clusters where that leaves none). It is
    measured on the samples the models were trained on, so it flatters the cluster a client was in.
    """
    K, p = losses.shape[1], learner.coefficients
    rss = losses * sizes[:, None]  # but for the 1/2 of the loss, which cancels against that of the variances
    mine = np.nan_to_num(rss[np.arange(len(rss)), own], nan=np.inf, posinf=np.inf)
    total, samples = np.bincount(own, mine, K), np.bincount(own, sizes, K)
    spare = np.where(samples > p, samples - p, 1)
    variances = np.where(samples > p, total / spare, total.sum() / samples.sum())
    return posteriors(rss, sizes, np.bincount(own, minlength=K) / len(own), variances)


def posteriors(rss: Floats, sizes: Ints, shares: Floats, variances: Floats) -> Floats:
    """(m, K), proportional to pi_k sigma_k^(-n_i) exp(-RSS_ik / (2 sigma_k^2)), rows sum to one.

    rss (m, K), sizes n_i (m,), shares pi_k and variances sigma_k^2 (K,). A variance of zero counts as a millionth of a
    millionth of the largest mean square at hand. A client that fits nowhere has only the shares to go by.
    """
    from scipy.special import logsumexp  # slow to import

    fits = np.isfinite(rss)
    squares = np.where(fits, rss, 0)
    least = 1e-12 * max((squares / sizes[:, None]).max(), np.finfo(float).tiny * 1e12)
    spread = np.maximum(np.nan_to_num(variances, posinf=np.finfo(float).max), least)
    with np.errstate(divide="ignore"):
        prior = np.log(shares)
    evidence = prior - 0.5 * (sizes[:, None] * np.log(spread) + squares / spread)
    evidence = np.where(fits, evidence, -np.inf)
    nowhere = ~np.isfinite(evidence).any(axis=1)
    evidence[nowhere] = prior
    return np.asarray(np.exp(evidence - logsumexp(evidence, axis=1, keepdims=True)))


# ---- guides of the theory ------------------------------------------------------------------------------------


def kappa(gamma: float, steps: int, prox: bool) -> float | None:
    """How far local updates may stray: s gamma / (1 - (1 - gamma)^s) for s gradient steps, 1 + gamma for FedProx.

    It is at least 1, and near 1 for a small step size. (The paper prints gamma^s, which would be below 1.)
    None for gradient steps with gamma above 1, where the theory says nothing.
    """
    if prox:
        return 1 + gamma
    if gamma > 1:
        return None
    if gamma == 0:
        return 1.0
    return steps * gamma / (1.0 if gamma == 1 else -math.expm1(steps * math.log1p(-gamma)))


def skewness(sizes: Ints) -> float:
    """chi^2(n) = M sum_i (n_i / N)^2 - 1: 0 when all clients have as many samples, M - 1 when one has nearly all."""
    return float(sizes.var() / sizes.mean() ** 2)  # the same, and exactly 0 for equal sizes


def floor(sizes: Ints, K: int, p: int, separation: float, sigma: float) -> dict[str, float]:
    """nu of eq. (10), the share of samples in the wrong cluster that the theory allows for; a guide, no bound.

    clustering: (1/N) sum_i n_i p_e(n_i) with p_e(n) = 4 K exp(-c n min(1, Delta^2 / sigma^2)^2), at most 1.
    deviation: C sqrt(p K log K / M (chi^2(n) + 1)). The paper does not give its constants: c = C = 1 here. From 1 on
    nu says nothing.
    """
    ratio = min(1.0, separation / sigma) ** 2 if sigma > 0 else float(separation > 0)
    wrong = np.minimum(1, 4 * K * np.exp(-sizes * ratio**2))
    clustering = float((sizes * wrong).sum() / sizes.sum())
    deviation = math.sqrt(p * K * math.log(K) / len(sizes) * (skewness(sizes) + 1))
    return {"clustering": clustering, "deviation": deviation, "nu": clustering + deviation}


def _error_guide(nu: float, sigma: float, steadiness: float | None, rho: float) -> float | None:
    """sigma kappa / rho nu log(e / nu), eq. (18) with constant 1; None where nu says nothing."""
    return None if steadiness is None or nu >= 1 else sigma * steadiness / rho * nu * (1 - math.log(nu))


# ---- all of it -----------------------------------------------------------------------------------------------


def regression_report(
    federation: Federation,
    learner: Learner,
    clusters: Clusters,
    own: Tensor,
    *,
    round_: int = 0,
    lr: float | None = None,
    steps: int | None = None,
    prox: bool = False,
    names: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """Return the coefficients of linear models with confidence intervals, and the guides of the theory.

    Args:
        federation: The clients, which are asked for sums over their data.
        learner: The learner.
        clusters: The models of one restart.
        own: (m,) the cluster of each client, or a negative number.
        round_: Number of the last round.
        lr: Learning rate of the local steps, for gamma; None for a method without rounds.
        steps: Number of local full-batch steps, for kappa; None if there are none.
        prox: Whether each client solves a proximal problem instead of taking steps.
        names: Names of the features.

    Returns:
        The figures that `Result.coefficients` describes; None for learners that are not linear, or if the matrices
        would be too large.
    """
    if not isinstance(learner, Linear):
        return None
    labels = coefficient_names(learner, names)
    if clusters.K * len(labels) ** 2 > MOST_ENTRIES:
        return None
    answered, moments, fits = pooled_fits(federation, clusters, own, round_)
    theta, sizes = vectors(clusters.all_models()), federation.sizes[answered]
    used = moments.clients > 0
    report: dict[str, Any] = {
        "names": labels,
        "level": LEVEL,
        "clusters": [_row(k, theta[k], fits[k], moments) for k in range(clusters.K)],
        "sigma": _pooled_sigma(fits, moments.samples),
        "separation": _separation(theta[used]),
        "skewness": skewness(sizes),
        "gamma": None,
        "kappa": None,
    }
    if lr is not None:
        report["gamma"] = lr * (1 if learner.half else 2) * float(ask_curvature(federation)[1].max())
        report["kappa"] = None if steps is None else kappa(report["gamma"], steps, prox)
    report["floor"] = _floor(report, sizes, moments.samples[used])
    return dict(finite_numbers(report))


def coefficient_names(learner: Linear, names: Sequence[str] | None = None) -> list[str]:
    """One for each of the p coefficients: `x1`, `x1 x2`, `x1^2` ..., `intercept`; the x are called as given."""
    raw = [f"x{j + 1}" for j in range(learner.width)] if names is None else list(names)
    found = []
    for degree in range(1, learner.degree + 1):
        for chosen in combinations_with_replacement(range(learner.width), degree):
            powers = {j: chosen.count(j) for j in chosen}
            found.append(" ".join(raw[j] if power == 1 else f"{raw[j]}^{power}" for j, power in powers.items()))
    return [*found, "intercept"] if learner.bias else found


def _row(k: int, theta: Floats, fit: Fit, moments: Moments) -> dict[str, Any]:
    return {
        "cluster": k,
        "clients": int(moments.clients[k]),
        "samples": int(moments.samples[k]),
        "sigma": fit.sigma,
        "rank": fit.rank,
        "collinear": bool(moments.clients[k]) and fit.rank < len(theta),
        "unit": fit.unit,
        "freedom": fit.freedom,
        "why": fit.why,
        "coefficients": theta.tolist(),
        "estimate": fit.estimate.tolist(),
        "standard_errors": fit.errors.tolist(),
        "low": fit.low.tolist(),
        "high": fit.high.tolist(),
    }


def _pooled_sigma(fits: Sequence[Fit], samples: Ints) -> float | None:
    """The residual standard deviation over all clusters that have one."""
    known = [(fit.sigma, n - fit.rank) for fit, n in zip(fits, samples.tolist(), strict=True) if n > fit.rank]
    if not known:
        return None
    with np.errstate(over="ignore"):
        squares = sum(np.square(s) * spare for s, spare in known)
    return math.sqrt(squares / sum(spare for _, spare in known))


def _separation(theta: Floats) -> float | None:
    """Delta: the least distance between two of these models."""
    finite = theta[np.isfinite(theta).all(axis=1)]
    if len(finite) < 2:
        return None
    with np.errstate(over="ignore"):
        apart = np.linalg.norm(finite[:, None] - finite[None], axis=2)
    return float(apart[~np.eye(len(finite), dtype=bool)].min())


def _floor(report: Mapping[str, Any], sizes: Ints, samples: Ints) -> dict[str, float | None] | None:
    """nu and the error it leads to, where there are two clusters to tell apart; `samples` of each cluster in use."""
    sigma, separation = report["sigma"], report["separation"]
    if sigma is None or separation is None or not (math.isfinite(sigma) and math.isfinite(separation)):
        return None
    found = floor(sizes, len(samples), len(report["names"]), separation, sigma)
    rho = float(samples.min() / samples.sum())
    return found | {"error": _error_guide(found["nu"], sigma, report["kappa"], rho)}
