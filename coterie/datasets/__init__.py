"""Real data sets: from ordinary packages or a user's own copy, checked, kept in one folder; never fetched unasked."""

from __future__ import annotations

from coterie.datasets.bring import get, import_copy
from coterie.datasets.catalogue import DATASETS, Dataset, find_dataset, load, load_rows
from coterie.datasets.images import Images, Writers
from coterie.datasets.rows import Rows
from coterie.datasets.store import data_folder, verify

__all__ = [
    "DATASETS",
    "Dataset",
    "Images",
    "Rows",
    "Writers",
    "data_folder",
    "find_dataset",
    "get",
    "import_copy",
    "load",
    "load_rows",
    "verify",
]
