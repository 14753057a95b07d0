"""The node's half: one handler for every task, for the one or many clients whose data a user's function loads.

::

    from coterie import from_arrays
    from coterie.flower.node import make_client_app

    def load(context):
        return from_arrays({"ward-7": (x, y)}, test={"ward-7": (x_test, y_test)})

    app = make_client_app(load)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from coterie.client.group import ClientGroup
from coterie.core.client_state import NEVER
from coterie.core.dataset import FederatedDataset, torch_dtype
from coterie.core.messages import Broadcast
from coterie.core.schema import Schema
from coterie.core.shard import ClientId, Positions
from coterie.errors import ConfigError, CoterieError, TrainingError
from coterie.flower.guard import FAILED, Guard
from coterie.flower.limits import Limits, RefusedError
from coterie.flower.plugins import load_plugins
from coterie.flower.raw_table import RawTable
from coterie.flower.schema import DataSchema
from coterie.flower.state import Store
from coterie.flower.terms import Terms
from coterie.flower.untrusted import MissingPluginError
from coterie.flower.wire import (
    HELLO,
    Answer,
    Hello,
    Hosted,
    Lengths,
    Request,
    answer_content,
    hosted_content,
    read_hello,
    read_request,
    task_of,
    unfit_content,
)
from coterie.learners import LearnerChoice, make_learner, no_files
from coterie.learners.base import Learner
from coterie.plugins.loading import load_installed
from coterie.training.runs.files import read_tensors

LOG = logging.getLogger("flwr")
"""Of the node; it stays there."""
Load = Callable[[Context], FederatedDataset | RawTable]
"""The data of the clients that live at a node, as `from_arrays` or `raw_table` makes it."""
STATE_FOLDER = "state-folder"
"""In a node's config: where its clients keep what they keep for themselves."""
UNMASKING = ("secagg_mod", "secaggplus_mod")
"""Mods whose other half, at the server, cannot serve these exchanges."""


def make_client_app(
    load: Load,
    *,
    learner: LearnerChoice | None = None,
    state_folder: str | Path | None = None,
    mods: Sequence[Mod] = (),
    guard: Guard | None = None,
    limits: Limits | None = None,
    plugins: Sequence[str | Path] = (),
) -> ClientApp:
    """Return the app of a node.

    Args:
        load: Called with the node's context for every message; returns the data of the clients that live here, as
            `from_arrays` makes it, or their rows as `raw_table` holds them.
        learner: Only for learners that a text from the server cannot build here: a function that returns a
            torch.nn.Module, or a learner that starts from a file of this node.
        state_folder: Folder for the states of clients, for methods in which clients keep a state; the node's config
            may name another one (`state-folder`).
        mods: Flower's mods for every message. SecAgg and SecAgg+ are refused.
        guard: The least privacy that the clients here require, whatever the server says. They count their answers in
            the state folder, and no error text that leaves the node depends on data.
        limits: The largest request that this node serves; by default generous ones.
        plugins: Python files or modules that register tasks or tier members of your own. A relative path is looked for
            in the app's folder. Plugins of installed packages and of `COTERIE_PLUGINS` need not be named.

    Raises:
        ConfigError: if a mod cannot be used or a plugin cannot be imported.
    """
    _refuse_masks(mods)
    load_plugins(plugins)
    node = Node(load, learner, state_folder, guard, limits or Limits())
    app = ClientApp(mods=list(mods))
    app.train()(node.serve)
    return app


def _refuse_masks(mods: Sequence[Mod]) -> None:
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in UNMASKING or "secagg" in name.lower():
            raise ConfigError(
                f"mod {name}: the server's half of Flower's secure aggregation cannot serve these exchanges, so that "
                "nothing would be masked: leave it out"
            )


