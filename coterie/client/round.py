"""The local round: choose a cluster, train its model on the client's own data, send back the change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from coterie.client.evaluate import KEPT_WEIGHTS, kept_weights
from coterie.client.resample import fresh_parts
from coterie.core.blocks import Block, Memory, cut
from coterie.core.clusters import Clusters, Params, take_rows
from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.messages import ALL, Broadcast, Reply, Slotted, Task
from coterie.core.shard import Positions, Shard
from coterie.core.states import States
from coterie.learners.base import Learner
from coterie.learners.contribution import Contribution, weigh
from coterie.tiers.method import RoundSettings
from coterie.tiers.objective import OBJECTIVES, Objective
from coterie.tiers.weights import HardByDistance, SoftByEM, Weights, best

KEPT_CLUSTER = "cluster"
"""What clients keep that move by distance."""


def local_round(
    learner: Learner,
    shard: Shard,
    task: Task,
    broadcast: Broadcast,
    memory: Memory | None = None,
    states: States | None = None,
) -> Reply:
    """One round for every client of the shard.

    Sums: the training loss of each lane and the samples behind it; slotted by cluster, the weighted changes and
    their mass; slotted by lane, the change of the shared body. Rows: the cluster each client worked on.

    The loss is that under the models sent, weighted where several count; with mini-batches on a single one that of the
    samples stepped on, each when it was: so clients that have nothing to choose need no scores.
    """
    settings = RoundSettings.read(task.settings)
    objective, weights = OBJECTIVES[settings.objective](), settings.weights
    keys = keys_for_clients(settings.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
    batched = settings.work.full_batch_steps is None
    tally = _Tally(broadcast.clusters, len(shard))
    for told, positions in _parties(broadcast, len(shard)):
        part = shard if len(positions) == len(shard) else shard.take(positions)
        kept = memory if part is shard else None  # what varies from round to round is not worth keeping
        for judged, block in _samples(part, keys[positions], settings, broadcast, kept):
            places = positions[block.positions]
            if isinstance(weights, HardByDistance):
                _train_and_move(learner, weights, settings, broadcast, states, tally, shard, places, block)
                continue
            if isinstance(weights, SoftByEM):
                visit = _respond(learner, objective, weights, broadcast, block, kept_weights(states, places, broadcast))
            elif told:
                assert broadcast.only is not None
                only = broadcast.only[torch.from_numpy(places)]
                visit = _told(learner, broadcast.clusters, only, block, scored=not batched)
            elif batched and broadcast.clusters.K == 1:
                only = torch.arange(broadcast.clusters.lanes).repeat(len(places), 1)
                visit = _told(learner, broadcast.clusters, only, block, scored=False)
            else:
                visit = _choose(learner, objective, weights, broadcast.clusters, judged)
            weight = _weight(settings, shard, places, block, visit)
            lr = broadcast.scalars["lr"]
            memo = visit.memo if judged is block else None  # it belongs to the samples that were scored
            tally.meet(places, block, visit)
            for turn in _turns(visit, weight, broadcast.clusters.K, settings.by_share):
                rows = torch.searchsorted(visit.slots, turn.slots).to(weight.device)
                part_of = block if turn.focus is None else replace(block, focus=turn.focus.expand(block.y.shape))
                given = learner.contribute(visit.models, rows, part_of, settings.work, lr, turn.weight, memo)
                tally.add(places, visit, turn, given)
            if visit.gamma is not None:
                tally.count(places, objective.client_counts(visit.real(block), block.y, learner.classes))
                _keep(states, places, broadcast, tally, visit)
    return tally.reply(shard)


def _weight(settings: RoundSettings, shard: Shard, places: Positions, block: Block, visit: _Visit) -> Tensor:
    """(B, R) what a client's change counts: once or n_i times, however many of its samples this round uses."""
    n = torch.from_numpy(shard.sizes[places]).to(block.counts)
    mass = n if settings.client_weight == "samples" else torch.ones_like(n)
    weight = mass[:, None].expand(visit.chosen.shape)
    return weight if visit.loss is None else torch.where(visit.loss.isfinite(), weight, 0)


