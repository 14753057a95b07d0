"""Evaluation of statistical alternatives to clustering on the held-out samples of each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.baselines import own_models, with_intercept
from coterie.client.group import ClientGroup
from coterie.client.predictors import Predictor
from coterie.client.regression import as_generalised_linear
from coterie.client.tasks.fine_tune import FineTune
from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params, take_rows
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.minimum import GeneralisedLinear

BINS, WIDEST = 160, 8.0
"""Number of bins, and the largest absolute log-odds, of the histograms from which the pooled AUC is computed."""
OWN_PLACE = 4
"""Index of the local models among the candidates; the other candidates are in the broadcast."""


@register("site-scores")
@dataclass(frozen=True)
class SiteScores(Task):
    """Evaluation of A candidate models on held-out samples.

    The candidates are the models of the run, then the models `theta` (A - 2, p, q) with each client's `intercepts`
    (A - 2, q), and, inserted at index `OWN_PLACE`, the client's local model. With `tuning`, there is one more: the
    model of the client's cluster, fine-tuned on its training samples.

    Rows: `squares` (A,), the sum of squared errors, or `hits` (A,), the number of correct classes; `losses` (A,), the
    sum of half the squares or of the log-losses; `held_out`, the number of samples; and `alone`, 1 if the client has
    enough samples for a local model, else 0. Sum for classification: `bins` (A, C', 2, BINS), histograms of the
    log-odds of samples outside and inside each class; for two classes, of the second one only.
    """

    pooled: int = 1
    """Index of the pooled model in `theta`."""
    predictor: Predictor | None = None
    """Predictor of clients that keep a state; None: clients predict with the model of their cluster."""
    tuning: FineTune | None = None
    """Fine-tuning of the models of the run; None: they are evaluated without it only."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard = as_generalised_linear(clients.learner), clients.evaluated("test")
        models, alone = self._models(learner, clients, broadcast)
        predict = self._of_run(clients, broadcast)
        classes, candidates = clients.learner.classes, models.shape[1] + len(predict)
        score = "squares" if classes is None else "hits"
        rows = {name: torch.zeros(len(shard), candidates, dtype=torch.float64) for name in (score, "losses")}
        bins = torch.zeros(candidates, _counted(classes), 2, BINS, dtype=torch.float64)
        for block in cut(shard, shard.hashes, 0):
            places = torch.from_numpy(block.positions)
            problem = with_intercept(learner, block)
            outputs = torch.einsum("bnp,bapq->abnq", problem.phi, models[places].to(problem.phi))
            of_run = [_reference_form(each(block), classes)[None].to(outputs) for each in predict]
            every = torch.cat([of_run[0], outputs, *of_run[1:]])
            real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
            if classes is None:
                squares = torch.where(real, (every[..., 0] - problem.y) ** 2, 0).sum(dim=2).T
                rows["squares"][places], rows["losses"][places] = squares.cpu(), squares.cpu() / 2
            else:
                whole = torch.cat([torch.zeros_like(every[..., :1]), every], dim=-1)
                log_p = torch.log_softmax(whole, dim=-1)
                label = block.y[None, ..., None].expand(candidates, -1, -1, 1)
                losses = -log_p.gather(-1, label)[..., 0]
                hits = (log_p.argmax(dim=-1) == block.y).to(losses.dtype)
                rows["losses"][places] = torch.where(real, losses, 0).sum(dim=2).T.cpu()
                rows["hits"][places] = torch.where(real, hits, 0).sum(dim=2).T.cpu()
                bins += _binned(log_p[:, real], block.y[real], classes).cpu()
        rows["held_out"] = torch.from_numpy(shard.sizes).double()
        rows["alone"] = alone.double()
        return Reply(clients=shard.ids, rows=rows, sums={} if classes is None else {"bins": bins})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        count = len(broadcast.common["theta"]) + 2 + (self.tuning is not None)
        rows = {
            "losses": Spec((count,), low=-1e-3, missing="shared"),
            "held_out": Spec((), low=0, whole=True),
            "alone": Spec((), low=0, high=1),
        }
        if run.classes is None:
            return Expected(rows={**rows, "squares": Spec((count,), low=0, missing="shared")})
        bins = Spec((count, _counted(run.classes), 2, BINS), low=0, whole=True)
        return Expected(rows={**rows, "hits": Spec((count,), low=0, whole=True)}, sums={"bins": bins})

    def _models(self, learner: GeneralisedLinear, clients: ClientGroup, broadcast: Broadcast) -> tuple[Tensor, Tensor]:
        """Return other candidates than the run's, (m, A - 1, p, q), and which clients have a local model, (m,)."""
        theta, intercepts = broadcast.common["theta"], broadcast.each["intercepts"]
        each = theta.double()[None].repeat(len(intercepts), 1, 1, 1)
        each[:, :, -1] += intercepts
        own, alone = own_models(learner, clients.train, theta[self.pooled])
        at = OWN_PLACE - 1
        return torch.cat([each[:, :at], own[:, None], each[:, at:]], dim=1), alone

    def _of_run(self, clients: ClientGroup, broadcast: Broadcast) -> list[Callable[[Block], Tensor]]:
        """Return the functions that predict with the models of the run, and with these fine-tuned."""
        learner, shard, own = clients.learner, clients.evaluated("test"), broadcast.each["own"]
        if self.predictor is not None:
            return [self.predictor.client_outputs(learner, shard, broadcast, clients.states)]
        found = [lambda block: learner.outputs(broadcast.clusters.at(own[torch.from_numpy(block.positions)]), block.x)]
        if self.tuning is not None:
            tuned = _in_order(self.tuning.models(clients, broadcast))
            found.append(lambda block: learner.outputs(take_rows(tuned, torch.from_numpy(block.positions)), block.x))
        return found


def _in_order(parts: Iterable[tuple[Tensor, Params]]) -> Params:
    """Return the models of all clients, {name: (m, ...)}, from positions and models of parts of them."""
    positions, models = zip(*parts, strict=True)
    order = torch.cat(positions).argsort()
    return {name: torch.cat([each[name] for each in models])[order] for name in models[0]}


def _counted(classes: int | None) -> int:
    """Return the number of classes with a histogram of log-odds (C')."""
    return 0 if classes is None else 1 if classes == 2 else classes


def _reference_form(outputs: Tensor, classes: int | None) -> Tensor:
    """Return logits minus those of the first class, (B, n, C - 1), or predictions as (B, n, 1)."""
    return outputs[..., None] if classes is None else outputs[..., 1:] - outputs[..., :1]


def _binned(log_p: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return histograms of the log-odds of samples outside and inside each class, (A, C', 2, BINS).

    Args:
        log_p: Log-probabilities, (A, N, C).
        y: Classes, (N,).
        classes: Number of classes (C).
    """
    counted = range(1, 2) if classes == 2 else range(classes)
    found = log_p.new_zeros(len(log_p), len(counted), 2, BINS)
    for at, k in enumerate(counted):
        odds = log_p[..., k] - torch.log1p(-log_p[..., k].exp().clamp(max=1 - 1e-12))
        place = ((odds + WIDEST) / (2 * WIDEST) * BINS).floor().clamp(0, BINS - 1).long()
        for inside in (0, 1):
            rows = (y == k) == bool(inside)
            found[:, at, inside].scatter_add_(1, place[:, rows], torch.ones_like(odds[:, rows]))
    return found
