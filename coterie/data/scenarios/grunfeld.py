"""Investment of eleven American firms, 1935 to 1954, as statsmodels contains it; every firm is a client."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from coterie.core.dataset import FederatedDataset
from coterie.data.table import HOLDOUT, from_table
from coterie.errors import InputError

CLUSTERS = 2


def grunfeld(*, holdout: float = HOLDOUT, seed: int = 0) -> FederatedDataset:
    """A client is a firm with 20 years; investment is explained by value and capital. The true groups are unknown.

    Money is in millions of dollars of 1947. Features are standardised over all firms; the seed determines which years
    are held out.
    """
    try:
        data: Any = import_module("statsmodels.datasets.grunfeld")
    except ImportError:
        raise InputError("grunfeld comes with statsmodels: pip install 'coterie[stats]'") from None
    built = from_table(
        data.load_pandas().data,
        client="firm",
        target="invest",
        features=("value", "capital"),
        holdout=holdout,
        seed=seed,
        name="grunfeld",
    )
    return replace(built, options={"holdout": holdout}, recommended={**built.recommended, "clusters": CLUSTERS})
