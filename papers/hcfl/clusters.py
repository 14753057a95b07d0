"""The clusters: their number over the rounds, their cost, their classes (figure 4, tables 11 and 13).

Guo, Tang, Lin 2025, on a small scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.experiments.reproduction import NOT_RUN, Claim, Found, Table, mean_of, values_of
from papers.hcfl.comparisons import PLUS_FOR_12, TABLE12_ROWS, TWO_CONCEPTS
from papers.hcfl.images import (
    CIFAR,
    CLASSES,
    EVERY,
    FASHION_TWO_CLASSES,
    ICFL_085,
    PLUS_FEDEM,
    PLUS_FEDRC,
    STOCFL_015,
    TWO_CLASSES,
    Grid,
    Row,
    Setting,
    falling,
    reproduction,
    shown,
)
from papers.hcfl.reference import count_range
from papers.pictures import Panel, Picture, curves

FIGURE4_ROWS = (*PLUS_FEDEM, *PLUS_FEDRC)
FIGURE4_GRID: Grid = ((CIFAR, FIGURE4_ROWS),)
SHOWN_EVERY = EVERY // 2


def _figure4(found: Found, quick: bool) -> list[Table]:
    """Return a table of the number of clusters after some rounds, with all seeds."""
    runs = {row: values_of(found, row.cell(CIFAR), "clusters by round") for row in FIGURE4_ROWS}
    longest = max((len(one) for many in runs.values() for one in _lists(many)), default=0)
    after = [1, *range(SHOWN_EVERY, longest + 1, SHOWN_EVERY)]
    header = ["method", *(f"round {count}" for count in after)]
    return [Table("Clusters after a round", header, [[row.title, *_numbers(runs[row], after)] for row in FIGURE4_ROWS])]


def _figure4_picture(found: Found) -> Picture:
    """Return the number of clusters over the rounds, with the first seed."""
    lines = {}
    for row in FIGURE4_ROWS:
        runs = _lists(values_of(found, row.cell(CIFAR), "clusters by round"))
        lines[row.title] = [(float(t), float(count)) for t, count in enumerate(runs[0], start=1)] if runs else []
    return curves([Panel(CIFAR.title, "round", "clusters", lines)])


def _lists(found: Sequence[object]) -> list[list[int]]:
    return [one for one in found if isinstance(one, list)]


def _numbers(found: Sequence[object], after: Sequence[int]) -> list[str]:
    return [count_range([one[count - 1] for one in _lists(found) if count <= len(one)]) for count in after]


def _figure4_claims(found: Found, quick: bool) -> list[Claim]:
    settled = [_settles(found, rows[-1]) for rows in (PLUS_FEDEM, PLUS_FEDRC)]
    fewer = [
        falling(found, CIFAR, "clusters", rows, f"as rho rises from 0.05 to 0.3 ({name})")
        for name, rows in (("FedEM", PLUS_FEDEM), ("FedRC", PLUS_FEDRC))
    ]
    return [*fewer, *settled]


def _settles(found: Found, row: Row) -> Claim:
    """Return the number of clusters in the last quarter of the rounds."""
    text = f"{CIFAR.title}: {row.title} has found its number of clusters: it changes by 1 at most in the last quarter"
    runs = _lists(values_of(found, row.cell(CIFAR), "clusters by round"))
    if not runs:
        return Claim(text, None, NOT_RUN)
    ends = [one[-max(1, len(one) // 4) :] for one in runs]
    evidence = ", ".join(f"{min(end)} to {max(end)}" for end in ends)
    return Claim(text, all(max(end) - min(end) <= 1 for end in ends), evidence)


TABLE11_GRID: Grid = ((TWO_CLASSES, TABLE12_ROWS),)
TABLE11 = {
    ICFL_085: ("4190", "124.71", "100", "83.96", "46.00"),
    STOCFL_015: ("2834", "178.53", "41", "86.92", "20.00"),
    PLUS_FOR_12: ("2564", "176.48", "5", "95.14", "49.00"),
}


def _table11(found: Found, quick: bool) -> list[Table]:
    header = ["method"]
    for name in ("memory, MB", "seconds a round", "K", "Val", "Test"):
        header += [f"{name}: paper", "ours"]
    rows = [[row.title, *_next_to(found, row)] for row in TABLE12_ROWS]
    return [Table(f"{TWO_CLASSES.title}; megabytes sent in a round last", [*header, "MB sent"], rows)]


def _next_to(found: Found, row: Row) -> list[str]:
    memory, seconds, k, val, test = TABLE11[row]
    texts = [memory, shown(found, TWO_CLASSES, row, "memory", 0), seconds, _times_icfl(found, row)]
    texts += [k, count_range(values_of(found, row.cell(TWO_CLASSES), "clusters"))]
    texts += [val, shown(found, TWO_CLASSES, row, "val"), test, shown(found, TWO_CLASSES, row, "test")]
    return [*texts, shown(found, TWO_CLASSES, row, "megabytes")]


def _times_icfl(found: Found, row: Row) -> str:
    """Return the seconds of a round as a multiple of ICFL's, because other work on the machine disturbs the seconds."""
    mine, theirs = (mean_of(found, one.cell(TWO_CLASSES), "seconds") for one in (row, ICFL_085))
    return NOT_RUN if mine is None or not theirs else f"{mine / theirs:.2f} times ICFL's"


