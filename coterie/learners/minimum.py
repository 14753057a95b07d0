"""Exact local empirical risk minimisation for generalised linear models.

Linear regression is a least-squares problem, whose solution of minimum norm is used if it is not unique. Logistic
regression is solved by Newton's method for all clients of a block together; the linear systems are solved by conjugate
gradients, so that no Hessian is computed. For a client with fewer samples than features, the problem is solved in the
span of its samples, which contains the minimum and has the dimension n_i. All computations are in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params

NEWTON_STEPS, HALVINGS = 100, 40
"""Maximum numbers of Newton steps and of halvings of a step; problems with a minimum need 10 to 20 Newton steps."""
SETTLED = 1e-9
"""Tolerance: relative length of the last Newton step; the error of the solution is about its square."""
SAFE = 1e6
"""Maximum condition number for which a QR decomposition gives ten correct digits of a least-squares solution."""
USUAL = 1e4
"""Features whose largest value is between 1 / USUAL and USUAL are not scaled."""
SLIGHT = 1e-14
"""Relative differences of objectives up to which an increase is attributed to rounding."""


@dataclass(frozen=True)
class Glm:
    """Local problems of a block's clients: mean loss of the outputs phi theta plus half the penalty times theta^2."""

    phi: Tensor
    """Features, (B, n, q), with a last column of ones for a bias, and rows of zeros for padding."""
    y: Tensor
    """Labels or targets, (B, n)."""
    counts: Tensor
    """Number of samples of each client (n_i), (B,)."""
    penalty: Tensor
    """Weight of the square of each coefficient, (q,); 0 for a bias."""
    classes: int | None
    """Number of classes; None for squared errors. Two classes have one logit, C classes have C logits."""
    scale: float
    """Factor of the loss: 1, or 2 for squared errors without the factor 1/2."""
    mask: Tensor | None
    """True for real samples, (B, n); None without padding."""

    def take(self, rows: Tensor) -> Glm:
        """Return the problems of some of the clients."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, phi=self.phi[rows], y=self.y[rows], counts=self.counts[rows], mask=mask)

    @property
    def columns(self) -> int:
        """Number of outputs for each sample."""
        return self.classes if self.classes is not None and self.classes > 2 else 1

    def output_gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each sample's loss with respect to its outputs.

        Args:
            outputs: Outputs, (..., columns).
            y: Labels or targets, (...).
        """
        if self.classes is None:
            return self.scale * (outputs - y[..., None])
        if self.columns == 1:
            return torch.sigmoid(outputs) - y[..., None].to(outputs.dtype)
        return torch.softmax(outputs, dim=-1) - torch.nn.functional.one_hot(y, self.columns).to(outputs.dtype)

    def curvature_times(self, outputs: Tensor, along: Tensor) -> Tensor:
        """Return the second derivative of each sample's loss times a change of its outputs, (B, n, columns)."""
        if self.classes is None:
            return self.scale * along
        if self.columns == 1:
            p = torch.sigmoid(outputs)
            return p * (1 - p) * along
        p = torch.softmax(outputs, dim=-1)
        return p * (along - (p * along).sum(dim=-1, keepdim=True))

    def value(self, theta: Tensor) -> Tensor:
        """Return the objective of each client, (B,), of a logistic problem at theta (B, q, columns)."""
        logits = self.phi @ theta
        if self.columns == 1:
            loss = torch.nn.functional.softplus(logits[..., 0]) - self.y * logits[..., 0]
        else:
            loss = torch.logsumexp(logits, dim=-1) - logits.gather(-1, self.y[..., None])[..., 0]
        if self.mask is not None:
            loss = torch.where(self.mask, loss, 0)
        return loss.sum(dim=1) / self.counts + (self.penalty[:, None] * theta**2).sum(dim=(1, 2)) / 2

    def pull_back(self, by_sample: Tensor, theta: Tensor) -> Tensor:
        """Return the mean of phi^T times values of the samples, plus the derivative of the penalty.

        A common shift of several logits changes nothing; this direction is removed, so that rounding errors in it do
        not accumulate.

        Args:
            by_sample: Values of the samples, (B, n, columns).
            theta: Coefficients, (B, q, columns).

        Returns:
            Derivatives with respect to the coefficients, (B, q, columns).
        """
        pulled = self.phi.transpose(1, 2) @ by_sample / self.counts[:, None, None] + self.penalty[:, None] * theta
        return pulled if self.columns == 1 else pulled - pulled.mean(dim=2, keepdim=True)

    @property
    def convexity(self) -> Tensor:
        """Strong convexity of each client's objective (mu_i), (B,).

        For least squares it is the smallest curvature, for logistic problems the smallest positive penalty weight.
        """
        if self.classes is not None:
            penalised = self.penalty[self.penalty > 0]
            return (penalised.min() if len(penalised) else self.penalty.new_zeros(())).expand(len(self.phi))
        if self.phi.shape[1] < self.phi.shape[2]:
            return self.phi.new_zeros(len(self.phi))
        moment = self.phi.transpose(1, 2) @ self.phi / self.counts[:, None, None]
        least: Tensor = torch.linalg.eigvalsh(moment)[:, 0]
        return self.scale * least.clamp(min=0)


