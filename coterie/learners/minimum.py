"""Local empirical risk minimisation: each client's own problem solved to the end, for generalised linear models.

Linear regression is one least-squares problem, of minimum norm where the samples leave the solution open. Logistic
regression takes Newton steps, all clients of a block together; the inner linear systems are solved by conjugate
gradients, so no Hessian is ever formed. A client with fewer samples than features works in the space its samples
span, which holds the minimiser and is as large as n_i. Everything is computed in float64.
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
"""A problem that has a minimum takes ten to twenty Newton steps; one without takes any number."""
SETTLED = 1e-9
"""A Newton step of this length, relative to the solution, ends the search; the error is about its square."""
SAFE = 1e6
"""A condition number below which orthogonal factors give a least-squares solution to ten digits."""
SLIGHT = 1e-14
"""Relative differences of an objective that are rounding and no ascent."""


@dataclass(frozen=True)
class Glm:
    """The problems of a block's clients: mean loss of outputs phi theta, plus half the penalty times theta^2."""

    phi: Tensor
    """(B, n, q) features, with a last column of ones where there is a bias; zero rows for padding."""
    y: Tensor
    """(B, n)."""
    counts: Tensor
    """(B,) n_i."""
    penalty: Tensor
    """(q,) the weight of each coefficient's square: 0 for a bias."""
    classes: int | None
    """None: squared error; 2: one logit; C: as many logits."""
    scale: float
    """Of the loss: 1, or 2 for a squared error without the 1/2."""
    mask: Tensor | None
    """(B, n) True for real samples; None without padding."""

    def take(self, rows: Tensor) -> Glm:
        """Only these clients."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, phi=self.phi[rows], y=self.y[rows], counts=self.counts[rows], mask=mask)

    @property
    def columns(self) -> int:
        """How many outputs a sample has."""
        return self.classes if self.classes is not None and self.classes > 2 else 1

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Derivative of each sample's loss by its outputs, (..., columns); `y` has the shape without that axis."""
        if self.classes is None:
            return self.scale * (outputs - y[..., None])
        if self.columns == 1:
            return torch.sigmoid(outputs) - y[..., None].to(outputs.dtype)
        return torch.softmax(outputs, dim=-1) - torch.nn.functional.one_hot(y, self.columns).to(outputs.dtype)

    def bend(self, outputs: Tensor, along: Tensor) -> Tensor:
        """The second derivative of each sample's loss, times a change of its outputs, (B, n, columns)."""
        if self.classes is None:
            return self.scale * along
        if self.columns == 1:
            p = torch.sigmoid(outputs)
            return p * (1 - p) * along
        p = torch.softmax(outputs, dim=-1)
        return p * (along - (p * along).sum(dim=-1, keepdim=True))

    def value(self, theta: Tensor) -> Tensor:
        """Each client's objective, (B,), of a logistic problem at theta (B, q, columns)."""
        logits = self.phi @ theta
        if self.columns == 1:
            loss = torch.nn.functional.softplus(logits[..., 0]) - self.y * logits[..., 0]
        else:
            loss = torch.logsumexp(logits, dim=-1) - logits.gather(-1, self.y[..., None])[..., 0]
        if self.mask is not None:
            loss = torch.where(self.mask, loss, 0)
        return loss.sum(dim=1) / self.counts + (self.penalty[:, None] * theta**2).sum(dim=(1, 2)) / 2

    def pull_back(self, by_sample: Tensor, theta: Tensor) -> Tensor:
        """phi^T of what each sample says, its mean, plus the penalty's share: (B, n, columns) to (B, q, columns).

        Several logits may all move by the same amount: that direction changes nothing and is kept out of rounding.
        """
        pulled = self.phi.transpose(1, 2) @ by_sample / self.counts[:, None, None] + self.penalty[:, None] * theta
        return pulled if self.columns == 1 else pulled - pulled.mean(dim=2, keepdim=True)

    @property
    def convexity(self) -> Tensor:
        """mu_i (B,): the least curvature of a squared error, else the least weight that a penalised square has."""
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
        """The problems of the block's clients."""
        ...

    def from_coefficients(self, theta: Tensor) -> Params:
        """Coefficients (B, q, columns) as the learner's own arrays."""
        ...

    def to_coefficients(self, models: Params) -> Tensor:
        """Return models {name: (S, ...)} as coefficients (S, q, columns), in float64.

        Of several logits the first, that of the reference class, is subtracted from the others and left out.
        """
        ...


@dataclass(frozen=True)
class Solved:
    """What the clients of a block ended with."""

    theta: Tensor
    """(B, q, columns)."""
    found: Tensor
    """(B,) whether it is a minimum; without one the loss falls for ever, as on data that a plane separates."""


def minimise(problem: Glm) -> Solved:
    """The minimum of every client's objective.

    A client that lacks a class has none while its bias is free: there, the bias is penalised like the weights.
    """
    if problem.classes is None:
        return _least_squares(problem)
    theta = problem.phi.new_zeros(len(problem.phi), problem.phi.shape[2], problem.columns)
    found = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
    lacking, few = _lacks_a_class(problem), problem.counts < problem.phi.shape[2]
    held = replace(problem, penalty=problem.penalty.max().expand_as(problem.penalty))
    if bool((problem.penalty > 0).any()):
        parts = [(problem, ~lacking), (held, lacking)]
    else:  # a plane separates fewer samples than coefficients, and a bias falls for ever where a class is missing
        parts = [(problem, ~lacking & ~few)]
    for part, rows in parts:
        if bool(rows.any()):
            solved = _logistic(part if bool(rows.all()) else part.take(rows))
            theta[rows], found[rows] = solved.theta, solved.found
    return Solved(theta, found)


