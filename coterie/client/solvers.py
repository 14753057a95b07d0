"""How a client solves its own problem, without the help of others."""

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
    """A way to solve the clients' own problems."""

    @abstractmethod
    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        """Return each client's model {name: (B, ...)}, and whether it is a solution, (B,).

        Args:
            learner: Model family of the problem.
            block: Samples of B clients.
            first: The common first model {name: (1, ...)}; empty for solvers that start at zero.
            lr: Step size.
        """


@register("steps")
@dataclass(frozen=True)
class LocalSteps(LocalSolver):
    """Local gradient steps from a common first model."""

    work: LocalTraining

    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        models = {name: p.expand(len(block.positions), *p.shape[1:]) for name, p in first.items()}
        tracks = {name: p[:, None] for name, p in models.items()}
        change = learner.descend(tracks, block, self.work, lr)
        moved = {name: p + change[name][:, 0] for name, p in models.items()}
        return moved, _finite(moved)


@register("sgd")
@dataclass(frozen=True)
class StochasticGradient(LocalSolver):
    """Projected stochastic gradient descent from zero."""

    descent: ProjectedSgd

    def client_solve(self, learner: Learner, block: Block, first: Params, lr: float) -> tuple[Params, Tensor]:
        linear = _generalised_linear(learner, self)
        models = linear.from_coefficients(self.descent.run(linear.glm(block), block.keys))
        return models, _finite(models)


@register("exact")
@dataclass(frozen=True)
class ExactMinimum(LocalSolver):
    """The minimum of the loss to machine precision; of squared errors with a ridge for clients with few samples."""

    ridge: float = 0.0
    """Ridge at n_i <= coefficients, as a share of each feature's squares (`learners.minimum.with_ridge`)."""

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
    """Return whether every entry of a client's model is finite, (B,)."""
    return flat(models).isfinite().all(dim=1)
