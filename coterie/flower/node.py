"""The node side of a federation: one handler for all tasks, for the clients whose data a user's function loads.

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
from coterie.files import read_tensors
from coterie.flower.guard import FAILED, Guard
from coterie.flower.limits import Limits, RefusedError
from coterie.flower.plugins import load_plugins
from coterie.flower.raw_table import RawTable
from coterie.flower.schema import DataSchema
from coterie.flower.state import ClientStateFolder
from coterie.flower.terms import Terms
from coterie.flower.untrusted import MissingPluginError
from coterie.flower.wire import (
    ONBOARDING,
    Answer,
    HostedClients,
    Lengths,
    OnboardingRequest,
    Request,
    answer_content,
    hosted_content,
    read_onboarding,
    read_request,
    task_of,
    unfit_content,
)
from coterie.learners import LearnerChoice, make_learner, no_files
from coterie.learners.base import Learner
from coterie.plugins.loading import load_installed

LOG = logging.getLogger("flwr")
"""Flower's logger; its messages stay at the node."""
Load = Callable[[Context], FederatedDataset | RawTable]
"""Function that returns the data of a node's clients, as `from_arrays` or `raw_table` makes it."""
STATE_FOLDER = "state-folder"
"""Name in the node config of the folder for the states of clients."""
UNSUPPORTED_MODS = ("secagg_mod", "secaggplus_mod")
"""Mods whose server side does not work with these exchanges."""


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
    """Return the client app of a node.

    Args:
        load: Function that is called with the node's context for every message and returns the data of the clients at
            this node, as `from_arrays` makes it, or their rows, as `raw_table` makes them.
        learner: A learner that the server cannot name by a text: a function that returns a torch.nn.Module, or a
            learner that starts from a file of this node. By default the server names the learner.
        state_folder: Folder for the states of clients, which some methods need; `state-folder` in the node config
            takes precedence.
        mods: Mods of Flower that wrap every message. SecAgg and SecAgg+ are refused.
        guard: Least privacy that the clients at this node require, whatever the server asks. Answers are counted in
            the state folder, and no error text that leaves the node depends on data.
        limits: Largest request that this node serves; by default `Limits()`.
        plugins: Python files or modules that register tasks or tier members of your own. A relative path is searched
            in the app's folder. Plugins of installed packages and of `COTERIE_PLUGINS` need not be listed.

    Returns:
        The app, which Flower runs at the node.

    Raises:
        ConfigError: if a mod cannot be used or a plugin cannot be imported.

    Example:
        >>> import coterie
        >>> from coterie.flower.node import make_client_app
        >>> def load(context):
        ...     return coterie.from_arrays({"ward-7": ([[0.0], [1.0]], [0.5, 1.5])})
        >>> app = make_client_app(load)
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
        if name in UNSUPPORTED_MODS or "secagg" in name.lower():
            raise ConfigError(
                f"mod {name}: the server side of Flower's secure aggregation does not support these exchanges, so that "
                "nothing would be masked: leave the mod out"
            )


@dataclass(frozen=True)
class Node:
    """Handler of the messages to one node. The fields are the arguments of `make_client_app`."""

    load: Load
    learner: LearnerChoice | None = None
    state_folder: str | Path | None = None
    guard: Guard | None = None
    limits: Limits = field(default_factory=Limits)

    def serve(self, message: Message, context: Context) -> Message:
        """Return the answer to a message; with a guard no error text that leaves the node depends on data."""
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
        """Return the answer to a message, whatever its task, unless the message has expired.

        A busy SuperNode accepts messages and processes them later; Flower drops the answer to an expired message.
        """
        if message.metadata.created_at + message.metadata.ttl < time():
            raise RefusedError(f"this message expired after {message.metadata.ttl:g} s, before it was processed")
        request = None if task_of(message.content) == ONBOARDING else _request(message.content)
        if request is not None:
            self.limits.check(request)
        onboarding = read_onboarding(message.content) if request is None else None
        loaded = self.load(context)
        if not isinstance(loaded, FederatedDataset | RawTable):
            raise ConfigError(f"load must return the result of from_arrays or raw_table, got {type(loaded).__name__}")
        if onboarding is not None:
            return Message(self._onboarding_answer(onboarding, loaded), reply_to=message)
        assert request is not None
        data = loaded if isinstance(loaded, FederatedDataset) else self._encoded(loaded, request.terms.table)
        with torch.no_grad():
            answer = self._answer(request, data, context)
        return Message(answer_content(request.task.name, answer), reply_to=message)

    def _onboarding_answer(self, onboarding: OnboardingRequest, loaded: FederatedDataset | RawTable) -> RecordDict:
        """Return the clients at this node; for a table without a schema, its summary."""
        if isinstance(loaded, FederatedDataset):
            return hosted_content(_hosted(loaded))
        if onboarding.table is not None:
            try:
                data = self._encoded(loaded, onboarding.table)
                with_lengths = onboarding.summaries and self.guard is None
                return hosted_content(replace(_hosted(data), lengths=_lengths(data) if with_lengths else None))
            except CoterieError as error:
                if self.guard is not None:
                    LOG.exception("the table does not fit the schema")
                return unfit_content(str(error) if self.guard is None else FAILED)
        if self.guard is not None or not onboarding.summaries:
            subject = "this node answers" if self.guard else "this run sends"
            raise RefusedError(
                f"{subject} private requests only, and no noise is added to the summary of a table: give the server a "
                "schema beforehand (option schema)"
            )
        offer = loaded.offer()
        return hosted_content(HostedClients(offer.clients, offer.train, offer.test, offer=offer))

    def _encoded(self, table: RawTable, schema: Schema | None) -> FederatedDataset:
        """Return the rows of a table, encoded by the schema of the run."""
        if schema is None:
            raise ConfigError(
                "this node has a table, but the run has no table schema, since the other nodes have arrays: return "
                "the same kind of data from load on every node"
            )
        return table.dataset(schema, self.limits.values)

    def _answer(self, request: Request, data: FederatedDataset, context: Context) -> Answer:
        terms = request.terms
        positions = _positions(request.clients, data)
        if self.guard is not None:
            self.guard.check(request.task)
            self.guard.count(self._folder(context), request.clients)
        group = _group(data, self._learner(terms), terms).take(positions)
        if not terms.keeps:
            return Answer(request.task.run(group, request.broadcast))
        store = ClientStateFolder(self._folder(context), terms.run)
        store.delete_older(request.clients, request.keep_from)
        accepted = request.broadcast.each.get("accepted", torch.full((len(positions),), NEVER))
        states, lost = store.load(request.clients, accepted)
        before = states.store.rounds.clone()
        broadcast = _without(request.broadcast, request.clients, lost)
        reply = request.task.run(replace(group, states=states), broadcast)
        store.save(request.clients, states, before)
        return Answer(reply, lost)

    def _learner(self, terms: Terms) -> Learner:
        """Return the learner that the server names, or the node's own, which must have the same name."""
        read = no_files if self.learner is None else read_tensors  # a server names no files of a node
        made = make_learner(self.learner or terms.learner, terms.profile, read)
        if made.spec != terms.learner:
            raise ConfigError(
                f"the run has learner {terms.learner}, but this node has {made.spec}: give both the same learner"
            )
        return made

    def _folder(self, context: Context) -> Path:
        named = context.node_config.get(STATE_FOLDER, self.state_folder)
        if named is None:
            raise ConfigError(
                "the method or the guard stores states of clients at the node, but no folder is given: pass "
                f"state_folder to make_client_app, or set {STATE_FOLDER} in the node config"
            )
        return Path(str(named)).expanduser()


