"""Construction of the reply of a group of clients in a round, with running sums over blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Clusters, Params, take_rows
from coterie.core.messages import Reply, Slotted
from coterie.core.shard import Positions, Shard
from coterie.learners.contribution import Contribution, add_by_row


@dataclass(frozen=True)
class Assignment:
    """Assignment of the clients of a block to models."""

    slots: Tensor
    """Slots of the available models in ascending order, (S,)."""
    models: Params
    """Available models, {name: (S, ...)}."""
    own: Tensor
    """Slot of each client's assigned model in each restart, (B, R)."""
    loss: Tensor | None = None
    """Mean loss of each client under its assigned model, (B, R); None if it was not computed."""
    memo: Tensor | None = None
    """Intermediate result of scoring, which the learner can reuse in training."""
    share: Tensor | None = None
    """Weight of each model for each client (lambda), (B, S); None if a client trains its assigned model only."""
    gamma: Tensor | None = None
    """Weight of each model for each sample, (B, n, S); None if all samples of a client have the same weights."""
    likelihood: Tensor | None = None
    """Mean log-likelihood of each client's samples under its mixture of models, (B, R)."""


@dataclass(frozen=True)
class TrainingPass:
    """Models that the clients of a block train at the same time: one for each restart, or all models."""

    restarts: Tensor
    """Restart of each model, (T,)."""
    slots: Tensor
    """Slots of the models of each client, (B, T)."""
    weight: Tensor
    """Weight of each change in the sums, (B, T)."""
    mass: Tensor
    """Weight of each change in the denominator of the mean, (B, T)."""
    focus: Tensor | None = None
    """Weight of a single model for each sample, (B, n), or for each client, (B, 1); None: 1."""
    shares: Tensor | None = None
    """Weight of each of several models for each sample, (B, n, T), or for each client, (B, 1, T)."""
    soft: bool = False
    """Whether a client trains several models of a restart; then the loss of one of them is not the client's loss."""

    def weighted(self, block: Block) -> Block:
        """Return the block with the weights of its samples in this pass."""
        if self.shares is not None:
            return replace(block, shares=self.shares.expand(*block.y.shape, self.shares.shape[2]))
        return block if self.focus is None else replace(block, focus=self.focus.expand(block.y.shape))


