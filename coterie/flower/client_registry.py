"""The client registry: the clients of a federation, each bound to the node that registered it first.

Before the first exchange the registry collects the clients of the connected nodes (`ClientRegistry.collect`). This
closes the list of clients: those that have been registered, and those that were announced (`expected`). Nodes with
tables agree on a schema at this moment: the registry fits it to their summaries and sends it to them. A node that
connects later, or again, is onboarded before the next exchange and may register clients of the list that no other node
has registered; a client never changes its node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

from coterie.core.dataset import Profile
from coterie.core.federation import Note
from coterie.core.keys import Words, hash_ids
from coterie.core.schema import ColumnNote, Schema
from coterie.core.shard import ClientId, Positions
from coterie.errors import ConfigError, InputError, TrainingError
from coterie.flower.admission import Admission
from coterie.flower.agreement import agree
from coterie.flower.exchange import Exchange
from coterie.flower.schema import DataSchema, difference
from coterie.flower.untrusted import one_line
from coterie.flower.wire import HostedClients, Lengths, OnboardingRequest, onboarding_content, read_hosted

LOG = logging.getLogger("flwr")
"""Flower's logger, so that messages appear in the log of the server app."""
MAX_REASONS = 3
"""Largest number of reasons in one message."""


class ClientRegistry:
    """Registered clients of a federation, with the facts that their nodes sent about them."""

    def __init__(
        self,
        expected: Iterable[ClientId] = (),
        bound: Mapping[ClientId, int] | None = None,
        schema: DataSchema | None = None,
        admission: Admission | None = None,
        table: Schema | None = None,
        summaries: bool = True,
    ) -> None:
        """Create an empty registry.

        Args:
            expected: Ids of clients that may join later.
            bound: Node of each client, from an earlier part of the run.
            schema: Form of the data, from an earlier part of the run. If it is given, the list of clients is closed.
            admission: Rules for nodes. None: the default limits and no other rule.
            table: Schema of the tables, from an earlier part of the run.
            summaries: Whether nodes may send summaries of their tables.
        """
        self.bound: dict[ClientId, int] = dict(bound or {})
        """Node of every registered client."""
        self.clients: tuple[ClientId, ...] = tuple(sorted({*expected, *self.bound}))
        """All ids, sorted; fixed after `collect`."""
        self.hashes: Words = hash_ids(self.clients)
        self.admission = Admission() if admission is None else admission
        self.table: Schema | None = table or self.admission.required.table
        """Schema that nodes encode their tables by; None before nodes agree on it, and if no node has a table."""
        self.column_notes: tuple[ColumnNote, ...] = ()
        """How the columns of the tables are used, from the fit of the schema."""
        self.summaries = summaries
        self._schema = schema
        self._hosted: dict[int, HostedClients] = {}
        self._refused: set[int] = set()
        self._unreported: list[Note] = []

    @property
    def profile(self) -> Profile:
        """Shape of a sample and number of classes."""
        return self.schema.profile

    @property
    def schema(self) -> DataSchema:
        """Form of the data that all nodes agree on; a number of classes given on the server takes precedence."""
        if self._schema is not None:
            return self._schema
        agreed = next(iter(self._hosted.values())).schema
        return agreed if agreed.classes is None else replace(agreed, classes=self._classes or agreed.classes)

    @property
    def _classes(self) -> int | None:
        return self.admission.required.classes or None

    @property
    def sizes(self) -> Positions:
        """Training samples n_i before the validation split, shape (m,); 0 for clients that are not registered yet."""
        return self._per_client({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.train, strict=True)})

    @property
    def tests(self) -> Positions:
        """Number of test samples, shape (m,); 0 for clients that are not registered yet."""
        return self._per_client({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.test, strict=True)})

    @property
    def lengths(self) -> Lengths | None:
        """Lengths of the encoded rows of all tables; None if no node sends them."""
        known = [(h.lengths, sum(h.train)) for h in self._hosted.values() if h.lengths is not None]
        if not known:
            return None
        rows = sum(count for _, count in known)
        overall = sum(lengths.overall * (count / rows) for lengths, count in known)
        return Lengths(max(lengths.largest for lengths, _ in known), overall)

    def node_of(self, client: ClientId) -> int | None:
        """Return the node that registered this client; None if none has."""
        node = self.bound.get(client)
        return node if node in self._hosted else None

    def collect(self, exchange: Exchange, nodes: int = 1, wait: float = 600.0) -> list[Note]:
        """Onboard nodes until enough of them and all expected clients are registered, then close the list of clients.

        The registry stops waiting if the app fails at every connected node.

        Args:
            exchange: Connection to the nodes.
            nodes: Number of nodes to wait for.
            wait: Longest time to wait, in seconds.

        Returns:
            Notes about nodes that were refused or failed.

        Raises:
            ConfigError: if `nodes` is less than 1.
            TrainingError: if too few nodes connect in time, or the app fails at all of them.
            InputError: if the nodes do not agree on their data, or no schema fits their tables.
        """
        if nodes < 1:
            raise ConfigError(f"nodes must be at least 1, got {nodes}")
        found, end = dict[str, Note](), exchange.clock() + wait
        while True:
            for note in self.onboard(exchange):
                if found.setdefault(note.reason, note) is note:  # so that the log shows why the run waits
                    LOG.warning("%s", note.reason)
            self._refuse_disagreement()
            self._check_failed_apps(exchange, nodes, found.values())
            if self._complete(nodes) or exchange.clock() >= end:
                break
            exchange.sleep(exchange.poll)
        notes = list(found.values())
        if len(self._hosted) < nodes:
            why = f" ({notes[0].reason})" if notes else ""
            raise TrainingError(
                f"only {len(self._hosted)} of {nodes} nodes registered clients within {wait:g} s{why}: start the "
                "missing nodes, or increase wait"
            )
        notes += self._agree(exchange)
        self._close()
        self._unreported = notes
        return notes

    def _close(self) -> None:
        """Fix the list of clients and the form of their data."""
        self.clients = tuple(sorted({*self.clients, *self.bound}))
        self.hashes = hash_ids(self.clients)
        self._schema = self.schema

    def _agree(self, exchange: Exchange) -> list[Note]:
        """Fit a schema to the summaries of tables, and send it to the nodes that sent the summaries."""
        offers = {node: hosted.offer for node, hosted in self._hosted.items() if hosted.offer is not None}
        if not offers:
            return []
        agreed = agree(offers)
        self.table, self.column_notes = agreed.schema, agreed.notes
        form = DataSchema.of_table(agreed.schema)
        unfit = {
            node: why
            for node, hosted in self._hosted.items()
            if hosted.offer is None and (why := difference(hosted.schema, form, "the schema of the tables"))
        }
        notes = [self._dismiss(node, why) for node, why in {**agreed.unfit, **unfit}.items()]
        self._hosted = {node: hosted for node, hosted in self._hosted.items() if node not in offers}
        self._schema = form
        self._close()
        notes += self.onboard(exchange)
        for note in notes:
            LOG.warning("%s", note.reason)
        if not self._hosted:
            reasons = "; ".join(note.reason for note in notes[:MAX_REASONS])
            raise InputError(f"no node can use the schema that was fitted to the tables: {reasons}")
        return notes

    def _dismiss(self, node: int, why: str) -> Note:
        """Refuse a node that was registered before."""
        hosted = self._hosted.pop(node)
        self.bound = {client: home for client, home in self.bound.items() if home != node}
        return self._refuse(node, hosted.clients, why)

    def _check_failed_apps(self, exchange: Exchange, nodes: int, notes: Iterable[Note]) -> None:
        """Raise an error if enough nodes are connected and the app fails at every one of them."""
        if self._hosted or not exchange.failed:
            return
        connected = exchange.nodes()
        if len(connected) >= nodes and connected <= exchange.failed:
            reasons = [note.reason for note in notes if note.node in map(str, connected)]
            more = [f"and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
            why = "; ".join(reasons[:MAX_REASONS] + more)
            raise TrainingError(
                f"the app failed at every connected node ({why}): correct 'load' or its data, and start the run again"
            )

    @property
    def _closed(self) -> bool:
        return self._schema is not None

    def onboard(self, exchange: Exchange) -> list[Note]:
        """Ask new nodes for their clients, and return notes about problems, including those of `collect`.

        A node that does not answer by the deadline delays the others only once: it is not asked again until it
        responds.
        """
        unreported, self._unreported = self._unreported, []
        new_nodes = exchange.nodes() - self._hosted.keys() - self._refused
        free = exchange.free(new_nodes) if new_nodes else set[int]()
        if not free:
            return unreported
        onboarding = onboarding_content(OnboardingRequest(self.table, self.summaries))
        received = exchange.send(dict.fromkeys(sorted(free), onboarding))
        keys = exchange.keys() if self.admission.allowed is not None else {}
        notes = unreported + [Note(f"node {node} {reason}", node=str(node)) for node, reason in received.troubles]
        for node in sorted(received.contents):
            notes += self._admit(node, received.contents[node], keys.get(node, b""))
        return notes

    def _admit(self, node: int, content: RecordDict, key: bytes) -> list[Note]:
        """Register the clients of a node, or refuse the node, whatever it has sent."""
        try:
            hosted = read_hosted(content, self.admission.most_clients, self.admission.most_samples)
            why = self._refusal_reason(node, hosted, key)
        except InputError as error:
            return [self._refuse(node, (), str(error))]
        except Exception as error:  # nothing that one node sends may stop the server
            return [self._refuse(node, (), f"sent a message that cannot be checked ({one_line(str(error))})")]
        if why is not None:
            return [self._refuse(node, hosted.clients, why)]
        unknown = tuple(c for c in hosted.clients if self._closed and c not in self.clients)
        self._hosted[node] = hosted
        self.bound |= {c: node for c in hosted.clients if c not in unknown}
        if unknown:
            why = f"node {node} has clients that are not part of the run: they are left out"
            return [Note(why, unknown, str(node))]
        return []

    def _refusal_reason(self, node: int, hosted: HostedClients, key: bytes) -> str | None:
        """Return why the clients of a node cannot take part; None if they can."""
        why = self.admission.foreign(node, key, hosted.clients)
        if why is not None:
            return why
        taken = next((c for c in hosted.clients if self.bound.get(c, node) != node), None)
        if taken is not None:
            owner = self.bound[taken]
            return f"registers client {taken!r}, which belongs to node {owner}: a client cannot change its node"
        if hosted.offer is not None:
            return None if self.table is None and self.summaries else "sent a summary that was not requested"
        odd = next(self.admission.required.differences(hosted.schema), None)
        if odd is None and self._schema is not None:
            odd = difference(self._comparable(hosted.schema), self._schema, "the run")
        if odd is not None:
            return odd
        if self._closed and not set(self.clients) & set(hosted.clients):
            return "has no client of this run: list clients that may join later under expected"
        return None

    def _comparable(self, schema: DataSchema) -> DataSchema:
        """Return the schema of a node with the run's number of classes, since the node may have seen only some."""
        known = self._classes if self._schema is None else self._schema.classes
        if schema.classes is None or schema.class_names or known is None or schema.classes > known:
            return schema
        return replace(schema, classes=known)

    def _refuse_disagreement(self) -> None:
        """Raise an error if nodes have data of different forms: no node may decide for the others."""
        encoded = [node for node, hosted in self._hosted.items() if hosted.offer is None]
        if self._closed or not encoded:
            return
        first, *others = encoded
        reference = self._comparable(self._hosted[first].schema)
        for node in others:
            odd = difference(self._comparable(self._hosted[node].schema), reference, f"node {first}")
            if odd is not None:
                raise InputError(
                    f"the nodes do not agree on their data: node {node} {odd}; leave one of them out, or give the "
                    "server the expected form (option schema), so that it refuses the other"
                )

    def _refuse(self, node: int, clients: tuple[ClientId, ...], why: str) -> Note:
        self._refused.add(node)
        return Note(f"node {node} {why}: refused", clients, str(node))

    def _complete(self, nodes: int) -> bool:
        return len(self._hosted) >= nodes and all(self.node_of(c) is not None for c in self.clients)

    def _per_client(self, counts: Mapping[ClientId, int]) -> Positions:
        return np.array([counts.get(c, 0) for c in self.clients], dtype=np.int64)
