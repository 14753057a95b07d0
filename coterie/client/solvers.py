"""Solvers of the local problem of each client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, flat
from coterie.core.registry import Registered, register
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining
from coterie.learners.minimum import GeneralisedLinear, minimise, with_ridge
from coterie.learners.projected import ProjectedSgd


class LocalSolver(Registered, ABC, family="solver"):
    """Base class of solvers of local problems."""

    @abstractmethod
    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        """Solve the local problem of each client.

        Args:
            learner: Model family of the problem.
            block: Samples of B clients.
            first: Common initial model, {name: (1, ...)}; empty for solvers that start at zero.
            lr: Learning rate.

        Returns:
            Model of each client, {name: (B, ...)}, and whether it is a solution, (B,).
        """


@register("steps")
@dataclass(frozen=True)
class LocalSteps(LocalSolver):
    """Solver by local training from a common initial model."""

    work: LocalTraining
    """Settings of local training."""

    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        models = {name: p.expand(len(block.positions), *p.shape[1:]) for name, p in first.items()}
        tracks = {name: p[:, None] for name, p in models.items()}
        change = learner.descend(tracks, block, self.work, lr)
        moved = {name: p + change[name][:, 0] for name, p in models.items()}
        return moved, _finite(moved)


@register("sgd")
@dataclass(frozen=True)
class StochasticGradient(LocalSolver):
    """Solver by projected stochastic gradient descent from zero."""

    descent: ProjectedSgd
    """Settings of the descent."""

    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        linear = _generalised_linear(learner, self)
        models = linear.from_coefficients(self.descent.run(linear.glm(block), block.keys))
        return models, _finite(models)


@register("exact")
@dataclass(frozen=True)
class ExactMinimum(LocalSolver):
    """Exact solver: minimum of the loss to machine precision; in regression, clients with few samples use a ridge."""

    ridge: float = 0.0
    """Ridge penalty of clients with at most as many samples as coefficients, as a share of each feature's sum of
    squares (`learners.minimum.with_ridge`)."""

    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        linear = _generalised_linear(learner, self)
        problem = linear.glm(block)
        if self.ridge and problem.classes is None:
            problem = with_ridge(problem, self.ridge, linear.bias)
        solved = minimise(problem)
        return linear.from_coefficients(solved.theta), solved.found


def _generalised_linear(learner: Learner, solver: LocalSolver) -> GeneralisedLinear:
    if not isinstance(learner, GeneralisedLinear):
        raise ConfigError(f"solver={solver.name} is for linear and logistic learners, not {learner.spec}: use steps")
    return learner


def _finite(models: Params) -> Tensor:
    """Return whether all parameters of each client's model are finite, (B,)."""
    return flat(models).isfinite().all(dim=1)
