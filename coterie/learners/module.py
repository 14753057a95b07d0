"""Any torch.nn.Module, through torch.func: the generic path that fits everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.clusters import Params
from coterie.core.population import Profile
from coterie.errors import ConfigError
from coterie.learners.network import PlainNetwork

Factory = Callable[[], nn.Module]


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
        outputs = run_batched(self.module, theta, x)
        return outputs.squeeze(-1) if self.classes is None and outputs.dim() == 3 else outputs


def run_batched(built: nn.Module, theta: Params, x: Tensor) -> Tensor:
    """Parameters b on batch b, {name: (B, ...)} and (B, n, ...) to (B, n, ...), without touching the module."""
    named = [*built.named_buffers(), *((n, p.detach()) for n, p in built.named_parameters() if not p.requires_grad)]
    constants = {n: a.to(x) if a.is_floating_point() else a.to(x.device) for n, a in named}

    def one(params: Params, batch: Tensor) -> Tensor:
        result: Tensor = functional_call(built, (params, constants), (batch,))
        return result

    outputs: Tensor = vmap(one)(theta, x)
    return outputs


def module(profile: Profile, factory: Factory, spec: str = "module") -> ModuleLearner:
    """A learner from a factory of modules; refuses what cannot be averaged or repeated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = factory()
    if not isinstance(built, nn.Module):
        raise ConfigError(f"the learner factory returned {type(built).__name__}: return a torch.nn.Module")
    _refuse_unsound(built)
    _check_output(built, profile)
    return ModuleLearner(classes=profile.classes, spec=spec, dtype=torch.float32, l2=0.0, factory=factory, module=built)


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
    """Two samples through the very path that training takes."""
    theta = {name: p.detach()[None] for name, p in built.named_parameters() if p.requires_grad}
    some = next(iter(theta.values()))
    try:
        with torch.no_grad():
            shape = tuple(run_batched(built, theta, torch.zeros((1, 2, *profile.features)).to(some)).shape[1:])
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
