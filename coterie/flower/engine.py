"""The one verb over a Flower Grid: one message a node, a deadline, a quorum, and checks before anything is added up."""

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
from coterie.flower.checks import Asked, Memory, sort_out
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.exchange import Exchange
from coterie.flower.terms import Terms
from coterie.flower.wire import Answer, Request, request_content

CHANGE_FACTOR = 1000.0
"""Changes of a model that are so many times as long as the median over the nodes are refused."""


@dataclass
class FlowerFederation:
    """The clients of a registry, wherever their nodes are."""

    exchange: Exchange
    registry: ClientRegistry
    terms: Terms
    quorum: float = 0.0
    """Share of the asked clients that must answer by the deadline; with fewer the exchange counts as unanswered."""
    most_change: float | None = None
    """Largest length of a change of a model; an answer with a longer one is refused. None: any length."""
    change_factor: float | None = CHANGE_FACTOR
    """Largest ratio of the length of a change to the median over the nodes; None: any. Private runs do not use it."""
    notes: list[Note] = field(default_factory=list)
    """Everything that went wrong so far; a round's part is in its record, too."""
    memory: Memory = field(init=False)
    """What the checks of earlier exchanges have shown."""
    keep_from: Tensor = field(init=False)
    """(m,) the rounds that clients must keep their states from, see `release`."""

    def __post_init__(self) -> None:
        if not 0 <= self.quorum <= 1:
            raise ConfigError(f"quorum is a share between 0 and 1 of the asked clients, got {self.quorum!r}")
        if self.most_change is not None and not self.most_change > 0:
            raise ConfigError(f"most_change is a length above 0, got {self.most_change!r}: leave it out for any")
        if self.change_factor is not None and not self.change_factor >= 1:
            raise ConfigError(f"change_factor is a number of at least 1, got {self.change_factor!r}")
        self.memory = Memory()
        self.keep_from = torch.full((len(self.clients),), NEVER, dtype=torch.int64)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All ids, sorted."""
        return self.registry.clients

    @property
    def hashes(self) -> Words:
        """One word a client, from its id."""
        return self.registry.hashes

    @property
    def sizes(self) -> Positions:
        """n_i, shape (m,); 0 for expected clients that are not registered yet."""
        sizes = self.registry.sizes
        return sizes if self.terms.validation is None else sizes - held_out_sizes(sizes, self.terms.validation)

    @property
    def store(self) -> None:
        """Clients keep their states where they live."""
        return

    def pooled(self, groups: Positions) -> None:
        """The data of remote clients cannot be put in one place."""
        return

    def release(self, accepted: Tensor) -> None:
        """Remember the rounds; with their next message clients learn of them and delete older state."""
        self.keep_from = accepted.clone()

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        notes = self.registry.onboard(self.exchange)
        nodes, absent = self._by_node(asked)
        packed: dict[Tensor, Array] = {}
        heard = self.exchange.send(
            {node: self._content(task, broadcast.to(part), asked[part], packed) for node, part in nodes.items()}
        )
        compared = self._compared(task, broadcast, asked, nodes)
        sound, refused = sort_out(heard.contents, compared, self.memory)
        troubles = [*heard.troubles, *((node, f"{why}: refused") for node, why in refused.items())]
        notes += absent + [self._note(node, why, asked, nodes) for node, why in troubles]
        notes += [note for node, answer in sound.items() if (note := _lost(node, answer)) is not None]
        reply = self._in_order([answer.reply for answer in sound.values()], asked)
        left_out = tuple(self.clients[i] for node in refused for i in asked[nodes[node]])
        reply = replace(reply, rejected=(*reply.rejected, *left_out))
        sent = np.concatenate([nodes[node] for node in nodes if node in heard.sent] or [np.zeros(0, np.int64)])
        replies = Replies(reply, reply.nbytes, _bytes_down(broadcast, sent), tuple(notes))
        return self._noted(self._with_quorum(replies, len(asked)))

    def _by_node(self, asked: Positions) -> tuple[dict[int, Positions], list[Note]]:
        """The places in `asked` of the clients of each node that is connected, and who cannot be asked.

        Nodes come in the order of their first clients' ids, since sums depend on the order.
        """
        connected = self.exchange.nodes()
        places: dict[int, list[int]] = {}
        absent: dict[str, list[ClientId]] = {}
        for place in np.argsort(asked, kind="stable"):
            client = self.clients[asked[place]]
            node = self.registry.node_of(client)
            if node is None:
                absent.setdefault("have not come yet", []).append(client)
            elif node not in connected:
                absent.setdefault(f"live at node {node}, which is not connected", []).append(client)
            else:
                places.setdefault(node, []).append(place)
        notes = [Note(f"{len(who)} clients {why}", tuple(who)) for why, who in absent.items()]
        return {node: np.array(part) for node, part in places.items()}, notes

    def _content(self, task: Task, broadcast: Broadcast, clients: Positions, packed: dict[Tensor, Array]) -> RecordDict:
        """What goes to a node; the broadcast is the part for its clients, `packed` what other nodes get as well."""
        names = tuple(self.clients[i] for i in clients)
        keep_from = tuple(self.keep_from[torch.from_numpy(clients)].tolist())
        return request_content(Request(self.terms, task, broadcast, names, keep_from), packed)

    def _compared(
        self, task: Task, broadcast: Broadcast, asked: Positions, nodes: Mapping[int, Positions]
    ) -> dict[int, Asked]:
        """Return what the answer of each node is compared with; `nodes` has the places of their clients in `asked`."""
        sizes, only = self.sizes, broadcast.only
        form = task.expected_reply(broadcast, self.terms)
        most, factor = self.most_change, self.change_factor
        if form is not None:
            most = min(math.inf if most is None else most, form.longest_change)
            factor = factor if form.compares_changes else None
        whole = Asked(task.name, broadcast.clusters, {}, form, task.trains, most, factor)
        return {
            node: replace(
                whole,
                sizes={self.clients[i]: int(sizes[i]) for i in asked[part]},
                only=None if only is None else only[torch.from_numpy(part)],
            )
            for node, part in nodes.items()
        }

    def _in_order(self, replies: Sequence[Reply], asked: Positions) -> Reply:
        """One reply for all nodes, with the rows in the order in which clients were asked."""
        reply = merge(replies)
        place = {self.clients[i]: at for at, i in enumerate(asked)}
        order = sorted(range(len(reply.clients)), key=lambda row: place[reply.clients[row]])
        return replace(
            reply,
            clients=tuple(reply.clients[row] for row in order),
            rows={name: value[torch.tensor(order)] for name, value in reply.rows.items()} if order else reply.rows,
        )

    def _with_quorum(self, replies: Replies, asked: int) -> Replies:
        """As they are, or with too few of them as if nobody had answered."""
        answered = len(replies.reply.clients)
        if answered >= self.quorum * asked:
            return replies
        why = f"{answered} of {asked} clients answered, but the quorum is {self.quorum:g}: this is no update"
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


def _lost(node: int, answer: Answer) -> Note | None:
    """Clients whose state is gone begin anew, as if the run had never heard of them; their answers count."""
    if not answer.lost:
        return None
    return Note(f"node {node} has lost what these clients kept for themselves: they began anew", answer.lost, str(node))


def _bytes_down(broadcast: Broadcast, sent: Positions) -> int:
    """Of those of the asked clients (by place) that a message went to."""
    only = None if broadcast.only is None else broadcast.only[torch.from_numpy(sent)]
    return replace(broadcast, only=only).bytes_for(len(sent))