class ReplyBuilder:
    """Running sums and rows of the reply of a group of clients, without contributions that are not finite.

    Args:
        clusters: Models that the clients received.
        count: Number of clients in the group.
        summed: Whether counts of the objective are summed over clients.
        send_loss: Whether the reply contains the sum of the losses.
    """

    def __init__(self, clusters: Clusters, count: int, summed: bool, send_loss: bool = True) -> None:
        self.clusters = clusters
        self.send_loss = send_loss
        slot_count = next(iter(clusters.params.values())).shape[0]
        self.slots = torch.arange(slot_count) if clusters.slots is None else clusters.slots
        self.sums = {name: torch.zeros_like(p) for name, p in clusters.params.items()}
        self.body = {name: torch.zeros_like(p) for name, p in clusters.shared.items()}
        self.overall = {name: torch.zeros_like(p) for name, p in (clusters.overall or {}).items()}
        self.pooled: Params = {}
        self.slot_mass = torch.zeros(slot_count, dtype=torch.float64)
        self.slot_count = torch.zeros(slot_count, dtype=torch.int64)
        # for each client and restart
        self.own = torch.zeros(count, clusters.restarts, dtype=torch.int64)
        self.counted = torch.zeros(count, clusters.restarts, dtype=torch.bool)
        self.loss = torch.zeros(count, clusters.restarts, dtype=torch.float64)
        self.samples = torch.zeros(count, dtype=torch.float64)
        self.likelihood: Tensor | None = None
        self.rows: Params = {}
        self.counts: Params = {}
        self.summed = summed
        self.paths: set[str] = set()
        self.adds = False
        self.adds_body = False

    def start(self, places: Positions, sizes: Tensor, assignment: Assignment) -> None:
        """Record the assignment of a block's clients before they train.

        Args:
            places: Positions of the block's clients in the group, (B,).
            sizes: Number of samples of each client, (B,).
            assignment: Assignment of the clients to models.
        """
        at = torch.from_numpy(places)
        self.own[at] = assignment.own
        self.samples[at] = sizes.double().cpu()
        if assignment.loss is not None:
            self.loss[at] = assignment.loss.double().cpu()
        if assignment.likelihood is not None:
            if self.likelihood is None:
                self.likelihood = torch.zeros_like(self.loss)
            self.likelihood[at] = assignment.likelihood.double().cpu()

    def count(self, places: Positions, counts: Params) -> None:
        """Add the objective's counts of a block's clients, {name: (B, ...)}, to the rows or to the sums."""
        if not self.summed:
            self.add_rows(places, counts)
        else:
            self.add_sums(places, counts)

    def add_sums(self, places: Positions, values: Params) -> None:
        """Add the values of a block's clients, {name: (B, ...)}, to the sums."""
        accepted = self.accepted(places)
        for name, value in values.items():
            kept = torch.where(accepted.reshape(-1, *(1,) * (value.dim() - 1)), value.cpu(), 0).sum(dim=0)
            self.counts[name] = self.counts[name] + kept if name in self.counts else kept

    def add_rows(self, places: Positions, rows: Params) -> None:
        """Add rows {name: (B, ...)} of a block's clients."""
        for name, value in rows.items():
            if name not in self.rows:
                self.rows[name] = value.new_zeros(len(self.samples), *value.shape[1:], device="cpu")
            self.rows[name][torch.from_numpy(places)] = value.cpu()

    def add(self, places: Positions, assignment: Assignment, training_pass: TrainingPass, given: Contribution) -> None:
        """Add the model changes of a block's clients in a training pass.

        Args:
            places: Positions of the block's clients in the group, (B,).
            assignment: Assignment of the clients to models.
            training_pass: Models that were trained.
            given: Weighted sums of the changes.
        """
        self.adds = True
        rows, restarts = torch.searchsorted(self.slots, assignment.slots), assignment.slots // self.clusters.K
        if given.pooled and not self.pooled:
            self.pooled = {name: v.new_zeros(len(self.slots), *v.shape[1:]) for name, v in given.sums.items()}
        by_slot = self.pooled if given.pooled else self.sums
        for name, value in given.sums.items():
            total, index = (self.body[name], restarts) if name in self.body else (by_slot[name], rows)
            total.index_add_(0, index.to(total.device), value)
        counted = (given.finite & (training_pass.weight > 0)).cpu()
        mass = torch.where(given.finite, training_pass.mass, 0)
        own = torch.searchsorted(self.slots, training_pass.slots).flatten()
        self.slot_mass.index_add_(0, own, mass.double().cpu().flatten())
        self.slot_count.index_add_(0, own, counted.flatten().long())
        self.accept(places, training_pass.restarts, counted)
        if given.loss is not None and not training_pass.soft:
            self.loss[torch.from_numpy(places)[:, None], training_pass.restarts] = given.loss.double().cpu()
        self.paths.add(given.path)

    def add_heads(self, change: Params, weight: Tensor, held: Tensor) -> None:
        """Add the changes of all heads by a block's clients, in a single restart.

        Args:
            change: Changes of the heads, {name: (B, K, ...)}.
            weight: Weight of each change, (B, K).
            held: Mass of each client in each cluster, (B, K).
        """
        self.adds = True
        rows = torch.arange(self.clusters.K).expand(weight.shape)
        for name, value in change.items():
            self.sums[name] += add_by_row(value, rows, weight, self.clusters.K)
        self.slot_mass += held.double().cpu().sum(dim=0)
        self.slot_count += (weight > 0).cpu().sum(dim=0)

    def add_body(self, change: Params, mass: Tensor) -> None:
        """Add the changes of the shared body by a block's clients, in a single restart.

        Args:
            change: Changes of the body, {name: (B, ...)}.
            mass: Weight of each client, (B,).
        """
        self.adds_body = True
        for name, value in change.items():
            kept = torch.where((mass > 0).reshape(-1, *(1,) * (value.dim() - 1)), value, 0)
            self.body[name] += torch.tensordot(mass.to(value), kept, dims=1)[None].to(self.body[name])

    def add_overall(self, change: Params) -> None:
        """Add the summed changes of the overall model by a block's clients, {name: (1, ...)}, in a single restart."""
        for name, value in change.items():
            self.overall[name] += value

    def accept(self, places: Positions, restarts: Tensor, counted: Tensor) -> None:
        """Record in which restarts the contributions of a block's clients are accepted.

        Args:
            places: Positions of the block's clients in the group, (B,).
            restarts: Restart of each contribution, (T,).
            counted: Whether each contribution is accepted, (B, T).
        """
        accepted = torch.zeros(len(places), self.counted.shape[1], dtype=torch.int64)
        accepted.index_add_(1, restarts, counted.long())
        self.counted[torch.from_numpy(places)] |= accepted > 0

    def accepted(self, places: Positions) -> Tensor:
        """Return whether each client's contribution is accepted in at least one restart, (B,)."""
        return self.counted[torch.from_numpy(places)].any(dim=1)

    def reply(self, shard: Shard) -> Reply:
        """Return the reply of the group."""
        counted = self.counted
        accepted = counted.any(dim=1)
        # a client that fails in all restarts is left out; if it fails in some, the loss of these restarts is infinite
        loss = torch.where(counted, self.loss, torch.where(accepted[:, None], torch.inf, 0.0))
        all_accepted = bool(accepted.all())
        mixture = {}
        if self.likelihood is not None:
            known = torch.where(accepted[:, None], self.likelihood, 0)
            mixture["likelihood"] = (known * self.samples[:, None]).sum(dim=0)
        named = list(zip(shard.ids, accepted.tolist(), strict=True)) if not all_accepted else []
        return Reply(
            clients=shard.ids if all_accepted else tuple(client for client, ok in named if ok),
            sums={
                **({"loss": (loss * self.samples[:, None]).sum(dim=0)} if self.send_loss else {}),
                "samples": torch.where(accepted, self.samples, 0).sum(),
                **mixture,
                **self.counts,
            },
            slotted=self._slotted(),
            rows={
                "cluster": (self.own if all_accepted else self.own[accepted]) % self.clusters.K,
                **{name: value if all_accepted else value[accepted] for name, value in self.rows.items()},
            },
            rejected=tuple(client for client, ok in named if not ok),
            paths=tuple(sorted(self.paths)),
        )

    def _slotted(self) -> dict[str, Slotted]:
        """Return the slotted sums, for slots with contributions; there are none if clients send personal models."""
        if self.pooled:
            return {"pooled": self._filled(self.pooled)}
        slotted = self._own() if self.adds else {}
        if self.body and (self.adds or self.adds_body):
            changes = {f"change/{name}": value for name, value in self.body.items()}
            slotted["body"] = Slotted(torch.arange(self.clusters.restarts), changes, self.counted.sum(dim=0))
        if self.overall:
            changes = {f"change/{name}": value for name, value in self.overall.items()}
            slotted["overall"] = Slotted(torch.arange(self.clusters.restarts), changes, self.counted.sum(dim=0))
        return slotted

    def _own(self) -> dict[str, Slotted]:
        return {"clusters": self._filled({f"change/{name}": value for name, value in self.sums.items()})}

    def _filled(self, sums: Params) -> Slotted:
        """Return sums {name: (S, ...)} and their mass, for slots with contributions only."""
        used = torch.nonzero(self.slot_count).flatten()
        if len(used) == len(self.slots):  # no second copy: the method `local` has one model for each client
            return Slotted(self.slots, {**sums, "mass": self.slot_mass}, self.slot_count)
        arrays = take_rows({**sums, "mass": self.slot_mass}, used)
        return Slotted(self.slots[used], arrays, self.slot_count[used])
