"""Simulated clients of a run, made from their data and a few plain settings that can travel to another process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.client.group import ClientGroup
from coterie.core.blocks import Memory
from coterie.core.dataset import FederatedDataset, Profile, torch_dtype
from coterie.core.shard import ClientId
from coterie.engines.attacks import AttackedGroup, ModelAttack, read_attack
from coterie.learners.base import Learner
from coterie.privacy.noise import SeededNoise

KEPT_AT_LEAST, KEPT_SHARE = 64 << 20, 5
"""Bytes in which results that depend only on the samples are cached: at least this many, or features / KEPT_SHARE."""


@dataclass(frozen=True)
class ClientTerms:
    """Settings of a run that its simulated clients need."""

    learner: str
    """Text that names the learner and its settings."""
    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """Number of classes over all clients; None for a regression."""
    dtype: str
    """Floating-point type of all computations."""
    device: str
    """Device of all computations."""
    validation: float | None
    """Share of validation samples; None: no validation split."""
    seed: int
    """Seed of the run."""
    keeps: bool
    """Whether clients keep a state from round to round."""
    attack: str | None = None
    """Attack on the model changes; None if all clients are honest."""
    attackers: tuple[ClientId, ...] = ()
    """Ids of the attackers."""
    compiles: bool = False
    """Whether compiled code may be used; False if the run is too short for the time that compilation takes."""

    @property
    def profile(self) -> Profile:
        """Shape of a sample and number of classes over all clients."""
        return Profile(self.features, self.classes)

    def clients(self, data: FederatedDataset, learner: Learner) -> ClientGroup:
        """Return the clients of a data set, ready for tasks.

        Args:
            data: All clients, or some of them.
            learner: Learner that `self.learner` names.
        """
        dtype, device = torch_dtype(self.dtype), torch.device(self.device)
        clients = ClientGroup.of(data, learner, dtype, device, self.validation, self.seed, self.keeps)
        clients = replace(clients, noise=SeededNoise(self.seed), memory=memory_for(clients), compiles=self.compiles)
        if self.attack is None:
            return clients
        attack = read_attack(self.attack)
        assert isinstance(attack, ModelAttack), "false labels are in the data"
        return AttackedGroup(**vars(clients), attack=attack, attackers=frozenset(self.attackers), seed=self.seed)


def memory_for(clients: ClientGroup) -> Memory:
    """Return an empty cache whose size suits the samples of these clients."""
    return Memory(max(KEPT_AT_LEAST, clients.train.x.nbytes // KEPT_SHARE))
