"""Learners for any `torch.nn.Module`, evaluated by `torch.func`.

All clients of a block are evaluated together (vmap). Modules with convolutions are evaluated one client after the
other, since on a CPU, convolutions with different weights for each client are two to four times slower than separate
ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.blocks import Block
from coterie.core.clusters import Params, is_shared, rows_of, take_rows
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Descent, group_by_group, groups_of
from coterie.learners.find_head import find_head, without
from coterie.learners.local_training import LocalTraining
from coterie.learners.network import PlainNetwork

Factory = Callable[[], nn.Module]
"""Function that returns a module with random initial parameters."""

PIECE = 250
"""Maximum number of samples in a convolution at once, which limits the memory for activations."""


@dataclass(frozen=True)
class ModuleLearner(PlainNetwork):
    """Learner for a module; parameters have their names in the module, buffers and frozen parameters never change."""

    factory: Factory
    """Function that returns a module with random initial parameters."""
    module: nn.Module
    """A module from the factory."""
    sample: tuple[int, ...]
    """Shape of one sample."""

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        drawn = []
        for key in keys:
            with torch.random.fork_rng(devices=[]):  # the random state of the caller stays unchanged
                torch.manual_seed(key % 2**63)
                drawn.append({n: p.detach().to(dtype) for n, p in self.factory().named_parameters() if p.requires_grad})
        return {name: torch.stack([d[name] for d in drawn]) for name in drawn[0]}

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return self._shaped(self.run(theta, x))

    def network(self, model: Params) -> nn.Module:
        built = deepcopy(self.module).to(next(iter(model.values())).dtype).eval()
        # frozen parameters and buffers keep the values from the factory
        built.load_state_dict({name: value.detach() for name, value in model.items()}, strict=False)
        return built

    def run(self, theta: Params, x: Tensor) -> Tensor:
        """Return the outputs of model b {name: (B, ...)} for batch b, (B, n, ...)."""
        if not self.one_by_one:
            return vmap(self._call(x))(theta, x)
        call = in_pieces(self._call(x))
        if len(x) == 1:  # views, for which autograd needs no copy
            return call({name: p.reshape(p.shape[1:]) for name, p in theta.items()}, x[0])[None]
        return torch.stack([call(rows_of(theta, b), x[b]) for b in range(len(x))])

    def _shaped(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1) if self.classes is None and outputs.dim() == 3 else outputs

    def _call(self, x: Tensor) -> Call:
        """Return the functional form of a copy of the module for the calling thread, from a cache.

        Each thread needs a copy, since a module holds the parameters of a call while it runs. The result is cached,
        since the search for constants takes a tenth of the time of a small step.
        """
        cache: dict[str, Call] = self._calls.__dict__
        kind = f"{x.dtype} on {x.device}"
        if kind not in cache:
            cache[kind] = functional(deepcopy(self.module), x)
        return cache[kind]

    @cached_property
    def _calls(self) -> threading.local:
        return threading.local()

    @property
    def one_by_one(self) -> bool:
        """Whether clients are evaluated one after the other, as for modules with convolutions."""
        return bool(self.convolutions)

    @cached_property
    def convolutions(self) -> set[str]:
        """Names of the parameters of all convolution layers."""
        layers = ((n, part) for n, part in self.module.named_modules() if isinstance(part, nn.modules.conv._ConvNd))
        return {f"{layer}.{n}" if layer else n for layer, part in layers for n, _ in part.named_parameters()}

    @cached_property
    def products(self) -> int:
        """Number of multiplications in fully connected layers and convolutions of a forward pass for one sample."""
        return count_products(self.module, self.sample)

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of all models; layers with common parameters, such as a shared body, are computed once."""
        common = {name: p[0] for name, p in models.items() if is_shared(p)}
        own = {name: p for name, p in models.items() if name not in common}
        if not common or not own or self.convolutions & own.keys():
            return super().score(models, block)
        call = self._call(block.x)
        run = in_pieces(vmap(lambda params, x: call(params | common, x), in_dims=(0, None)), dim=1)
        outputs = self._shaped(run(own, block.x.flatten(0, 1)))
        losses = self.loss(outputs, block.y.flatten().expand(outputs.shape[:2]))
        return Scored(losses.T.reshape(*block.y.shape, -1))

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        if not self.one_by_one:
            return super()._descent(theta, block, training, lr, towards)
        descent = super()._descent

        def descend(row: slice, one: Block) -> Descent:
            return descent(rows_of(theta, row), one, training, lr, towards and rows_of(towards, row))

        return group_by_group(descend, block)

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
        """Return the sums; with convolutions, changes of some clients are added before the next ones are trained."""
        if not self.one_by_one:
            return super().contribute(models, rows, block, training, lr, mass, memo)
        sums = {name: torch.zeros_like(p) for name, p in models.items()}
        name, size = self._route(block, training)
        path, given = training.path(name), []
        for some in groups_of(block, size):
            own = rows[some]
            done = self._descent(take_rows(models, own), block.part(some), training, lr)
            each = torch.arange(own.numel()).reshape(own.shape)
            one = weigh(done.change, each, mass[some], own.numel(), path, done.loss)
            for name, total in sums.items():
                total.index_add_(0, own.flatten().to(total.device), one.sums[name])
            given.append((one.finite, one.loss))
        losses = [loss for _, loss in given if loss is not None]
        finite = torch.cat([finite for finite, _ in given])
        return Contribution(sums, finite, path, torch.cat(losses) if losses else None)

    def _route(self, block: Block, training: LocalTraining) -> tuple[str, int]:
        """Return the computation path of a module with convolutions, and how many clients it trains together."""
        return "one-by-one", 1


