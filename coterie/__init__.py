"""Coterie: clustered federated learning. Finds the groups among clients and trains a model for each."""

from importlib.metadata import version

from coterie.comparing import compare
from coterie.composing import compose
from coterie.core.population import Population
from coterie.errors import ConfigError, CoterieError, InputError, RunError, TrainingError
from coterie.fitting import fit, resume
from coterie.reproductions import reproduce
from coterie.result import Result, load
from coterie.scenarios import from_arrays, from_rows, from_table, scenario
from coterie.sweeping import sweep

__version__ = version("coterie")

__all__ = [
    "ConfigError",
    "CoterieError",
    "InputError",
    "Population",
    "Result",
    "RunError",
    "TrainingError",
    "compare",
    "compose",
    "fit",
    "from_arrays",
    "from_rows",
    "from_table",
    "load",
    "reproduce",
    "resume",
    "scenario",
    "sweep",
]
