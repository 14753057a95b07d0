"""The page of speed: goals that are met and missed, rows without figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by name

speed_page = pytest.importorskip("speed_page")
speed_rows = pytest.importorskip("speed_rows")


def line(row: str, **figures: object) -> dict:
    machine = {
        "processor": "P",
        "cores": 2,
        "memory_gb": 8,
        "vectors": "AVX2",
        "python": "3",
        "torch": "2",
        "numpy": "2",
    }
    empty = {"loop": None, "limit": None, "limited_by": "", "memory": None}
    return {"row": row, "version": "1+a", "machine": machine, "threads": 2, **empty, **figures}


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (speed_rows.Goal(2.0, "seconds"), True),
        (speed_rows.Goal(1.9, "seconds"), False),
        (speed_rows.Goal(3.0, "loop"), True),
        (speed_rows.Goal(3.1, "loop"), False),
        (speed_rows.Goal(4.0, "limit"), True),
        (speed_rows.Goal(3.9, "limit"), False),
    ],
)
def test_goals_are_judged_by_seconds_loop_or_limit(goal, met):
    assert speed_page.is_met(goal, line("x", seconds=2.0, loop=6.0, limit=0.5)) == met


def test_the_page_has_every_row_and_the_figures_of_measured_ones():
    figures = line("w3", seconds=0.04, loop=0.08, limit=0.02, limited_by="GEMM")
    page = speed_page.page({"w3": figures})
    assert all(f"| {row.name} |" in page for row in speed_rows.rows())
    (shown,) = (one for one in page.splitlines() if one.startswith("| W3"))
    assert shown.split(" | ")[1:6] == ["2", "40 ms", "80 ms", "2", "2 GEMM"]
    assert "35 ms: missed" in shown
    assert "P, 2 cores" in page
    assert speed_page.growth_plot({"w3": figures}) == ""


def test_rows_have_keys_of_their_own():
    keys = [row.key for row in speed_rows.rows()]
    assert len(set(keys)) == len(keys)
