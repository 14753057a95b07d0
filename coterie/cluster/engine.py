"""The engine `dask`: shards of clients on the workers of a cluster, with the same result on any number of workers."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from distributed import Future

from coterie.client.group import ClientGroup
from coterie.cluster import worker
from coterie.cluster.connection import Connection, ForgottenTaskError, connected
from coterie.cluster.shard_data import ShardRecipe, encode_shard, framed, shard_of, stored_part
from coterie.cluster.worker import KEPT_SHARE, WorkerTerms
from coterie.core.client_state import ClientStateStore
from coterie.core.dataset import ClientDirectory, FederatedDataset, torch_dtype
from coterie.core.federation import Replies
from coterie.core.keys import Words, hash_ids
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task
from coterie.core.validation import held_out_sizes
from coterie.engines.clients import ClientTerms
from coterie.engines.in_process import pooled_clients
from coterie.engines.shards import Answer, Cut, ask_shards, middle
from coterie.engines.simulation import Simulation
from coterie.errors import ConfigError, SmallWorkWarning
from coterie.learners.base import Learner
from coterie.methods.settings import RunSettings
from coterie.plugins.loading import VARIABLE

SHARDS = 16
"""Number of shards by default, if two of them fit into the memory of a worker."""
WORKING_COPIES = 2.0
"""Memory that work on a shard needs, divided by the size of its samples: blocks, caches and copies."""
RETRIES = 2
"""Number of times that a shard is asked again after an unexpected error."""
LOSSES = 10
"""Number of times that a question is asked again because all workers were lost at some moment."""
LOOK_SECONDS = 1.0
"""Time between two looks at which workers there are."""
LEVELS_HERE = 2
"""Number of the highest levels of the tree that are joined in this process."""
WATCHED = 10
"""Number of exchanges after which the engine says whether a cluster is slower."""
SENT_ONCE, SENT_TO = 1 << 18, 2
"""Size of the common part of a question, and number of workers, above which workers pass it on to each other."""
MOST_SENT = 1 << 30
"""Largest size in bytes of data that is sent to the workers because it has no source."""


def connect(data: ClientDirectory, learner: Learner, terms: ClientTerms, settings: RunSettings) -> DaskShards:
    """Return the clients on the workers that the settings name.

    Raises:
        ConfigError: if the workers cannot do the work.
        WorkerError: if the cluster cannot be reached.
    """
    if settings.workers is None:
        raise ConfigError(
            "engine=dask needs workers: local:4 starts four here, tls://HOST:8786 is a running scheduler "
            "(docs/cluster.md)"
        )
    if settings.device != "cpu":
        raise ConfigError(f"engine=dask computes on cpu, so device={settings.device} has no effect: leave it out")
    if terms.learner.startswith("module:"):
        raise ConfigError(
            "engine=dask needs a learner that workers find by its name: register the function with "
            "coterie.learners.register_learner in a plugin file (docs/cluster.md)"
        )
    assert settings.shards is not None, "settled when the run is planned"
    return DaskShards(data, learner, terms, connected(settings.workers), settings.shards)


def shard_count(data: ClientDirectory, settings: RunSettings) -> int:
    """Return the number of shards, so that two of them fit into the memory of a worker.

    It does not depend on the number of workers, so that neither do the results.

    Raises:
        ConfigError: if the samples of one client do not fit.
    """
    assert settings.workers is not None
    facts = connected(settings.workers).workers().values()
    memory = KEPT_SHARE * min((fact["memory_limit"] or 1 << 50) for fact in facts)
    row = int(np.prod(data.profile.features)) * torch_dtype(str(settings.dtype)).itemsize + 8
    total, clients = int(data.sizes.sum()) * row, len(data.sizes)
    shards = min(SHARDS, clients)
    while 2 * WORKING_COPIES * total / shards > memory and shards < clients:
        shards = min(2 * shards, clients)
    if WORKING_COPIES * int(data.sizes.max()) * row > memory:
        raise ConfigError(
            f"a client has {int(data.sizes.max()) * row:,} bytes of samples, and a worker may use {memory:,.0f}: start "
            "workers with more memory (--memory-limit)"
        )
    return shards


@dataclass
class Pace:
    """Time of the first exchanges: on the cluster, and of the computation alone."""

    exchanges: int = 0
    waited: float = 0.0
    computed: float = 0.0

    def see(self, waited: float, computed: float) -> None:
        """Count an exchange; the first one, in which workers load their shards, does not count."""
        self.exchanges += 1
        if 1 < self.exchanges <= WATCHED:
            self.waited, self.computed = self.waited + waited, self.computed + computed
        if self.exchanges == WATCHED:
            self._warn()

    def _warn(self) -> None:
        mean, threads = 1000 / (WATCHED - 1), torch.get_num_threads()
        here = self.computed / threads
        if here < self.waited:
            warnings.warn(
                f"the workers took {self.waited * mean:.1f} ms for each of the first exchanges, of which the clients' "
                f"work was {self.computed * mean:.1f} ms on one core: without engine=dask this machine would take "
                f"about {here * mean:.1f} ms ({threads} thread{'s' * (threads > 1)})",
                SmallWorkWarning,
                stacklevel=2,
            )


@dataclass(eq=False)
class DaskShards(Simulation):
    """Simulated clients whose shards are on the workers of a Dask cluster.

    A worker loads a shard when it is first asked for it. The states that clients keep travel with the messages, so a
    lost worker costs time only.
    """

    data: ClientDirectory
    """The clients; their samples may be in this process or in files."""
    learner: Learner
    terms: ClientTerms
    connection: Connection
    shards: int
    """Number of shards, at most the number of clients."""
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        sizes, share = self.data.sizes, self.terms.validation
        self._sizes = sizes if share is None else sizes - held_out_sizes(sizes, share)
        self._hashes = (
            self.data.train.hashes if isinstance(self.data, FederatedDataset) else hash_ids(self.data.clients)
        )
        self._store = ClientStateStore(len(sizes)) if self.terms.keeps else None
        self._cut = Cut.of(self._sizes, self.shards)
        plugins = tuple(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
        self._terms = WorkerTerms(replace(self.terms, attackers=()), plugins, str(Path.cwd())).encode()
        self._recipes: dict[int, str] = {}
        self._sent: dict[int, Future[bytes]] = {}
        self._places: dict[int, str] = {}
        self._asked: list[Future[bytes]] = []
        self._looked = -math.inf
        self._run, self._numbers = uuid4().hex, count()

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.data.clients

    @property
    def hashes(self) -> Words:
        return self._hashes

    @property
    def sizes(self) -> Positions:
        return self._sizes

    @property
    def store(self) -> ClientStateStore | None:
        return self._store

    def pooled(self, groups: Positions) -> ClientGroup | None:
        if not isinstance(self.data, FederatedDataset):
            return None
        return pooled_clients(self.terms.clients(self.data, self.learner), groups)

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        clock = time.perf_counter()
        places = np.arange(len(asked))
        replies, computed = ask_shards(self, self._cut, task, broadcast, asked, places, self._answer)
        self.pace.see(time.perf_counter() - clock, computed)
        return replies

    def _answer(self, common: bytes, parts: Sequence[tuple[int, bytes]]) -> Answer:
        """Ask shards, again if all workers were lost meanwhile."""
        for shard, _ in parts:
            self._prepare(shard)
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._look()
        for _ in range(LOSSES):
            with suppress(ForgottenTaskError):
                return self._ask_once(common, parts)
            self._look()
        return self._ask_once(common, parts)

    def _look(self) -> None:
        """Place the shards on the workers that are there now."""
        self._place(self.connection.workers())
        self._looked = time.monotonic()

    def _ask_once(self, common: bytes, parts: Sequence[tuple[int, bytes]]) -> Answer:
        """Ask shards, and join the top of the tree here: a task takes longer than receiving a few answers at once."""
        question = _Question(self, f"coterie-{self._run}-{next(self._numbers)}", common, parts)
        branches = question.branches(0, len(parts), LEVELS_HERE)
        # the results of the last question are released in the message that submits this one, which saves a message
        self._asked = [question.submit(first, stop) for first, stop in branches]
        answers = map(Answer.decode, self.connection.results(self._asked, question.name))
        return question.joined(0, len(parts), dict(zip(branches, answers, strict=True)))

    def _prepare(self, shard: int) -> None:
        """Describe a shard; data that has no source is sent to the cluster."""
        if shard in self._recipes:
            return
        positions = self._cut.positions(shard)
        first, stop = int(positions[0]), int(positions[-1]) + 1
        names = set(self.data.clients[first:stop])
        attackers = tuple(each for each in self.terms.attackers if each in names)
        tested, source, digest = self.data.tested is not None, self.data.source, None
        if isinstance(self.data, FederatedDataset):
            part = shard_of(self.data, positions, tested)
            digest = part.fingerprint()
            if source is None:
                self._send(shard, encode_shard(part, stored_part(self.data, positions)), digest)
        self._recipes[shard] = ShardRecipe(digest, first, stop, tested, source, attackers).encode()

    def _send(self, shard: int, data: bytes, digest: str) -> None:
        if len(data) * len(self._cut) > MOST_SENT:
            raise ConfigError(
                f"the samples have about {len(data) * len(self._cut) / 1e9:.1f} GB and exist in this process only: "
                "write them to a disk that all workers share and read them with coterie.from_parquet_dir "
                "(docs/cluster.md)"
            )
        self._sent[shard] = self.connection.submit(worker.hold, data, key=f"coterie-{self._run}-data-{digest}")

    def _place(self, workers: Mapping[str, Any]) -> None:
        """Choose a worker for every shard: the same as before if it is there, so that it has the shard in memory."""
        addresses, shards = list(workers), len(self._cut)
        if set(self._places.values()) <= workers.keys() and len(set(self._places.values())) == min(
            len(addresses), shards
        ):
            return
        fair = -(-shards // len(addresses))
        load = dict.fromkeys(addresses, 0)
        kept: dict[int, str] = {}
        for shard, home in self._places.items():
            if home in load and load[home] < fair:
                kept[shard], load[home] = home, load[home] + 1
        for shard in range(shards):
            if shard not in kept:
                home = min(addresses, key=lambda each: (load[each] >= fair, addresses.index(each)))
                kept[shard], load[home] = home, load[home] + 1
        self._places = dict(sorted(kept.items()))


@dataclass
class _Question:
    """Tasks of one question: one for each subtree whose shards are on one worker, and one for each pair of subtrees."""

    engine: DaskShards
    name: str
    """First part of the keys of all tasks."""
    common: bytes
    parts: Sequence[tuple[int, bytes]]

    @cached_property
    def _given(self) -> bytes | Future[bytes]:
        """The common part, or a task that holds it, so that many workers pass it on to each other."""
        homes = {self.engine._places[shard] for shard, _ in self.parts}
        if len(self.common) < SENT_ONCE or len(homes) <= SENT_TO:
            return self.common
        home = self.engine._places[self.parts[0][0]]
        return self.engine.connection.submit(worker.hold, self.common, key=f"{self.name}-common", at=home)

    def branches(self, first: int, stop: int, levels: int) -> list[tuple[int, int]]:
        """Return the subtrees that are left if the highest levels, where they join workers, are cut off."""
        if levels == 0 or self._on_one_worker(first, stop):
            return [(first, stop)]
        half = middle(first, stop)
        return self.branches(first, half, levels - 1) + self.branches(half, stop, levels - 1)

    def submit(self, first: int, stop: int) -> Future[bytes]:
        """Submit the tasks of a subtree, and return that of its root."""
        engine, parts = self.engine, self.parts[first:stop]
        key, home = f"{self.name}-{first}-{stop}", engine._places[parts[0][0]]
        if not self._on_one_worker(first, stop):
            half = middle(first, stop)
            halves = self.submit(first, half), self.submit(half, stop)
            return engine.connection.submit(worker.join, *halves, key=key, at=home, retries=RETRIES)
        each = chain.from_iterable((engine._recipes[shard].encode(), part) for shard, part in parts)
        asked = framed([engine._terms.encode(), *each])
        sent = [engine._sent[shard] for shard, _ in parts if shard in engine._sent]
        return engine.connection.submit(
            worker.serve_shards, asked, self._given, *sent, key=key, at=home, retries=RETRIES
        )

    def joined(self, first: int, stop: int, answers: Mapping[tuple[int, int], Answer]) -> Answer:
        """Return the answer of the tree, given those of the branches."""
        if (first, stop) in answers:
            return answers[first, stop]
        half = middle(first, stop)
        return self.joined(first, half, answers).join(self.joined(half, stop, answers))

    def _on_one_worker(self, first: int, stop: int) -> bool:
        return len({self.engine._places[shard] for shard, _ in self.parts[first:stop]}) == 1
