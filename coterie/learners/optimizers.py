"""Local optimizers: the update rule of the gradient steps that clients take.

An optimizer is a value without memory. What it accumulates during a round, such as momentum, is a separate
`OptimizerState`, and that starts fresh in every round: a client keeps no optimizer state between rounds, because the
model that it receives in the next round is another one.

All clients of a block take a step together: parameters, gradients and states have the clients as their first axis.
The update rules are those of `torch.optim`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.registry import Registered, register
from coterie.errors import ConfigError

ParameterState = dict[str, Tensor]
"""Quantities that an optimizer keeps about one parameter; all have the clients as their first axis."""
OptimizerState = dict[str, ParameterState]
"""The state of every parameter by the parameter's name."""


@dataclass(frozen=True)
class Optimizer(Registered, ABC, family="optimizer"):
    """Base of the local optimizers."""

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether a step is exactly `theta - lr * gradient`, which learners may compute in faster ways."""

    @property
    def usual_rate(self) -> float | None:
        """The usual learning rate if it hardly depends on the data; None if it has to be found."""
        return None

    @property
    def lengthening(self) -> float:
        """How many times as far many equal gradients go as single steps do."""
        return 1.0

    @abstractmethod
    def init_parameter(self, parameter: Tensor) -> ParameterState:
        """Return the state of a parameter (B, ...) before the first step of a round."""

    @abstractmethod
    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        """Take one step of every client.

        Args:
            parameter: Values (B, ...), updated in place.
            gradient: Gradient (B, ...); it is left as it is.
            state: State of this parameter, updated in place.
            lr: Learning rate of the round.
        """

    def init(self, theta: Params) -> OptimizerState:
        """Return the state of all parameters {name: (B, ...)} before the first step of a round."""
        return {name: self.init_parameter(p) for name, p in theta.items()}

    def step(
        self, theta: Params, gradient: Params, state: OptimizerState, lr: float, active: Tensor | None = None
    ) -> None:
        """Take one step of all parameters; `theta` and `state` are updated in place.

        Args:
            theta: Parameters {name: (B, ...)}.
            gradient: Gradients of the same names and shapes; they are left as they are.
            state: State from `init`.
            lr: Learning rate of the round.
            active: Which clients take the step (B,); the parameters and the state of the others stay as they are.
                None if all clients take it.
        """
        rows = None if active is None else active.nonzero().flatten()
        for name, parameter in theta.items():
            if rows is None:
                self.step_parameter(parameter, gradient[name], state[name], lr)
            else:
                self._step_rows(rows, parameter, gradient[name], state[name], lr)

    def _step_rows(self, rows: Tensor, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        """Take the step of some clients."""
        some, inner = parameter[rows], {name: value[rows] for name, value in state.items()}
        self.step_parameter(some, gradient[rows], inner, lr)
        parameter[rows] = some
        for name, value in inner.items():
            state[name][rows] = value


@register("sgd")
@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum and weight decay if they are set, as `torch.optim.SGD`.

    Args:
        momentum: Share of the previous update direction that is kept.
        nesterov: Whether the momentum is applied before the gradient step (Nesterov).
        weight_decay: Factor of the parameters that is added to their gradient.

    Raises:
        ConfigError: if a value is out of range, or Nesterov momentum is asked for without momentum.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_share("sgd", "momentum", self.momentum)
        _check_decay("sgd", self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ConfigError("sgd: nesterov=true needs momentum: set momentum, for example 0.9")

    @property
    def plain(self) -> bool:
        return self.momentum == 0 and self.weight_decay == 0

    @property
    def lengthening(self) -> float:
        return 1 / (1 - self.momentum)

    def init_parameter(self, parameter: Tensor) -> ParameterState:
        return {"momentum": torch.zeros_like(parameter)} if self.momentum else {}

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        if self.weight_decay:
            gradient = gradient.add(parameter, alpha=self.weight_decay)
        if self.momentum:
            buffer = state["momentum"].mul_(self.momentum).add_(gradient)
            gradient = gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        parameter.sub_(gradient, alpha=lr)


@dataclass(frozen=True)
class _AdaptiveMoments(Optimizer):
    """The update that Adam and AdamW share; they differ in how weights decay."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_share(self.name, "beta1", self.beta1)
        _check_share(self.name, "beta2", self.beta2)
        if not 0 <= self.eps < float("inf"):
            raise ConfigError(f"{self.name}: eps must be a finite number of at least 0, got {self.eps}")
        _check_decay(self.name, self.weight_decay)

    @property
    def plain(self) -> bool:
        return False

    @property
    def usual_rate(self) -> float:
        """Steps are about as long as the learning rate, whatever the gradients' length."""
        return 0.001

    def init_parameter(self, parameter: Tensor) -> ParameterState:
        steps = torch.zeros(len(parameter), dtype=torch.float64, device=parameter.device)
        return {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter), "steps": steps}

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        gradient = self._decay(parameter, gradient, lr)
        steps = state["steps"].add_(1).reshape(-1, *(1,) * (parameter.dim() - 1))
        mean = state["mean"].lerp_(gradient, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # the step is pace * mean / (sqrt(square) / scale + eps); all that differs between clients is in the denominator
        scale, pace = (1 - self.beta2**steps).sqrt(), lr / (1 - self.beta1**steps)
        denominator = square.sqrt().mul_((1 / (scale * pace)).to(parameter)).add_((self.eps / pace).to(parameter))
        parameter.addcdiv_(mean, denominator, value=-1)

    @abstractmethod
    def _decay(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Return the gradient to go on with; weights that decay directly are updated in place."""


@register("adam")
@dataclass(frozen=True)
class Adam(_AdaptiveMoments):
    """Adam, as `torch.optim.Adam`. (Kingma, Ba 2015)

    Args:
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: Number added to the denominator.
        weight_decay: Factor of the parameters that is added to their gradient.

    Raises:
        ConfigError: if a value is out of range.
    """

    def _decay(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        return gradient.add(parameter, alpha=self.weight_decay) if self.weight_decay else gradient


@register("adamw")
@dataclass(frozen=True)
class AdamW(_AdaptiveMoments):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`. (Loshchilov, Hutter 2019)

    Args:
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: Number added to the denominator.
        weight_decay: Every step shrinks the parameters by `lr * weight_decay` of themselves.

    Raises:
        ConfigError: if a value is out of range.
    """

    weight_decay: float = 0.01

    def _decay(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        parameter.mul_(1 - lr * self.weight_decay)
        return gradient


def _check_share(optimizer: str, setting: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{optimizer}: {setting} must be at least 0 and below 1, got {value}")


def _check_decay(optimizer: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{optimizer}: weight_decay must be a finite number of at least 0, got {value}")
