"""Reproducible federations with known truth, real ones, and the doors for a user's own arrays and tables."""

from typing import TYPE_CHECKING

from coterie.core.lazy import lazily

if TYPE_CHECKING:
    from coterie.data.arrays import from_arrays, from_rows
    from coterie.data.registry import SCENARIOS, ScenarioEntry, find_scenario, register_scenario, scenario
    from coterie.data.table import from_table
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "arrays": ("from_arrays", "from_rows"),
            "registry": ("SCENARIOS", "ScenarioEntry", "find_scenario", "register_scenario", "scenario"),
            "table": ("from_table",),
        },
    )

__all__ = [
    "SCENARIOS",
    "ScenarioEntry",
    "find_scenario",
    "from_arrays",
    "from_rows",
    "from_table",
    "register_scenario",
    "scenario",
]
