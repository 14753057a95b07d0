"""How a round of IFCA on linear models grows with the clients and with the clusters: a table, and a plot.

    python benchmarks/growth.py                        # the table
    python benchmarks/growth.py --plot docs/growth.svg # and the plot
    python benchmarks/growth.py --quick                # a tenth of the clients
    python benchmarks/growth.py --million              # only a million clients (4 GB), with one and with two threads

n=10, d=100, one local step, float32, one thread; every case runs in a separate process. The unit is one pass
(`numpy.sum`) over the same features, as in linear_round.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linear_round import Case, Cost, measure_apart

from coterie.report.figures.svg import Scale, line, path, tag, text

CLIENTS = (1_000, 3_000, 10_000, 30_000, 100_000)
CLUSTERS = (1, 2, 4, 8, 16, 32, 64)
WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 380.0, 260.0, 34.0, 46.0, 58.0, 14.0
STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff }
text { fill: #5b6670 } .title { fill: #1d2329; font-weight: 600 }
.grid { stroke: #eceef0 } .curve { fill: none; stroke: #0072b2; stroke-width: 2 }
.straight { fill: none; stroke: #9aa2a9; stroke-dasharray: 4 3 } circle { fill: #0072b2 }
"""


def table(name: str, values: Sequence[int], costs: Sequence[Cost]) -> None:
    print(f"{name:>9} {'ms/round':>9} {'ms/pass':>9} {'passes':>7} {'memory':>8}")
    for value, cost in zip(values, costs, strict=True):
        print(
            f"{value:>9} {cost.round * 1e3:>9.2f} {cost.data_pass * 1e3:>9.2f} "
            f"{cost.round / cost.data_pass:>7.1f} {cost.memory:>8.2f}"
        )


def plot(
    costs_by_m: Sequence[Cost], clients: Sequence[int], costs_by_k: Sequence[Cost], clusters: Sequence[int], held: int
) -> str:
    """Two panels side by side: milliseconds a round against the clients and against the clusters."""
    left = _panel("clients m, K = 4", clients, [1e3 * cost.round for cost in costs_by_m])
    right = _panel(f"clusters K, m = {held:,}", clusters, [1e3 * cost.round for cost in costs_by_k])
    moved = tag("g", *right, transform=f"translate({WIDTH} 0)")
    label = "Milliseconds a round of IFCA on linear models against the clients and against the clusters"
    box = f"0 0 {2 * WIDTH:.0f} {HEIGHT:.0f}"
    drawn = tag(
        "svg", tag("style", STYLE), *left, moved, viewBox=box, xmlns="http://www.w3.org/2000/svg", aria_label=label
    )
    return f"{drawn}\n"


def _panel(name: str, values: Sequence[int], times: Sequence[float]) -> list[object]:
    """Both axes logarithmic; the dashed line is growth in proportion, from the last point down."""
    straight = [times[-1] * value / values[-1] for value in values]
    x = Scale(values[0], values[-1], LEFT, WIDTH - RIGHT, log=True)
    y = Scale(min(*times, *straight) / 1.2, max(times) * 1.2, HEIGHT - BOTTOM, TOP, log=True)
    grid: list[object] = []
    for tick in y.ticks():
        grid += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 6, y(tick) + 4, f"{tick:g}", "", "end"),
        ]
    grid += [text(x(value), HEIGHT - BOTTOM + 18, f"{value:,}", "", "middle") for value in values]
    return [
        text(LEFT, 18, "ms a round", "title"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, name, "", "middle"),
        *grid,
        path([(x(v), y(t)) for v, t in zip(values, straight, strict=True)], "straight"),
        path([(x(v), y(t)) for v, t in zip(values, times, strict=True)], "curve"),
        *(tag("circle", cx=x(v), cy=y(t), r=3) for v, t in zip(values, times, strict=True)),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the clients")
    parser.add_argument("--million", action="store_true", help="only a million clients")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the plot there, as SVG")
    chosen = parser.parse_args()
    if chosen.million:
        table("threads", (1, 2), [measure_apart(Case(10**6, 10, 100, threads=threads)) for threads in (1, 2)])
        raise SystemExit
    scale = 10 if chosen.quick else 1
    clients, held = [m // scale for m in CLIENTS], 10_000 // scale
    by_m = [measure_apart(Case(m, 10, 100)) for m in clients]
    table("clients", clients, by_m)
    by_k = [measure_apart(Case(held, 10, 100, K)) for K in CLUSTERS]
    table("clusters", CLUSTERS, by_k)
    if chosen.plot is not None:
        chosen.plot.write_text(plot(by_m, clients, by_k, CLUSTERS, held))
