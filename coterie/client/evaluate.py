"""How well models fit a client's own data: for choosing a start, for the report, for newcomers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from coterie.client.kept import kept_models, kept_weights, mixed_models
from coterie.core.blocks import Block, cut
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Params, take_rows
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply, Task
from coterie.core.plain import from_plain
from coterie.core.shard import Positions, Shard
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining
from coterie.tiers.method import read_objective

CERTAIN = 99.0
"""The margin reported when every sample prefers the same model by the same amount."""


def score(learner: Learner, shard: Shard, broadcast: Broadcast) -> Reply:
    """Rows: the client's mean training loss under every model, (m, S), or under the only one it was sent, (m, 1)."""
    width = _held(broadcast) if broadcast.only is None else 1
    table = torch.zeros(len(shard), width, dtype=torch.float64)
    for block in _blocks(shard, broadcast):
        places = torch.from_numpy(block.positions)
        table[places] = _table(learner, broadcast, block, places).double().cpu()
    return Reply(clients=shard.ids, rows={"losses": table})


def weights(shard: Shard, task: Task, broadcast: Broadcast, states: ClientStates | None) -> Reply:
    """Rows: the client's own weights, (m, R, P)."""
    clusters, objective = broadcast.clusters, read_objective(task.settings["objective"])
    shape = (clusters.restarts, objective.client_components(clusters.K))
    return Reply(clients=shard.ids, rows={"weights": kept_weights(states, np.arange(len(shard)), broadcast, shape)})


def evaluate(
    learner: Learner, shard: Shard, task: Task, broadcast: Broadcast, states: ClientStates | None = None
) -> Reply:
    """Rows for each client, of its own model (`own` in the broadcast) on these samples.

    `score`: accuracy, or mean squared error for numbers. `loss`: mean loss. With `margin` in the settings also
    `losses` under every model and `margin`: by how many standard errors its own model beats the next best. With
    `predicts` in the settings, what the client keeps for itself predicts instead: its mixture of all models, or a model
    of its own.
    """
    own = broadcast.each["own"]
    predicts = _predictor(learner, shard, task, broadcast, states)
    first, back = _distinct(shard, own) if predicts is None else (np.arange(len(shard)), torch.arange(len(shard)))
    part, own = shard.take(first), own[torch.from_numpy(first)]
    columns = {name: torch.zeros(len(part), dtype=torch.float64) for name in ("score", "loss")}
    if task.settings.get("margin"):
        columns |= {
            "margin": torch.zeros(len(part), dtype=torch.float64),
            "losses": torch.zeros(len(part), _held(broadcast), dtype=torch.float64),
        }
    for block in _blocks(part, broadcast):
        places = torch.from_numpy(block.positions)
        outputs = learner.outputs(broadcast.clusters.at(own[places]), block.x) if predicts is None else predicts(block)
        for name, value in _measure(learner, broadcast, block, own[places], "margin" in columns, outputs).items():
            columns[name][places] = value.double().cpu()
    return Reply(clients=shard.ids, rows={name: value[back] for name, value in columns.items()})


