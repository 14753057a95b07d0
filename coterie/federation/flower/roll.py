"""Who lives where: the clients of a federation, bound to the node that brought them first.

Before the first exchange nodes are called (`Roll.call`). With that the list of clients is closed: those that came, and
those that were announced (`expected`). A node that comes later, or again, is greeted before the next exchange and may
bring clients of the list that nobody has brought; a client never changes its node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from coterie.core.federation import Note
from coterie.core.keys import Words, hash_ids
from coterie.core.population import Profile
from coterie.core.shard import ClientId, Positions
from coterie.errors import ConfigError, InputError, TrainingError
from coterie.federation.flower.exchange import Exchange
from coterie.federation.flower.wire import Hosted, hello_content, read_hosted

LOG = logging.getLogger("flwr")
"""Flower's own, which goes where its users look."""
FEW = 3
"""Reasons that one sentence names at most."""


class Roll:
    """The clients by id, with what their nodes said of them."""

    def __init__(
        self,
        expected: Iterable[ClientId] = (),
        bound: Mapping[ClientId, int] | None = None,
        profile: Profile | None = None,
    ) -> None:
        """expected: ids that are announced.

        bound, profile: the nodes of clients, and of what kind their data is, from an earlier part of the run; then the
        list of clients is closed.
        """
        self.bound: dict[ClientId, int] = dict(bound or {})
        """The node of every client that came."""
        self.clients: tuple[ClientId, ...] = tuple(sorted({*expected, *self.bound}))
        """All ids, sorted; fixed once the roll was called."""
        self.hashes: Words = hash_ids(self.clients)
        self._profile = profile
        self._hosted: dict[int, Hosted] = {}
        self._refused: set[int] = set()
        self._untold: list[Note] = []

    @property
    def profile(self) -> Profile:
        """The shape of a sample, and C of all together: of those that came until the list was closed."""
        if self._profile is not None:
            return self._profile
        profiles = [hosted.profile for hosted in self._hosted.values()]
        if profiles[0].classes is None:
            return profiles[0]
        return Profile(profiles[0].features, max(p.classes or 0 for p in profiles))

    @property
    def sizes(self) -> Positions:
        """n_i before anything is held out, shape (m,); 0 of those that have not come."""
        return self._of_each({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.train, strict=True)})

    @property
    def tests(self) -> Positions:
        """Test samples, shape (m,); 0 of those that have not come."""
        return self._of_each({c: n for h in self._hosted.values() for c, n in zip(h.clients, h.test, strict=True)})

    def node_of(self, client: ClientId) -> int | None:
        """The node that has brought this client to this roll; None: it has not come."""
        node = self.bound.get(client)
        return node if node in self._hosted else None

    def call(self, exchange: Exchange, nodes: int = 1, wait: float = 600.0) -> list[Note]:
        """Greet whoever comes until so many nodes and all expected clients are there, at most `wait` seconds.

        Then the list of clients is closed. If the app fails at every node, nobody is waited for.
        """
        if nodes < 1:
            raise ConfigError(f"nodes must be a number from 1 on, got {nodes}: a run begins with one at least")
        told, end = dict[str, Note](), exchange.clock() + wait
        while True:
            for note in self.greet(exchange):
                if told.setdefault(note.reason, note) is note:  # who waits should see why
                    LOG.warning("%s", note.reason)
            self._check_hope(exchange, nodes, told.values())
            if self._complete(nodes) or exchange.clock() >= end:
                break
            exchange.sleep(exchange.poll)
        notes = list(told.values())
        if len(self._hosted) < nodes:
            why = f" ({notes[0].reason})" if notes else ""
            raise TrainingError(
                f"{nodes} nodes were waited for, but {len(self._hosted)} have come within {wait:g} s{why}: start the "
                "nodes, or wait longer"
            )
        self.clients = tuple(sorted({*self.clients, *self.bound}))
        self.hashes = hash_ids(self.clients)
        self._profile = self.profile
        self._untold = notes
        return notes

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
        return self._profile is not None

    def greet(self, exchange: Exchange) -> list[Note]:
        """Ask the nodes that nobody has seen yet who lives there; what went wrong, and what did at the call.

        One that does not answer by the deadline holds up the others once: until it gives a sign it is not asked again.
        """
        untold, self._untold = self._untold, []
        strangers = exchange.nodes() - self._hosted.keys() - self._refused
        free = exchange.free(strangers) if strangers else set[int]()
        if not free:
            return untold
        heard = exchange.send(dict.fromkeys(sorted(free), hello_content()))
        notes = untold + [Note(f"node {node} {reason}", node=str(node)) for node, reason in heard.troubles]
        for node in sorted(heard.contents):
            try:
                hosted = read_hosted(heard.contents[node])
            except InputError as error:
                notes.append(self._refuse(node, (), str(error)))
            else:
                notes += self._admit(node, hosted)
        return notes

    def _admit(self, node: int, hosted: Hosted) -> list[Note]:
        """Bind the clients of a node that nobody else has brought."""
        taken = [c for c in hosted.clients if self.bound.get(c, node) != node]
        if taken:
            why = f"brings client {taken[0]!r}, which lives at node {self.bound[taken[0]]}: a client keeps its node"
            return [self._refuse(node, hosted.clients, why)]
        if (why_not := self._odd_data(hosted.profile)) is not None:
            return [self._refuse(node, hosted.clients, why_not)]
        unknown = tuple(c for c in hosted.clients if self._closed and c not in self.clients)
        if len(unknown) == len(hosted.clients):
            return [self._refuse(node, unknown, "brings nobody that the run knows: announce clients that come later")]
        self._hosted[node] = hosted
        self.bound |= {c: node for c in hosted.clients if c not in unknown}
        if unknown:
            why = f"node {node} brings clients that the run does not know: they are left out"
            return [Note(why, unknown, str(node))]
        return []

    def _odd_data(self, profile: Profile) -> str | None:
        """Why data of this profile does not go with that of the others."""
        if not self._hosted and not self._closed:
            return None
        known = self.profile
        if profile.features != known.features:
            return f"has samples of shape {profile.features}, but those of the others have {known.features}"
        if (profile.classes is None) != (known.classes is None):
            return "has numbers for labels where the others have classes, or the reverse"
        if self._closed and (profile.classes or 0) > (known.classes or 0):
            return f"has {profile.classes} classes, but the run was begun with {known.classes}"
        return None

    def _refuse(self, node: int, clients: tuple[ClientId, ...], why: str) -> Note:
        self._refused.add(node)
        return Note(f"node {node} {why}: refused", clients, str(node))

    def _complete(self, nodes: int) -> bool:
        return len(self._hosted) >= nodes and all(self.node_of(c) is not None for c in self.clients)

    def _of_each(self, counts: Mapping[ClientId, int]) -> Positions:
        return np.array([counts.get(c, 0) for c in self.clients], dtype=np.int64)
