"""A federation that answers from a script, and runs over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.federation import Replies
from coterie.core.keys import hash_ids
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.state import ServerState
from coterie.core.task import Task
from coterie.learners import make_learner
from coterie.learners.local_training import FullBatch
from coterie.learners.schedules import ExponentialDecay
from coterie.methods import IFCA, Method, Run, Step
from coterie.methods.settings import RunSettings
from coterie.testing.checks import small_federation
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.composition import Tiers
from coterie.training.loop import train

TIERS = Tiers(assignment=LowestLoss(), K=2, local=FullBatch(steps=2, lr=0.5, schedule=ExponentialDecay(0.5)))
IDS = ("a", "b", "c")
SEED = 4

Script = Callable[[int, list[str]], Reply]
"""Function that returns the reply to a request of a round."""


def answer(chosen: dict[str, list[int]], restarts: int = 1, rejected: tuple[str, ...] = ()) -> Reply:
    """Every client adds 1 to the model that it chose; its loss is 1 on one sample."""
    counts: dict[int, int] = {}
    for row in chosen.values():
        for restart, k in enumerate(row):
            counts[restart * 2 + k] = counts.get(restart * 2 + k, 0) + 1
    slots = sorted(counts)
    mass = torch.tensor([float(counts[s]) for s in slots], dtype=torch.float64)
    slotted = Slotted(torch.tensor(slots), {"change/w": mass[:, None].clone(), "mass": mass}, mass.long())
    total = torch.full((restarts,), float(len(chosen)), dtype=torch.float64)
    return Reply(
        tuple(chosen),
        {"loss": total * torch.arange(1, restarts + 1), "samples": total[0]},
        {"clusters": slotted},
        {"cluster": torch.tensor(list(chosen.values())).reshape(-1, restarts)},
        rejected,
    )


def always(chosen: dict[str, int]) -> Script:
    """Return the script in which every client chooses the same cluster in all rounds."""
    return lambda t, names: answer({n: [chosen[n]] for n in names})


@dataclass
class Scripted:
    """Answers round t with script(t, names of the clients) and records all requests."""

    script: Script
    asked: list[tuple[Task, Broadcast, list[str]]] = field(default_factory=list)
    clients: tuple[str, ...] = IDS
    store: None = None

    @property
    def hashes(self) -> np.ndarray:
        return hash_ids(self.clients)

    @property
    def sizes(self) -> np.ndarray:
        return np.ones(len(self.clients), dtype=np.int64)

    def ask(self, task: Task, broadcast: Broadcast, asked: np.ndarray) -> Replies:
        names = [self.clients[i] for i in asked]
        self.asked.append((task, broadcast, names))
        return Replies(self.script(broadcast.round, names), bytes_up=7, bytes_down=11)


def fresh(restarts: int = 1, clients: int = 3) -> ServerState:
    return ServerState.fresh(Clusters({"w": torch.zeros(2 * restarts, 1, dtype=torch.float64)}, 2, restarts), clients)


def run_of(script: Script, rounds: int, tiers: Tiers = TIERS, participation: float = 1.0) -> tuple[Scripted, Run]:
    federation = Scripted(script)
    settings = RunSettings(seed=SEED, participation=participation)
    learner = make_learner("linear", Profile((1,), None))
    return federation, Run(small_federation("linear"), learner, federation, settings, tiers, rounds)


def play(
    script: Script,
    rounds: int,
    tiers: Tiers = TIERS,
    state: ServerState | None = None,
    participation: float = 1.0,
    method: Method | None = None,
) -> tuple[Scripted, list[Step]]:
    """Train from a state to the last round; return the federation, which recorded its requests, and all steps."""
    federation, run = run_of(script, rounds, tiers, participation)
    return federation, list(train(method or IFCA(), run, state or fresh(tiers.restarts)))


def known(groups: Sequence[int]) -> ServerState:
    """Return the state before the first round of clients whose clusters are known in advance."""
    return replace(fresh(), round=0).with_groups(torch.tensor(groups))