@runtime_checkable
class GeneralisedLinear(Protocol):
    """A learner whose local problem is a generalised linear model."""

    @property
    def bias(self) -> bool:
        """Whether the last feature of the problem is the constant 1."""
        ...

    def glm(self, block: Block) -> Glm:
        """Return the local problems of a block's clients."""
        ...

    def from_coefficients(self, theta: Tensor) -> Params:
        """Return models given as coefficients, (B, q, columns), by parameter name."""
        ...

    def to_coefficients(self, models: Params) -> Tensor:
        """Return models {name: (S, ...)} as coefficients, (S, q, columns), in float64.

        If there are several logits, the first one, of the reference class, is subtracted from the others and omitted.
        """
        ...


@dataclass(frozen=True)
class Solved:
    """Solutions of the local problems of a block's clients."""

    theta: Tensor
    """Coefficients, (B, q, columns)."""
    found: Tensor
    """Whether they are a minimum, (B,); there is none for linearly separable classes without a penalty."""


def minimise(problem: Glm) -> Solved:
    """Return the minimum of each client's objective.

    If a client lacks a class and the weights are penalised, its bias is penalised like the weights, since otherwise
    there would be no minimum.
    """
    if problem.classes is None:
        return _least_squares(problem)
    theta = problem.phi.new_zeros(len(problem.phi), problem.phi.shape[2], problem.columns)
    found = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
    lacking, few = _lacks_a_class(problem), problem.counts < problem.phi.shape[2]
    with_penalised_bias = replace(problem, penalty=problem.penalty.max().expand_as(problem.penalty))
    if bool((problem.penalty > 0).any()):
        parts = [(problem, ~lacking), (with_penalised_bias, lacking)]
    else:  # no minimum if a class is missing, or if there are fewer samples than coefficients (separable classes)
        parts = [(problem, ~lacking & ~few)]
    for part, rows in parts:
        if bool(rows.any()):
            solved = _logistic(part if bool(rows.all()) else part.take(rows))
            theta[rows], found[rows] = solved.theta, solved.found
    return Solved(theta, found)


RIDGE_POWER, RIDGE_ENDS = 4, 1e-3
"""Power of coefficients over samples with which the ridge decreases, and the share of squares below which it is 0."""