def _request(content: RecordDict) -> Request:
    """Return the request; installed plugins are loaded if it contains an unknown name."""
    try:
        return read_request(content)
    except MissingPluginError:
        load_installed()
    try:
        return read_request(content)
    except MissingPluginError as error:
        raise RefusedError(error) from None


def _hosted(data: FederatedDataset) -> HostedClients:
    tests = [0] * len(data.clients) if data.test is None else data.test.sizes.tolist()
    return HostedClients(data.clients, tuple(data.train.sizes.tolist()), tuple(tests), DataSchema.of(data))


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
        raise ConfigError(
            f"client {foreign[0]!r} is no longer at this node, where it was registered: return it from load again"
        )
    return np.array([place[client] for client in clients], dtype=np.int64)


def _group(data: FederatedDataset, learner: Learner, terms: Terms) -> ClientGroup:
    if data.profile.features != terms.features:
        raise ConfigError(f"samples at this node have shape {data.profile.features}, but the run has {terms.features}")
    dtype, cpu = torch_dtype(terms.dtype), torch.device("cpu")
    data = data if terms.tests else data.training_only()
    return ClientGroup.of(data, learner, dtype, cpu, terms.validation, terms.seed, keeps=False)


def _without(broadcast: Broadcast, clients: Sequence[ClientId], lost: Sequence[ClientId]) -> Broadcast:
    """Return the broadcast with clients that have lost their state marked as newcomers."""
    if not lost:
        return broadcast
    gone = torch.tensor([client in lost for client in clients])
    accepted = broadcast.each["accepted"].masked_fill(gone, NEVER)
    return replace(broadcast, each={**broadcast.each, "accepted": accepted})
