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
from coterie.flower.wire import Hello, Hosted, Lengths, hello_content, read_hosted

LOG = logging.getLogger("flwr")
"""Flower's own, which goes where its users look."""
FEW = 3
"""Reasons that one sentence names at most."""


class ClientRegistry:
    """The clients by id, with the facts about them that their nodes sent."""

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
            expected: Ids of clients that may come later.
            bound: Nodes of clients, from an earlier part of the run.
            schema: Form of their data, from an earlier part of the run; with it the list of clients is closed.
            admission: Rules for nodes; None: the default limits and no other rule.
            table: Schema of their tables, from an earlier part of the run.
            summaries: Whether nodes may send summaries of their tables.
        """
        self.bound: dict[ClientId, int] = dict(bound or {})
        """Node of every registered client."""
        self.clients: tuple[ClientId, ...] = tuple(sorted({*expected, *self.bound}))
        """All ids, sorted; fixed after `collect`."""
        self.hashes: Words = hash_ids(self.clients)
        self.admission = Admission() if admission is None else admission
        self.table: Schema | None = table or self.admission.demanded.table
        """The schema that nodes encode their tables by; None before it is agreed on, and where nobody has a table."""
        self.column_notes: tuple[ColumnNote, ...] = ()
        """What became of the columns of the tables when the schema was fitted."""
        self.summaries = summaries
        self._schema = schema
        self._hosted: dict[int, Hosted] = {}
        self._refused: set[int] = set()
        self._untold: list[Note] = []

    @property
    def profile(self) -> Profile:
        """Shape of a sample and number of classes."""
        return self.schema.profile

    @property
    def schema(self) -> DataSchema:
        """Form of the data that all nodes agree on; the number of classes is the server's own where it names one."""
        if self._schema is not None:
            return self._schema
        agreed = next(iter(self._hosted.values())).schema
        return agreed if agreed.classes is None else replace(agreed, classes=self._classes or agreed.classes)

    @property
    def _classes(self) -> int | None:
        return self.admission.demanded.classes or None

    @property
    def sizes(self) -> Positions:
        """n_i before anything is held out, shape (m,); 0 for clients that are not registered yet."""
        return self._of_each({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.train, strict=True)})

    @property
    def tests(self) -> Positions:
        """Number of test samples, shape (m,); 0 for clients that are not registered yet."""
        return self._of_each({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.test, strict=True)})

    @property
    def lengths(self) -> Lengths | None:
        """Lengths of the encoded rows of all tables; None where no node tells them."""
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

        If the app fails at every connected node, the registry does not wait any longer.

        Args:
            exchange: Connection to the nodes.
            nodes: Smallest number of nodes.
            wait: Longest time to wait, in seconds.

        Returns:
            Notes about nodes that were refused or failed.

        Raises:
            TrainingError: if too few nodes have connected in time.
            InputError: if the nodes do not agree on their data, or no schema fits their tables.
        """
        if nodes < 1:
            raise ConfigError(f"nodes must be a number from 1 on, got {nodes}: a run begins with one at least")
        found, end = dict[str, Note](), exchange.clock() + wait
        while True:
            for note in self.onboard(exchange):
                if found.setdefault(note.reason, note) is note:  # the user should see why the run waits
                    LOG.warning("%s", note.reason)
            self._refuse_disagreement()
            self._check_hope(exchange, nodes, found.values())
            if self._complete(nodes) or exchange.clock() >= end:
                break
            exchange.sleep(exchange.poll)
        notes = list(found.values())
        if len(self._hosted) < nodes:
            why = f" ({notes[0].reason})" if notes else ""
            raise TrainingError(
                f"{nodes} nodes were waited for, but {len(self._hosted)} have come within {wait:g} s{why}: start the "
                "nodes, or wait longer"
            )
        notes += self._agree(exchange)
        self._close()
        self._untold = notes
        return notes

    def _close(self) -> None:
        """Fix the list of clients and the form of their data."""
        self.clients = tuple(sorted({*self.clients, *self.bound}))
        self.hashes = hash_ids(self.clients)
        self._schema = self.schema

    def _agree(self, exchange: Exchange) -> list[Note]:
        """Fit a schema to the summaries of tables, and send it to the nodes that sent one."""
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
            raise InputError(
                f"no node can use the schema that was fitted to the tables: {'; '.join(n.reason for n in notes[:FEW])}"
            )
        return notes

    def _dismiss(self, node: int, why: str) -> Note:
        """Refuse a node that was registered before."""
        hosted = self._hosted.pop(node)
        self.bound = {client: home for client, home in self.bound.items() if home != node}
        return self._refuse(node, hosted.clients, why)

    def _check_hope(self, exchange: Exchange, nodes: int, notes: Iterable[Note]) -> None:
        """Raise an error if enough nodes are connected, and the app of every one of them fails."""
        if self._hosted or not exchange.failed:
            return
        connected = exchange.nodes()
        if len(connected) >= nodes and connected <= exchange.failed:
            reasons = [note.reason for note in notes if note.node in map(str, connected)]
            why = "; ".join(reasons[:FEW] + ([f"and {len(reasons) - FEW} more"] if len(reasons) > FEW else []))
            raise TrainingError(
                f"the app failed at every connected node ({why}): correct 'load' or its data, and start the run again"
            )

    @property
    def _closed(self) -> bool:
        return self._schema is not None

    def onboard(self, exchange: Exchange) -> list[Note]:
        """Ask new nodes for their clients, and return notes about what went wrong, including those of `collect`.

        A node that does not answer by the deadline delays the others once: it is not asked again until it responds.
        """
        untold, self._untold = self._untold, []
        strangers = exchange.nodes() - self._hosted.keys() - self._refused
        free = exchange.free(strangers) if strangers else set[int]()
        if not free:
            return untold
        hello = hello_content(Hello(self.table, self.summaries))
        heard = exchange.send(dict.fromkeys(sorted(free), hello))
        keys = exchange.keys() if self.admission.allowed is not None else {}
        notes = untold + [Note(f"node {node} {reason}", node=str(node)) for node, reason in heard.troubles]
        for node in sorted(heard.contents):
            notes += self._admit(node, heard.contents[node], keys.get(node, b""))
        return notes

    def _admit(self, node: int, content: RecordDict, key: bytes) -> list[Note]:
        """Bind the clients of a node that nobody else has brought, whatever the node has sent."""
        try:
            hosted = read_hosted(content, self.admission.most_clients, self.admission.most_samples)
            why = self._why_not(node, hosted, key)
        except InputError as error:
            return [self._refuse(node, (), str(error))]
        except Exception as error:  # nothing that one node sends may stop the server
            return [self._refuse(node, (), f"sent what cannot be checked ({one_line(str(error))})")]
        if why is not None:
            return [self._refuse(node, hosted.clients, why)]
        unknown = tuple(c for c in hosted.clients if self._closed and c not in self.clients)
        self._hosted[node] = hosted
        self.bound |= {c: node for c in hosted.clients if c not in unknown}
        if unknown:
            why = f"node {node} brings clients that the run does not know: they are left out"
            return [Note(why, unknown, str(node))]
        return []

    def _why_not(self, node: int, hosted: Hosted, key: bytes) -> str | None:
        """Say why the clients of a node cannot take part; None: they can."""
        why = self.admission.foreign(node, key, hosted.clients)
        if why is not None:
            return why
        taken = next((c for c in hosted.clients if self.bound.get(c, node) != node), None)
        if taken is not None:
            return f"brings client {taken!r}, which lives at node {self.bound[taken]}: a client keeps its node"
        if hosted.offer is not None:
            return None if self.table is None and self.summaries else "sent a summary that nobody has asked for"
        odd = next(self.admission.demanded.differences(hosted.schema), None)
        if odd is None and self._schema is not None:
            odd = difference(self._comparable(hosted.schema), self._schema, "the run")
        if odd is not None:
            return odd
        if self._closed and not set(self.clients) & set(hosted.clients):
            return "brings nobody that the run knows: announce clients that come later"
        return None

    def _comparable(self, schema: DataSchema) -> DataSchema:
        """The schema of a node that may have met fewer classes than the server has named, or than the run knows."""
        known = self._classes if self._schema is None else self._schema.classes
        if schema.classes is None or schema.class_names or known is None or schema.classes > known:
            return schema
        return replace(schema, classes=known)

    def _refuse_disagreement(self) -> None:
        """Raise where nodes bring data of different forms: neither of them may choose for all."""
        encoded = [node for node, hosted in self._hosted.items() if hosted.offer is None]
        if self._closed or not encoded:
            return
        first, *others = encoded
        reference = self._comparable(self._hosted[first].schema)
        for node in others:
            odd = difference(self._comparable(self._hosted[node].schema), reference, f"node {first}")
            if odd is not None:
                raise InputError(
                    f"the nodes do not agree on their data: node {node} {odd}; leave one of them out, or name the "
                    "expected form on the server (schema), which refuses the others"
                )

    def _refuse(self, node: int, clients: tuple[ClientId, ...], why: str) -> Note:
        self._refused.add(node)
        return Note(f"node {node} {why}: refused", clients, str(node))

    def _complete(self, nodes: int) -> bool:
        return len(self._hosted) >= nodes and all(self.node_of(c) is not None for c in self.clients)

    def _of_each(self, counts: Mapping[ClientId, int]) -> Positions:
        return np.array([counts.get(c, 0) for c in self.clients], dtype=np.int64)
