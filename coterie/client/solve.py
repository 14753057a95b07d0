"""The client's part of the one-shot methods: its own problem, solved once, without anybody's help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params, flat
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply, Task
from coterie.core.plain import from_plain
from coterie.core.shard import Shard
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining
from coterie.learners.minimum import GeneralisedLinear, minimise
from coterie.learners.projected import ProjectedSgd


@dataclass(frozen=True)
class _Solver:
    """What the task's settings ask for."""

    name: str
    settings: Mapping[str, Any]

    def solve(self, learner: Learner, block: Block, start: Params, lr: float) -> tuple[Params, Tensor]:
        """Each client's model {name: (B, ...)}, and whether it is a solution, (B,)."""
        if self.name == "steps":
            models = {name: p.expand(len(block.positions), *p.shape[1:]) for name, p in start.items()}
            tracks = {name: p[:, None] for name, p in models.items()}
            change = learner.descend(tracks, block, from_plain(LocalTraining, self.settings["training"]), lr)
            moved = {name: p + change[name][:, 0] for name, p in models.items()}
            return moved, _finite(moved)
        if not isinstance(learner, GeneralisedLinear):
            raise ConfigError(f"solver={self.name} is for linear and logistic learners, not {learner.spec}: use steps")
        problem = learner.glm(block)
        if self.name == "sgd":
            models = learner.from_coefficients(ProjectedSgd(**self.settings).run(problem, block.keys))
            return models, _finite(models)
        solved = minimise(problem)
        return learner.from_coefficients(solved.theta), solved.found


def local_solve(learner: Learner, shard: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """Row `model`: each client's own solution, its arrays one after the other (`flat`), (m, P).

    A client that has no solution is named among the rejected. Only `solver=steps` is sent a model, the common start;
    the others begin at zero.
    """
    settings = cast(Mapping[str, Any], task.settings["solver"])
    solver = _Solver(str(task.settings["name"]), settings)
    keys = keys_for_clients(int(cast(int, task.settings["seed"])), Purpose.SOLVE, 0, shard.hashes)
    start = broadcast.clusters.all_models() if broadcast.clusters.params else {}
    rows: Tensor | None = None
    solved = torch.zeros(len(shard), dtype=torch.bool)
    for block in cut(shard, keys, broadcast.clusters.slot_bytes):
        models, found = solver.solve(learner, block, start, broadcast.scalars.get("lr", 1.0))
        places = torch.from_numpy(block.positions)
        solved[places] = found.cpu()
        vectors = flat(models).to("cpu", shard.x.dtype)
        rows = vectors.new_zeros(len(shard), vectors.shape[1]) if rows is None else rows
        rows[places] = vectors
    if rows is None:
        return Reply(clients=())
    if bool(solved.all()):
        return Reply(clients=shard.ids, rows={"model": rows})
    clients, rejected = (tuple(shard.ids[i] for i in flags.nonzero().flatten().tolist()) for flags in (solved, ~solved))
    return Reply(clients=clients, rows={"model": rows[solved]} if clients else {}, rejected=rejected)


def _finite(models: Params) -> Tensor:
    """(B,) whether every entry of a client's model is."""
    return flat(models).isfinite().all(dim=1)
