"""Compare settings of methods over the scenarios of the scoreboard, on seeds of your choice.

    python -m benchmarks.variants run variants.jsonl --seeds 3000 3003 --only digits \\
        --way fedem --way "fedem restarts=1" --way "fedem restarts=5"
    python -m benchmarks.variants table variants.jsonl

A way is a method and options that replace its defaults. Methods that are told the number of clusters on the scoreboard
are told it here. `run` continues where it stopped. `table` prints, for each way, the mean share of the gain of `oracle`
over `fedavg` over the scenarios in which that gain is clear, its least value, the mean difference from `fedavg` in the
other scenarios (percentage points, or RMSE), the mean adjusted Rand index, and the share of runs with the true number
of clusters.
"""

from __future__ import annotations

import argparse
import ast
import json
import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.scoreboard.cells import measured
from benchmarks.scoreboard.entries import ENTRIES, Entry
from benchmarks.scoreboard.scenarios import scenarios
from coterie.core.threads import one_thread
from coterie.errors import CoterieError

REFERENCES = ("oracle", "fedavg")
CLEAR = {"accuracy": 0.02, "rmse": 0.1}
"""A gain of oracle over fedavg is clear above this difference."""
Found = dict[tuple[str, int, str], dict[str, Any]]
"""Figures by scenario, seed and way."""


def entry_of(way: str) -> Entry:
    """Return the row of the scoreboard with the options of a way: `fedem restarts=1`."""
    name, *options = way.split()
    known = ENTRIES[name]
    given = dict(option.split("=", 1) for option in options)
    return Entry(way, known.knows, known.method or name, {**known.options, **{k: _value(v) for k, v in given.items()}})


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read(path: Path) -> Found:
    """Return the figures in a file."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["scenario"], line["seed"], line["way"]): line["figures"] for line in lines}


def run(path: Path, seeds: range, only: list[str], ways: list[str], data: Path | None) -> None:
    """Measure every way in every scenario and add the figures to a file."""
    done = read(path)
    with path.open("a") as file, one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scenario in scenarios(data).values():
            if only and not any(text in scenario.name for text in only):
                continue
            for seed in seeds:
                left = [way for way in (*REFERENCES, *ways) if (scenario.name, seed, way) not in done]
                drawn = scenario.draw(seed) if left else None
                for way in left:
                    assert drawn is not None
                    try:
                        figures = dict(measured(entry_of(way), scenario, drawn, seed))
                    except CoterieError as error:
                        figures = {"refused": str(error)}
                    line = {"scenario": scenario.name, "seed": seed, "way": way, "figures": figures}
                    print(json.dumps(line), file=file, flush=True)


def table(found: Found) -> list[str]:
    """Return a line for each way."""
    cells: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for (scenario, _, way), figures in found.items():
        if "refused" not in figures:
            cells[way][scenario].append(figures)
    lines = [f"{'':40} {'share of gain':>14} {'least':>7} {'others':>8} {'ARI':>6} {'true K':>7}"]
    for way, own in cells.items():
        shares, others = [], []
        for scenario, figures in own.items():
            unit, sign = figures[0]["unit"], 1 if figures[0]["unit"] == "accuracy" else -1
            best, one, score = (_mean(cells[each][scenario], sign) for each in (*REFERENCES, way))
            if best - one > CLEAR[unit]:
                shares.append((score - one) / (best - one))
            else:
                others.append((score - one) * (100 if unit == "accuracy" else 1))
        flat = [figures for each in own.values() for figures in each]
        aris = [each["ari"] for each in flat if each.get("ari") is not None]
        counted = [each["clusters"] == each["groups"] for each in flat if "clusters" in each and each["groups"]]
        lines.append(
            f"{way:40} {_percent(shares):>14} {_percent([min(shares)] if shares else []):>7} "
            f"{mean(others) if others else 0:>+8.2f} {mean(aris) if aris else 0:>6.2f} {_percent(counted):>7}"
        )
    return lines


def _mean(figures: list[Mapping[str, Any]], sign: int) -> float:
    return sign * mean(each["score"] for each in figures)


def _percent(values: list[float] | list[bool]) -> str:
    return f"{100 * mean(values):.1f} %" if values else ""


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(3000, 3003), help="first seed and the one after the last"
    )
    parser.add_argument("--only", action="append", default=[], help="only scenarios whose name contains this text")
    parser.add_argument("--way", action="append", default=[], help="method and options, such as 'fedem restarts=1'")
    parser.add_argument("--data", type=Path, help="folder with files of your own, such as usps.npz")
    given = parser.parse_args()
    if given.action == "run":
        run(given.file, range(*given.seeds), given.only, given.way, given.data)
    print("\n".join(table(read(given.file))))


if __name__ == "__main__":
    main()