def with_ridge(problem: Glm, strength: float, bias: bool) -> Glm:
    """Return least-squares problems with a ridge penalty for clients with few samples for each of q coefficients.

    The ridge of a coefficient is `strength` times min(1, q / n_i)^4 times the sum of squares of its feature. For n_i
    near q, the samples hardly determine some directions, and the solution without a ridge may be arbitrarily large.
    With strength 0.1, clients with more than about three samples for each coefficient have no ridge. A bias is not
    penalised; with a bias, the squares are those of the centred features.

    Args:
        problem: Least-squares problems.
        strength: Ridge of clients with at most q samples, as a share of the sum of squares of each feature.
        bias: Whether the last feature is the constant 1.
    """
    q, phi = problem.phi.shape[2], problem.phi
    share = strength * (q / problem.counts).clamp_max(1) ** RIDGE_POWER
    share = torch.where(share < RIDGE_ENDS, 0, share)
    if not bool((share > 0).any()):
        return problem
    squares = (phi**2).sum(dim=1)
    if bias:
        squares = (squares - phi.sum(dim=1) ** 2 / problem.counts[:, None]).clamp_min(0)
        squares[:, -1] = 0
    rows = torch.diag_embed((share[:, None] * squares).sqrt())
    y = problem.y if problem.mask is None else torch.where(problem.mask, problem.y, 0)
    return replace(
        problem, phi=torch.cat([phi, rows], dim=1), y=torch.cat([y, y.new_zeros(len(y), q)], dim=1), mask=None
    )


def _lacks_a_class(problem: Glm) -> Tensor:
    """Return whether each client lacks one of the classes while the bias is not penalised, (B,)."""
    if not bool((problem.penalty == 0).any()):
        return torch.zeros(len(problem.phi), dtype=torch.bool, device=problem.phi.device)
    held = torch.nn.functional.one_hot(problem.y, max(2, problem.columns))
    if problem.mask is not None:
        held = held * problem.mask[..., None]
    return (held.sum(dim=1) == 0).any(dim=1)


def _logistic(problem: Glm) -> Solved:
    penalised = int((problem.penalty > 0).sum())
    if problem.phi.shape[1] < penalised:
        return _in_span(problem, penalised)
    return _newton(problem) if penalised else _scaled(problem)


def _scaled(problem: Glm) -> Solved:
    """Solve with features that are divided by their largest value if it is unusual, since steps have a tolerance."""
    largest = problem.phi.abs().amax(dim=1, keepdim=True)
    usual = ((largest >= 1 / USUAL) & (largest <= USUAL)) | (largest == 0) | ~largest.isfinite()
    if bool(usual.all()):
        return _newton(problem)
    scale = torch.where(usual, 1, largest)
    solved = _newton(replace(problem, phi=problem.phi / scale))
    return replace(solved, theta=solved.theta / scale.transpose(1, 2))


def _least_squares(problem: Glm) -> Solved:
    """Return the least-squares solutions of minimum norm, by QR or, for ill-conditioned problems, by singular values.

    QR takes a third of the time. It is accurate if all columns, or all rows, are clearly independent.
    """
    phi, y = problem.phi.cpu(), problem.y.cpu()[..., None]
    if problem.mask is not None:
        y = torch.where(problem.mask.cpu()[..., None], y, 0)
    wide = phi.shape[1] < phi.shape[2]
    factor, triangle = torch.linalg.qr(phi.transpose(1, 2) if wide else phi)
    one = torch.eye(triangle.shape[1], dtype=phi.dtype).expand_as(triangle)
    inverse = torch.linalg.solve_triangular(triangle, one, upper=True)
    theta = factor @ (inverse.transpose(1, 2) @ y) if wide else inverse @ (factor.transpose(1, 2) @ y)
    condition = _length(triangle) * _length(inverse)
    doubtful = ~(condition < SAFE) & phi.isfinite().flatten(1).all(dim=1)  # NaN too
    if bool(doubtful.any()):  # the default driver, gelsy, is not reproducible to the last digit
        theta[doubtful] = torch.linalg.lstsq(phi[doubtful], y[doubtful], driver="gelsd").solution
    return Solved(theta.to(problem.phi.device), theta.isfinite().all(dim=1)[:, 0])