def finetuned(learner: Learner, train: Shard, judged: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """Rows as those of `evaluate`, of the model that each client makes of its own one by steps on its training samples.

    The personal models of a block are gone with it; nothing of them is in the reply but `score` and `loss` on `judged`.
    What a model says that is not finite is never right.
    """
    work, seed = from_plain(LocalTraining, task.settings["work"]), int(cast(int, task.settings["seed"]))
    keys = keys_for_clients(seed, Purpose.BATCHES, broadcast.round, train.hashes)
    columns = {name: torch.zeros(len(train), dtype=torch.float64) for name in ("score", "loss")}
    for block in cut(train, keys, 2 * (broadcast.clusters.slot_bytes + broadcast.clusters.body_bytes)):
        theta = broadcast.clusters.at(broadcast.each["own"][torch.from_numpy(block.positions), None])
        change = learner.descend(theta, block, work, broadcast.scalars["lr"])
        personal = {name: (p + change[name])[:, 0] for name, p in theta.items()}
        for part in _blocks(judged.take(block.positions), broadcast):
            places = torch.from_numpy(part.positions)
            outputs = learner.outputs(take_rows(personal, places), part.x)
            found = _figures(learner, outputs, part)
            wrong = torch.inf if learner.classes is None else 0.0
            found["score"] = torch.where(found["loss"].isfinite(), found["score"], wrong)
            for name, value in found.items():
                columns[name][torch.from_numpy(block.positions)[places]] = value.double().cpu()
    return Reply(clients=train.ids, rows=columns)


def _held(broadcast: Broadcast) -> int:
    return int(next(iter(broadcast.clusters.params.values())).shape[0])


def _blocks(shard: Shard, broadcast: Broadcast) -> Iterator[Block]:
    """One block at a time: those of ragged clients are copies."""
    return cut(shard, shard.hashes, broadcast.clusters.slot_bytes + broadcast.clusters.body_bytes)


def _distinct(shard: Shard, own: Tensor) -> tuple[Positions, Tensor]:
    """Clients that share both test set and model are evaluated once: who stands for whom."""
    triples = np.stack([shard.starts, shard.stops, own.numpy()], axis=1)
    _, first, back = np.unique(triples, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), torch.from_numpy(back.reshape(-1))


def _table(learner: Learner, broadcast: Broadcast, block: Block, places: Tensor) -> Tensor:
    """Mean loss of each client under each model, (B, S), or under its only one, (B, 1)."""
    if broadcast.only is None:
        return block.mean(learner.score(broadcast.clusters.all_models(), block).losses)
    theta = broadcast.clusters.at(broadcast.only[places, 0])
    own = block.mean(learner.losses(theta, block.x, block.y))
    return own[:, None]


def _predictor(
    learner: Learner, shard: Shard, task: Task, broadcast: Broadcast, states: ClientStates | None
) -> Callable[[Block], Tensor] | None:
    """What predicts for the clients of a block, (B, n, ...); None: the model of their cluster."""
    kind = task.settings.get("predicts")
    if kind is None:
        return None
    everybody, K = np.arange(len(shard)), broadcast.clusters.K
    restart, restarts = (int(cast(int, task.settings[name])) for name in ("restart", "restarts"))
    if kind == "personal":
        equal = torch.full((len(shard), 1, K), 1 / K)
        first = {
            name: p.expand(-1, restarts, *p.shape[2:]) for name, p in mixed_models(broadcast.clusters, equal).items()
        }
        models = kept_models(states, everybody, broadcast.each["accepted"], first)
        body = take_rows(broadcast.clusters.shared, torch.zeros(len(shard), dtype=torch.int64))
        whole = {name: p[:, restart] for name, p in models.items()} | body
        return lambda block: learner.outputs({n: p[block.positions] for n, p in whole.items()}, block.x)
    objective = read_objective(task.settings["objective"])
    kept = kept_weights(states, everybody, broadcast, (restarts, objective.client_components(K)))[:, restart]

    def mixed(block: Block) -> Tensor:
        z = objective.client_see(learner, block)
        share = objective.client_prior(kept[block.positions].to(block.x.device), z, broadcast.common, K)
        return _mixed(learner, broadcast.clusters.all_models(), block, share)

    return mixed


def _mixed(learner: Learner, models: Params, block: Block, share: Tensor) -> Tensor:
    """What all models say together: log of mixed probabilities (B, n, C), or mixed numbers (B, n).

    share: what each counts for a client, (B, K), or for each of its samples, (B, n, K).
    """
    total: Tensor | None = None
    share = share if share.dim() == 3 else share[:, None]
    for k in range(share.shape[2]):
        theta = {name: p[k : k + 1].expand(len(share), *p.shape[1:]) for name, p in models.items()}
        said = learner.outputs(theta, block.x)
        said = said if learner.classes is None else torch.softmax(said, dim=-1)
        part = share[..., k].to(said)
        weighted = said * (part if said.dim() == 2 else part[..., None])
        total = weighted if total is None else total + weighted
    assert total is not None
    return total if learner.classes is None else total.clamp_min(torch.finfo(total.dtype).tiny).log()


def _measure(
    learner: Learner, broadcast: Broadcast, block: Block, own: Tensor, margin: bool, outputs: Tensor
) -> dict[str, Tensor]:
    values = _figures(learner, outputs, block)
    if margin:
        each = learner.score(broadcast.clusters.all_models(), block).losses.double()
        values |= {"losses": block.mean(each), "margin": _margin(each, own, block)}
    return values


def _figures(learner: Learner, outputs: Tensor, block: Block) -> dict[str, Tensor]:
    """Each client's accuracy or mean squared error, and its mean loss, (B,) both."""
    hit = (outputs - block.y) ** 2 if learner.classes is None else (outputs.argmax(dim=-1) == block.y).double()
    return {"score": block.mean(hit), "loss": block.mean(learner.loss(outputs, block.y))}


def _margin(each: Tensor, own: Tensor, block: Block) -> Tensor:
    """Paired differences to every other model, (B, n, K): the least mean over its standard error, (B,)."""
    mine = own.to(each.device)[:, None, None].expand(-1, each.shape[1], 1)
    gap = each - each.gather(2, mine)
    mean = block.mean(gap)
    counts = block.sizes.double()[:, None]
    variance = block.mean((gap - mean[:, None]) ** 2) * counts / (counts - 1).clamp_min(1)
    error = (variance / counts).sqrt()
    ratio = torch.where(error > 0, mean / error, torch.sign(mean) * CERTAIN).clamp(-CERTAIN, CERTAIN)
    ratio = torch.where((block.sizes > 1)[:, None], ratio, 0.0)  # one sample says nothing about spread
    return ratio.scatter(1, own.to(each.device)[:, None], torch.inf).amin(dim=1)
