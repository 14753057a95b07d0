"""Server optimizers: update of a cluster's model by the mean change of its members.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive federated optimization", ICLR 2021 (FedOpt).

The negative mean change of a cluster (-Delta) replaces the gradient. Every cluster of every restart has separate
moments. They are arrays of the server state with declared axes, so that splits, merges, the selection of the best
restart and checkpoints handle them like any other array. A cluster that no client trained in a round keeps its model
and its moments.

Example:
    >>> from coterie.methods import IFCA, ServerAdam
    >>> IFCA(clusters=2, server=ServerAdam(lr=0.01)).server.lr
    0.01

================== =======================================================================================
symbol             meaning
================== =======================================================================================
Delta              mean change of the members' models in this round
x                  model of the cluster
m, v               first and second moment of each parameter
eta, tau           learning rate and adaptivity of the server: `lr`, `tau`
beta_1, beta_2     decay of the moments: `beta1`, `beta2`
================== =======================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.registry import Registered, register
from coterie.core.state import ServerState
from coterie.core.state_array import Inherit, StateArray
from coterie.errors import ConfigError
from coterie.options import Option, OptionGroup

Moments = Mapping[str, StateArray]
"""Moments by name; `momentum/weight` is the momentum of the parameter `weight`."""

MOMENTS = "server-optimizer/"
"""Prefix of the names of moments in the server state."""


class ServerOptimizer(Registered, OptionGroup, ABC, family="server optimizer"):
    """Base class of server optimizers, which update the models of all clusters by the mean changes of their members.

    An optimizer is an immutable value; its moments are stored in the server state.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.methods import ServerOptimizer
        >>> from_text(ServerOptimizer, "adam:tau=0.01").tau
        0.01
    """

    @property
    @abstractmethod
    def lr(self) -> float:
        """Learning rate of the server."""

    @classmethod
    def group_options(cls, default: Any) -> tuple[Option, ...]:
        """Return the options `server_lr` and `server_optimizer`."""
        return (replace(SERVER_LR, default=default.lr), SERVER_OPTIMIZER)

    @classmethod
    def from_group(cls, values: Mapping[str, Any], default: Any, declared: Any = None) -> Any:
        optimizer: Any = SERVER_OPTIMIZER.check(values.get(SERVER_OPTIMIZER.name)) or default
        lr = SERVER_LR.check(values.get(SERVER_LR.name))
        return optimizer if lr is None else replace(optimizer, lr=lr)

    def to_group(self, default: Any) -> dict[str, Any]:
        """Return the options that describe the optimizer, without its name if it is plain SGD by default."""
        plain = self.plain_lr is not None and default.plain_lr is not None
        named = {} if plain else {SERVER_OPTIMIZER.name: self}
        return {SERVER_LR.name: self.lr, **named}

    @property
    def plain_lr(self) -> float | None:
        """Learning rate if a step is exactly `lr` times the mean change without moments; else None."""
        return None

    @property
    @abstractmethod
    def starts(self) -> Mapping[str, float]:
        """Names of the moments of a parameter, with their initial values."""

    @abstractmethod
    def update(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the amount to add to a parameter, and its new moments.

        Args:
            change: Mean change of one parameter, (B, ...).
            moments: Moments of the parameter by the names in `starts`, in the shape of `change`.
        """

    def init(self, clusters: Clusters) -> dict[str, StateArray]:
        """Return the initial moments of the clusters' parameters, with the axes (restart, cluster, ...).

        In a regroup, a child copies the moments of its parent, a merge averages those of its parents by their numbers
        of clients, and a cluster without parents has initial moments.
        """
        return {
            f"{moment}/{name}": StateArray(
                p.new_full((clusters.restarts, clusters.K, *p.shape[1:]), start),
                ("restart", "cluster", *(None,) * (p.dim() - 1)),
                Inherit(newborn=start),
            )
            for name, p in clusters.params.items()
            for moment, start in self.starts.items()
        }

    def init_shared(self, shared: Params) -> dict[str, StateArray]:
        """Return the initial moments of parameters that all clusters share, {name: (R, ...)}."""
        return {
            f"{moment}/{name}": StateArray(torch.full_like(p, start), ("restart", *(None,) * (p.dim() - 1)))
            for name, p in shared.items()
            for moment, start in self.starts.items()
        }

    def step(self, mean_change: Params, reached: Tensor, moments: Moments) -> tuple[Params, dict[str, StateArray]]:
        """Return the amounts to add to the models, and the new moments.

        Args:
            mean_change: Mean change of each cluster, {name: (R K, ...)}, or of shared parameters, {name: (R, ...)}.
            reached: Whether at least one client trained the model, (R K,) or (R,). Other models and their moments stay
                unchanged.
            moments: Moments as returned by `init` or by the previous step.
        """
        added, after = {}, {}
        for name, change in mean_change.items():
            rows = reached.to(change.device).reshape(-1, *(1,) * (change.dim() - 1))
            arrays = {moment: moments[f"{moment}/{name}"] for moment in self.starts}
            before = {moment: array.value.to(change).reshape(change.shape) for moment, array in arrays.items()}
            amount, new = self.update(change, before)
            added[name] = torch.where(rows, amount, 0)
            for moment, array in arrays.items():
                kept = torch.where(rows, new[moment], before[moment])
                after[f"{moment}/{name}"] = array.with_value(kept.reshape(array.value.shape))
        return added, after


