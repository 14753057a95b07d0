"""The engine `dask`: shards of clients on the workers of a cluster, with the same result on any number of workers."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from coterie.cluster.shard_data import ShardRecipe, encode_shard, framed, shard_of
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
from coterie.engines.shards import Answer, Cut, ask_shards
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
WATCHED = 10
"""Number of exchanges after which the engine says whether a cluster is slower."""
SENT_ONCE = 1 << 18
"""Size of the common part of a question from which workers pass it on to each other, instead of each receiving it."""
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
        for _ in range(RETRIES):
            with suppress(ForgottenTaskError):
                return self._ask_once(common, parts)
        return self._ask_once(common, parts)

    def _ask_once(self, common: bytes, parts: Sequence[tuple[int, bytes]]) -> Answer:
        """Ask shards: one task for each subtree whose shards are on one worker, and one for each pair of subtrees."""
        self._place(self.connection.workers())
        question = f"coterie-{self._run}-{next(self._numbers)}"
        given: bytes | Future[bytes] = common
        if len(common) >= SENT_ONCE and len(set(self._places.values())) > 1:
            given = self.connection.submit(worker.hold, common, key=f"{question}-common", at=self._places[parts[0][0]])

        def tree(first: int, stop: int) -> Future[bytes]:
            homes = {self._places[shard] for shard, _ in parts[first:stop]}
            key, home = f"{question}-{first}-{stop}", self._places[parts[first][0]]
            if len(homes) == 1:
                each = [(self._recipes[shard].encode(), part) for shard, part in parts[first:stop]]
                asked = framed([self._terms.encode(), *chain.from_iterable(each)])
                sent = [self._sent[shard] for shard, _ in parts[first:stop] if shard in self._sent]
                return self.connection.submit(
                    worker.serve_shards, asked, given, *sent, key=key, at=home, retries=RETRIES
                )
            half = first + (stop - first + 1) // 2
            halves = tree(first, half), tree(half, stop)
            return self.connection.submit(worker.join, *halves, key=key, at=home, retries=RETRIES)

        return Answer.decode(self.connection.result(tree(0, len(parts)), question))

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
                self._send(shard, encode_shard(part), digest)
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
