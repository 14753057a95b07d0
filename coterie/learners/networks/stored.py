"""Weights that a user has in a file, as the start of a network with arrays of the same names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from coterie.core.clusters import Params
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.module import Factory, HeadedLearner, headed

STATISTICS = ("running_mean", "running_var")
"""The ends of names that only batch normalisation has."""

COUNTER = "num_batches_tracked"
"""What torch's BatchNorm2d stores besides; a frozen one has no use for it."""


@dataclass(frozen=True)
class StoredWeights:
    """Named arrays and the file they are from."""

    source: str
    arrays: Mapping[str, Tensor]

    def fitted(self, needed: Params, head: str, learner: str) -> Params:
        """The arrays to start from: all that are needed, but the head's only if its shapes are the same.

        Tells when the head is left out. Refuses arrays that are missing, unknown, of another shape or not finite.
        """
        found = {name: a for name, a in self.arrays.items() if not name.endswith(COUNTER)}
        body = _without(needed, head)
        self._check_names(_without(found, head), body, learner)
        wanted = {name: tuple(a.shape) for name, a in needed.items() if name not in body}
        there = {name: tuple(found[name].shape) for name in wanted if name in found}
        kept = needed if there == wanted else body
        self._check_values(found, kept, learner)
        if there != wanted:
            warnings.warn(
                f"weights {self.source}: the last layer is drawn at random, since the file has "
                f"{there or f'no {head}'} and {wanted} is needed",
                stacklevel=2,
            )
        return {name: found[name] for name in kept}

    def _check_values(self, found: Params, needed: Params, learner: str) -> None:
        for name, a in needed.items():
            if found[name].shape != a.shape:
                raise ConfigError(
                    f"weights {self.source}: {name} has shape {tuple(found[name].shape)}, but {learner} needs "
                    f"{tuple(a.shape)}: take the settings, and images with the channels, of the network in the file"
                )
            if not bool(found[name].isfinite().all()):
                raise ConfigError(f"weights {self.source}: {name} has values that are not finite: mend the file")

    def _check_names(self, found: Params, needed: Params, learner: str) -> None:
        missing, unknown = sorted(needed.keys() - found.keys()), sorted(found.keys() - needed.keys())
        if any(name.endswith(STATISTICS) for name in unknown):
            raise ConfigError(
                f"weights {self.source} are of a network with batch normalisation, but this is {learner}: set "
                "norm=frozen-batch"
            )
        if missing and all(name.endswith(STATISTICS) for name in missing):
            raise ConfigError(
                f"weights {self.source} have no statistics of batch normalisation, but this is {learner}: set "
                "norm=group or norm=layer, whichever the file is of"
            )
        for names, what in ((missing, "lack"), (unknown, "also have")):
            if names:
                raise ConfigError(
                    f"weights {self.source} must have the arrays of {learner} by torchvision's names, but {what} "
                    f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: save the state_dict of such "
                    "a network"
                )


def _without(arrays: Params, head: str) -> Params:
    return {name: a for name, a in arrays.items() if not name.startswith(f"{head}.")}


def check_frozen(learner: str, norm: str, weights: StoredWeights | None) -> None:
    """Refuse frozen batch normalisation without the statistics that it needs."""
    if norm == "frozen-batch" and weights is None:
        raise ConfigError(
            f"{learner}: norm=frozen-batch needs statistics to normalise by: give weights=FILE, or set norm=group"
        )


def with_start(
    profile: Profile, build: Factory, settings: str, head: str, weights: StoredWeights | None
) -> HeadedLearner:
    """The learner of a network that starts from stored weights where there are any, else at random."""
    learner = headed(profile, build, settings, head)
    if weights is None:
        return learner
    arrays = weights.fitted(learner.module.state_dict(), head, settings)

    def loaded(network: nn.Module) -> nn.Module:
        network.load_state_dict(arrays, strict=False)
        return network

    spec = f"{settings},weights={weights.source}"
    return replace(learner, spec=spec, factory=lambda: loaded(build()), module=loaded(learner.module))
