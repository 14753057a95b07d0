"""Scores of all aspects of a diagnosis at the pooled fits, with and without random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import ASPECTS, aspect_of, signed
from coterie.client.group import ClientGroup
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("shift-scores")
@dataclass(frozen=True)
class ShiftScores(Task):
    """Statistics of the tests of a diagnosis, for each aspect.

    Sums: `signed/ASPECT` (draws, k c), the scores with random signs; `hessian/ASPECT`; `meat` (p, p), the sum over
    samples of the outer products of the model's scores. Rows: `pairs` (aspects, 2), the square of the client's score
    and its diagonal part; `score` (p,), the client's score of the model.
    """

    seed: int
    """Seed of the random signs."""
    draws: int
    """Number of draws of random signs."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        p = broadcast.common["model"].numel()
        pairs = torch.zeros(len(shard), len(ASPECTS), 2, dtype=torch.float64)
        score = torch.zeros(len(shard), p, dtype=torch.float64)
        sums: Params = {}
        for samples, signs in signed(shard, broadcast, self.seed, self.draws):
            places = torch.from_numpy(samples.block.positions)
            for index, name in enumerate(ASPECTS):
                aspect = aspect_of(name, samples, broadcast)
                pairs[places, index] = aspect.square_and_diagonal()
                _add(sums, f"signed/{name}", aspect.signed_scores(signs).sum(dim=0))
                _add(sums, f"hessian/{name}", aspect.hessian.sum(dim=0))
                if name == "model":
                    psi = aspect.scores
                    score[places] = psi.sum(dim=1)
                    _add(sums, "meat", psi.flatten(0, 1).T @ psi.flatten(0, 1))
        return Reply(clients=shard.ids, sums=sums, rows={"pairs": pairs, "score": score})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        common = broadcast.common
        curved = "contrast" in common
        p, s = common["model"].numel(), common["slopes"].numel()
        c, contrasts = common["moment_map"].shape[1], common["label_rows"].shape[1]
        k = len(common["label_rows"]) if curved else 2
        widths = dict(zip(ASPECTS, (p, s, c, contrasts, k * c), strict=True))
        hessians = dict(zip(ASPECTS, (p if curved else len(common["model"]), s, 1, 1, k), strict=True))
        sums = {f"signed/{name}": Spec((self.draws, width)) for name, width in widths.items()}
        sums |= {f"hessian/{name}": Spec((size, size)) for name, size in hessians.items()}
        rows = {"pairs": Spec((len(ASPECTS), 2)), "score": Spec((p,))}
        return Expected(sums=sums | {"meat": Spec((p, p))}, rows=rows)


def _add(sums: Params, name: str, value: torch.Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value
