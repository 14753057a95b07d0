"""Exam scores of pupils in 139 London schools: every school is a client, and the groups are unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data.loaders import load_rows
from coterie.data.table import HOLDOUT, from_table

FEATURES = (
    *(f"year {year}" for year in (1985, 1986, 1987)),
    "% free meals",
    "% in VR band 1",
    *("male", "female"),
    *(f"VR band {band}" for band in (1, 2, 3)),
    *(f"ethnic group {group}" for group in range(1, 12)),
    *(f"school gender {kind}" for kind in (1, 2, 3)),
    *(f"denomination {kind}" for kind in (1, 2, 3)),
)
"""Names of the features in the order of the published columns; groups are numbered, as their order is not published.
The last published column is 1 in every row and left out: the learner has an intercept."""
CLUSTERS = 3


def school(*, holdout: float = HOLDOUT, seed: int = 0) -> FederatedDataset:
    """A client is a school with 22 to 251 pupils; the target is the exam score, 1 to 70. The true groups are unknown.

    Features are standardised; the seed determines which pupils are held out. Import your own copy with
    'coterie data import school PATH'.
    """
    rows = load_rows("school")
    ids = np.array([f"school-{number + 1:03d}" for number in range(rows.counts["clients"])])
    table = {name: rows.x[:, j] for j, name in enumerate(FEATURES)} | {"score": rows.y}
    built = from_table(
        {**table, "school": ids[rows.task]}, client="school", target="score", holdout=holdout, seed=seed, name="school"
    )
    return replace(built, options={"holdout": holdout}, recommended={**built.recommended, "clusters": CLUSTERS})