def _table11_claims(found: Found, quick: bool) -> list[Claim]:
    fewest = (PLUS_FOR_12, STOCFL_015, ICFL_085)
    return [
        falling(found, TWO_CLASSES, figure, fewest[::-1], "from ICFL to StoCFL to HCFL+")
        for figure in ("clusters", "memory")
    ]


TABLE13_SETTINGS = (FASHION_TWO_CLASSES, TWO_CLASSES)
TABLE13_GRID: Grid = tuple((setting, (PLUS_FOR_12,)) for setting in TABLE13_SETTINGS)


def _table13(found: Found, quick: bool) -> list[Table]:
    """Return a table for each seed: number of training samples of each class in each cluster."""
    tables = []
    for setting in TABLE13_SETTINGS:
        for seed, counts in _counts(found, setting).items():
            header = ["class", *(f"cluster {k + 1}" for k in range(len(counts[0])))]
            rows = [[str(c), *map(str, row)] for c, row in enumerate(counts)]
            tables.append(Table(f"{setting.title}, seed {seed}: samples of a class in a cluster", header, rows))
    return tables


def _counts(found: Found, setting: Setting) -> dict[int, list[list[int]]]:
    """Return the counts (C, K) for each seed."""
    return {seed: figures["classes"] for seed, figures in sorted(found.get(PLUS_FOR_12.cell(setting), {}).items())}


def _table13_claims(found: Found, quick: bool) -> list[Claim]:
    return [claim for setting in TABLE13_SETTINGS for claim in _pure(setting, list(_counts(found, setting).values()))]


def _pure(setting: Setting, runs: list[list[list[int]]]) -> list[Claim]:
    """Whether clusters are the pairs of classes."""
    whole = f"{setting.title}: every class is in one cluster only"
    five = f"{setting.title}: there are five clusters, one for each pair of classes"
    if not runs:
        return [Claim(whole, None, NOT_RUN), Claim(five, None, NOT_RUN)]
    undivided = [sum(sum(count > 0 for count in row) == 1 for row in counts) for counts in runs]
    used = [len(counts[0]) for counts in runs]
    return [
        Claim(whole, all(count == CLASSES for count in undivided), f"{count_range(undivided)} of {CLASSES} classes"),
        Claim(five, all(count == 5 for count in used), count_range(used)),
    ]


REPRODUCTIONS = (
    reproduction(
        "hcfl-figure4",
        "The number of clusters of HCFL+ over the rounds",
        "figure 4",
        "The paper shows curves without numbers. The runs are those of `hcfl-table1`. " + TWO_CONCEPTS,
        FIGURE4_GRID,
        _figure4,
        _figure4_claims,
        picture=_figure4_picture,
    ),
    reproduction(
        "hcfl-table11",
        "Memory, time and number of clusters",
        "table 11",
        "Two classes for each client, in five disjoint pairs. Memory is the largest use of a separate process beyond "
        "the data (the paper: of a GPU). Seconds of a round are medians, shown as multiples of ICFL's, because other "
        "work disturbs them.",
        TABLE11_GRID,
        _table11,
        _table11_claims,
    ),
    reproduction(
        "hcfl-table13",
        "Which classes are in which cluster",
        "table 13",
        "Two classes for each client, in five disjoint pairs, 20 clients each; HCFL+(FedEM) with rho 0.1. A client's "
        "samples count in the cluster with its largest weight. In the paper, on CIFAR-10, each pair has its own "
        "cluster.",
        TABLE13_GRID,
        _table13,
        _table13_claims,
    ),
)
