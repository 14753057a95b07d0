"""An ordinary node whose answers can be made faulty by a file of orders.

The node config has a folder (`orders`) with these files for node 2::

    node-2.json     {"3": "nan"}: order for round 3, one of `FAULTS`, an attack, "raise", or "hold" the answer;
                    {"list-clients": "classes 10^10"}: order for any other task
    node-2.log      one line for each message that the node has started to process, "round 3" or the name of a task
    go-3            exists when nodes that hold their answers in round 3 may continue

Attacks are those of tests/flower/attacks.py, whose path is in the node config (`attacks`).
"""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context, Message

from coterie.core.dataset import FederatedDataset
from coterie.core.messages import Reply
from coterie.flower.node import make_client_app
from coterie.flower.wire import Answer, answer_content, read_answer, read_request, task_of
from faulty.data import population

ROUND = "local-round"
HELD = 600.0
"""Longest time for which a node holds an answer, in seconds; tests end much earlier."""


def load(context: Context) -> FederatedDataset:
    """Return the clients of this node."""
    node, nodes = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
    return population(node, of=nodes)


def misbehave(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
    """Serve a message according to the orders, or normally without an order."""
    task = task_of(message.content)
    folder = Path(str(context.node_config["orders"]))
    name = f"node-{context.node_config['partition-id']}"
    round_ = str(read_request(message.content).broadcast.round) if task == ROUND else None
    with open(folder / f"{name}.log", "a") as log:
        log.write(f"{task}\n" if round_ is None else f"round {round_}\n")
    orders = folder / f"{name}.json"
    order = json.loads(orders.read_text()).get(round_ or task) if orders.is_file() else None
    if order == "raise":
        raise RuntimeError("this node was ordered to fail")
    answer = call(message, context)
    if order == "hold":
        _wait_for(folder / f"go-{round_}")
    attacks = runpy.run_path(str(context.node_config["attacks"]))["ATTACKS"] if order else {}
    if order in attacks:
        answer = Message(attacks[order](answer.content), reply_to=message)
    if order in FAULTS:
        honest = read_answer(answer.content, task)
        answer = Message(answer_content(task, Answer(FAULTS[order](honest.reply), honest.lost)), reply_to=message)
    return answer


def _wait_for(path: Path) -> None:
    end = time.monotonic() + HELD
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)


def _with_change(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    def edit(reply: Reply) -> Reply:
        sums = reply.slotted["clusters"]
        arrays = {**sums.arrays, "change/weight": change(sums.arrays["change/weight"])}
        return replace(reply, slotted={"clusters": replace(sums, arrays=arrays)})

    return edit


def _with_other_slots(reply: Reply) -> Reply:
    sums = reply.slotted["clusters"]
    return replace(reply, slotted={"clusters": replace(sums, slots=sums.slots + 2)})


FAULTS: Mapping[str, Callable[[Reply], Reply]] = {
    "nan": _with_change(lambda change: change * torch.nan),
    "shape": _with_change(lambda change: change[:, :-1]),
    "K": _with_other_slots,
    "foreign": lambda reply: replace(reply, clients=("somebody else", *reply.clients[1:])),
    "huge": _with_change(lambda change: change * 1e6),
}
"""Functions that change the reply."""

app = make_client_app(load, mods=[misbehave])
