"""The federation over a Flower Grid: one message per node, a deadline, a quorum, and checks before aggregation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import Array, RecordDict
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.federation import Note, Replies
from coterie.core.keys import Words
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task
from coterie.core.validation import held_out_sizes
from coterie.errors import ConfigError
from coterie.flower.checks import CheckHistory, SentRequest, check_answers
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.exchange import Exchange
from coterie.flower.terms import Terms
from coterie.flower.wire import Answer, Request, request_content

CHANGE_FACTOR = 1000.0
"""Default of the largest ratio of the norm of a change of a model to the median over the nodes."""


@dataclass
class FlowerFederation:
    """Federation of the clients of a registry, which the server asks through Flower."""

    exchange: Exchange
    registry: ClientRegistry
    terms: Terms
    quorum: float = 0.0
    """Smallest share of the asked clients that must answer by the deadline; otherwise no answer is used."""
    most_change: float | None = None
    """Largest norm of a change of a model; an answer with a larger one is refused. None: no limit."""
    change_factor: float | None = CHANGE_FACTOR
    """Largest ratio of the norm of a change to the median over the nodes; None: no limit. Not used in private runs."""
    notes: list[Note] = field(default_factory=list)
    """All problems so far; the problems of a round are in its record, too."""
    history: CheckHistory = field(init=False)
    """Facts from the checks of earlier exchanges."""
    keep_from: Tensor = field(init=False)
    """First round whose state each client must keep, see `release`, (m,)."""

    def __post_init__(self) -> None:
        if not 0 <= self.quorum <= 1:
            raise ConfigError(f"quorum must be a share from 0 to 1 of the asked clients, got {self.quorum!r}")
        if self.most_change is not None and not self.most_change > 0:
            raise ConfigError(f"most_change must be above 0, got {self.most_change!r}: leave it out for no limit")
        if self.change_factor is not None and not self.change_factor >= 1:
            raise ConfigError(f"change_factor must be at least 1, got {self.change_factor!r}")
        self.history = CheckHistory()
        self.keep_from = torch.full((len(self.clients),), NEVER, dtype=torch.int64)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All ids, sorted."""
        return self.registry.clients

    @property
    def hashes(self) -> Words:
        """One word for each client, derived from its id."""
        return self.registry.hashes

    @property
    def sizes(self) -> Positions:
        """Training samples n_i, shape (m,); 0 for expected clients that are not registered yet."""
        sizes = self.registry.sizes
        return sizes if self.terms.validation is None else sizes - held_out_sizes(sizes, self.terms.validation)

    @property
    def store(self) -> None:
        """None: clients store their states at their nodes."""
        return

    def pooled(self, groups: Positions) -> None:
        """None: the data of remote clients cannot be pooled."""
        return

    def release(self, accepted: Tensor) -> None:
        """Store the accepted rounds; the next message to the clients makes them delete older states."""
        self.keep_from = accepted.clone()

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Send a task to clients and return the replies that passed the checks.

        Args:
            task: The task.
            broadcast: Models and other values for the clients, with one row for each asked client.
            asked: Positions of the clients.

        Returns:
            The merged reply, the bytes sent and received, and notes about missing or refused clients.
        """
        notes = self.registry.onboard(self.exchange)
        nodes, absent = self._by_node(asked)
        packed: dict[Tensor, Array] = {}
        received = self.exchange.send(
            {node: self._content(task, broadcast.to(part), asked[part], packed) for node, part in nodes.items()}
        )
        compared = self._sent_requests(task, broadcast, asked, nodes)
        sound, refused = check_answers(received.contents, compared, self.history)
        troubles = [*received.troubles, *((node, f"{why}: refused") for node, why in refused.items())]
        notes += absent + [self._note(node, why, asked, nodes) for node, why in troubles]
        notes += [note for node, answer in sound.items() if (note := _lost_state_note(node, answer)) is not None]
        reply = self._merged([answer.reply for answer in sound.values()], asked)
        left_out = tuple(self.clients[i] for node in refused for i in asked[nodes[node]])
        reply = replace(reply, rejected=(*reply.rejected, *left_out))
        sent = np.concatenate([nodes[node] for node in nodes if node in received.sent] or [np.zeros(0, np.int64)])
        replies = Replies(reply, reply.nbytes, _bytes_down(broadcast, sent), tuple(notes))
        return self._noted(self._with_quorum(replies, len(asked)))

    def _by_node(self, asked: Positions) -> tuple[dict[int, Positions], list[Note]]:
        """Return the places in `asked` of each connected node's clients, and notes about clients that cannot be asked.

        Nodes are in the order of their first clients' ids, since rounding makes sums depend on the order.
        """
        connected = self.exchange.nodes()
        places: dict[int, list[int]] = {}
        absent: dict[str, list[ClientId]] = {}
        for place in np.argsort(asked, kind="stable"):
            client = self.clients[asked[place]]
            node = self.registry.node_of(client)
            if node is None:
                absent.setdefault("have not joined yet", []).append(client)
            elif node not in connected:
                absent.setdefault(f"belong to node {node}, which is not connected", []).append(client)
            else:
                places.setdefault(node, []).append(place)
        notes = [Note(f"{len(clients)} clients {why}", tuple(clients)) for why, clients in absent.items()]
        return {node: np.array(part) for node, part in places.items()}, notes

    def _content(self, task: Task, broadcast: Broadcast, clients: Positions, packed: dict[Tensor, Array]) -> RecordDict:
        """Return the message to a node.

        Args:
            task: The task.
            broadcast: The part of the broadcast for the clients of this node.
            clients: Positions of these clients.
            packed: Arrays that were packed for other nodes already; new ones are added.
        """
        names = tuple(self.clients[i] for i in clients)
        keep_from = tuple(self.keep_from[torch.from_numpy(clients)].tolist())
        return request_content(Request(self.terms, task, broadcast, names, keep_from), packed)

    def _sent_requests(
        self, task: Task, broadcast: Broadcast, asked: Positions, nodes: Mapping[int, Positions]
    ) -> dict[int, SentRequest]:
        """Return the request of each node for the checks; `nodes` has the places of its clients in `asked`."""
        sizes, only = self.sizes, broadcast.only
        form = task.expected_reply(broadcast, self.terms)
        most, factor = self.most_change, self.change_factor
        if form is not None:
            most = min(math.inf if most is None else most, form.longest_change)
            factor = factor if form.compares_changes else None
        whole = SentRequest(task.name, broadcast.clusters, {}, form, task.trains, most, factor)
        return {
            node: replace(
                whole,
                sizes={self.clients[i]: int(sizes[i]) for i in asked[part]},
                only=None if only is None else only[torch.from_numpy(part)],
            )
            for node, part in nodes.items()
        }

    def _merged(self, replies: Sequence[Reply], asked: Positions) -> Reply:
        """Return one reply for all nodes, with its rows in the order in which clients were asked."""
        reply = merge(replies)
        place = {self.clients[i]: at for at, i in enumerate(asked)}
        order = sorted(range(len(reply.clients)), key=lambda row: place[reply.clients[row]])
        return replace(
            reply,
            clients=tuple(reply.clients[row] for row in order),
            rows={name: value[torch.tensor(order)] for name, value in reply.rows.items()} if order else reply.rows,
        )

    def _with_quorum(self, replies: Replies, asked: int) -> Replies:
        """Return the replies, or an empty reply with a note if too few clients answered."""
        answered = len(replies.reply.clients)
        if answered >= self.quorum * asked:
            return replies
        why = f"{answered} of {asked} clients answered, but the quorum is {self.quorum:g}: the answers are not used"
        return replace(
            replies,
            reply=Reply(clients=(), rejected=replies.reply.rejected),
            notes=(*replies.notes, Note(why, replies.reply.clients)),
        )

    def _noted(self, replies: Replies) -> Replies:
        self.notes += replies.notes
        return replies

    def _note(self, node: int, why: str, asked: Positions, nodes: Mapping[int, Positions]) -> Note:
        clients = tuple(self.clients[i] for i in asked[nodes[node]]) if node in nodes else ()
        return Note(f"node {node} {why}", clients, str(node))


def _lost_state_note(node: int, answer: Answer) -> Note | None:
    """Return a note about clients that have lost their state and restarted like newcomers; their answers count."""
    if not answer.lost:
        return None
    return Note(f"node {node} has lost the stored state of these clients: they started anew", answer.lost, str(node))


def _bytes_down(broadcast: Broadcast, sent: Positions) -> int:
    """Return the number of bytes sent to the clients at these places of the broadcast."""
    only = None if broadcast.only is None else broadcast.only[torch.from_numpy(sent)]
    return replace(broadcast, only=only).bytes_for(len(sent))
