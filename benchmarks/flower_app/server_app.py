"""The same exchange alternately by plain messages and by Coterie: seconds and bytes of each."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import Run
from the_work import CLUSTERS, LR, NODES, Params

from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.flower.clients import clients_of
from coterie.flower.exchange import Exchange
from coterie.methods import IFCA, FullBatch
from coterie.training.planning import prepare

DEADLINE = 300.0
REST = 1.0
"""Seconds between two exchanges, during which the processes of the first one end."""

app = ServerApp()


class Seen(Grid):
    """A grid that stores all messages."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.down: list[Message] = []
        self.up: list[Message] = []

    def set_run(self, run: Run) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.down += messages
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(self.grid.pull_messages(message_ids))
        self.up += found
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)

    def counted(self) -> dict[str, int]:
        """Bytes and objects of the messages since the last call, as a node gets and sends them; Flower hashes and sends
        every object by itself."""
        parts = {way: [o.deflate() for m in found for o in get_all_nested_objects(m).values()]
                 for way, found in (("down", self.down), ("up", self.up))}  # fmt: skip
        self.down, self.up = [], []
        sizes = {way: sum(map(len, objects)) for way, objects in parts.items()}
        return sizes | {f"objects {way}": len(objects) for way, objects in parts.items()}


def processor_seconds(sessions: set[int]) -> float:
    """Return the processor time of all present and past processes of these sessions, as Linux counts it."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it may end while we look
            continue
        if int(fields[3]) in sessions:
            total += sum(map(int, fields[11:15]))  # its own, and those of children that it has seen end
    return total / os.sysconf("SC_CLK_TCK")


@app.main()
def main(grid: Grid, context: Context) -> None:
    out, rounds = Path(str(context.run_config["out"])), int(context.run_config["rounds"])
    sessions = {int(number) for number in str(context.run_config["sessions"]).split()}
    seen = Seen(grid)
    clients = clients_of(seen, nodes=NODES, deadline=DEADLINE)
    method = IFCA(clusters=CLUSTERS, local=FullBatch(steps=1, lr=LR))
    plan = prepare(clients, method, f"mlp:hidden={context.run_config['hidden']}", {"dtype": "float32"})
    models = plan.learner.start(range(CLUSTERS), torch.float32)

    def coterie() -> Params:
        broadcast = Broadcast(0, Clusters(models, CLUSTERS), scalars={"lr": LR})
        replies = plan.federation.ask(plan.tiers.task(seed=0, rounds=1), broadcast, np.arange(NODES))
        assert len(replies.reply.clients) == NODES, replies.notes
        sums = replies.reply.slotted["clusters"]
        totals = {name: torch.zeros_like(p) for name, p in models.items()}
        return {name: t.index_add_(0, sums.slots, sums.arrays[f"change/{name}"]) for name, t in totals.items()}

    kinds = {"bare": lambda: bare(seen, models), "coterie": coterie}
    found, totals = [], {}
    seen.counted()
    for turn in range(rounds):
        for kind in list(kinds)[:: 1 if turn % 2 else -1]:
            worked, started = processor_seconds(sessions), time.perf_counter()
            totals[kind] = kinds[kind]()
            seconds = time.perf_counter() - started
            time.sleep(REST)
            worked = processor_seconds(sessions) - worked
            found.append({"kind": kind, "seconds": seconds, "worked": worked, **seen.counted()})
        for name, total in totals["bare"].items():
            torch.testing.assert_close(totals["coterie"][name], total, rtol=1e-4, atol=1e-6)
        (out / "rounds.json").write_text(json.dumps(found))


def bare(grid: Grid, models: Params) -> Params:
    """Return the sums of the changes of each model {name: (K, ...)}, by plain messages."""
    arrays = ArrayRecord({name: Array(p.numpy()) for name, p in models.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": LR})})
    messages = [Message(content, node, "train.bare", ttl=DEADLINE) for node in grid.get_node_ids()]
    waiting, answers = set(grid.push_messages(messages)), list[Message]()
    while True:
        answers += (come := list(grid.pull_messages(waiting)))
        waiting -= {answer.metadata.reply_to_message_id for answer in come}
        if not waiting:
            break
        time.sleep(Exchange.poll)
    totals = {name: torch.zeros_like(p) for name, p in models.items()}
    for answer in answers:
        best = int(answer.content["metrics"]["cluster"])
        for name, total in totals.items():
            total[best] += torch.from_numpy(answer.content["arrays"][name].numpy())
    return totals
