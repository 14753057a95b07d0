"""A federation of three nodes in this process, with several clients each, and a clock that only tests move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp

from coterie.core.dataset import FederatedDataset
from coterie.core.federation import Federation
from coterie.core.messages import Reply
from coterie.flower import clients as flower_clients
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.clients import FlowerClients
from coterie.flower.engine import FlowerFederation
from coterie.flower.exchange import Exchange
from coterie.flower.in_process import Deliver, InProcessGrid, at_once
from coterie.flower.node import make_client_app
from coterie.flower.terms import Terms
from coterie.flower.wire import Answer, answer_content, read_answer, task_of
from coterie.privacy.noise import SYSTEM_NOISE
from coterie.testing.checks import LEARNERS
from coterie.training.planning import Plan

NODES: Mapping[int, Sequence[int]] = {11: (0, 3, 7), 5: (1, 2), 7: (4, 5, 6, 8)}
"""Which of the nine clients of the check suite live at which node; node ids tell nothing about their order."""
TWO: Mapping[int, Sequence[int]] = {11: (0, 3, 7, 8), 5: (1, 2, 4, 5, 6)}
"""The same clients at fewer nodes, for fewer messages."""


@dataclass
class Clock:
    """Time passes only while somebody sleeps."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def part_of(data: FederatedDataset, places: Sequence[int]) -> FederatedDataset:
    """The data that a node has."""
    return data.take(places)


def app_of(plan: Plan, places: Sequence[int], folder: Path | None = None) -> ClientApp:
    data = part_of(plan.data, places)
    own = LEARNERS["module"] if plan.learner.spec.startswith("module") else None
    return make_client_app(lambda context: data, learner=own, state_folder=folder)


def terms_of(plan: Plan) -> Terms:
    return flower_clients.terms_of("a run", plan.data.profile, plan.settings, plan.tiers)


def clients_behind_a_grid(
    plan: Plan,
    folder: Path | None = None,
    deliver: Deliver = at_once,
    nodes: Mapping[int, Sequence[int]] = NODES,
    expected: Sequence[str] = (),
    **options: Any,
) -> FlowerClients:
    """The clients of a plan behind a grid; with `expected` ids nobody waits for those that are not there."""
    clock = Clock()
    grid = InProcessGrid({node: app_of(plan, p, folder) for node, p in nodes.items()}, deliver=deliver, clock=clock)
    exchange = Exchange(grid, deadline=10, poll=0.25, clock=clock, sleep=clock.sleep)
    registry = ClientRegistry(expected)
    registry.collect(exchange, nodes=len(nodes), wait=1)
    order = np.argsort(plan.data.clients)  # the registry is sorted by id
    truth = None if plan.data.truth is None else plan.data.truth[order]
    known = {"truth": truth, "group_names": plan.data.group_names}  # for oracle and for scores
    return FlowerClients("flower", exchange, registry, "a run", **options, **known)


def federation_of(
    plan: Plan, folder: Path | None = None, deliver: Deliver = at_once, **options: Any
) -> FlowerFederation:
    """The same as they are asked."""
    clients = clients_behind_a_grid(plan, folder, deliver, **options)
    return clients.connect(plan.settings, plan.tiers)


def with_federation(plan: Plan, federation: Federation) -> Plan:
    """The same plan with these remote clients, from whom noise is secret."""
    return replace(plan, run=replace(plan.run, federation=federation, noise=SYSTEM_NOISE))


def grid_of(federation: FlowerFederation) -> InProcessGrid:
    assert isinstance(federation.exchange.grid, InProcessGrid)
    return federation.exchange.grid


# ---- what may go wrong with an answer ---------------------------------------------------------------------------


def at_node(node: int, fault: Deliver, task: str = "local-round") -> Deliver:
    """This fault for the answers of one node to one task."""

    def deliver(message: Message, answer: Message) -> Sequence[tuple[float, Message]]:
        hit = message.metadata.dst_node_id == node and task_of(message.content) == task
        return fault(message, answer) if hit else at_once(message, answer)

    return deliver


def edited(edit: Callable[[Reply], Reply]) -> Deliver:
    """The node sends something else than it found."""

    def deliver(message: Message, answer: Message) -> Sequence[tuple[float, Message]]:
        task = task_of(message.content)
        reply = read_answer(answer.content, task).reply
        return [(0.0, Message(answer_content(task, Answer(edit(reply))), reply_to=message))]

    return deliver


def with_change(change: Callable[[Any], Any], name: str = "change/weight") -> Callable[[Reply], Reply]:
    """Another change of the clusters' models."""

    def edit(reply: Reply) -> Reply:
        sums = reply.slotted["clusters"]
        arrays = {**sums.arrays, name: change(sums.arrays[name])}
        return replace(reply, slotted={**reply.slotted, "clusters": replace(sums, arrays=arrays)})

    return edit
