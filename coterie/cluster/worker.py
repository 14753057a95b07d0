"""Functions that run in the workers. Their arguments and results are bytes and texts.

A worker loads a shard when it is first asked for it, and keeps it while there is memory. A lost shard is loaded again,
by the same or by another worker, and so are the tensors that were derived from it.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import repeat
from typing import Any

import psutil

import coterie.client.tasks
import coterie.data.parquet
import coterie.data.registry
import coterie.tiers  # noqa: F401 a question names tasks, tier members and sources, which these imports register
from coterie.client.group import ClientGroup
from coterie.cluster.allocation import keep_freed_memory
from coterie.cluster.shard_data import ShardRecipe, decode_shard, in_folder, shard_of, unframed
from coterie.core.dataset import FederatedDataset
from coterie.core.plain import from_plain, to_plain
from coterie.core.shard import Shard
from coterie.core.source import DataSource
from coterie.engines.clients import ClientTerms
from coterie.engines.shards import Answer, CommonPart, ShardPart, reduce_pairwise, serve
from coterie.errors import CoterieError
from coterie.files import read_tensors
from coterie.learners import LEARNERS, make_learner
from coterie.plugins.loading import load_installed, load_plugin

KEPT_SHARE = 0.6
"""Share of a worker's memory for samples and for tensors that were derived from them."""


def facts(coterie: str) -> dict[str, str]:
    """Return the versions that must be equal in all processes, since results depend on them.

    Args:
        coterie: Version of Coterie.
    """
    return {"coterie": coterie} | {name: version(name) for name in ("numpy", "torch")}


def hold(data: bytes) -> bytes:
    """Return the data, so that other tasks get it from this worker, or from one that has repeated this task."""
    return data


@dataclass(frozen=True)
class WorkerTerms:
    """Facts about a run that are the same for all its shards."""

    clients: ClientTerms
    """Settings of the clients."""
    plugins: tuple[str, ...]
    """Paths of plugin files."""
    folder: str
    """Folder in which the run was started."""

    def encode(self) -> str:
        """Return the terms as JSON."""
        return json.dumps(to_plain(self))

    @classmethod
    @cache
    def decode(cls, text: str) -> WorkerTerms:
        """Return the terms that `encode` returned, after importing the plugins."""
        terms: WorkerTerms = from_plain(cls, json.loads(text))
        with in_folder(terms.folder):
            load_installed()
            for path in terms.plugins:
                load_plugin(path)
        return terms


def serve_shards(question: bytes, common: bytes, *sent: bytes) -> bytes:
    """Answer a question for several adjacent shards.

    Args:
        question: Facts about the run, then the recipe of each shard and its part of the question, framed.
        common: The part of the question that all shards share.
        sent: Data of each shard; nothing if the shards have a source.

    Returns:
        The merged answer.
    """
    keep_freed_memory()
    facts_of_run, *each = unframed(question)
    terms, recipes, parts = facts_of_run.decode(), each[::2], each[1::2]
    try:
        known, shared = WorkerTerms.decode(terms), CommonPart.decode(common)
        answers = [
            serve(_clients(known, terms, recipe.decode(), data), shared, ShardPart.decode(part))
            for recipe, part, data in zip(recipes, parts, sent or repeat(None, len(parts)), strict=True)
        ]
        return reduce_pairwise(answers, Answer.join).encode()
    except CoterieError as error:
        return Answer.failed(error).encode()


def join(first: bytes, second: bytes) -> bytes:
    """Return the merged answer of two neighbours in the tree."""
    return Answer.decode(first).join(Answer.decode(second)).encode()


# ---- shards in the memory of this worker -----------------------------------------------------------------------


@dataclass
class Kept:
    """Loaded values up to a number of bytes; those that were not used for the longest time are dropped first."""

    limit: int
    values: OrderedDict[str, tuple[Any, Callable[[], int]]] = field(default_factory=OrderedDict)

    def recall(self, key: str, load: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Return the value of this key, loading it if necessary.

        Args:
            key: Name of the value.
            load: Loads the value.
            size: Returns the present number of bytes of the value, which may grow.
        """
        if key not in self.values:
            made = load()
            self.values[key] = made, lambda: size(made)
        self.values.move_to_end(key)
        while len(self.values) > 1 and sum(bytes_of() for _, bytes_of in self.values.values()) > self.limit:
            self.values.popitem(last=False)
        return self.values[key][0]


@cache
def kept() -> Kept:
    """Return the values that this process keeps."""
    from distributed import get_worker  # not needed where the tests call these functions

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:
        limit = None
    return Kept(int(KEPT_SHARE * (limit or psutil.virtual_memory().total / (os.cpu_count() or 1))))


def _clients(known: WorkerTerms, terms: str, recipe: str, sent: bytes | None) -> ClientGroup:
    """Return the clients of a shard."""

    def load() -> ClientGroup:
        with in_folder(known.folder):
            return _load(known.clients, ShardRecipe.decode(recipe), sent)

    clients: ClientGroup = kept().recall(f"{recipe} {terms}", load, _group_bytes)
    return clients


def _load(terms: ClientTerms, recipe: ShardRecipe, sent: bytes | None) -> ClientGroup:
    if recipe.source is None:
        assert sent is not None, "data without a source is sent"
        data = decode_shard(sent)
    else:
        part = recipe.source.load_some(recipe.positions)
        data = shard_of(_whole(recipe.source), recipe.positions, recipe.tested) if part is None else part
    if terms.learner.partition(":")[0] not in LEARNERS:
        load_installed()
    learner = make_learner(terms.learner, terms.profile, read_tensors)
    return replace(terms, attackers=recipe.attackers).clients(recipe.checked(data), learner)


def _whole(source: DataSource) -> FederatedDataset:
    """Return all clients of a source; they are kept while there is memory, for the other shards of this worker."""
    data: FederatedDataset = kept().recall(
        json.dumps(to_plain(source)),
        lambda: source.load().compact(),
        lambda found: _data_bytes(found.train, found.test),
    )
    return data


def _data_bytes(*shards: Shard | None) -> int:
    return sum(each.x.nbytes + each.y.nbytes for each in shards if each is not None)


def _group_bytes(clients: ClientGroup) -> int:
    used = 0 if clients.memory is None else clients.memory.used
    return used + _data_bytes(clients.train, clients.test, clients.validation)