@dataclass(frozen=True)
class Node:
    """Serves the messages that come to one node."""

    load: Load
    learner: LearnerChoice | None = None
    state_folder: str | Path | None = None
    guard: Guard | None = None
    limits: Limits = field(default_factory=Limits)

    def serve(self, message: Message, context: Context) -> Message:
        """Do what the message asks; under a guard no error text that leaves the node depends on data."""
        try:
            return self._serve(message, context)
        except RefusedError:
            raise
        except Exception:
            if self.guard is None:
                raise
            LOG.exception("a request could not be served")
        raise TrainingError(FAILED)

    def _serve(self, message: Message, context: Context) -> Message:
        """Do what the message asks, whatever the task, unless nobody waits for the answer any more.

        A busy SuperNode takes messages and starts with them later; Flower drops the answer to one whose time is over.
        """
        if message.metadata.created_at + message.metadata.ttl < time():
            raise RefusedError(f"the {message.metadata.ttl:g} s of this message were over before it was begun: left")
        request = None if task_of(message.content) == HELLO else _request(message.content)
        if request is not None:
            self.limits.check(request)
        hello = read_hello(message.content) if request is None else None
        loaded = self.load(context)
        if not isinstance(loaded, FederatedDataset | RawTable):
            raise ConfigError(f"load must return what from_arrays or raw_table makes, got {type(loaded).__name__}")
        if hello is not None:
            return Message(self._introduction(hello, loaded), reply_to=message)
        assert request is not None
        data = loaded if isinstance(loaded, FederatedDataset) else self._encoded(loaded, request.terms.table)
        with torch.no_grad():
            answer = self._answer(request, data, context)
        return Message(answer_content(request.task.name, answer), reply_to=message)

    def _introduction(self, hello: Hello, loaded: FederatedDataset | RawTable) -> RecordDict:
        """Say which clients live here; of a table without a schema, its summary."""
        if isinstance(loaded, FederatedDataset):
            return hosted_content(_hosted(loaded))
        if hello.table is not None:
            try:
                data = self._encoded(loaded, hello.table)
                told = hello.summaries and self.guard is None
                return hosted_content(replace(_hosted(data), lengths=_lengths(data) if told else None))
            except CoterieError as error:
                if self.guard is not None:
                    LOG.exception("the table does not fit the schema")
                return unfit_content(str(error) if self.guard is None else FAILED)
        if self.guard is not None or not hello.summaries:
            who = "the clients of this node answer" if self.guard else "this run asks"
            raise RefusedError(
                f"{who} private questions only, and no noise is added to the summary of a table: give the server the "
                "schema beforehand"
            )
        offer = loaded.offer()
        return hosted_content(Hosted(offer.clients, offer.train, offer.test, offer=offer))

    def _encoded(self, table: RawTable, schema: Schema | None) -> FederatedDataset:
        """Return the rows of a table as the schema of the run describes them."""
        if schema is None:
            raise ConfigError("this node has a table, but the run has no schema: the other nodes have arrays")
        return table.dataset(schema, self.limits.values)

    def _answer(self, request: Request, data: FederatedDataset, context: Context) -> Answer:
        terms = request.terms
        positions = _positions(request.clients, data)
        if self.guard is not None:
            self.guard.check(request.task)
            self.guard.count(self._folder(context), request.clients)
        group = _group(data, self._learner(terms), terms).take(positions)
        if not terms.keeps:
            return Answer(group.serve(request.task, request.broadcast))
        store = Store(self._folder(context), terms.run)
        store.forget(request.clients, request.keep_from)
        accepted = request.broadcast.each.get("accepted", torch.full((len(positions),), NEVER))
        states, lost = store.load(request.clients, accepted)
        before = states.store.rounds.clone()
        broadcast = _without(request.broadcast, request.clients, lost)
        reply = replace(group, states=states).serve(request.task, broadcast)
        store.save(request.clients, states, before)
        return Answer(reply, lost)

    def _learner(self, terms: Terms) -> Learner:
        """As the server says, unless it has to be made here; then it must be the one that the server means."""
        read = no_files if self.learner is None else read_tensors  # a server names no files of a node
        made = make_learner(self.learner or terms.learner, terms.profile, read)
        if made.spec != terms.learner:
            raise ConfigError(
                f"the run has learner {terms.learner}, but this node was set up with {made.spec}: give both the same"
            )
        return made

    def _folder(self, context: Context) -> Path:
        named = context.node_config.get(STATE_FOLDER, self.state_folder)
        if named is None:
            raise ConfigError(
                "clients keep something for themselves here, of this method or of a guard: name a folder of the node "
                f"as state_folder of make_client_app, or {STATE_FOLDER} in the node's config"
            )
        return Path(str(named)).expanduser()


def _request(content: RecordDict) -> Request:
    """The request, after a look into installed plugins for a name that is not known yet."""
    try:
        return read_request(content)
    except MissingPluginError:
        load_installed()
    try:
        return read_request(content)
    except MissingPluginError as error:
        raise RefusedError(error) from None


def _hosted(data: FederatedDataset) -> Hosted:
    tests = [0] * len(data.clients) if data.test is None else data.test.sizes.tolist()
    return Hosted(data.clients, tuple(data.train.sizes.tolist()), tuple(tests), DataSchema.of(data))


def _lengths(data: FederatedDataset) -> Lengths:
    sizes = torch.from_numpy(data.train.sizes)
    parts = torch.split((data.train.x**2).sum(dim=1), sizes.tolist())
    means = torch.stack([part.mean() for part in parts])
    overall = float((means * sizes).sum() / sizes.sum())
    return Lengths(max(float(means.max()), overall), overall)


def _positions(clients: Sequence[ClientId], data: FederatedDataset) -> Positions:
    place = {client: i for i, client in enumerate(data.clients)}
    foreign = [client for client in clients if client not in place]
    if foreign:
        raise ConfigError(f"client {foreign[0]!r} does not live at this node: it was there when the run began")
    return np.array([place[client] for client in clients], dtype=np.int64)


def _group(data: FederatedDataset, learner: Learner, terms: Terms) -> ClientGroup:
    if data.profile.features != terms.features:
        raise ConfigError(f"samples here have shape {data.profile.features}, but those of the run {terms.features}")
    dtype, cpu = torch_dtype(terms.dtype), torch.device("cpu")
    data = data if terms.tests else data.training_only()
    return ClientGroup.of(data, learner, dtype, cpu, terms.validation, terms.seed, keeps=False)


def _without(broadcast: Broadcast, clients: Sequence[ClientId], lost: Sequence[ClientId]) -> Broadcast:
    """The broadcast as for newcomers where the state is lost."""
    if not lost:
        return broadcast
    gone = torch.tensor([client in lost for client in clients])
    accepted = broadcast.each["accepted"].masked_fill(gone, NEVER)
    return replace(broadcast, each={**broadcast.each, "accepted": accepted})