@register("sgd")
@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """Stochastic gradient descent on the server with optional momentum; `lr=1` without momentum is federated averaging.

    b <- momentum b + Delta; x <- x + lr b, or with `nesterov` x <- x + lr (Delta + momentum b). This is
    `torch.optim.SGD` with the gradient -Delta, known as FedAvgM.

    Raises:
        ConfigError: if a setting is out of range.

    Example:
        >>> from coterie.methods import FedAvg, ServerSGD
        >>> FedAvg(server=ServerSGD(lr=1.0, momentum=0.9)).server.momentum
        0.9
    """

    lr: float = 1.0
    """Learning rate of the server (eta)."""
    momentum: float = 0.0
    """Momentum factor, at least 0 and below 1."""
    nesterov: bool = False
    """Whether to use Nesterov momentum; needs a positive momentum."""

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        _check_decay("momentum", self.momentum)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov=true needs a positive momentum: set momentum=0.9, or leave nesterov out")

    @property
    def plain_lr(self) -> float | None:
        return None if self.momentum else self.lr

    @property
    def starts(self) -> Mapping[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def update(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        if not self.momentum:
            return self.lr * change, {}
        buffer = self.momentum * moments["momentum"] + change
        ahead = change + self.momentum * buffer if self.nesterov else buffer
        return self.lr * ahead, {"momentum": buffer}


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer):
    """Base class of optimizers that divide the first moment by the square root of the second one.

    m <- beta_1 m + (1 - beta_1) Delta; v is defined by the subclass; x <- x + lr m / (sqrt(v) + tau). As in algorithm 2
    of FedOpt, the initial moments are m = 0 and v = tau^2, and there is no bias correction.

    Raises:
        ConfigError: if a setting is out of range.
    """

    lr: float = 0.01
    """Learning rate of the server (eta): approximate maximum change of a single parameter in a round."""
    beta1: float = 0.9
    """Decay rate of the first moment, at least 0 and below 1."""
    beta2: float = 0.99
    """Decay rate of the second moment, at least 0 and below 1."""
    tau: float = 1e-3
    """Degree of adaptivity: much smaller changes are multiplied by lr / tau, much larger ones become about lr."""

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        _check_decay("beta1", self.beta1)
        _check_decay("beta2", self.beta2)
        if not 0 < self.tau < float("inf"):
            raise ConfigError(f"tau must be positive, got {self.tau}")

    @property
    def starts(self) -> Mapping[str, float]:
        return {"first": 0.0, "second": self.tau**2}

    @abstractmethod
    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Return the new second moment, given the old one and the square of the mean change."""

    def update(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        first = self.beta1 * moments["first"] + (1 - self.beta1) * change
        second = self.second_moment(moments["second"], change**2)
        return self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}


@register("adam")
@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """FedAdam: the second moment is a moving average, v <- beta_2 v + (1 - beta_2) Delta^2.

    Example:
        >>> from coterie.methods import IFCA, ServerAdam
        >>> IFCA(clusters=4, server=ServerAdam(lr=0.03)).server.lr
        0.03
    """

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * second + (1 - self.beta2) * square


@register("yogi")
@dataclass(frozen=True)
class ServerYogi(_Adaptive):
    """FedYogi: the second moment changes additively, v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2).

    After rounds with small changes, it decreases more slowly than that of Adam.

    Example:
        >>> from coterie.methods import IFCA, ServerYogi
        >>> IFCA(clusters=4, server=ServerYogi(lr=0.03)).server.lr
        0.03
    """

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - self.beta2) * square * torch.sign(second - square)


def _check_lr(lr: float) -> None:
    if not 0 < lr < float("inf"):
        raise ConfigError(f"lr of a server optimizer must be positive, got {lr}")


def _check_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be at least 0 and below 1, got {value}")


SERVER_LR = Option("server_lr", float, "learning rate of the server: factor of the mean change", above=0)
SERVER_OPTIMIZER = Option(
    "server_optimizer",
    ServerOptimizer,
    "server optimizer: sgd:momentum=0.9, adam:lr=0.01, yogi:lr=0.01 (FedOpt); by default sgd without momentum",
)


# ---- update of the models of a state -----------------------------------------------------------------------------


class MeanChange(Protocol):
    """Mean changes of all models in a round."""

    @property
    def params(self) -> Params:
        """Mean change of each cluster's parameters, {name: (R K, ...)}; zeros if no client contributed."""

    @property
    def reached(self) -> Tensor:
        """Whether at least one client contributed to each cluster, (R K,)."""

    @property
    def body(self) -> Params:
        """Mean change of the shared body, {name: (R, ...)}; empty if there is none or it was not trained."""

    @property
    def overall(self) -> Params:
        """Mean change of the overall model, {name: (R, ...)}; empty without one."""


