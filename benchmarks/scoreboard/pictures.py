"""Clients with real images, whose groups differ in one way or in several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from benchmarks.scoreboard.drawing import Client, Drawn, Values, federation
from benchmarks.scoreboard.files import Files

Shift = Literal["concept", "feature", "label", "all", "mixed", "none", "dirichlet"]
"""How groups differ; `SHIFTS` in `scenarios` describes each."""
GROUPS = 3
CLIENTS = 30
FILTERS, PATCH, STRIDE = 64, 6, 2


@dataclass(frozen=True)
class Source:
    """Images and how many of them a client has."""

    name: str
    train: int = 50
    test: int = 25

    def read(self, files: Files) -> tuple[Values, Values]:
        """Return images (n, side, side), or (n, 3, 32, 32) in colour, from 0 to 1, and their labels."""
        if self.name == "digits":
            return _digits()
        found = files.read(self.name)
        return found["x_train"], found["y_train"].astype(np.int64)


@cache
def _digits() -> tuple[Values, Values]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images / 16, found.target


@dataclass(frozen=True)
class Pictures:
    """Clients in three groups that hold images of one source."""

    source: Source
    shift: Shift
    files: Files = Files()

    def __call__(self, seed: int) -> Drawn:
        """Return the clients of a seed."""
        random = np.random.default_rng([seed, 1])
        x, y = self.source.read(self.files)
        classes = int(y.max()) + 1
        meanings = [np.arange(classes), *(random.permutation(classes) for _ in range(GROUPS - 1))]
        order, pools = random.permutation(classes), _pools(y, random)
        group = random.permutation(np.arange(CLIENTS) % GROUPS)
        clients = []
        for own in group.tolist():
            each = self.source.train + self.source.test
            wanted = random.choice(classes, each, p=self._frequencies(own, order, random))
            rows = [_taken(pools, label) for label in wanted.tolist()]
            turns = own if self.shift in ("feature", "all") else 0
            concept = np.full(each, own if self.shift in ("concept", "all", "mixed") else 0)
            if self.shift == "mixed":
                concept = np.where(random.random(each) < 0.8, own, random.integers(0, GROUPS, each))
            labels = np.array([meanings[c][label] for c, label in zip(concept, y[rows], strict=True)])
            known = 0 if self.shift in ("none", "dirichlet") else own
            clients.append(Client(features(x[rows], turns), labels, self.source.train, known))
        return federation(clients)

    def _frequencies(self, own: int, order: Values, random: np.random.Generator) -> Values:
        """Return the probability of each class for a client."""
        if self.shift == "dirichlet":
            return random.dirichlet(np.full(len(order), 0.5))
        share = np.ones(len(order))
        if self.shift in ("label", "all"):
            share = np.full(len(order), 0.02)
            share[order[own::GROUPS]] = 1
        found: Values = share / share.sum()
        return found


def _pools(y: Values, random: np.random.Generator) -> list[list[int]]:
    """Return the positions of each class in random order."""
    return [random.permutation(np.flatnonzero(y == label)).tolist() for label in range(int(y.max()) + 1)]


def _taken(pools: list[list[int]], label: int) -> int:
    """Take an image of a class, or of the class with the most images once there is none left: no image occurs twice."""
    return (pools[label] or max(pools, key=len)).pop()


def features(x: Values, turns: int) -> Values:
    """Return turned images as rows: small ones as pixels, large ones at half the size, those in colour by filters."""
    x = x / 255 if x.dtype == np.uint8 else x
    x = np.rot90(x, turns, axes=(-2, -1))
    if x.ndim == 4:
        return filtered(x)
    if x.shape[-1] > 16:
        x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2).mean((2, 4))
    return np.ascontiguousarray(x, dtype=np.float32).reshape(len(x), -1)


def filtered(x: Values) -> Values:
    """Return the answers of 64 fixed random filters of 6 x 6 pixels, averaged over the quarters of each image.

    Each patch is centred and scaled to length 1 first, negative answers count as zero, and the 256 features are
    multiplied by 10, which makes their standard deviation about 0.2.
    """
    n, channels = x.shape[:2]
    filters = np.random.default_rng(0).standard_normal((channels * PATCH * PATCH, FILTERS)).astype(np.float32)
    views = np.lib.stride_tricks.sliding_window_view(x.astype(np.float32), (PATCH, PATCH), axis=(2, 3))
    views = views[:, :, ::STRIDE, ::STRIDE]
    side = views.shape[2]
    patches = views.transpose(0, 2, 3, 1, 4, 5).reshape(n * side * side, -1)
    patches = patches - patches.mean(1, keepdims=True)
    patches /= np.linalg.norm(patches, axis=1, keepdims=True) + 0.1
    answers = np.maximum(patches @ (filters / np.linalg.norm(filters, axis=0)), 0).reshape(n, side, side, FILTERS)
    half = side // 2
    halves = slice(half), slice(half, None)
    quarters = [answers[:, rows, columns].mean((1, 2)) for rows in halves for columns in halves]
    found: Values = 10 * np.concatenate(quarters, axis=1)
    return found


WRITERS, IMAGES = 30, 90


@dataclass(frozen=True)
class Handwriting:
    """Writers of FEMNIST; their labels may mean different things in three groups."""

    permuted: bool
    files: Files = Files()

    def __call__(self, seed: int) -> Drawn:
        """Return the writers of a seed, with at most 90 images each, a third of them held out."""
        random = np.random.default_rng([seed, 3])
        found = self.files.read("femnist")
        x, y, writer = found["x_train"], found["y_train"].astype(np.int64), found["w_train"]
        chosen = random.choice(int(writer.max()) + 1, WRITERS, replace=False)
        meanings = [np.arange(62), *(random.permutation(62) for _ in range(GROUPS - 1))]
        group = random.permutation(np.arange(WRITERS) % GROUPS).tolist()
        clients = []
        for own, name in zip(group, chosen, strict=True):
            rows = random.permutation(np.flatnonzero(writer == name))[:IMAGES]
            labels = meanings[own][y[rows]] if self.permuted else y[rows]
            ink = features(255 - x[rows], 0)
            clients.append(Client(ink, labels, round(len(rows) * 2 / 3), own if self.permuted else None))
        return federation(clients)
