"""Local optimizers: update rules of the gradient steps of clients.

An optimizer is an immutable value. Its state during a round, such as momentum, is a separate `OptimizerState`, which is
reset in every round: a client does not keep optimizer state, since it receives another model in the next round.

All clients of a block take a step together: the clients are the first axis of parameters, gradients and states. The
update rules are those of `torch.optim`.

Example:
    >>> import torch
    >>> from coterie.learners import SGD
    >>> optimizer, theta = SGD(momentum=0.9), {"weight": torch.ones(1, 2)}
    >>> state = optimizer.init(theta)
    >>> optimizer.step(theta, {"weight": torch.ones(1, 2)}, state, lr=0.5)
    >>> theta["weight"]
    tensor([[0.5000, 0.5000]])
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
"""State of an optimizer for one parameter: tensors by name, with the clients as first axis."""
OptimizerState = dict[str, ParameterState]
"""State of an optimizer for all parameters, by parameter name."""


@dataclass(frozen=True)
class Optimizer(Registered, ABC, family="optimizer"):
    """Base class of local optimizers.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.learners import Optimizer
        >>> from_text(Optimizer, "sgd:momentum=0.9").momentum
        0.9
    """

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether a step is exactly `theta - lr * gradient`, which learners can compute faster."""

    @property
    def usual_rate(self) -> float | None:
        """Default learning rate if it hardly depends on the data; None if it must be derived from the data."""
        return None

    @property
    def lengthening(self) -> float:
        """Limit of the step length for constant gradients, as a multiple of the first step: 1 / (1 - momentum)."""
        return 1.0

    @abstractmethod
    def init_parameter(self, parameter: Tensor) -> ParameterState:
        """Return the state of a parameter (B, ...) before the first step of a round."""

    @abstractmethod
    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        """Take one step of every client.

        Args:
            parameter: Values, (B, ...), which are updated in place.
            gradient: Gradient, (B, ...), which must not be modified.
            state: State of this parameter, which is updated in place.
            lr: Learning rate of the round.
        """

    def init(self, theta: Params) -> OptimizerState:
        """Return the state of all parameters {name: (B, ...)} before the first step of a round."""
        return {name: self.init_parameter(p) for name, p in theta.items()}

    def step(
        self, theta: Params, gradient: Params, state: OptimizerState, lr: float, active: Tensor | None = None
    ) -> None:
        """Take one step with all parameters; `theta` and `state` are updated in place.

        Args:
            theta: Parameters, {name: (B, ...)}.
            gradient: Gradients with the same names and shapes, which are not modified.
            state: State as returned by `init`.
            lr: Learning rate of the round.
            active: Whether each client takes the step, (B,); parameters and state of the others stay unchanged. None:
                all clients take the step.
        """
        rows = None if active is None else active.nonzero().flatten()
        for name, parameter in theta.items():
            if rows is None:
                self.step_parameter(parameter, gradient[name], state[name], lr)
            else:
                self._step_rows(rows, parameter, gradient[name], state[name], lr)

    def _step_rows(self, rows: Tensor, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        """Take one step of some of the clients."""
        part, part_state = parameter[rows], {name: value[rows] for name, value in state.items()}
        self.step_parameter(part, gradient[rows], part_state, lr)
        parameter[rows] = part
        for name, value in part_state.items():
            state[name][rows] = value


@register("sgd")
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum and weight decay, like `torch.optim.SGD`.

    Args:
        momentum: Momentum factor.
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Weight decay (L2 penalty), as a factor of the parameters that is added to their gradient.

    Raises:
        ConfigError: if a value is out of range, or Nesterov momentum is requested without momentum.

    Example:
        >>> from coterie.learners import SGD, FullBatch
        >>> FullBatch(steps=5, lr=0.1, optimizer=SGD(momentum=0.9)).optimizer.plain
        False
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
    """Base class of Adam and AdamW, which differ in the weight decay only."""

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
        """Default learning rate; a step is about as long as the learning rate, independently of the gradient."""
        return 0.001

    def init_parameter(self, parameter: Tensor) -> ParameterState:
        steps = torch.zeros(len(parameter), dtype=torch.float64, device=parameter.device)
        return {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter), "steps": steps}

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: ParameterState, lr: float) -> None:
        gradient = self._decay(parameter, gradient, lr)
        steps = state["steps"].add_(1).reshape(-1, *(1,) * (parameter.dim() - 1))
        mean = state["mean"].lerp_(gradient, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # the step is rate * mean / (sqrt(square) / scale + eps); factors that differ between clients are moved into the
        # denominator
        scale, rate = (1 - self.beta2**steps).sqrt(), lr / (1 - self.beta1**steps)
        denominator = square.sqrt().mul_((1 / (scale * rate)).to(parameter)).add_((self.eps / rate).to(parameter))
        parameter.addcdiv_(mean, denominator, value=-1)

    @abstractmethod
    def _decay(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Apply weight decay, either to the returned gradient or in place to the parameter."""


@register("adam")
@dataclass(frozen=True)
class Adam(_AdaptiveMoments):
    """Adam, like `torch.optim.Adam`. (Kingma, Ba 2015)

    Args:
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: Number that is added to the denominator for numerical stability.
        weight_decay: Weight decay (L2 penalty), as a factor of the parameters that is added to their gradient.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.learners import Adam, MiniBatch
        >>> MiniBatch(batch_size=32, optimizer=Adam(), lr=0.001).optimizer.beta1
        0.9
    """

    def _decay(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        return gradient.add(parameter, alpha=self.weight_decay) if self.weight_decay else gradient


@register("adamw")
@dataclass(frozen=True)
class AdamW(_AdaptiveMoments):
    """Adam with decoupled weight decay, like `torch.optim.AdamW`. (Loshchilov, Hutter 2019)

    Args:
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: Number that is added to the denominator for numerical stability.
        weight_decay: Weight decay: every step multiplies the parameters by `1 - lr * weight_decay`.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.learners import AdamW, MiniBatch
        >>> MiniBatch(batch_size=32, optimizer=AdamW(weight_decay=0.05), lr=0.001).optimizer.weight_decay
        0.05
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
