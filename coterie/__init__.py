"""Coterie: clustered federated learning. Finds the groups among clients and trains a model for each."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from coterie.lazy import lazily

if TYPE_CHECKING:
    from coterie import clustering, composing, datasets, errors, evaluate, reproductions, scenarios, testing, tiers
    from coterie.comparing import compare
    from coterie.composing import compose
    from coterie.core.population import Population
    from coterie.errors import ConfigError, CoterieError, InputError, RunError, StorageError, TrainingError
    from coterie.fitting import fit, resume
    from coterie.reproductions import reproduce
    from coterie.result import Result, load
    from coterie.scenarios import from_arrays, from_rows, from_table, scenario
    from coterie.sweeping import sweep
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "comparing": ("compare",),
            "composing": ("compose",),
            "core.population": ("Population",),
            "errors": ("ConfigError", "CoterieError", "InputError", "RunError", "StorageError", "TrainingError"),
            "fitting": ("fit", "resume"),
            "reproductions": ("reproduce",),
            "result": ("Result", "load"),
            "scenarios": ("from_arrays", "from_rows", "from_table", "scenario"),
            "sweeping": ("sweep",),
        },
        ("clustering", "composing", "datasets", "errors", "evaluate", "reproductions", "scenarios", "testing", "tiers"),
    )

__version__ = version("coterie")

__all__ = [
    "ConfigError",
    "CoterieError",
    "InputError",
    "Population",
    "Result",
    "RunError",
    "StorageError",
    "TrainingError",
    "clustering",
    "compare",
    "compose",
    "composing",
    "datasets",
    "errors",
    "evaluate",
    "fit",
    "from_arrays",
    "from_rows",
    "from_table",
    "load",
    "reproduce",
    "reproductions",
    "resume",
    "scenario",
    "scenarios",
    "sweep",
    "testing",
    "tiers",
]