def _train_and_move(
    learner: Learner,
    weights: HardByDistance,
    settings: RoundSettings,
    broadcast: Broadcast,
    states: States | None,
    tally: _Tally,
    shard: Shard,
    places: Positions,
    block: Block,
) -> None:
    """Train the model of the own cluster, join the nearest one, and count as its member there."""
    assert states is not None, "clients that keep their cluster need a place to keep it"
    clusters = broadcast.clusters
    shape = (len(places), clusters.lanes, clusters.K)
    models, first = clusters.all_models(), torch.arange(clusters.lanes) * clusters.K
    losses = block.mean(learner.score(models, block).losses).reshape(shape)
    accepted = broadcast.each["accepted"][torch.from_numpy(places)]
    before = first + states.read(KEPT_CLUSTER, places, accepted, weights.client_choose(-losses).cpu())
    theta = take_rows(models, before)
    change = learner.descend(theta, block, settings.work, broadcast.scalars["lr"])
    trained = {name: p + change[name] for name, p in theta.items()}
    after = first + weights.client_nearest(_squared_distances(trained, models, clusters)).cpu()
    there = take_rows(models, after)
    loss = losses.gather(2, (before - first)[..., None].to(losses.device)).squeeze(2)
    visit = _Visit(torch.arange(clusters.lanes * clusters.K), models, after, loss)
    weight = _weight(settings, shard, places, block, visit)
    tally.meet(places, block, visit)
    moved = {name: value - there[name] for name, value in trained.items()}
    given = weigh(moved, after.to(weight.device), weight, len(visit.slots), "by-client")
    tally.add(places, visit, _Turn(torch.arange(clusters.lanes), after, weight, weight), given)
    kept = tally.counted[torch.from_numpy(places)].any(dim=1)
    states.write(places[kept.numpy()], broadcast.round, {KEPT_CLUSTER: (after - first)[kept]})


def _squared_distances(trained: Params, models: Params, clusters: Clusters) -> Tensor:
    """|W_i - c_k|^2 over all parameters together, (B, R, K), of models {name: (B, R, ...)} to those of their lane."""
    columns = []
    for k in range(clusters.K):
        centres = {name: p[k :: clusters.K] for name, p in models.items()}  # (R, ...)
        columns.append(
            sum(
                ((trained[name] - centres[name]) ** 2).reshape(*trained[name].shape[:2], -1).sum(dim=2)
                for name in trained
            )
        )
    return torch.stack(cast(list[Tensor], columns), dim=2)


def _samples(
    shard: Shard, keys: Words, settings: RoundSettings, broadcast: Broadcast, memory: Memory | None
) -> Iterator[tuple[Block, Block]]:
    """Block by block the samples to choose a cluster by and those to train on: the same ones, unless resampled."""
    room = _copied_bytes(broadcast.clusters)
    if settings.resample is None:
        return ((block, block) for block in cut(shard, keys, room, memory))
    choosing, training = fresh_parts(shard, settings.seed, broadcast.round, settings.resample)
    return zip(cut(choosing, keys, room), cut(training, keys, room), strict=True)  # equal sizes, so the same blocks


@dataclass(frozen=True)
class _Visit:
    """A block that knows which models it will train."""

    slots: Tensor
    """(S,) the slots of the models at hand, ascending."""
    models: Params
    """{name: (S, ...)}."""
    chosen: Tensor
    """(B, R) each client's slot in each lane."""
    loss: Tensor | None = None
    """(B, R) its mean loss there; None where nothing was scored."""
    memo: Tensor | None = None
    share: Tensor | None = None
    """(B, S) what each model counts for each client (lambda); None where only the chosen one does."""
    gamma: Tensor | None = None
    """(B, n, S) what each model counts for each sample; None where it is the same for all of a client's."""
    likelihood: Tensor | None = None
    """(B, R) the mean log-likelihood of its samples under its own mixture."""

    def real(self, block: Block) -> Tensor:
        """gamma, with zeros for padding."""
        assert self.gamma is not None
        return self.gamma if block.mask is None else self.gamma * block.mask[..., None]


