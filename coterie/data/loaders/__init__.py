"""Real data sets from packages or copies of the user: checked, stored in one folder, downloaded only on request."""

from __future__ import annotations

from coterie.data.loaders.bring import get, import_copy
from coterie.data.loaders.catalogue import DATASETS, Dataset, find_dataset, load, load_rows
from coterie.data.loaders.images import Images, Writers
from coterie.data.loaders.rows import Rows
from coterie.data.loaders.store import data_folder, verify

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
