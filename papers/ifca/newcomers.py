"""Test clients of the IFCA paper: held-out images, divided among clients that choose the model with the lowest loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.training.result import Result

CHUNK = 1000
"""Number of images in a batch."""


def least_loss_accuracy(data: FederatedDataset, result: Result, n: int, seed: int) -> float:
    """Return the mean accuracy over test clients of n images each.

    Every held-out set that the clients of a group share is shuffled and cut into test clients; what is left over at the
    end is dropped. A test client tries all models and keeps the one with the lowest loss on its images.
    """
    assert data.test is not None
    random = generator(key_for(seed, Purpose.SCENARIO, 1))
    accuracies = []
    for first, last in sorted({*zip(data.test.starts.tolist(), data.test.stops.tolist(), strict=True)}):
        order = torch.from_numpy(random.permutation(last - first)[: (last - first) // n * n]) + first
        losses, hits = _through_all_models(result, data.test.x[order], data.test.y[order])
        losses, hits = (table.reshape(len(table), -1, n).mean(dim=2) for table in (losses, hits))  # (K, test clients)
        accuracies.append(hits.gather(0, losses.argmin(dim=0)[None])[0])
    return float(np.mean(torch.cat(accuracies).numpy()))


def _through_all_models(result: Result, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and hit (0 or 1) of every model on every sample, both (K, samples)."""
    losses = torch.empty(len(result.parameters), len(y), dtype=torch.float64)
    hits = torch.empty_like(losses)
    with torch.no_grad():
        for k, model in enumerate(result.parameters):
            theta = {name: p[None] for name, p in model.items()}
            for first in range(0, len(y), CHUNK):
                rows = slice(first, first + CHUNK)
                images = x[rows][None].to(next(iter(theta.values())).dtype)
                hits[k, rows] = (result.learner.outputs(theta, images)[0].argmax(dim=-1) == y[rows]).double()
                losses[k, rows] = result.learner.losses(theta, images, y[rows][None])[0].double()
    return losses, hits
