"""The pooled fits of a diagnosis, from sums over clients: coordinates of the features, bins of the targets, models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.client.tasks import DiagnosisMoments, FeatureMeans, FeatureSpread, PooledNewton
from coterie.core.clusters import Params
from coterie.core.dataset import Profile
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.messages import Reply
from coterie.diagnosis.session import Session
from coterie.errors import InputError

MOST_FEATURES = 200
"""Largest number of features; more are first projected onto as many random directions."""
MOST_COMPONENTS = 60
MOST_PARAMETERS = 120
SAMPLES_PER_PARAMETER = 10
"""Smallest number of samples for each coefficient of the pooled model; fewer would overfit."""
COLLINEAR = 1e-8
"""Eigenvalue of the features' correlation matrix below which a direction counts as empty."""
CONSTANT = 1e-12
"""Variance, relative to the square of the mean, below which a feature counts as constant."""
MOMENT_FEATURES = 6
"""Number of principal components whose means and squares are compared."""
BINS = 8
GRID = 511
RIDGE = 1.0
"""Weight of the squared coefficients of standardised features in logistic fits: the weight of one sample."""
NEWTON_STEPS = 10
SETTLED = {"model": 1e-3, "slopes": 1e-2}
"""Length of a Newton step below which a fit ends; the error is about its square."""


@dataclass
class Pooled:
    """The fits and coordinates common to all clients; the arrays in `common` are sent to them."""

    samples: int
    classes: int | None
    common: Params = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    label_shares: Tensor = field(default_factory=lambda: torch.ones(1))
    """Share of each class or bin, (L,)."""
    label_scale: float = 1.0
    """Root mean square of the difference of a class's share, for a score of length 1."""
    prediction_scale: float = 1.0
    """Difference of predictions in the target's unit, or of log-odds, for a coefficient of length 1."""
    score: float = 0.0
    """Mean squared error or log loss of the pooled model."""
    null_score: float = 0.0
    """Mean squared error or log loss of a model without features."""
    summarised: int = 0
    """Number of features if they are summarised by fewer components, else 0."""

    @property
    def components(self) -> int:
        return int(self.common["basis"].shape[1])

    @property
    def contrasts(self) -> int:
        """Number of residuals of a sample (c)."""
        return int(self.common["contrast"].shape[0]) if "contrast" in self.common else 1

    @property
    def parameters(self) -> int:
        return int(self.common["model"].numel())


def pooled_fit(session: Session, profile: Profile, seed: int) -> Pooled:
    """Return the pooled fits of a federation.

    Raises:
        InputError: if the targets are all the same.
        TrainingError: if no client answers.
    """
    reply = session.ask(FeatureMeans(profile.classes), {}, {})
    samples = int(session.sizes.sum())
    pooled = Pooled(samples, profile.classes)
    pooled.common["center"] = reply.sums["x"] / samples
    _targets(pooled, reply)
    _components(pooled, session, seed)
    _moments(pooled, session)
    if profile.classes is not None:
        _logistic(pooled, session)
    return pooled


def _targets(pooled: Pooled, reply: Reply) -> None:
    if pooled.classes is None:
        mean = float(reply.sums["y"]) / pooled.samples
        spread = math.sqrt(max(0.0, float(reply.sums["y_square"]) / pooled.samples - mean**2))
        if spread <= 1e-9 * abs(mean):
            raise InputError(f"all targets are {mean:.6g}, so that there is nothing to predict: choose another target")
        pooled.scalars |= {"y_center": mean, "y_spread": spread, "y_scale": spread}
        return
    counts = reply.sums["classes"]
    if int((counts > 0).sum()) < 2:
        raise InputError("all samples have the same class, so that there is nothing to predict: choose another target")
    pooled.label_shares = counts / counts.sum()
    contrast, pooled.label_scale = _contrast(pooled.label_shares)
    pooled.common["contrast"] = contrast
    pooled.common["absent"] = torch.where(counts > 0, 0.0, -1e9).double()
    pooled.common["label_rows"] = contrast.T - contrast @ pooled.label_shares
    present = contrast[:, counts > 0]
    number = present.shape[1]
    between = 2 / (number - 1) * (torch.eye(number, dtype=torch.float64) - 1 / number)
    pooled.prediction_scale = math.sqrt(float(torch.trace(present @ between @ present.T)) / len(present))
    shares = pooled.label_shares[counts > 0]
    pooled.null_score = -float((shares * shares.log()).sum())