def _in_span(problem: Glm, penalised: int) -> Solved:
    """Solve in the span of the samples, which contains the penalised coefficients: theta = Q v with phi^T = Q R."""
    weights, rest = problem.phi[..., :penalised], problem.phi[..., penalised:]
    basis, triangle = torch.linalg.qr(weights.transpose(1, 2))
    size = triangle.shape[1]
    penalty = torch.cat([problem.penalty[:size], problem.penalty[penalised:]])
    solved = _newton(replace(problem, phi=torch.cat([triangle.transpose(1, 2), rest], dim=2), penalty=penalty))
    return replace(solved, theta=torch.cat([basis @ solved.theta[:, :size], solved.theta[:, size:]], dim=1))


def _newton(problem: Glm) -> Solved:
    """Solve by Newton's method from zero, with halving of steps that do not decrease the objective."""
    B, _, q = problem.phi.shape
    theta = problem.phi.new_zeros(B, q, problem.columns)
    value, found = problem.value(theta), torch.zeros(B, dtype=torch.bool, device=theta.device)
    for _ in range(NEWTON_STEPS):
        outputs = problem.phi @ theta
        by_sample = problem.output_gradient(outputs, problem.y)
        if problem.mask is not None:
            by_sample = torch.where(problem.mask[..., None], by_sample, 0)
        gradient = problem.pull_back(by_sample, theta)
        step = _conjugate_gradients(partial(_hessian, problem, outputs), -gradient)
        theta, value = _halved(problem, theta, value, step, (gradient * step).sum(dim=(1, 2)), found)
        found = found | (_length(step) <= SETTLED * (1 + _length(theta)))
        if bool(found.all()):
            break
    return Solved(theta, found & theta.isfinite().all(dim=(1, 2)))


def _hessian(problem: Glm, outputs: Tensor, along: Tensor) -> Tensor:
    """Return the Hessian at the model with these outputs, times a direction (B, q, columns)."""
    return problem.pull_back(problem.curvature_times(outputs, problem.phi @ along), along)


def _halved(
    problem: Glm, theta: Tensor, value: Tensor, step: Tensor, slope: Tensor, finished: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the coefficients and objectives after a backtracking line search.

    Args:
        problem: Problems of the clients.
        theta: Coefficients before the step, (B, q, columns).
        value: Objectives before the step, (B,).
        step: Full step, (B, q, columns).
        slope: Derivative of the objective along the step, (B,).
        finished: Whether each client is finished and does not move, (B,).
    """
    fraction = torch.where(finished, 0.0, 1.0).to(theta.dtype)
    slack = SLIGHT * (1 + value.abs())
    for _ in range(HALVINGS):
        moved = theta + fraction[:, None, None] * step
        reached = problem.value(moved)
        accepted = reached <= value + 1e-4 * fraction * slope + slack
        if bool(accepted.all()):
            break
        fraction = torch.where(accepted, fraction, fraction / 2)
    return moved, reached


def _conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Return the solution of product(x) = right for each client, (B, q, columns), up to rounding errors."""
    x, residual = torch.zeros_like(right), right.clone()
    direction = residual.clone()
    size = (residual**2).sum(dim=(1, 2))
    goal = size * 1e-16
    for _ in range(min(2 * right[0].numel(), 500)):
        active = size > goal
        if not bool(active.any()):
            break
        image = product(direction)
        curvature = (direction * image).sum(dim=(1, 2))
        active = active & (curvature > 0)
        length = torch.where(active, size / torch.where(active, curvature, 1), 0)[:, None, None]
        x, residual = x + length * direction, residual - length * image
        after = (residual**2).sum(dim=(1, 2))
        direction = residual + torch.where(active, after / torch.where(size > 0, size, 1), 0)[:, None, None] * direction
        size = torch.where(active, after, 0)
    return x


def _length(vectors: Tensor) -> Tensor:
    """Return the Euclidean norm of each client's matrix."""
    length: Tensor = vectors.flatten(1).norm(dim=1)
    return length