def move_models(optimizer: ServerOptimizer, state: ServerState, change: MeanChange, rate: float = 1.0) -> ServerState:
    """Return the state after a step of the server optimizer, with new models and moments.

    The moments are added to the state in the first step. The shared body and the overall model have separate moments;
    they are updated if a client contributed to any cluster of their restart.

    Args:
        optimizer: The server optimizer.
        state: State with the models that the clients trained.
        change: Mean changes of the models.
        rate: Factor of the mean changes: the learning rate of the round if clients sent gradients.
    """
    lr = optimizer.plain_lr
    if lr is not None:
        scaled = {part: _scaled(changes, lr * rate) for part, changes in _parts(change).items()}
        return replace(state, clusters=_plus(state.clusters, scaled))
    moments = _moments_of(optimizer, state)
    per_restart = change.reached.reshape(state.clusters.restarts, state.clusters.K).any(dim=1)
    added: dict[str, Params] = {}
    after: dict[str, StateArray] = {}
    for part, changes in _parts(change).items():
        reached = change.reached if part == "params" else per_restart
        added[part], new = optimizer.step(_scaled(changes, rate), reached, moments[part])
        after |= {f"{part}/{name}": array for name, array in new.items()}
    return replace(state, clusters=_plus(state.clusters, added)).with_arrays(after, MOMENTS)


def _parts(change: MeanChange) -> dict[str, Params]:
    return {"params": change.params, "body": change.body, "overall": change.overall}


def _scaled(changes: Params, factor: float) -> Params:
    return changes if factor == 1 else {name: factor * change for name, change in changes.items()}


def _plus(clusters: Clusters, added: Mapping[str, Params]) -> Clusters:
    """Return the clusters with these amounts added to their parameters."""

    def moved(part: str, params: Params) -> Params:
        return {name: p + added[part][name].to(p) if name in added[part] else p for name, p in params.items()}

    return replace(
        clusters,
        params=moved("params", clusters.params),
        body=None if clusters.body is None else moved("body", clusters.body),
        overall=None if clusters.overall is None else moved("overall", clusters.overall),
    )


def _moments_of(optimizer: ServerOptimizer, state: ServerState) -> dict[str, Moments]:
    """Return the moments of each part of the models, from the state or, before the first step, initial ones."""
    clusters = state.clusters
    moments: dict[str, Moments] = {
        "params": optimizer.init(clusters),
        "body": optimizer.init_shared(clusters.shared),
        "overall": optimizer.init_shared(clusters.overall or {}),
    }
    return {
        part: {name: state.arrays.get(f"{MOMENTS}{part}/{name}", fresh) for name, fresh in arrays.items()}
        for part, arrays in moments.items()
    }
