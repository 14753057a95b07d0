"""How far the rounding of sums moves the tables: the same runs in single and in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coterie.experiments.reproduction import NOT_RUN, Claim, Found, Table, values_of
from papers.hcfl.images import (
    CFL_ROWS,
    CIFAR,
    FASHION,
    FEDAVG,
    FEDEM,
    FEDRC,
    FESEM,
    ICFL_085,
    IFCA,
    ORACLE,
    PLUS_FEDEM,
    PLUS_FEDRC,
    PLUS_FESEM,
    ROUNDING,
    STOCFL_01,
    Grid,
    Row,
    Setting,
    reproduction,
)

ROWS = (
    ORACLE,
    FEDAVG,
    FESEM,
    IFCA,
    FEDEM,
    FEDRC,
    CFL_ROWS[1],
    ICFL_085,
    STOCFL_01,
    PLUS_FESEM[-1],
    PLUS_FEDEM[-1],
    PLUS_FEDRC[-1],
)
SETTINGS = (FASHION, CIFAR)


def _in_double(row: Row) -> Row:
    return replace(row, title=f"{row.title}, double precision", options={**row.options, "dtype": "float64"})


GRID: Grid = tuple((setting, (*ROWS, *map(_in_double, ROWS))) for setting in SETTINGS)


def moves(found: Found, setting: Setting, row: Row, figure: str) -> list[float]:
    """Return the figure in double precision less that in single precision, for each seed that has both."""
    single, double = (found.get(one.cell(setting), {}) for one in (row, _in_double(row)))
    return [double[seed][figure] - single[seed][figure] for seed in sorted(single.keys() & double.keys())]


def _tables(found: Found, quick: bool) -> list[Table]:
    header = ["method", "Val: largest move", "Test: largest move", "K in use: single, double"]
    return [
        Table(f"{setting.title}, points", header, [_row(found, setting, row) for row in ROWS]) for setting in SETTINGS
    ]


def _row(found: Found, setting: Setting, row: Row) -> list[str]:
    numbers = [values_of(found, one.cell(setting), "clusters") for one in (row, _in_double(row))]
    shown = ", ".join(str(one[0]) if one else NOT_RUN for one in numbers)
    return [row.title, *(_largest(moves(found, setting, row, figure)) for figure in ("val", "test")), shown]


def _largest(values: Sequence[float]) -> str:
    return f"{max(map(abs, values)):.2f}" if values else NOT_RUN


def _claims(found: Found, quick: bool) -> list[Claim]:
    return [_within(found, setting, figure) for setting in SETTINGS for figure in ("val", "test")]


def _within(found: Found, setting: Setting, figure: str) -> Claim:
    """Return the claim that the root mean square move is at most half of the margin of the verdicts."""
    text = (
        f"{setting.title}: rounding moves {figure.capitalize()} by {ROUNDING / 2:g} points at most (root mean square)"
    )
    known = [value for row in ROWS for value in moves(found, setting, row, figure)]
    if not known:
        return Claim(text, None, NOT_RUN)
    spread = (sum(value**2 for value in known) / len(known)) ** 0.5
    evidence = f"{spread:.2f} over {len(known)} pairs of runs; largest {max(map(abs, known)):.2f}"
    return Claim(text, spread <= ROUNDING / 2, evidence)


REPRODUCTIONS = (
    reproduction(
        "hcfl-rounding",
        "How far rounding moves the tables",
        "how far rounding moves the tables",
        "The same runs in single and in double precision: a machine that adds in another order moves figures by about "
        "as much. The margin of the verdicts in all small tables is twice the root mean square of these moves.",
        GRID,
        _tables,
        _claims,
    ),
)
