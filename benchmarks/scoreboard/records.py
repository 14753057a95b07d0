"""Real clients that are no images: mine fields, schools, firms."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np

from benchmarks.scoreboard.drawing import Client, Drawn, federation, table
from benchmarks.scoreboard.files import Files

FOLIATED = 15
"""The first 15 mine fields are covered by plants, the others are bare."""


@dataclass(frozen=True)
class Landmine:
    """Fields seen by radar: is it a mine? All mines of a field, and as many other objects."""

    files: Files = Files()

    def __call__(self, seed: int) -> Drawn:
        """Return the fields in random order; half of the samples of each are held out."""
        random = np.random.default_rng([seed, 4])
        found = self.files.read("landmine")
        x, y, task = found["x"], found["y"].astype(np.int64), found["task"].astype(np.int64)
        clients = []
        for field in random.permutation(np.unique(task)):
            mines = np.flatnonzero((task == field) & (y == 1))
            others = random.permutation(np.flatnonzero((task == field) & (y == 0)))[: len(mines)]
            rows = random.permutation(np.concatenate([mines, others]))
            group = int(field >= task.min() + FOLIATED)
            clients.append(Client(x[rows].astype(np.float64), y[rows], len(rows) // 2, group))
        return federation(clients)


@dataclass(frozen=True)
class School:
    """Exam scores of pupils; a client is a school."""

    files: Files = Files()

    def __call__(self, seed: int) -> Drawn:
        """Return the schools and their pupils in random order."""
        found = self.files.read("school")
        order = np.random.default_rng([seed, 6]).permutation(len(found["y"]))
        x, y, task = found["x"][order], found["y"][order], found["task"][order]
        columns = {f"x{j:02d}": x[:, j].astype(np.float64) for j in range(x.shape[1] - 1)}  # the last one is 1
        school = np.array([f"school {i}" for i in task])
        return table(columns | {"school": school, "score": y.astype(np.float64)}, "school", "score", None, seed)


def grunfeld(seed: int) -> Drawn:
    """Return eleven American firms over 20 years: investment explained by value and capital."""
    frame = import_module("statsmodels.datasets.grunfeld").load_pandas().data
    order = np.random.default_rng([seed, 7]).permutation(len(frame))
    columns = {name: frame[name].to_numpy()[order] for name in ("firm", "value", "capital", "invest")}
    return table(columns, "firm", "invest", None, seed)
