"""SCAFFOLD: local steps corrected by control variates. (Karimireddy et al. 2020, option II)

x  the global model    c_i  state array scaffold/own, a row per client    c  their mean over all that have answered
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import coterie
from coterie.extend import (
    Block,
    Broadcast,
    ClientGroup,
    Expected,
    Params,
    Purpose,
    Reply,
    RunFacts,
    ServerState,
    SingleGroup,
    Spec,
    StateArray,
    Task,
    cut,
    finished_round,
    flat,
    keys_for_clients,
    participants,
    positions_of,
    unflat,
)
from coterie.methods import FullBatch, Initial, LocalTraining, Run, Step, TieredMethod, Tiers
from coterie.tiers import SingleCluster

OWN = "scaffold/own"


@coterie.register("corrected-steps")
@dataclass(frozen=True)
class CorrectedSteps(Task):
    """Full-batch steps along gradient + correction. Row `change`: (m, P). Sums: loss and samples."""

    steps: int
    seed: int

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, models = clients.train, broadcast.clusters.all_models()
        keys = keys_for_clients(self.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
        change = torch.zeros(len(shard), broadcast.each["correction"].shape[1], dtype=shard.x.dtype)
        loss = torch.zeros(len(shard), dtype=torch.float64)
        for block in cut(shard, keys, broadcast.clusters.slot_bytes):
            at = torch.from_numpy(block.positions)
            start = {name: p.expand(len(at), *p.shape[1:]) for name, p in models.items()}
            loss[at] = block.mean(clients.learner.losses(start, block.x, block.y)).double().cpu()
            change[at] = self._moved(clients, block, start, broadcast.scalars["lr"], broadcast.each["correction"][at])
        sound = change.isfinite().all(dim=1) & loss.isfinite()
        sizes = torch.from_numpy(shard.sizes).double()
        sums = {"loss": (loss * sizes)[sound].sum()[None], "samples": sizes[sound].sum()}
        return replace(Reply(clients=shard.ids, rows={"change": change}).only(sound), sums=sums)

    def _moved(
        self, clients: ClientGroup, block: Block, start: Params, lr: float, correction: torch.Tensor
    ) -> torch.Tensor:
        """Return the change (B, P) of each client's model."""
        theta, one = start, FullBatch(steps=1)
        shift = {name: -lr * c.to(start[name]) for name, c in unflat(correction, start).items()}
        for _ in range(self.steps):
            step = clients.learner.descend({name: p[:, None] for name, p in theta.items()}, block, one, lr)
            theta = {name: p + step[name][:, 0] + shift[name] for name, p in theta.items()}
        return (flat(theta) - flat(start)).cpu()

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        width = broadcast.each["correction"].shape[1]
        sums = {"loss": Spec((1,), low=-1.0), "samples": Spec((), low=0, whole=True, total="samples")}
        return Expected(sums=sums, rows={"change": Spec((width,), run.torch_dtype)})


@coterie.register("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(TieredMethod):
    """FedAvg whose local steps are corrected for the drift of each client."""

    local: LocalTraining = FullBatch(steps=5)

    summary: ClassVar[str] = "one global model, local steps corrected by control variates"
    citation: ClassVar[str] = "Karimireddy et al.: SCAFFOLD, 2020"
    groups: ClassVar[SingleGroup] = SingleGroup()
    no_twin: ClassVar[str] = "its correction has no counterpart in FedAvg"
    refuses: ClassVar[frozenset[str]] = frozenset(
        {"averaging", "client_weight", "divide_by", "combine", "shared", "restarts", "exchange", "server_optimizer"}
        | {"batch_size", "local_epochs", "augment", "optimizer", "poison", "privacy", "privacy_epsilon"}
        | {"privacy_delta", "privacy_clip", "privacy_noise", "privacy_choice"}
    )

    def tiers(self) -> Tiers:
        return self.compose(assignment=SingleCluster(), K=1)

    def reveals(self) -> Mapping[str, str]:
        return {"change": "how it changed the model"}

    def initialize(self, run: Run) -> Initial:
        first = super().initialize(run)
        P = flat(first.state.clusters.params).shape[1]
        own = torch.zeros(len(run.federation.clients), P, dtype=torch.float64)
        return replace(first, state=first.state.with_arrays({OWN: StateArray(own, ("client", None))}))

    def step(self, run: Run, state: ServerState) -> Step:
        asked, own = participants(run, state), state.arrays[OWN].value
        heard = (state.accepted >= 0).sum().clamp_min(1)  # a client that never answers changes nothing
        common, lr = own.sum(dim=0) / heard, run.tiers.local.rate(state.round, run.rounds)
        steps = run.tiers.local.full_batch_steps or 1
        correction = common - own[torch.from_numpy(asked)]
        broadcast = Broadcast(state.round, state.clusters, scalars={"lr": lr}, each={"correction": correction})
        replies = run.federation.ask(CorrectedSteps(steps, run.seed), broadcast, asked)
        after = state
        if replies.reply.clients:
            at = torch.from_numpy(positions_of(run.federation, replies.reply.clients))
            change = replies.reply.rows["change"].double()
            before = state.clusters.params
            moved = unflat(self.server.lr * change.mean(dim=0, keepdim=True), before)
            params = {name: p + moved[name].to(p) for name, p in before.items()}
            new = own.index_copy(0, at, own[at] - common - change / (steps * lr))
            choice = state.choice.index_fill(0, at, 0)
            after = replace(state, clusters=replace(state.clusters, params=params)).with_values(choice=choice)
            after = after.with_values(**{OWN: new})
        return finished_round(run, asked, replies, state, after)