@dataclass(frozen=True)
class ModuleWithHead(ModuleLearner):
    """Learner for a module whose head, the last fully connected layer, is known."""

    head: str
    """Name of the head."""

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return self._body.run({n: p for n, p in theta.items() if not n.startswith(f"{self.head}.")}, x)

    @cached_property
    def _body(self) -> ModuleLearner:
        """Learner for the same module with its head replaced by the identity."""
        return replace(self, module=without(self.module, self.head))


@dataclass(frozen=True)
class UserModule(ModuleLearner):
    """Learner for the module of a user, whose head is searched on first use, since most runs do not need it."""

    @cached_property
    def head(self) -> str | None:
        """Name of the head, or None if the module has none."""
        return find_head(self.module, self.sample)

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return self._with_head.features(theta, x)

    @cached_property
    def _with_head(self) -> ModuleWithHead:
        assert self.head is not None, "the plan of a run checks that there is a head"
        return ModuleWithHead(**fields_of(self), head=self.head)


Call = Callable[[Params, Tensor], Tensor]
"""Function of the parameters of a model and a batch (n, ...)."""


def functional(built: nn.Module, x: Tensor) -> Call:
    """Return a module as a function of its parameters and a batch; the module itself stays unchanged.

    Args:
        built: The module.
        x: Samples with the dtype and device of all batches.
    """
    named = [*built.named_buffers(), *((n, p.detach()) for n, p in built.named_parameters() if not p.requires_grad)]
    constants = {n: a.to(x) if a.is_floating_point() else a.to(x.device) for n, a in named}
    tied = _has_tied_weights(built)  # the search takes longer than a small layer, so it is done only once

    def call(params: Params, batch: Tensor) -> Tensor:
        result: Tensor = functional_call(built, (params, constants), (batch,), tie_weights=tied)
        return result

    return call


def _has_tied_weights(built: nn.Module) -> bool:
    """Return whether the same parameter or buffer has several names."""
    named = [each for kind in (built.named_parameters, built.named_buffers) for each in kind(remove_duplicate=False)]
    return len({id(value) for _, value in named}) < len(named)


def count_products(built: nn.Module, sample: tuple[int, ...]) -> int:
    """Return the number of multiplications in fully connected layers and convolutions for one sample.

    Args:
        built: The module, which is not changed.
        sample: Shape of the sample.
    """
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(output.numel() * weight[0].numel())

    watched = deepcopy(built).eval()
    for layer in watched.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            layer.register_forward_hook(count)
    with torch.no_grad():
        watched(torch.zeros((1, *sample)).to(next(watched.parameters())))
    return sum(counts)