RIDGE_POWER, RIDGE_ENDS = 4, 1e-3
"""A ridge falls with this power of coefficients over samples, and below this share of a mean square there is none."""


def with_ridge(problem: Glm, strength: float, bias: bool) -> Glm:
    """Return least-squares problems with a ridge where a client has few samples for each of its q coefficients.

    The ridge of a coefficient is `strength` times min(1, q / n_i)^4 times the sum of squares of its feature. Near
    n_i = q the samples barely decide some directions, and the solution without a ridge is arbitrarily long; with 0.1,
    from about three samples for each coefficient on there is none. A bias is left free, and with one the squares are
    those around the client's mean.

    Args:
        problem: Squared errors.
        strength: Ridge of a client with no more samples than coefficients, as a share of each feature's squares.
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
    """(B,) whose labels lack one of the classes while a bias is free, so that it would fall for ever."""
    if not bool((problem.penalty == 0).any()):
        return torch.zeros(len(problem.phi), dtype=torch.bool, device=problem.phi.device)
    held = torch.nn.functional.one_hot(problem.y, max(2, problem.columns))
    if problem.mask is not None:
        held = held * problem.mask[..., None]
    return (held.sum(dim=1) == 0).any(dim=1)


def _logistic(problem: Glm) -> Solved:
    penalised = int((problem.penalty > 0).sum())
    return _in_span(problem, penalised) if problem.phi.shape[1] < penalised else _newton(problem)


def _least_squares(problem: Glm) -> Solved:
    """Of minimum norm where there are several: by orthogonal factors, or by singular values where those are not safe.

    Factors take a third of the time. They are safe where all columns, or all rows, are clearly independent.
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
    if bool(doubtful.any()):  # gelsy, the default driver, differs in the last digits from call to call
        theta[doubtful] = torch.linalg.lstsq(phi[doubtful], y[doubtful], driver="gelsd").solution
    return Solved(theta.to(problem.phi.device), theta.isfinite().all(dim=1)[:, 0])


def _in_span(problem: Glm, penalised: int) -> Solved:
    """The first, penalised coefficients of a minimum lie in the span of the samples: theta = Q v with phi^T = Q R."""
    weights, rest = problem.phi[..., :penalised], problem.phi[..., penalised:]
    basis, triangle = torch.linalg.qr(weights.transpose(1, 2))
    size = triangle.shape[1]
    penalty = torch.cat([problem.penalty[:size], problem.penalty[penalised:]])
    solved = _newton(replace(problem, phi=torch.cat([triangle.transpose(1, 2), rest], dim=2), penalty=penalty))
    return replace(solved, theta=torch.cat([basis @ solved.theta[:, :size], solved.theta[:, size:]], dim=1))


def _newton(problem: Glm) -> Solved:
    """Newton steps with halving, from zero."""
    B, _, q = problem.phi.shape
    theta = problem.phi.new_zeros(B, q, problem.columns)
    value, found = problem.value(theta), torch.zeros(B, dtype=torch.bool, device=theta.device)
    for _ in range(NEWTON_STEPS):
        outputs = problem.phi @ theta
        slope = problem.slope(outputs, problem.y)
        if problem.mask is not None:
            slope = torch.where(problem.mask[..., None], slope, 0)
        gradient = problem.pull_back(slope, theta)
        step = _conjugate_gradients(partial(_hessian, problem, outputs), -gradient)
        theta, value = _halved(problem, theta, value, step, (gradient * step).sum(dim=(1, 2)), found)
        found = found | (_length(step) <= SETTLED * (1 + _length(theta)))
        if bool(found.all()):
            break
    return Solved(theta, found & theta.isfinite().all(dim=(1, 2)))


def _hessian(problem: Glm, outputs: Tensor, along: Tensor) -> Tensor:
    """The Hessian at the model with these outputs, times a direction (B, q, columns)."""
    return problem.pull_back(problem.bend(outputs, problem.phi @ along), along)


def _halved(
    problem: Glm, theta: Tensor, value: Tensor, step: Tensor, fall: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    """Each client's longest of step, step/2, ... that goes down enough; those at `rest` (B,) stay."""
    pace = torch.where(rest, 0.0, 1.0).to(theta.dtype)
    slack = SLIGHT * (1 + value.abs())
    for _ in range(HALVINGS):
        moved = theta + pace[:, None, None] * step
        reached = problem.value(moved)
        good = reached <= value + 1e-4 * pace * fall + slack
        if bool(good.all()):
            break
        pace = torch.where(good, pace, pace / 2)
    return moved, reached


def _conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """The solution of product(x) = right for every client, (B, q, columns), as exact as rounding lets it be."""
    x, residual = torch.zeros_like(right), right.clone()
    along = residual.clone()
    size = (residual**2).sum(dim=(1, 2))
    goal = size * 1e-16
    for _ in range(min(2 * right[0].numel(), 500)):
        going = size > goal
        if not bool(going.any()):
            break
        bent = product(along)
        curvature = (along * bent).sum(dim=(1, 2))
        going = going & (curvature > 0)
        pace = torch.where(going, size / torch.where(going, curvature, 1), 0)[:, None, None]
        x, residual = x + pace * along, residual - pace * bent
        after = (residual**2).sum(dim=(1, 2))
        along = residual + torch.where(going, after / torch.where(size > 0, size, 1), 0)[:, None, None] * along
        size = torch.where(going, after, 0)
    return x


def _length(vectors: Tensor) -> Tensor:
    """Euclidean length of each client's matrix."""
    length: Tensor = vectors.flatten(1).norm(dim=1)
    return length