@dataclass(frozen=True)
class _Turn:
    """Models that a block's clients train at once, at most one a lane."""

    lanes: Tensor
    """(T,)"""
    slots: Tensor
    """(B, T) each client's model in these lanes."""
    weight: Tensor
    """(B, T) what its change counts in the sums."""
    mass: Tensor
    """(B, T) what it counts in their denominator."""
    focus: Tensor | None = None
    """(B, n) or (B, 1), what the model counts for each sample; None: 1."""
    soft: bool = False


def _turns(visit: _Visit, weight: Tensor, K: int, by_share: bool) -> Iterator[_Turn]:
    """All chosen models at once; or, where all count, one model after the other.

    A soft client's change of a model is small already where the model counts little; with `by_share` what it counts in
    the sum is, too.
    """
    if visit.share is None:
        yield _Turn(torch.arange(visit.chosen.shape[1]), visit.chosen, weight, weight)
        return
    for row, slot in enumerate(visit.slots.tolist()):
        lanes, slots = torch.tensor([slot // K]), torch.full((len(weight), 1), slot)
        column, full = visit.share[:, row, None], weight[:, slot // K, None]
        mass = full * column
        focus = column if visit.gamma is None else visit.gamma[..., row]
        yield _Turn(lanes, slots, mass if by_share else full, mass, focus, soft=True)


def _copied_bytes(clusters: Clusters) -> int:
    """Memory a client's work takes for its copies of models: one a lane, and its change."""
    return clusters.lanes * (clusters.slot_bytes + clusters.body_bytes)


SHARED_BY = 8
"""Clients told to train the same models are worked on together once so many share them; else blocks would be small."""


def _parties(broadcast: Broadcast, count: int) -> list[tuple[bool, Positions]]:
    """The clients that choose themselves (False), and those told what to train (True), apart by what they share."""
    everyone = np.arange(count)
    if broadcast.only is None:
        return [(False, everyone)]
    told = (broadcast.only != ALL).all(dim=1).numpy()
    free = [(False, everyone[~told])] if not told.all() else []
    kinds, kind = np.unique(broadcast.only.numpy()[told], axis=0, return_inverse=True)
    if len(kinds) * SHARED_BY > told.sum():
        kinds, kind = kinds[:1], np.zeros(int(told.sum()), dtype=np.int64)
    return free + [(True, everyone[told][kind.reshape(-1) == index]) for index in range(len(kinds))]


def _told(learner: Learner, clusters: Clusters, chosen: Tensor, block: Block, scored: bool) -> _Visit:
    """Clients that train the slots (B, R) they were told, and hold no other model."""
    slots = torch.unique(chosen)
    models = clusters.at(slots)
    if not scored:
        return _Visit(slots, models, chosen)
    if len(slots) == chosen.shape[1]:  # all of the block hold the same models, one a lane
        known = learner.score(models, block)
        loss = block.mean(known.losses).gather(1, torch.searchsorted(slots, chosen).to(block.x.device))
        return _Visit(slots, models, chosen, loss, known.memo)
    theta = clusters.at(chosen)
    columns = [learner.losses({n: p[:, r] for n, p in theta.items()}, block.x, block.y) for r in range(chosen.shape[1])]
    return _Visit(slots, models, chosen, block.mean(torch.stack(columns, dim=-1)))


def _choose(learner: Learner, objective: Objective, weights: Weights, clusters: Clusters, block: Block) -> _Visit:
    """Clients that choose one cluster in each lane."""
    first = torch.arange(clusters.lanes) * clusters.K
    shape = (len(block.positions), clusters.lanes, clusters.K)
    models = clusters.all_models()
    scored = learner.score(models, block)
    cost = objective.client_cost(scored.losses, block.y, {})
    table = block.mean(scored.losses).reshape(shape)
    ranking = -(table if cost is scored.losses else block.mean(cost).reshape(shape))
    chosen, share = weights.client_choose(ranking), weights.client_weigh(ranking)
    loss = table.gather(2, chosen[..., None]).squeeze(2)
    if share is not None:
        loss = torch.where(share > 0, share * table, 0).sum(dim=2)
        share = share.flatten(1)
    return _Visit(torch.arange(clusters.lanes * clusters.K), models, first + chosen.cpu(), loss, scored.memo, share)


def _respond(
    learner: Learner, objective: Objective, weights: SoftByEM, broadcast: Broadcast, block: Block, kept: Tensor
) -> _Visit:
    """Clients whose samples belong to all clusters in part; `kept` (B, R, K) are the weights they had."""
    clusters = broadcast.clusters
    slots, models = torch.arange(clusters.lanes * clusters.K), clusters.all_models()
    scored = learner.score(models, block)
    shape = (*block.y.shape, clusters.lanes, clusters.K)
    cost = objective.client_cost(_deviance(learner, scored.losses, broadcast), block.y, broadcast.common)
    gamma, likelihood = weights.client_respond(cost.reshape(shape), kept.to(cost))
    own = block.mean(gamma)
    loss = block.mean(torch.where(gamma > 0, gamma * scored.losses.reshape(shape), 0).sum(dim=3))
    first = torch.arange(clusters.lanes) * clusters.K
    return _Visit(
        slots,
        models,
        first + best(own).cpu(),
        loss,
        scored.memo,
        share=own.flatten(1),
        gamma=gamma.flatten(2),
        likelihood=block.mean(likelihood),
    )


def _deviance(learner: Learner, losses: Tensor, broadcast: Broadcast) -> Tensor:
    """-log p_k(y|x), (B, n, S): cross-entropy is that already; a squared error becomes a Gaussian's.

    The variance is the federation's mean squared error of the round before, for each lane. Before the first round there
    is none, and every model explains everything equally.
    """
    if learner.classes is not None:
        return losses
    known = broadcast.common["loss"].to(losses).repeat_interleave(broadcast.clusters.K)  # (S,)
    unit = learner.loss(losses.new_ones(1, 1), losses.new_zeros(1, 1)).item()  # 1/2, or 1 without the half
    density = losses / (2 * known) + (2 * torch.pi * known / unit).log() / 2
    return torch.where(known.isfinite(), density, 0.0)


def _keep(states: States | None, places: Positions, broadcast: Broadcast, tally: _Tally, visit: _Visit) -> None:
    """Keep the new weights of the clients whose work was accepted."""
    assert states is not None
    assert visit.share is not None
    accepted = tally.counted[torch.from_numpy(places)].any(dim=1)
    shape = (-1, broadcast.clusters.lanes, broadcast.clusters.K)
    own = visit.share.double().cpu()[accepted].reshape(shape)
    states.write(places[accepted.numpy()], broadcast.round, {KEPT_WEIGHTS: own})


class _Tally:
    """The shard's running sums. A contribution that is not finite never enters them."""

    def __init__(self, clusters: Clusters, count: int) -> None:
        self.clusters = clusters
        held = next(iter(clusters.params.values())).shape[0]
        self.slots = torch.arange(held) if clusters.slots is None else clusters.slots
        self.sums = {name: torch.zeros_like(p) for name, p in clusters.params.items()}
        self.body = {name: torch.zeros_like(p) for name, p in clusters.shared.items()}
        self.slot_mass = torch.zeros(held, dtype=torch.float64)
        self.slot_count = torch.zeros(held, dtype=torch.int64)
        # by client and lane
        self.chosen = torch.zeros(count, clusters.lanes, dtype=torch.int64)
        self.counted = torch.zeros(count, clusters.lanes, dtype=torch.bool)
        self.loss = torch.zeros(count, clusters.lanes, dtype=torch.float64)
        self.samples = torch.zeros(count, dtype=torch.float64)
        self.likelihood: Tensor | None = None
        self.rows: Params = {}
        self.paths: set[str] = set()

    def meet(self, places: Positions, block: Block, visit: _Visit) -> None:
        """The clients of a block, before they have trained."""
        at = torch.from_numpy(places)
        self.chosen[at] = visit.chosen
        self.samples[at] = block.sizes.double().cpu()
        if visit.loss is not None:
            self.loss[at] = visit.loss.double().cpu()
        if visit.likelihood is not None:
            if self.likelihood is None:
                self.likelihood = torch.zeros_like(self.loss)
            self.likelihood[at] = visit.likelihood.double().cpu()

    def count(self, places: Positions, rows: Params) -> None:
        """What the objective wants the server to know of a block's clients, {name: (B, ...)}."""
        for name, value in rows.items():
            if name not in self.rows:
                self.rows[name] = value.new_zeros(len(self.samples), *value.shape[1:], device="cpu")
            self.rows[name][torch.from_numpy(places)] = value.cpu()

    def add(self, places: Positions, visit: _Visit, turn: _Turn, given: Contribution) -> None:
        """What a block's clients contributed in a turn."""
        rows, lanes = torch.searchsorted(self.slots, visit.slots), visit.slots // self.clusters.K
        for name, value in given.sums.items():
            total, index = (self.body[name], lanes) if name in self.body else (self.sums[name], rows)
            total.index_add_(0, index.to(total.device), value)
        counted = (given.finite & (turn.weight > 0)).cpu()
        mass = torch.where(given.finite, turn.mass, 0)
        own = torch.searchsorted(self.slots, turn.slots).flatten()
        self.slot_mass.index_add_(0, own, mass.double().cpu().flatten())
        self.slot_count.index_add_(0, own, counted.flatten().long())
        at = torch.from_numpy(places)[:, None]
        self.counted[at, turn.lanes] |= counted
        if given.loss is not None and not turn.soft:
            self.loss[at, turn.lanes] = given.loss.double().cpu()
        self.paths.add(given.path)

    def reply(self, shard: Shard) -> Reply:
        counted = self.counted
        accepted = counted.any(dim=1)
        # a client that fails in every lane is left out; one that fails in some makes those lanes the worst
        loss = torch.where(counted, self.loss, torch.where(accepted[:, None], torch.inf, 0.0))
        everybody = bool(accepted.all())
        mixture = {}
        if self.likelihood is not None:
            known = torch.where(accepted[:, None], self.likelihood, 0)
            mixture["likelihood"] = (known * self.samples[:, None]).sum(dim=0)
        named = list(zip(shard.ids, accepted.tolist(), strict=True)) if not everybody else []
        return Reply(
            clients=shard.ids if everybody else tuple(client for client, ok in named if ok),
            sums={
                "loss": (loss * self.samples[:, None]).sum(dim=0),
                "samples": torch.where(accepted, self.samples, 0).sum(),
                **mixture,
            },
            slotted=self._slotted(),
            rows={
                "cluster": (self.chosen if everybody else self.chosen[accepted]) % self.clusters.K,
                **{name: value if everybody else value[accepted] for name, value in self.rows.items()},
            },
            rejected=tuple(client for client, ok in named if not ok),
            paths=tuple(sorted(self.paths)),
        )

    def _slotted(self) -> dict[str, Slotted]:
        """The sums of the slots that somebody contributed to."""
        used = torch.nonzero(self.slot_count).flatten()
        kept = used if len(used) < len(self.slots) else slice(None)  # `local` holds a model a client: no second copy
        arrays = {f"change/{name}": value[kept] for name, value in self.sums.items()} | {"mass": self.slot_mass[used]}
        slotted = {"clusters": Slotted(self.slots[used], arrays, self.slot_count[used])}
        if self.body:
            changes = {f"change/{name}": value for name, value in self.body.items()}
            slotted["body"] = Slotted(torch.arange(self.clusters.lanes), changes, self.counted.sum(dim=0))
        return slotted