def _contrast(shares: Tensor) -> tuple[Tensor, float]:
    """Return A (c, L) that makes indicators with these shares uncorrelated with variance 1, and the scale of shares."""
    values, vectors = torch.linalg.eigh(torch.diag(shares) - torch.outer(shares, shares))
    kept = values > 1e-12
    scale = math.sqrt(float(values[kept].mean()) / int((shares > 0).sum()))
    return (vectors[:, kept] / values[kept].sqrt()).T.contiguous(), scale


def _components(pooled: Pooled, session: Session, seed: int) -> None:
    """Compute the basis of the features, and for a regression the bins of the targets."""
    center = pooled.common["center"]
    d = len(center)
    first = torch.eye(d, dtype=torch.float64)
    if d > MOST_FEATURES:
        drawn = generator(key_for(seed, Purpose.DIAGNOSIS)).standard_normal((d, MOST_FEATURES)) / math.sqrt(d)
        first = torch.from_numpy(drawn)
    common = {"center": center, "basis": first}
    if pooled.classes is None:
        reach = math.asinh(20)
        steps = torch.linspace(-reach, reach, GRID, dtype=torch.float64)
        common["grid"] = pooled.scalars["y_center"] + pooled.scalars["y_spread"] * torch.sinh(steps)
    reply = session.ask(FeatureSpread(), common, {})
    covariance = reply.sums["products"] / pooled.samples
    parameters = min(MOST_PARAMETERS, pooled.samples // SAMPLES_PER_PARAMETER)
    most = min(MOST_COMPONENTS, max(1, parameters // pooled.contrasts - 1))
    constant = CONSTANT * center**2 if d <= MOST_FEATURES else torch.zeros(len(covariance))
    basis, rank = principal_basis(covariance, constant, most)
    if rank == 0:
        raise InputError("no feature varies, so that no model can use them: check the feature columns")
    pooled.common["basis"] = first @ basis
    pooled.summarised = d if rank > most or d > MOST_FEATURES else 0
    pooled.scalars["moment_features"] = float(min(MOMENT_FEATURES, basis.shape[1]))
    if pooled.classes is None:
        _bins(pooled, common["grid"], reply.sums["histogram"])


def principal_basis(covariance: Tensor, constant: Tensor, most: int) -> tuple[Tensor, int]:
    """Return directions (d, q) of the standardised features with variance 1, largest first, and the features' rank.

    Args:
        covariance: Covariance of the features, (d, d).
        constant: Variances up to which features count as constant, (d,).
        most: Largest number of directions.
    """
    variances = covariance.diagonal()
    varies = variances > torch.maximum(constant, torch.full_like(variances, 1e-300))
    scale = torch.where(varies, variances.clamp(min=1e-300).rsqrt(), 0)
    values, vectors = torch.linalg.eigh(covariance * scale[:, None] * scale)
    kept = (values > COLLINEAR).nonzero().flatten().flip(0)
    chosen = kept[:most]
    return scale[:, None] * vectors[:, chosen] * values[chosen].rsqrt(), len(kept)


def _bins(pooled: Pooled, grid: Tensor, histogram: Tensor) -> None:
    """Cut the targets into bins of about equal size."""
    below = histogram.cumsum(0)
    wanted = torch.arange(1, BINS, dtype=torch.float64) / BINS * below[-1]
    cells = torch.unique(torch.searchsorted(below, wanted).clamp(max=len(grid) - 1))
    cells = cells[below[cells] < below[-1]]
    if len(cells) == 0:  # one value has most of the mass, and it is the largest
        cells = (below < below[-1]).nonzero().flatten()[-1:]
    edges = below[cells]
    counts = torch.diff(edges, prepend=edges.new_zeros(1), append=below[-1:])
    pooled.common["edges"] = grid[cells]
    pooled.label_shares = counts / counts.sum()
    contrast, pooled.label_scale = _contrast(pooled.label_shares)
    pooled.common["label_rows"] = contrast.T - contrast @ pooled.label_shares


def _moments(pooled: Pooled, session: Session) -> None:
    """Compute the arrays for the tests of features and labels; for a regression also fit the models."""
    labels, regression = len(pooled.label_shares), pooled.classes is None
    sent = _present(pooled, "center", "basis", "edges")
    sums = session.ask(DiagnosisMoments(labels, regression), sent, pooled.scalars).sums
    mean = sums["moment"] / pooled.samples
    covariance = sums["moment_products"] / pooled.samples - torch.outer(mean, mean)
    whitening, _ = principal_basis(covariance, torch.zeros(len(mean)), len(mean))
    design = sums["label_products"]
    on_one = design[:, :labels].sum(dim=1)
    products = (sums["label_moments"] - torch.outer(on_one, mean)) @ whitening
    pooled.common |= {"moment_mean": mean, "moment_map": whitening}
    pooled.common["conditional"] = torch.linalg.pinv(design, rtol=1e-10, hermitian=True) @ products
    if regression:
        _least_squares(pooled, sums)


def _least_squares(pooled: Pooled, sums: Mapping[str, Tensor]) -> None:
    count, total = pooled.samples, float(sums["target_square"])
    model = sums["targets"] / count  # the columns of the design are orthogonal with squared length N
    free = max(1, count - len(model))
    rss = max(total - count * float(model @ model), 1e-12 * total)
    sigma = math.sqrt(rss / free)
    pooled.scalars["y_scale"] = pooled.prediction_scale = sigma
    within = torch.linalg.pinv(sums["within_products"], rtol=1e-10, hermitian=True) @ sums["within_targets"]
    pooled.common |= {"model": (model / sigma)[:, None], "slopes": (within / sigma)[:, None]}
    pooled.score, pooled.null_score = sigma**2, total / count


def _logistic(pooled: Pooled, session: Session) -> None:
    """Fit the model and the slopes with an intercept for each client by Newton steps; one exchange for each."""
    common, c, q = pooled.common, pooled.contrasts, pooled.components
    shares = pooled.label_shares
    present = shares > 0
    ones = torch.ones(int(present.sum()), 1, dtype=torch.float64)  # logits are determined up to a constant
    columns = torch.cat([common["contrast"].T[present], ones], dim=1)
    intercept = torch.linalg.lstsq(columns, shares[present, None].log()).solution[:c, 0]
    common["model"] = torch.cat([intercept[None], torch.zeros(q, c, dtype=torch.float64)])
    common["slopes"] = torch.zeros(q, c, dtype=torch.float64)
    best = math.inf
    last: dict[str, Tensor] = {}
    steps: dict[str, Tensor] = {}
    for _ in range(NEWTON_STEPS):
        sums = session.ask(PooledNewton(), model_arrays(pooled), pooled.scalars).sums
        value = float(sums["loss"]) + RIDGE / 2 * float(common["model"][1:].pow(2).sum())
        if value > best + 1e-9 * abs(best):
            steps["model"] = steps["model"] / 4
            common["model"] = last["model"] + steps["model"]
            continue
        best, pooled.score = value, float(sums["loss"]) / pooled.samples
        last = {"model": common["model"], "slopes": common["slopes"]}
        steps = {sent: _newton_step(sums, name, common[sent]) for name, sent in _FITTED}
        for sent, step in steps.items():
            common[sent] = last[sent] + step / max(1.0, float(step.norm()) / 5)
        if all(float(step.abs().max()) < SETTLED[sent] for sent, step in steps.items()):
            break


_FITTED = (("model", "model"), ("relation", "slopes"))


def _newton_step(sums: Mapping[str, Tensor], name: str, theta: Tensor) -> Tensor:
    weights = torch.full_like(theta, RIDGE)
    if name == "model":
        weights[0] = 1e-6
    gradient = sums[f"gradient/{name}"] - (weights * theta).flatten()
    step: Tensor = torch.linalg.solve(sums[f"hessian/{name}"] + torch.diag(weights.flatten()), gradient)
    return step.reshape(theta.shape)


def model_arrays(pooled: Pooled) -> Params:
    """Return the arrays that clients need for the scores of the pooled models."""
    return _present(pooled, "center", "basis", "contrast", "absent", "model", "slopes")


def _present(pooled: Pooled, *names: str) -> Params:
    return {name: pooled.common[name] for name in names if name in pooled.common}
