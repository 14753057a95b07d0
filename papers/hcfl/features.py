"""Frozen features of images in place of a pretrained network: Coates, Ng, Lee 2011, in plain NumPy and PyTorch.

The paper's networks start from ImageNet weights, which are not at hand, and small random networks learn too little for
clusters to matter. These features are fitted once, without labels, to clean images: whitened patches are compared with
centres found by k-means, and summed over the quarters of an image; principal axes shorten the result. Clients train a
perceptron on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from coterie.core.dataset import FederatedDataset, Newcomers
from coterie.core.shard import Shard
from coterie.data.loaders import load
from coterie.data.scenarios.shifts.pictures import standard_colours

PATCH, STRIDE, CENTRES, AXES = 6, 2, 256, 128
FITTED_IMAGES, PATCHES_EACH = 5000, 10
LLOYD_ROUNDS = 15
CONTRAST, WHITENING = 0.1, 0.1
"""Added to the variance of a patch, and to the eigenvalues of the patches' covariance."""
CHUNK = 250
"""Images whose patches are in memory at the same time."""


@dataclass(frozen=True)
class Extractor:
    """Features of standardised images (n, H, W) or (n, C, H, W)."""

    mean: Tensor
    """Mean patch, (p,)."""
    whiten: Tensor
    """Symmetric matrix that whitens patches, (p, p)."""
    centres: Tensor
    """Centres of k-means, (CENTRES, p)."""
    middle: Tensor
    """Mean of the sums over quarters, (4 * CENTRES,)."""
    axes: Tensor
    """Principal axes of these sums, each divided by the root of its deviation, (4 * CENTRES, AXES)."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return features (n, AXES)."""
        return torch.cat([(self.sums(part) - self.middle) @ self.axes for part in torch.split(images, CHUNK)])

    def sums(self, images: Tensor) -> Tensor:
        """Return how much nearer than the mean centre each centre is, summed over quarters, (n, 4 * CENTRES)."""
        patches = normalised(patches_of(images))
        distances = torch.cdist((patches - self.mean) @ self.whiten, self.centres)
        near = (distances.mean(dim=-1, keepdim=True) - distances).clamp_min(0)
        side = round(near.shape[1] ** 0.5)
        grid = near.reshape(len(images), side, side, -1)
        half = side // 2
        quarters = [grid[:, r, c].sum((1, 2)) for r in _halves(half) for c in _halves(half)]
        return torch.cat(quarters, dim=1)


def _halves(half: int) -> tuple[slice, slice]:
    return slice(None, half), slice(half, None)


def patches_of(images: Tensor) -> Tensor:
    """Return patches (n, positions, p)."""
    coloured = images[:, None] if images.ndim == 3 else images
    return torch.nn.functional.unfold(coloured, PATCH, stride=STRIDE).transpose(1, 2)


def normalised(patches: Tensor) -> Tensor:
    """Return patches with mean 0 and, apart from flat ones, deviation 1."""
    centred = patches - patches.mean(dim=-1, keepdim=True)
    return centred / (centred.var(dim=-1, keepdim=True) + CONTRAST).sqrt()


@lru_cache(maxsize=2)
def extractor(dataset: str) -> Extractor:
    """Return the features fitted to the first clean training images of a stored data set; no labels are used."""
    stored = load(dataset).x_train[:FITTED_IMAGES].astype(np.float32) / np.float32(255)
    images = torch.from_numpy(standard_colours(stored) if stored.ndim == 4 else stored)
    draws = torch.Generator().manual_seed(0)
    some = torch.cat([_some(patches_of(part), draws) for part in torch.split(images, CHUNK)])
    rows = normalised(some)
    mean = rows.mean(dim=0)
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    whiten = vectors @ torch.diag((values + WHITENING).rsqrt()) @ vectors.T
    centres = k_means((rows - mean) @ whiten, draws)
    raw = Extractor(mean, whiten, centres, torch.zeros(1), torch.zeros(1, 1))
    sums = torch.cat([raw.sums(part) for part in torch.split(images, CHUNK)])
    middle = sums.mean(dim=0)
    axes = torch.linalg.eigh((sums - middle).T @ (sums - middle))[1][:, -AXES:].flip(1)
    axes = axes / ((sums - middle) @ axes).std(dim=0).sqrt()
    return replace(raw, middle=middle, axes=axes / ((sums - middle) @ axes).std())


def _some(patches: Tensor, draws: torch.Generator) -> Tensor:
    """Return PATCHES_EACH random patches of each image, (n * PATCHES_EACH, p)."""
    chosen = torch.randint(patches.shape[1], (len(patches), PATCHES_EACH), generator=draws)
    return patches.gather(1, chosen[..., None].expand(-1, -1, patches.shape[2])).flatten(0, 1)


def k_means(rows: Tensor, draws: torch.Generator) -> Tensor:
    """Return CENTRES centres by Lloyd's algorithm from random rows; an empty cluster keeps its centre."""
    centres = rows[torch.randperm(len(rows), generator=draws)[:CENTRES]]
    for _ in range(LLOYD_ROUNDS):
        own = torch.cdist(rows, centres).argmin(dim=1)
        counts = torch.bincount(own, minlength=CENTRES)
        means = torch.zeros_like(centres).index_add_(0, own, rows) / counts.clamp_min(1)[:, None]
        centres = torch.where(counts[:, None] > 0, means, centres)
    return centres


def with_features(data: FederatedDataset, dataset: str) -> FederatedDataset:
    """Return the same clients with features instead of images."""
    fitted = extractor(dataset)
    assert data.test is not None
    assert data.newcomers is not None
    guests = Newcomers(_on_copies(data.newcomers.support, fitted), _on_copies(data.newcomers.query, fitted))
    return replace(data, train=_on(data.train, fitted), test=_on(data.test, fitted), newcomers=guests, options={})


def _on(shard: Shard, fitted: Extractor) -> Shard:
    return replace(shard, x=fitted(shard.x))


def _on_copies(shard: Shard, fitted: Extractor) -> Shard:
    """Return the features of newcomers, all of which hold the same images in the same order."""
    one = fitted(shard.x[: len(shard.x) // len(shard.ids)])
    return replace(shard, x=one.repeat(len(shard.ids), 1))