def in_pieces(call: Call, dim: int = 0) -> Call:
    """Return a function that evaluates `call` for a limited number of samples at a time.

    Args:
        call: Function of parameters and a batch.
        dim: Axis of the samples in its result.
    """

    def run(params: Params, x: Tensor) -> Tensor:
        if len(x) <= PIECE:
            return call(params, x)
        return torch.cat([call(params, piece) for piece in torch.split(x, PIECE)], dim=dim)

    return run


def _built(factory: Factory) -> object:
    """Return the result of the factory; an exception that is raised inside the factory is not converted."""
    try:
        return factory()
    except TypeError as error:
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if inside:
            raise
        raise ConfigError(
            f"the learner factory cannot be called without arguments ({error}): pass a function without parameters"
        ) from None


def module(profile: Profile, factory: Factory, spec: str = "module") -> ModuleLearner:
    """Return a learner for the modules of a factory.

    Args:
        profile: Shape of the samples and number of classes.
        factory: Function that returns a module with random initial parameters.
        spec: Text that describes the learner.

    Raises:
        ConfigError: if the module does not fit the data, cannot be averaged over clients, or is random in training.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = _built(factory)
    if not isinstance(built, nn.Module):
        raise ConfigError(f"the learner factory returned {type(built).__name__}: return a torch.nn.Module")
    _check_layers(built)
    _check_output(built, profile)
    return ModuleLearner(
        classes=profile.classes,
        spec=spec,
        dtype=torch.float32,
        l2=0.0,
        factory=factory,
        module=built,
        sample=profile.features,
    )


def module_with_head(profile: Profile, factory: Factory, spec: str, head: str) -> ModuleWithHead:
    """Return a learner for modules whose last, fully connected layer is called `head`."""
    return ModuleWithHead(**fields_of(module(profile, factory, spec)), head=head)


def user_module(profile: Profile, factory: Factory, spec: str) -> UserModule:
    """Return a learner for modules of a user."""
    return UserModule(**fields_of(module(profile, factory, spec)))


def fields_of(learner: ModuleLearner) -> dict[str, Any]:
    """Return the fields that all learners of modules have."""
    return {field.name: getattr(learner, field.name) for field in fields(ModuleLearner)}


def _check_layers(built: nn.Module) -> None:
    if not any(p.requires_grad for p in built.parameters()):
        raise ConfigError("the module has no trainable parameters: set requires_grad for the parameters to train")
    for name, part in built.named_modules():
        where = f"{type(part).__name__} ({name or 'the module itself'})"
        advice = "use GroupNorm, or load statistics and call .eval() on it in the factory"
        if part.training and getattr(part, "track_running_stats", False):
            raise ConfigError(f"{where} keeps running statistics: {advice}")
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise ConfigError(f"{where} depends on the other samples of a batch: {advice}")
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise ConfigError(f"{where} uses random numbers without a seed: remove it, or call .eval() on it")


def _check_output(built: nn.Module, profile: Profile) -> None:
    """Evaluate the module for two samples by vmap, which also detects random numbers, and check the output shape."""
    theta = {name: p.detach()[None] for name, p in built.named_parameters() if p.requires_grad}
    some = next(iter(theta.values()))
    try:
        with torch.no_grad():
            x = torch.zeros((1, 2, *profile.features)).to(some)
            shape = tuple(vmap(functional(built, x))(theta, x).shape[1:])
    except Exception as error:
        reason = str(error).splitlines()[0]
        if "random" in reason:
            raise ConfigError(
                f"the module uses random numbers without a seed ({reason}): remove the random layer, or call "
                ".eval() on it"
            ) from error
        raise ConfigError(
            f"the module does not accept a batch of samples of shape {profile.features} ({reason}): change its first "
            "layer"
        ) from error
    if profile.classes is None:
        if shape not in ((2,), (2, 1)):
            raise ConfigError(
                f"regression needs one output for each sample, but the module returns shape {shape[1:]}: use one output"
            )
    elif len(shape) != 2 or shape[1] < profile.classes:
        raise ConfigError(
            f"{profile.classes} classes need {profile.classes} outputs for each sample, but the module returns shape "
            f"{shape[1:]}: change its last layer"
        )
