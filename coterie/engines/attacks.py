"""Attacks by simulated clients, for measuring the robustness of methods.

    sign-flip    send -strength times the change of the model, which increases the loss
    scale        send strength times the change
    noise        send a random vector that is strength times as long as the change
    label-flip   train honestly on false labels: C - 1 - y for classes, -y for regression

The first three attacks falsify the model changes in every round. The reported cluster and loss, and everything sent
before the first round, are honest. The attackers are drawn at random, independently of the true groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from coterie.client.group import ClientGroup
from coterie.core.clusters import flat, unflat
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, Words, fold, generator, hash_ids, keys_for_clients
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.plain import from_text
from coterie.core.registry import Registered, register
from coterie.core.shard import ClientId, spans
from coterie.core.task import Task
from coterie.errors import ConfigError

MASS = "mass"
"""Array of a slotted sum that is not a model change."""


@dataclass(frozen=True)
class Attack(Registered, ABC, family="poison"):
    """Base class of attacks by a share of the clients."""

    share: float = 0.2
    """Share of the clients that attack."""
    in_data: ClassVar[bool] = False
    """Whether the attackers have false training labels instead of sending false replies."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"poison={self.name}: share must be above 0 and below 1, got {self.share:g}")


@dataclass(frozen=True)
class ModelAttack(Attack):
    """Base class of attacks that send false model changes."""

    strength: float = 10.0
    """Norm of the false change divided by the norm of the honest change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength > 0:
            raise ConfigError(f"poison={self.name}: strength must be above 0, got {self.strength:g}")

    @abstractmethod
    def falsify(self, change: Tensor, key: int) -> Tensor:
        """Return the false change that is sent instead of an honest one.

        Args:
            change: The honest change of one model, (P,).
            key: Random key.
        """


@register("sign-flip")
@dataclass(frozen=True)
class SignFlip(ModelAttack):
    """Send the change with the opposite sign, which increases the loss."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        return -self.strength * change


@register("scale")
@dataclass(frozen=True)
class Scale(ModelAttack):
    """Send a change in the right direction that is too large, to gain influence."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        return self.strength * change


@register("noise")
@dataclass(frozen=True)
class Noise(ModelAttack):
    """Send a change in a random direction."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        drawn = torch.from_numpy(generator(key).standard_normal(len(change))).to(change)
        length = self.strength * torch.linalg.vector_norm(change)
        return functional.normalize(drawn, dim=0).mul(length)


@register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train honestly on false labels."""

    in_data: ClassVar[bool] = True


def read_attack(text: str) -> Attack:
    """Return the attack that a text such as `sign-flip:share=0.2` describes.

    Raises:
        ConfigError: if the attack is unknown or a setting is not allowed.
    """
    attack: Attack = from_text(Attack, text)
    return attack


def attackers_of(attack: Attack, seed: int, hashes: Words) -> npt.NDArray[np.bool_]:
    """Return whether each client attacks, (m,); the choice does not depend on the order of the clients.

    Args:
        attack: The attack; `round(share * m)` clients attack.
        seed: Seed of the run.
        hashes: Hash of each client's id, (m,).

    Raises:
        ConfigError: if all clients or none would attack.
    """
    count = round(attack.share * len(hashes))
    if not 0 < count < len(hashes):
        raise ConfigError(
            f"poison={attack.name}:share={attack.share:g} means {count} attackers among {len(hashes)} clients, but "
            "some clients must attack and some must not: choose another share"
        )
    drawn = fold(seed, int(Purpose.ATTACK), hashes)
    return np.isin(np.arange(len(hashes)), np.argsort(drawn, kind="stable")[:count])


def with_false_labels(data: FederatedDataset, attacking: npt.NDArray[np.bool_]) -> FederatedDataset:
    """Return the data with false training labels of the attackers; test labels stay correct.

    Args:
        data: Clients with their samples.
        attacking: Whether each client attacks, (m,).
    """
    train, classes = data.train, data.profile.classes
    rows = torch.from_numpy(spans(train.starts[attacking], train.sizes[attacking]))
    y = train.y.clone()
    y[rows] = -y[rows] if classes is None else classes - 1 - y[rows]
    return replace(data, train=replace(train, y=y), source=None)


@dataclass(frozen=True, kw_only=True)
class AttackedGroup(ClientGroup):
    """Clients some of which falsify their model changes in every round."""

    attack: ModelAttack
    """The attack."""
    attackers: frozenset[ClientId]
    """Ids of the attackers."""
    seed: int
    """Seed of the run."""

    def carries_out(self, task: Task) -> Task:
        honest = not task.trains or self.attackers.isdisjoint(self.train.ids)
        return task if honest else FalsifiedTask(task, self.attack, self.attackers, self.seed)


@dataclass(frozen=True)
class FalsifiedTask(Task):
    """A task after which attackers falsify the changes of their models."""

    task: Task
    """The task that honest clients carry out."""
    attack: ModelAttack
    """The attack."""
    attackers: frozenset[ClientId]
    """Ids of the attackers."""
    seed: int
    """Seed of the run."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        """Run the task honestly, then falsify the changes of the attackers."""
        if self.task.send_each:
            return self._with_false_rows(self.task.run(clients, broadcast), broadcast.round)
        # summed changes cannot be separated afterwards, so each attacker runs the task alone
        attacks = np.array([client in self.attackers for client in clients.train.ids])
        parts = [np.flatnonzero(~attacks), *np.flatnonzero(attacks)[:, None]]
        replies = [self.task.run(clients.take(p), broadcast.to(p)) for p in parts if len(p)]
        return merge([self._with_false_sums(reply, broadcast.round) for reply in replies])

    def _with_false_rows(self, reply: Reply, round_: int) -> Reply:
        change = reply.rows["change"].clone()  # (a, T, P)
        for place, client in enumerate(reply.clients):
            if client in self.attackers:
                change[place] = self._falsified(change[place], client, round_)
        return replace(reply, rows={**reply.rows, "change": change})

    def _with_false_sums(self, reply: Reply, round_: int) -> Reply:
        """Return the falsified reply of a single attacker; the reply of honest clients is returned unchanged."""
        if self.attackers.isdisjoint(reply.clients):
            return reply
        slotted = {}
        for name, part in reply.slotted.items():
            changes = {key: value for key, value in part.arrays.items() if key != MASS}
            false = unflat(self._falsified(flat(changes), reply.clients[0], round_), changes)
            slotted[name] = replace(part, arrays={**part.arrays, **false})
        return replace(reply, slotted=slotted)

    def _falsified(self, changes: Tensor, client: ClientId, round_: int) -> Tensor:
        """Return the false changes, (T, P), that a client sends instead of its honest ones."""
        key = keys_for_clients(self.seed, Purpose.ATTACK, round_, hash_ids([client]))[0]
        return torch.stack([self.attack.falsify(change, int(fold(key, at))) for at, change in enumerate(changes)])
