"""Any torch.nn.Module, through torch.func: the generic path that fits everything.

A block's clients run through the module together (vmap), but one after the other if it convolves: convolutions that
have other weights for every client are two to four times slower on a CPU than as many plain ones.
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
from coterie.core.clusters import Params, rows_of, take_rows
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Descent, one_by_one
from coterie.learners.find_head import find_head, without
from coterie.learners.local_training import LocalTraining
from coterie.learners.network import PlainNetwork

Factory = Callable[[], nn.Module]

PIECE = 250
"""Samples that go through convolutions at once: what lies between the layers stays small, however large the data."""


@dataclass(frozen=True)
class ModuleLearner(PlainNetwork):
    """Parameters are the module's own, under its own names. Buffers and frozen parameters stay as they were made."""

    factory: Factory
    module: nn.Module

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        drawn = []
        for key in keys:
            with torch.random.fork_rng(devices=[]):  # the caller's random state is left alone
                torch.manual_seed(key % 2**63)
                drawn.append({n: p.detach().to(dtype) for n, p in self.factory().named_parameters() if p.requires_grad})
        return {name: torch.stack([d[name] for d in drawn]) for name in drawn[0]}

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return self._shaped(self.run(theta, x))

    def network(self, model: Params) -> nn.Module:
        built = deepcopy(self.module).to(next(iter(model.values())).dtype).eval()
        # frozen parameters and buffers are as the factory made them
        built.load_state_dict({name: value.detach() for name, value in model.items()}, strict=False)
        return built

    def run(self, theta: Params, x: Tensor) -> Tensor:
        """What module b gives for batch b: {name: (B, ...)}, (B, n, ...) to (B, n, ...)."""
        if not self.one_by_one:
            return vmap(self._call(x))(theta, x)
        call = in_pieces(self._call(x))
        if len(x) == 1:  # views, which autograd goes back through without a copy
            return call({name: p.reshape(p.shape[1:]) for name, p in theta.items()}, x[0])[None]
        return torch.stack([call(rows_of(theta, b), x[b]) for b in range(len(x))])

    def _shaped(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1) if self.classes is None and outputs.dim() == 3 else outputs

    def _call(self, x: Tensor) -> Call:
        """`caller` of the calling thread's copy: a module holds the parameters it is called with while it runs.

        It is kept, since to look for a module's constants takes a tenth of a small step.
        """
        kept: dict[str, Call] = self._calls.__dict__
        kind = f"{x.dtype} on {x.device}"
        if kind not in kept:
            kept[kind] = caller(deepcopy(self.module), x)
        return kept[kind]

    @cached_property
    def _calls(self) -> threading.local:
        return threading.local()

    @property
    def one_by_one(self) -> bool:
        """Where the module convolves."""
        return bool(self.convolutions)

    @cached_property
    def convolutions(self) -> set[str]:
        """The names of all parameters that belong to convolution layers."""
        layers = ((n, part) for n, part in self.module.named_modules() if isinstance(part, nn.modules.conv._ConvNd))
        return {f"{layer}.{n}" if layer else n for layer, part in layers for n, _ in part.named_parameters()}

    def score(self, models: Params, block: Block) -> Scored:
        """Every model on every sample; what they have in common, such as a shared body, is computed once."""
        common = {name: p[0] for name, p in models.items() if bool((p == p[:1]).all())}
        own = {name: p for name, p in models.items() if name not in common}
        if not common or not own or self.convolutions & own.keys():
            return super().score(models, block)
        call = self._call(block.x)
        run = in_pieces(vmap(lambda params, x: call(params | common, x), in_dims=(0, None)), dim=1)
        outputs = self._shaped(run(own, block.x.flatten(0, 1)))
        losses = self.loss(outputs, block.y.flatten().expand(outputs.shape[:2]))
        return Scored(losses.T.reshape(*block.y.shape, -1))

    @property
    def _path(self) -> str:
        return "one-by-one" if self.one_by_one else super()._path

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        if not self.one_by_one:
            return super()._descent(theta, block, training, lr, towards)
        descent = super()._descent

        def descend(row: slice, one: Block) -> Descent:
            return descent(rows_of(theta, row), one, training, lr, towards and rows_of(towards, row))

        return one_by_one(descend, block)

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
        """If the module convolves, each client's change enters the sums before the next client begins."""
        if not self.one_by_one:
            return super().contribute(models, rows, block, training, lr, mass, memo)
        sums = {name: torch.zeros_like(p) for name, p in models.items()}
        restarts, path = torch.arange(rows.shape[1]), training.path(self._path)
        given = []
        for b, own in enumerate(rows):
            done = self._descent(take_rows(models, own[None]), block.alone(b), training, lr)
            one = weigh(done.change, restarts[None], mass[b : b + 1], len(restarts), path, done.loss)
            for name, total in sums.items():
                total.index_add_(0, own.to(total.device), one.sums[name])
            given.append((one.finite, one.loss))
        losses = [loss for _, loss in given if loss is not None]
        finite = torch.cat([finite for finite, _ in given])
        return Contribution(sums, finite, path, torch.cat(losses) if losses else None)


@dataclass(frozen=True)
class HeadedLearner(ModuleLearner):
    """A module that is known to end in one fully connected layer, its head."""

    head: str

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return self._body.run({n: p for n, p in theta.items() if not n.startswith(f"{self.head}.")}, x)

    @cached_property
    def _body(self) -> ModuleLearner:
        """The same module with nothing in the place of its head."""
        return replace(self, module=without(self.module, self.head))


