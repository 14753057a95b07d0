"""Attacks by clients of a simulation: which clients attack, and what they send instead of their honest reply.

    sign-flip    -strength times its change of the models: uphill
    scale        strength times its change
    noise        a random direction, strength times as long as its change
    label-flip   an honest round on false labels: C - 1 - y for classes, -y for numbers

The first three falsify the changes of every round; the reported cluster, the loss and whatever is sent before the first
round are true. Attackers are drawn by key, whatever the true groups are.
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
"""Entry of a slotted sum that is not a change of a model."""


@dataclass(frozen=True)
class Attack(Registered, ABC, family="poison"):
    """What the attackers among the clients do."""

    share: float = 0.2
    """Part of the clients that attack."""
    in_data: ClassVar[bool] = False
    """Whether the attackers' training labels are false, instead of their replies."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"poison={self.name}: share must be above 0 and below 1, got {self.share:g}")


@dataclass(frozen=True)
class ModelAttack(Attack):
    """Base of attacks that falsify the changes of models."""

    strength: float = 10.0
    """Length of the false change, in lengths of the honest one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength > 0:
            raise ConfigError(f"poison={self.name}: strength must be above 0, got {self.strength:g}")

    @abstractmethod
    def falsify(self, change: Tensor, key: int) -> Tensor:
        """Return what is sent instead of a change (P,)."""


@register("sign-flip")
@dataclass(frozen=True)
class SignFlip(ModelAttack):
    """A change uphill instead of downhill."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        return -self.strength * change


@register("scale")
@dataclass(frozen=True)
class Scale(ModelAttack):
    """A change in the right direction, but too long, to gain influence."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        return self.strength * change


@register("noise")
@dataclass(frozen=True)
class Noise(ModelAttack):
    """A change in a random direction."""

    def falsify(self, change: Tensor, key: int) -> Tensor:
        drawn = torch.from_numpy(generator(key).standard_normal(len(change))).to(change)
        length = self.strength * torch.linalg.vector_norm(change)
        return functional.normalize(drawn, dim=0).mul(length)


@register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Honest training on false labels."""

    in_data: ClassVar[bool] = True


def read_attack(text: str) -> Attack:
    """Return the attack that a text such as `sign-flip:share=0.2` names.

    Raises:
        ConfigError: if there is no such attack, or a setting does not fit.
    """
    attack: Attack = from_text(Attack, text)
    return attack


def attackers_of(attack: Attack, seed: int, hashes: Words) -> npt.NDArray[np.bool_]:
    """Return which clients attack, (m,): round(share m) of them, the same ones in any order of the clients."""
    count = round(attack.share * len(hashes))
    if not 0 < count < len(hashes):
        raise ConfigError(
            f"poison={attack.name}:share={attack.share:g} of {len(hashes)} clients is {count}, but some must attack "
            "and some must not: choose another share"
        )
    drawn = fold(seed, int(Purpose.ATTACK), hashes)
    return np.isin(np.arange(len(hashes)), np.argsort(drawn, kind="stable")[:count])


def with_false_labels(data: FederatedDataset, attacking: npt.NDArray[np.bool_]) -> FederatedDataset:
    """Return the data with the training labels of the attackers (m,) inverted; held-out labels stay true."""
    train, classes = data.train, data.profile.classes
    rows = torch.from_numpy(spans(train.starts[attacking], train.sizes[attacking]))
    y = train.y.clone()
    y[rows] = -y[rows] if classes is None else classes - 1 - y[rows]
    return replace(data, train=replace(train, y=y))


@dataclass(frozen=True, kw_only=True)
class AttackedGroup(ClientGroup):
    """Clients of which some falsify their changes in every round."""

    attack: ModelAttack
    attackers: frozenset[ClientId]
    seed: int

    @classmethod
    def among(cls, group: ClientGroup, attack: ModelAttack, seed: int) -> AttackedGroup:
        """Return the same clients, some of which attack."""
        who = attackers_of(attack, seed, group.train.hashes)
        names = frozenset(client for client, attacks in zip(group.train.ids, who, strict=True) if attacks)
        return cls(**vars(group), attack=attack, attackers=names, seed=seed)

    def serve(self, task: Task, broadcast: Broadcast) -> Reply:
        """Run the task honestly, and falsify the changes of the attackers."""
        if not task.trains or self.attackers.isdisjoint(self.train.ids):
            return task.run(self, broadcast)
        if task.send_each:
            return self._with_false_rows(task.run(self, broadcast), broadcast.round)
        # changes that are added up at once cannot be separated afterwards, so each attacker runs the task alone
        attacks = np.array([client in self.attackers for client in self.train.ids])
        parts = [np.flatnonzero(~attacks), *np.flatnonzero(attacks)[:, None]]
        replies = [task.run(self.take(p), broadcast.to(p)) for p in parts if len(p)]
        return merge([self._with_false_sums(reply, broadcast.round) for reply in replies])

    def _with_false_rows(self, reply: Reply, round_: int) -> Reply:
        change = reply.rows["change"].clone()  # (a, T, P)
        for place, client in enumerate(reply.clients):
            if client in self.attackers:
                change[place] = self._falsified(change[place], client, round_)
        return replace(reply, rows={**reply.rows, "change": change})

    def _with_false_sums(self, reply: Reply, round_: int) -> Reply:
        """Falsify the reply of a single attacker; one of honest clients is returned as it is."""
        if self.attackers.isdisjoint(reply.clients):
            return reply
        slotted = {}
        for name, part in reply.slotted.items():
            changes = {key: value for key, value in part.arrays.items() if key != MASS}
            false = unflat(self._falsified(flat(changes), reply.clients[0], round_), changes)
            slotted[name] = replace(part, arrays={**part.arrays, **false})
        return replace(reply, slotted=slotted)

    def _falsified(self, changes: Tensor, client: ClientId, round_: int) -> Tensor:
        """Return the changes (T, P) that a client sends instead of its own."""
        key = keys_for_clients(self.seed, Purpose.ATTACK, round_, hash_ids([client]))[0]
        return torch.stack([self.attack.falsify(change, int(fold(key, at))) for at, change in enumerate(changes)])
