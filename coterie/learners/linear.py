"""Linear regression, optionally with a bias and polynomial features; local training in closed form.

The loss is (1/2) (y - <phi(x), theta>)^2. With `half=false` the factor 1/2 is omitted, which doubles the gradient (the
convention of the IFCA paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.dataset import Profile
from coterie.core.keys import generator
from coterie.errors import ConfigError, unknown_name
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Batch, descend_each_track
from coterie.learners.deviance import normalisation
from coterie.learners.export_modules import LinearModule
from coterie.learners.local_training import FULL_BATCHES, LocalTraining
from coterie.learners.losses import squared
from coterie.learners.minimum import Glm
from coterie.learners.one_pass import (
    MOST_MODELS,
    MixtureResult,
    MixtureWork,
    RoundResult,
    RoundWork,
    run_round,
    stored_matrices,
)


@dataclass(frozen=True)
class Linear:
    """Linear regression on p monomials of d features; parameters: `weight` (p,) and optionally `bias` ()."""

    width: int
    """Number of raw features (d)."""
    bias: bool = False
    """Whether the model has a bias."""
    degree: int = 1
    """Maximum degree of the monomials."""
    half: bool = True
    """Whether the loss has the factor 1/2."""
    scale: float = 1.0
    """Scale of random initial models."""
    draw: str = "normal"
    """Distribution of random initial models: N(0, I/p) (`normal`), or independent zeros and ones (`zero-one`)."""
    center: float = 0.0
    """Bias of initial models."""

    classes: int | None = None
    dtype: torch.dtype = torch.float64

    @property
    def spec(self) -> str:
        form = f"bias={self.bias},degree={self.degree},half={self.half}".lower()
        center = f",center={self.center!r}" if self.center else ""
        return f"linear:{form},scale={self.scale!r},start={self.draw}{center}"

    @property
    def usual_training(self) -> LocalTraining:
        return FULL_BATCHES

    @property
    def curvature(self) -> float:
        return 1.0 if self.half else 2.0

    @property
    def coefficients(self) -> int:
        """Number of coefficients (p), including the bias."""
        return int(self.features(torch.zeros(1, 1, self.width)).shape[-1])

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        terms = self.coefficients - self.bias
        rows = [self._drawn(generator(key), terms) * self.scale for key in keys]
        params = {"weight": torch.from_numpy(np.stack(rows)).to(dtype)}
        return params | {"bias": torch.full((len(keys),), self.center, dtype=dtype)} if self.bias else params

    def _drawn(self, random: np.random.Generator, terms: int) -> np.ndarray:
        if self.draw == "zero-one":
            return random.integers(0, 2, terms).astype(np.float64)
        return np.asarray(random.standard_normal(terms) / np.sqrt(terms))

    def features(self, x: Tensor) -> Tensor:
        """Return the features phi(x), (B, n, p), of samples (B, n, ...), with a last column of ones for the bias."""
        flat = x.flatten(2)
        columns = [flat]
        for degree in range(2, self.degree + 1):
            chosen = torch.tensor(list(combinations_with_replacement(range(flat.shape[2]), degree)))
            columns.append(flat[..., chosen].prod(dim=-1))
        if self.bias:
            columns.append(torch.ones_like(flat[..., :1]))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)

    def _vector(self, theta: Params) -> Tensor:
        """Return weight and bias as one vector, (..., p)."""
        return torch.cat([theta["weight"], theta["bias"][..., None]], dim=-1) if self.bias else theta["weight"]

    def named(self, vector: Tensor) -> Params:
        """Return weight and bias given as one vector, (..., p), with the bias last."""
        return {"weight": vector[..., :-1], "bias": vector[..., -1]} if self.bias else {"weight": vector}

    def glm(self, block: Block) -> Glm:
        """Return the local problem in float64, without a penalty."""
        phi = self.features(block.x.double())
        phi = phi if block.mask is None else torch.where(block.mask[..., None], phi, 0)
        no_penalty, scale = phi.new_zeros(phi.shape[2]), 1.0 if self.half else 2.0
        return Glm(phi, block.y.double(), block.sizes.double(), no_penalty, None, scale, block.mask)

    def from_coefficients(self, theta: Tensor) -> Params:
        """Return weight and bias given coefficients of the local problem, (B, p, 1)."""
        return self.named(theta[..., 0])

    def to_coefficients(self, models: Params) -> Tensor:
        """Return weight and bias as coefficients of the local problem, (S, p, 1)."""
        return self._vector(models).double()[..., None]

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return torch.matmul(self.features(x), self._vector(theta)[..., None]).squeeze(-1)

    def network(self, model: Params) -> nn.Module:
        return LinearModule(model, self.width, self.degree).eval()

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.outputs(theta, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return squared(outputs, y, self.half)

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of all models; the memo contains the predictions, (B, n, S)."""
        phi = self.features(block.x)
        by_model = self._vector(models) @ phi.flatten(0, 1).T  # for few models and many samples, rows are faster
        predictions = by_model.reshape(-1, *block.y.shape).permute(1, 2, 0)
        return Scored(squared(predictions, block.y[..., None], self.half), predictions)

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        if not _in_closed_form(training) or towards is not None:
            return descend_each_track(self._objective, theta, block, training, lr, towards).change
        phi = self.features(block.x)
        residual = self._vector(theta) @ phi.transpose(1, 2) - block.y[:, None]
        return self.named(_change(block, phi, residual, self._rates(block, lr), lr * training.prox, training))

    def contribute(
        self,
        models: Params,
        rows: Tensor,
        block: Block,
        training: LocalTraining,
        lr: float,
        mass: Tensor,
        memo: Tensor | None,
    ) -> Contribution:
        """Return the sums, in closed form if possible, and without the clients' changes if that is faster."""
        count = models["weight"].shape[0]
        if not _in_closed_form(training):
            theta = take_rows(models, rows)
            done = descend_each_track(self._objective, theta, block, training, lr)
            return weigh(done.change, rows, mass, count, training.path("autograd"), done.loss)
        phi = self.features(block.x)
        residual = self._chosen(models, rows, phi, memo) - block.y[:, None]
        rates, pull = self._rates(block, lr), lr * training.prox
        if flat_sum_pays(count, *residual.shape[1:]) and _in_sample_space(phi, training):
            total = _flat_sum(phi, _in_samples(block, phi, residual, rates, pull, training), rows, mass, count)
            if bool(total.sum().isfinite()):  # otherwise find the clients whose change is not finite
                return Contribution(self.named(total), torch.ones_like(mass, dtype=torch.bool), "closed-form-flat")
        return weigh(self.named(_change(block, phi, residual, rates, pull, training)), rows, mass, count, "closed-form")

    def trains_together(self, training: LocalTraining) -> bool:
        """Return whether several models of a client, with different weights of the samples, are trained together."""
        return _in_closed_form(training)

    def one_pass_pays(self, training: LocalTraining, models: Params) -> bool:
        """Return whether a round that reads the samples once is possible, and faster than matrix products."""
        plain = type(self) is Linear and self.degree == 1  # a subclass may have another loss
        explicit = _in_closed_form(training) and not training.implicit
        return plain and explicit and len(models["weight"]) <= MOST_MODELS

    def one_pass(self, work: RoundWork) -> RoundResult:
        """Return the result of a round that reads the samples once."""
        from coterie.learners import one_pass_kernels as kernels

        steps, y = work.training.full_batch_steps or 1, work.shard.y.numpy()
        settings = (int(self.bias), work.lr * (1 if self.half else 2), 0.5 if self.half else 1.0)
        if steps == 1:
            return run_round(kernels.linear_step, work, y, *settings)
        further = (1 - work.lr * work.training.prox, steps)
        stored = stored_matrices(work, self.bias)
        if stored is None:
            return run_round(kernels.linear_steps_by_passes, work, y, *settings, *further)
        return run_round(kernels.linear_steps_by_matrix, work, y, *settings, *further, stored.values, stored.offsets)

    def one_pass_mixture(self, work: MixtureWork) -> MixtureResult:
        """Return the result of a round of mixtures that reads the samples once."""
        from coterie.learners import one_pass_kernels as kernels

        factor, known = 0.5 if self.half else 1.0, work.usual.double()
        scale = torch.where(known.isfinite(), factor / (2 * known), 0)
        shift = torch.where(known.isfinite(), normalisation(known, factor), 0)
        shares, likelihood = torch.empty_like(work.prior), torch.empty(len(work.prior), work.restarts).double()
        settings = (int(self.bias), work.lr * (1 if self.half else 2), factor)
        further = (1 - work.lr * work.training.prox, work.training.full_batch_steps or 1)
        arrays = [value.numpy() for value in (work.prior, scale, shift, shares, likelihood)]
        y = work.shard.y.numpy()
        done = run_round(kernels.linear_mixture, work, y, *settings, *further, int(work.by_share), *arrays)
        return MixtureResult(done.rows, done.loss, done.sums, shares=shares, likelihood=likelihood)

    def _chosen(self, models: Params, rows: Tensor, phi: Tensor, memo: Tensor | None) -> Tensor:
        """Return the predictions of the models that each client trains, (B, R, n)."""
        if memo is None:
            return self._vector(models)[rows] @ phi.transpose(1, 2)
        return memo.gather(2, rows[:, None].expand(-1, memo.shape[1], -1)).transpose(1, 2)

    def _rates(self, block: Block, lr: float) -> Tensor:
        """Return the factor of each sample's residual in a gradient step: lr / n_i times its weight.

        The shape is (B, 1, n), or (B, L, n) if each of L models has its own weights of the samples.
        """
        rates = (lr * (1 if self.half else 2) / block.counts)[:, None, None].expand(-1, 1, block.y.shape[1])
        rates = rates if block.mask is None else rates * block.mask[:, None]
        rates = rates if block.focus is None else rates * block.focus[:, None]
        return rates if block.shares is None else rates * block.shares.transpose(1, 2)

    def _objective(self, theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)
        return loss, loss


