"""The page docs/benchmarks.md and its plot, from the lines of results.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from growth import plot
from linear_round import Cost
from speed_rows import Goal, Row, rows

DASH = "-"
Line = Mapping[str, Any]

HEAD = """<!-- Written by `make bench` from benchmarks/results.jsonl; do not edit. -->

# Speed and memory

`make bench` measures what is missing for this machine and this version of the code, and writes this page; `make
bench-long` adds the long rows. Every row runs in its own process; ours and the loop take turns, and medians count.
Compare ratios rather than seconds, because timings vary between machines and runs.

"""

READING = """## How to read it

- *Loop* is a plain loop over the clients on the same data in the same process, with one thread or with as many as
  ours, whichever is faster; *ratio* is how many times longer it takes. For cluster heads it is a round of FedAvg with a
  pass that scores its model.
- *Limits* is how many times longer a row takes than the machine's limit. *pass*: one-thread `numpy.sum` over the
  features. *GEMM*: the operations of the direct form at the speed of a large product in float32 with the same number
  of threads, by the faster of the libraries in torch. W1 needs fewer operations than the direct form.
- *Memory* is the peak beyond what was used before the data were created, with compiled code loaded, over the size of
  the features.
- *Others* are figures of other programs on a similar machine with two threads unless stated: the public code of
  the authors of IFCA, FedJAX, and pfl-research. They are constants of the page.
- *Goal*: a time, a ratio to the loop, or a number of limits. A missed goal stays in the table.

Speed over real Flower nodes is on [a page of its own](benchmarks-flower.md), and convex clustering is compared with
CVXPY [here](clustering.md#figures). Further scripts in `benchmarks/` can be run alone: each says at its top what it
measures.
"""


def write(lines: Sequence[Line], folder: Path) -> None:
    """Write the page and the plot into a folder."""
    latest = {line["row"]: line for line in lines}
    (folder / "benchmarks.md").write_text(page(latest))
    drawn = growth_plot(latest)
    if drawn:
        (folder / "growth.svg").write_text(drawn)


def page(latest: Mapping[str, Line]) -> str:
    """Return the page."""
    sections = dict.fromkeys(row.section for row in rows())
    parts = [HEAD, _provenance(latest)]
    for section in sections:
        parts.append(f"## {section}\n\n{_table([row for row in rows() if row.section == section], latest)}\n")
        if section == "Growth":
            parts.append("![milliseconds a round against clients and clusters](growth.svg)\n\n")
    return "".join([*parts, READING])


def _provenance(latest: Mapping[str, Line]) -> str:
    """Return what the figures were measured on and with."""
    known = {row.key for row in rows()}
    machines = list(
        {tuple(line["machine"].items()): line["machine"] for key, line in latest.items() if key in known}.values()
    )
    versions = sorted({line["version"] for key, line in latest.items() if key in known})
    described = "; ".join(
        f"{each['processor']}, {each['cores']} cores, {each['memory_gb']} GB, vectors {each['vectors']}, Python "
        f"{each['python']}, torch {each['torch']}, NumPy {each['numpy']}"
        for each in machines
    )
    code = "Version of the code" if len(versions) == 1 else "Versions of the code (some rows are older)"
    return (
        f"Measured on: {described}. {code}: {', '.join(versions)}.\n\n" if machines else "Nothing is measured yet.\n\n"
    )


def _table(some: Sequence[Row], latest: Mapping[str, Line]) -> str:
    head = ("", "threads", "ours", "loop", "ratio", "limits", "memory", "others", "goal")
    body = [head, ("---", *["---:"] * 6, "---", "---")]
    for row in some:
        line = latest.get(row.key)
        body.append((row.name, str(row.threads), *(_figures(row, line) if line else [DASH] * 5), *_judged(row, line)))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in body)


def _figures(row: Row, line: Line) -> list[str]:
    seconds, loop, limit = line["seconds"], line["loop"], line["limit"]
    return [
        _time(seconds),
        DASH if loop is None else _time(loop),
        DASH if loop is None else f"{loop / seconds:.2g}",
        DASH if limit is None else f"{seconds / limit:.2g} {line['limited_by']}",
        DASH if line["memory"] is None else f"{line['memory']:.2f}",
    ]


def _judged(row: Row, line: Line | None) -> tuple[str, str]:
    """Return the figures of others, and the goal with whether it is met."""
    peer = row.peer or DASH
    if row.goal is None:
        return peer, DASH
    value = row.goal.value
    text = {"seconds": _time(value), "loop": f"ratio {value:g}", "limit": f"{value:g} limits"}[row.goal.of]
    if line is None:
        return peer, text
    missed = f"missed; {row.reason}" if row.reason else "missed"
    return peer, f"{text}: {'met' if is_met(row.goal, line) else missed}"


def is_met(goal: Goal, line: Line) -> bool:
    """Return whether a stored line meets a goal."""
    if goal.of == "seconds":
        return bool(line["seconds"] <= goal.value)
    if goal.of == "loop":
        return bool(line["loop"] / line["seconds"] >= goal.value)
    return bool(line["seconds"] / line["limit"] <= goal.value)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def growth_plot(latest: Mapping[str, Line]) -> str:
    """Return the plot of growth, or nothing if a row is missing."""
    keys = [row.key for row in rows() if row.section == "Growth" and not row.long]
    if any(key not in latest for key in keys):
        return ""
    by_m, by_k = ([key for key in keys if key.startswith(kind)] for kind in ("clients-", "clusters-"))
    costs = {key: Cost(latest[key]["seconds"], latest[key]["limit"], latest[key]["memory"]) for key in by_m + by_k}
    clients, clusters = ([int(key.split("-")[1]) for key in some] for some in (by_m, by_k))
    return plot([costs[key] for key in by_m], clients, [costs[key] for key in by_k], clusters, 10_000)
