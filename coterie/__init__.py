"""Coterie: clustered federated learning.

Coterie finds groups among clients, trains one model for each group without moving the data, and reports how certain
each assignment is.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from coterie.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from coterie import callbacks, clustering, data, errors, evaluate, learners, methods, sklearn, testing, tiers
    from coterie.core.dataset import FederatedDataset
    from coterie.core.registry import register
    from coterie.data import (
        from_arrays,
        from_hf,
        from_parquet_dir,
        from_rows,
        from_table,
        from_torch,
        scenario,
        to_parquet_dir,
    )
    from coterie.diagnosis.diagnose import diagnose
    from coterie.errors import ConfigError, CoterieError, InputError, RunError, StorageError, TrainingError
    from coterie.experiments.compare import compare
    from coterie.experiments.comparison import Comparison
    from coterie.experiments.reproduce import reproduce
    from coterie.experiments.sweep import sweep
    from coterie.plugins.loading import load_plugin
    from coterie.report.result import write_report
    from coterie.training.fitting import fit, resume
    from coterie.training.measures import measure
    from coterie.training.result import Result, load
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "core.dataset": ("FederatedDataset",),
            "core.registry": ("register",),
            "data": (
                "from_arrays",
                "from_hf",
                "from_parquet_dir",
                "from_rows",
                "from_table",
                "from_torch",
                "scenario",
                "to_parquet_dir",
            ),
            "diagnosis.diagnose": ("diagnose",),
            "errors": ("ConfigError", "CoterieError", "InputError", "RunError", "StorageError", "TrainingError"),
            "experiments.compare": ("compare",),
            "experiments.comparison": ("Comparison",),
            "experiments.reproduce": ("reproduce",),
            "experiments.sweep": ("sweep",),
            "report.result": ("write_report",),
            "training.fitting": ("fit", "resume"),
            "training.measures": ("measure",),
            "plugins.loading": ("load_plugin",),
            "training.result": ("Result", "load"),
        },
        ("callbacks", "clustering", "data", "errors", "evaluate", "learners", "methods", "sklearn", "testing", "tiers"),
    )

__version__ = version("coterie")

__all__ = [
    "Comparison",
    "ConfigError",
    "CoterieError",
    "FederatedDataset",
    "InputError",
    "Result",
    "RunError",
    "StorageError",
    "TrainingError",
    "callbacks",
    "clustering",
    "compare",
    "data",
    "diagnose",
    "errors",
    "evaluate",
    "fit",
    "from_arrays",
    "from_hf",
    "from_parquet_dir",
    "from_rows",
    "from_table",
    "from_torch",
    "learners",
    "load",
    "load_plugin",
    "measure",
    "methods",
    "register",
    "reproduce",
    "resume",
    "scenario",
    "sklearn",
    "sweep",
    "testing",
    "tiers",
    "to_parquet_dir",
    "write_report",
]