def flat_sum_pays(models: int, restarts: int, samples: int) -> bool:
    """Return whether a single product over all clients is faster than one product for each client and their sum.

    The single product covers all models, although a client trains only one in each restart, but it needs no memory for
    the change of each client. The limit was measured with n from 10 to 100, p from 50 to 1000, and 1 to 30 restarts.

    Args:
        models: Number of models of the server.
        restarts: Number of restarts.
        samples: Number of samples of a client (n).
    """
    return models * samples <= restarts * (2 * samples + 200)


def _flat_sum(phi: Tensor, u: Tensor, rows: Tensor, mass: Tensor, count: int) -> Tensor:
    """Return the sums of mass[b, r] u[b, r] phi[b] over all (b, r) with rows[b, r] = s, (count, p).

    The sums are linear in u, so u is added up before the multiplication by phi.
    """
    clients, samples = phi.shape[:2]
    weighted = u * mass[..., None]
    if not bool(mass.all()):  # 0 times infinity would be NaN
        weighted = torch.where(mass[..., None] > 0, weighted, 0)
    place = rows * clients + torch.arange(clients, device=rows.device)[:, None]
    by_model = torch.zeros(count * clients, samples, dtype=u.dtype, device=u.device)
    by_model.index_add_(0, place.flatten(), weighted.flatten(0, 1))
    return by_model.reshape(count, clients * samples) @ phi.flatten(0, 1)


