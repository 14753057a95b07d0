"""Data: the user's arrays, tables and data sets, scenarios with known groups, and real data sets."""

from typing import TYPE_CHECKING

from coterie.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from coterie.data import partition
    from coterie.data.arrays import from_arrays, from_rows
    from coterie.data.hugging_face import from_hf
    from coterie.data.parquet import from_parquet_dir, to_parquet_dir
    from coterie.data.partition import partitioned
    from coterie.data.registry import SCENARIOS, ScenarioEntry, find_scenario, register_scenario, scenario
    from coterie.data.table import from_table
    from coterie.data.torch_data import from_torch
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "arrays": ("from_arrays", "from_rows"),
            "hugging_face": ("from_hf",),
            "parquet": ("from_parquet_dir", "to_parquet_dir"),
            "partition": ("partitioned",),
            "registry": ("SCENARIOS", "ScenarioEntry", "find_scenario", "register_scenario", "scenario"),
            "table": ("from_table",),
            "torch_data": ("from_torch",),
        },
        ("partition",),
    )

__all__ = [
    "SCENARIOS",
    "ScenarioEntry",
    "find_scenario",
    "from_arrays",
    "from_hf",
    "from_parquet_dir",
    "from_rows",
    "from_table",
    "from_torch",
    "partition",
    "partitioned",
    "register_scenario",
    "scenario",
    "to_parquet_dir",
]
