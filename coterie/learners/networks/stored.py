"""Initial weights of a network from a file with arrays of the same names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from coterie.core.clusters import Params
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.module import Factory, ModuleWithHead, module_with_head

STATISTICS = ("running_mean", "running_var")
"""Endings of array names that occur in batch normalisation only."""

COUNTER = "num_batches_tracked"
"""Ending of the name of another array of `BatchNorm2d`, which fixed statistics do not need."""


@dataclass(frozen=True)
class StoredWeights:
    """Named arrays from a file."""

    source: str
    """Path of the file."""
    arrays: Mapping[str, Tensor]
    """Arrays by name."""

    def fitted(self, needed: Params, head: str, learner: str) -> Params:
        """Return the initial arrays of a network, without those of the head if their shapes differ.

        If the head is left out, a warning is issued.

        Args:
            needed: Arrays of the network, with the required names and shapes.
            head: Name of the head.
            learner: Description of the learner for error messages.

        Raises:
            ConfigError: if an array is missing, unknown, not finite or has another shape.
        """
        found = {name: a for name, a in self.arrays.items() if not name.endswith(COUNTER)}
        body = _without(needed, head)
        self._check_names(_without(found, head), body, learner)
        wanted = {name: tuple(a.shape) for name, a in needed.items() if name not in body}
        stored = {name: tuple(found[name].shape) for name in wanted if name in found}
        kept = needed if stored == wanted else body
        self._check_values(found, kept, learner)
        if stored != wanted:
            warnings.warn(
                f"weights {self.source}: the last layer is initialised at random, since it needs {wanted}, but the "
                f"file has {stored or f'no {head}'}",
                stacklevel=2,
            )
        return {name: found[name] for name in kept}

    def _check_values(self, found: Params, needed: Params, learner: str) -> None:
        for name, a in needed.items():
            if found[name].shape != a.shape:
                raise ConfigError(
                    f"weights {self.source}: {name} has shape {tuple(found[name].shape)}, but {learner} needs "
                    f"{tuple(a.shape)}: use the settings and the number of channels of the network in the file"
                )
            if not bool(found[name].isfinite().all()):
                raise ConfigError(f"weights {self.source}: {name} has values that are not finite: use another file")

    def _check_names(self, found: Params, needed: Params, learner: str) -> None:
        missing, unknown = sorted(needed.keys() - found.keys()), sorted(found.keys() - needed.keys())
        if any(name.endswith(STATISTICS) for name in unknown):
            raise ConfigError(
                f"weights {self.source} belong to a network with batch normalisation, but this is {learner}: set "
                "norm=frozen-batch"
            )
        if missing and all(name.endswith(STATISTICS) for name in missing):
            raise ConfigError(
                f"weights {self.source} have no statistics of batch normalisation, but this is {learner}: set "
                "norm=group or norm=layer, as in the network of the file"
            )
        for names, what in ((missing, "lack"), (unknown, "also have")):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise ConfigError(
                    f"weights {self.source} must have the arrays of {learner} with the names of torchvision, but "
                    f"{what} {names[0]}{more}: save the state_dict of such a network"
                )


def _without(arrays: Params, head: str) -> Params:
    return {name: a for name, a in arrays.items() if not name.startswith(f"{head}.")}


def check_frozen(learner: str, norm: str, weights: StoredWeights | None) -> None:
    """Raise ConfigError for frozen batch normalisation without weights, which contain its statistics."""
    if norm == "frozen-batch" and weights is None:
        raise ConfigError(f"{learner}: norm=frozen-batch needs stored statistics: give weights=FILE, or set norm=group")


def with_initial_weights(
    profile: Profile, build: Factory, settings: str, head: str, weights: StoredWeights | None
) -> ModuleWithHead:
    """Return the learner of a network with stored initial weights, or with random ones if `weights` is None.

    Args:
        profile: Shape of the samples and number of classes.
        build: Function that returns the network.
        settings: Text that describes the network.
        head: Name of the head.
        weights: Stored weights.
    """
    learner = module_with_head(profile, build, settings, head)
    if weights is None:
        return learner
    arrays = weights.fitted(learner.module.state_dict(), head, settings)

    def loaded(network: nn.Module) -> nn.Module:
        network.load_state_dict(arrays, strict=False)
        return network

    spec = f"{settings},weights={weights.source}"
    return replace(learner, spec=spec, factory=lambda: loaded(build()), module=loaded(learner.module))