def _in_closed_form(training: LocalTraining) -> bool:
    """Return whether the change has a closed form, as for full-batch steps of plain SGD and for a proximal step."""
    steps_plainly = training.takes_gradient_steps and training.optimizer.plain
    return training.implicit or (steps_plainly and training.full_batch_steps is not None)


def _in_sample_space(phi: Tensor, training: LocalTraining) -> bool:
    """Return whether to compute in the space of samples: with fewer samples than features, or for a single step."""
    return phi.shape[1] <= phi.shape[2] or (training.full_batch_steps == 1 and not training.implicit)


def _change(block: Block, phi: Tensor, residual: Tensor, rates: Tensor, pull: float, training: LocalTraining) -> Tensor:
    """Return the changes (B, L, p) by full-batch steps, given residuals (B, L, n) and features phi (B, n, p)."""
    if _in_sample_space(phi, training):
        return _in_samples(block, phi, residual, rates, pull, training) @ phi
    gradient = (rates * residual) @ phi
    moments = torch.stack([(phi * rate[..., None]).transpose(1, 2) @ phi for rate in rates.unbind(dim=1)], dim=1)
    moment = moments.flatten(0, 1)
    start = gradient.reshape(len(moment), -1, gradient.shape[2])
    if training.implicit:
        return -_solve(moment, start).reshape(gradient.shape)
    return _steps_in_feature_space(start, moment, pull, training.full_batch_steps or 1).reshape(gradient.shape)