@dataclass(frozen=True)
class OwnModule(ModuleLearner):
    """A user's module. Most runs never ask for its head, so it is looked for only when one does."""

    sample: tuple[int, ...]
    """Shape of one sample."""

    @cached_property
    def head(self) -> str | None:
        """The layer that is the module's head, if one is."""
        return find_head(self.module, self.sample)

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return self._headed.features(theta, x)

    @cached_property
    def _headed(self) -> HeadedLearner:
        assert self.head is not None, "checked when the run is planned"
        return HeadedLearner(**_fields(self), head=self.head)


Call = Callable[[Params, Tensor], Tensor]


def caller(built: nn.Module, x: Tensor) -> Call:
    """The module as a function of its parameters and a batch (n, ...) like those of `x`; it is left untouched."""
    named = [*built.named_buffers(), *((n, p.detach()) for n, p in built.named_parameters() if not p.requires_grad)]
    constants = {n: a.to(x) if a.is_floating_point() else a.to(x.device) for n, a in named}
    tied = _has_tied_weights(built)  # to look for them takes longer than a small layer, so that it is done once

    def call(params: Params, batch: Tensor) -> Tensor:
        result: Tensor = functional_call(built, (params, constants), (batch,), tie_weights=tied)
        return result

    return call


def _has_tied_weights(built: nn.Module) -> bool:
    """Whether several names stand for the same parameter or buffer."""
    named = [each for kind in (built.named_parameters, built.named_buffers) for each in kind(remove_duplicate=False)]
    return len({id(value) for _, value in named}) < len(named)


def in_pieces(call: Call, dim: int = 0) -> Call:
    """The same function, applied to a bounded number of samples at a time; `dim` is the samples' axis in its result."""

    def run(params: Params, x: Tensor) -> Tensor:
        if len(x) <= PIECE:
            return call(params, x)
        return torch.cat([call(params, piece) for piece in torch.split(x, PIECE)], dim=dim)

    return run


def _called(factory: Factory) -> object:
    """What the factory returns; a mistake inside it keeps its own exception."""
    try:
        return factory()
    except TypeError as error:
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if inside:
            raise
        raise ConfigError(
            f"the learner factory cannot be called without arguments ({error}): give one that can"
        ) from None


def module(profile: Profile, factory: Factory, spec: str = "module") -> ModuleLearner:
    """A learner from a factory of modules; refuses what cannot be averaged or repeated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = _called(factory)
    if not isinstance(built, nn.Module):
        raise ConfigError(f"the learner factory returned {type(built).__name__}: return a torch.nn.Module")
    _refuse_unsound(built)
    _check_output(built, profile)
    return ModuleLearner(classes=profile.classes, spec=spec, dtype=torch.float32, l2=0.0, factory=factory, module=built)


def headed(profile: Profile, factory: Factory, spec: str, head: str) -> HeadedLearner:
    """The same for modules whose last layer, a fully connected one, is called `head`."""
    return HeadedLearner(**_fields(module(profile, factory, spec)), head=head)


def own_module(profile: Profile, factory: Factory, spec: str) -> OwnModule:
    """The same for a user's modules: with features, if they end in one fully connected layer."""
    return OwnModule(**_fields(module(profile, factory, spec)), sample=profile.features)


def _fields(learner: ModuleLearner) -> dict[str, Any]:
    """What every learner of modules has."""
    return {field.name: getattr(learner, field.name) for field in fields(ModuleLearner)}


def _refuse_unsound(built: nn.Module) -> None:
    if not any(p.requires_grad for p in built.parameters()):
        raise ConfigError("the module has no parameters that ask for a gradient: there is nothing to train")
    for name, part in built.named_modules():
        where = f"{type(part).__name__} ({name or 'the module itself'})"
        advice = "use GroupNorm, or load statistics and call .eval() on it in the factory"
        if part.training and getattr(part, "track_running_stats", False):
            raise ConfigError(f"{where} keeps running statistics: {advice}")
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise ConfigError(f"{where} mixes the samples of a batch: {advice}")
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise ConfigError(f"{where} draws randomness that no key controls: remove it, or call .eval() on it")


def _check_output(built: nn.Module, profile: Profile) -> None:
    """Two samples through vmap, which notices randomness that no key controls."""
    theta = {name: p.detach()[None] for name, p in built.named_parameters() if p.requires_grad}
    some = next(iter(theta.values()))
    try:
        with torch.no_grad():
            x = torch.zeros((1, 2, *profile.features)).to(some)
            shape = tuple(vmap(caller(built, x))(theta, x).shape[1:])
    except Exception as error:
        reason = str(error).splitlines()[0]
        if "random" in reason:
            raise ConfigError(f"the module draws randomness that no key controls: {reason}") from error
        raise ConfigError(
            f"the module does not accept a batch of samples of shape {profile.features}: {reason}"
        ) from error
    if profile.classes is None:
        if shape not in ((2,), (2, 1)):
            raise ConfigError(f"numeric targets need one output a sample, but the module gives shape {shape[1:]}")
    elif len(shape) != 2 or shape[1] < profile.classes:
        raise ConfigError(
            f"{profile.classes} classes need {profile.classes} outputs a sample, but the module gives shape {shape[1:]}"
        )
