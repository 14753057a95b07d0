"""Clients of a simulation that lie: who they are, and what they tell instead of the truth.

    sign-flip    -strength times its change of the models: uphill
    scale        strength times its change
    noise        a random direction, strength times as long as its change
    label-flip   an honest round on false labels: C - 1 - y for classes, -y for numbers

The first three lie about what they trained in a round, each time; about their cluster, their loss and whatever comes
before the first round they tell the truth. Who lies is drawn by key, whatever the true groups are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from coterie.client.side import ClientSide
from coterie.core.clusters import flat, unflat
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, Words, fold, generator, hash_ids, keys_for_clients
from coterie.core.messages import Broadcast, Reply, Task, merge
from coterie.core.shard import ClientId, spans
from coterie.errors import ConfigError
from coterie.tiers.members import read_named

ROUND = "local-round"
"""The task whose answer is false."""
MASS = "mass"
"""What is no part of a model in a slotted sum."""


class Lie(Protocol):
    """A kind of lie."""

    name: ClassVar[str]
    in_data: ClassVar[bool]
    """Whether the samples are false, and not the answer."""

    @property
    def share(self) -> float:
        """Which part of the clients lies."""
        ...


@dataclass(frozen=True)
class SignFlip:
    """Uphill instead of downhill."""

    share: float = 0.2
    strength: float = 10.0
    name: ClassVar[str] = "sign-flip"
    in_data: ClassVar[bool] = False

    def tell(self, change: Tensor, key: int) -> Tensor:
        """What is said instead of a change (P,)."""
        return -self.strength * change


@dataclass(frozen=True)
class Scale:
    """The right way, but too far: to have more of a say."""

    share: float = 0.2
    strength: float = 10.0
    name: ClassVar[str] = "scale"
    in_data: ClassVar[bool] = False

    def tell(self, change: Tensor, key: int) -> Tensor:
        """What is said instead of a change (P,)."""
        return self.strength * change


@dataclass(frozen=True)
class Noise:
    """Anywhere."""

    share: float = 0.2
    strength: float = 10.0
    name: ClassVar[str] = "noise"
    in_data: ClassVar[bool] = False

    def tell(self, change: Tensor, key: int) -> Tensor:
        """What is said instead of a change (P,)."""
        drawn = torch.from_numpy(generator(key).standard_normal(len(change))).to(change)
        length = self.strength * torch.linalg.vector_norm(change)
        return functional.normalize(drawn, dim=0).mul(length)


@dataclass(frozen=True)
class LabelFlip:
    """Honest work on false labels."""

    share: float = 0.2
    name: ClassVar[str] = "label-flip"
    in_data: ClassVar[bool] = True


ModelLie = SignFlip | Scale | Noise
LIES: dict[str, Callable[..., Lie]] = {lie.name: lie for lie in (SignFlip, Scale, Noise, LabelFlip)}


def read_lie(text: str) -> Lie:
    """The lie that a text such as `sign-flip:share=0.2` names."""
    lie: Lie = read_named("poison", LIES, text)
    if not 0 < lie.share < 1:
        raise ConfigError(f"poison={lie.name}: share must be above 0 and below 1, got {lie.share:g}")
    if not getattr(lie, "strength", 1.0) > 0:
        raise ConfigError(f"poison={lie.name}: strength must be above 0, got {getattr(lie, 'strength', 0):g}")
    return lie


def liars(lie: Lie, seed: int, hashes: Words) -> npt.NDArray[np.bool_]:
    """(m,) who lies: round(share m) clients, the same ones in whatever order clients stand."""
    count = round(lie.share * len(hashes))
    if not 0 < count < len(hashes):
        raise ConfigError(
            f"poison={lie.name}:share={lie.share:g} of {len(hashes)} clients is {count}, but some must lie and some "
            "must not: choose another share"
        )
    drawn = fold(seed, int(Purpose.POISON), hashes)
    return np.isin(np.arange(len(hashes)), np.argsort(drawn, kind="stable")[:count])


def with_false_labels(data: FederatedDataset, lying: npt.NDArray[np.bool_]) -> FederatedDataset:
    """The data with the training labels of those that lie (m,) turned round; held-out ones stay true."""
    train, classes = data.train, data.profile.classes
    rows = torch.from_numpy(spans(train.starts[lying], train.sizes[lying]))
    y = train.y.clone()
    y[rows] = -y[rows] if classes is None else classes - 1 - y[rows]
    return replace(data, train=replace(train, y=y))


@dataclass(frozen=True, kw_only=True)
class LyingSide(ClientSide):
    """Clients of which some answer falsely in a round."""

    lie: ModelLie
    liars: frozenset[ClientId]
    seed: int

    @classmethod
    def among(cls, side: ClientSide, lie: ModelLie, seed: int) -> LyingSide:
        """The same clients, some of which lie."""
        who = liars(lie, seed, side.train.hashes)
        names = frozenset(client for client, lies in zip(side.train.ids, who, strict=True) if lies)
        return cls(**vars(side), lie=lie, liars=names, seed=seed)

    def serve(self, task: Task, broadcast: Broadcast) -> Reply:
        """The truth, but for what those who lie trained."""
        if task.name != ROUND or self.liars.isdisjoint(self.train.ids):
            return super().serve(task, broadcast)
        if task.settings["each"]:
            return self._with_false_rows(super().serve(task, broadcast), broadcast.round)
        # what is added up at once cannot be told apart afterwards, so each of them answers alone
        lies = np.array([client in self.liars for client in self.train.ids])
        parts = [np.flatnonzero(~lies), *np.flatnonzero(lies)[:, None]]
        replies = [ClientSide.serve(self.take(p), task, broadcast.to(p)) for p in parts if len(p)]
        return merge([self._with_false_sums(reply, broadcast.round) for reply in replies])

    def _with_false_rows(self, reply: Reply, round_: int) -> Reply:
        change = reply.rows["change"].clone()  # (a, T, P)
        for place, client in enumerate(reply.clients):
            if client in self.liars:
                change[place] = self._told(change[place], client, round_)
        return replace(reply, rows={**reply.rows, "change": change})

    def _with_false_sums(self, reply: Reply, round_: int) -> Reply:
        """The same of the reply of a single client, or of honest ones."""
        if self.liars.isdisjoint(reply.clients):
            return reply
        slotted = {}
        for name, part in reply.slotted.items():
            changes = {key: value for key, value in part.arrays.items() if key != MASS}
            told = unflat(self._told(flat(changes), reply.clients[0], round_), changes)
            slotted[name] = replace(part, arrays={**part.arrays, **told})
        return replace(reply, slotted=slotted)

    def _told(self, changes: Tensor, client: ClientId, round_: int) -> Tensor:
        """Changes (T, P) of a client as it tells them."""
        key = keys_for_clients(self.seed, Purpose.POISON, round_, hash_ids([client]))[0]
        return torch.stack([self.lie.tell(change, int(fold(key, at))) for at, change in enumerate(changes)])