# Models are rows below: a row times a small matrix is two to three times faster than the matrix times a column.


def _in_samples(
    block: Block, phi: Tensor, residual: Tensor, rates: Tensor, pull: float, training: LocalTraining
) -> Tensor:
    """Return u (B, L, n) of the change u phi; steps update the residuals by the Gram matrix phi phi^T (n x n)."""
    if training.full_batch_steps == 1 and not training.implicit:
        return -rates * residual
    gram = block.recall("gram", lambda: phi @ phi.transpose(1, 2))
    if training.implicit:
        matrix = (rates[..., None] * gram[:, None]).flatten(0, 1)
        right = residual.reshape(len(matrix), -1, residual.shape[2])
        return -rates * _solve(matrix, right).reshape(residual.shape)
    u = -rates * residual
    for _ in range((training.full_batch_steps or 1) - 1):
        u = (1 - pull) * u - rates * (residual + u @ gram)
    return u


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return the solution X (B, L, n) of X (1 + matrix) = right, for matrices (B, n, n)."""
    one = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    solved: Tensor = torch.linalg.solve(matrix + one, right, left=False)
    return solved


def _steps_in_feature_space(gradient: Tensor, moment: Tensor, pull: float, steps: int) -> Tensor:
    """Return the change (B, L, p); steps update the gradient by the moment matrix phi^T phi (p x p)."""
    change = -gradient
    for _ in range(steps - 1):
        change = (1 - pull) * change - (gradient + change @ moment)
    return change


def as_linear(learner: object) -> Linear:
    """Return the learner with the type of linear regression.

    Raises:
        ConfigError: if it is not linear regression.
    """
    if not isinstance(learner, Linear):
        spec = getattr(learner, "spec", learner)
        raise ConfigError(f"this method needs linear regression, but the learner is {spec}: use learner=linear")
    return learner


def linear(
    profile: Profile,
    *,
    bias: bool = False,
    degree: int = 1,
    half: bool = True,
    scale: float = 1.0,
    start: str = "normal",
    center: float = 0.0,
) -> Linear:
    """Least squares on the raw features, or on all their monomials up to `degree`.

    The distribution of initial models, `start`, is normal or zero-one, multiplied by `scale`; their bias is `center`.
    """
    if degree < 1:
        raise ConfigError(f"linear: degree must be at least 1, got {degree}")
    if not 0 <= scale < np.inf:
        raise ConfigError(f"linear: scale must be a finite number of at least 0, got {scale}")
    if not np.isfinite(center) or (center and not bias):
        raise ConfigError(f"linear: center must be a finite number, and needs bias=true, got {center}")
    if start not in ("normal", "zero-one"):
        raise unknown_name("start of learner linear", start, ("normal", "zero-one"))
    if profile.classes is not None:
        raise ConfigError("linear predicts numbers but the labels are classes: use logistic, or pass float targets")
    width = int(np.prod(profile.features))
    return Linear(width, bias=bias, degree=degree, half=half, scale=scale, draw=start, center=center)
