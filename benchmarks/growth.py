"""How time and memory grow: with clients to 100,000, with K to 32; and the memory of a large round of networks.

    python benchmarks/growth.py                          # the tables; some minutes
    python benchmarks/growth.py --plot docs/growth.svg   # and the curves

Linear models, n=10, d=100, float32, one step, cluster choice included, one thread. Time is in milliseconds and in
one-thread `numpy.sum` passes over the same data, measured between the rounds. Memory is the peak resident size minus
that after the imports, over the size of the training arrays. Every case runs in a process of its own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
import torch
from linear_round import peak, resident

import coterie
from coterie.core.population import Population
from coterie.fitting import prepare
from coterie.report.figures.svg import Scale, tag
from coterie.scenarios.arrays import stack_shard
from coterie.server.loop import rounds

SAMPLES, DIMENSION = 10, 100
CLIENTS = (1_000, 3_000, 10_000, 30_000, 100_000)
CLUSTERS = (1, 2, 4, 8, 16, 32)
FIXED_CLIENTS, FIXED_CLUSTERS = 20_000, 4


def lines(clients: int) -> Population:
    random = np.random.default_rng(0)
    x = random.standard_normal((clients * SAMPLES, DIMENSION), dtype=np.float32)
    y = x @ random.standard_normal(DIMENSION, dtype=np.float32)
    return Population("lines", stack_shard([str(i) for i in range(clients)], x, y, [SAMPLES] * clients))


def images() -> Population:
    """The largest cut of rotated MNIST: 4800 clients of 50 images."""
    random = np.random.default_rng(0)
    x = random.random((4800 * 50, 784), dtype=np.float32)
    y = random.integers(0, 10, len(x))
    return Population("images", stack_shard([str(i) for i in range(4800)], x, y, [50] * 4800))


def measure(data: Population, learner: str, options: dict[str, object], count: int, before: int) -> list[float]:
    """Milliseconds of a round and of a pass over the features (medians), and memory over data."""
    plan = prepare(data, "ifca", learner, "random", {"rounds": 100, "dtype": "float32", **options})
    x, y = data.train.x.numpy(), data.train.y.numpy()
    times, passes = [], []
    with torch.no_grad():
        begun = time.perf_counter()
        for _ in rounds(plan.method, plan.federation, plan.first_state(), count, 0, None):
            times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            np.sum(x)
            passes.append(time.perf_counter() - begun)
            begun = time.perf_counter()
    late = slice(min(2, count - 1), None)
    return [
        1e3 * statistics.median(times[late]),
        1e3 * statistics.median(passes[late]),
        (peak() - before) / (x.nbytes + y.nbytes),
    ]


def case(name: str, size: int) -> None:
    """One measurement in this process, printed as numbers."""
    before = resident()
    if name == "images":
        found = measure(images(), "mlp:hidden=200", {"clusters": 4, "local_steps": 10, "lr": 0.1}, size, before)
    else:
        m, K = (size, FIXED_CLUSTERS) if name == "clients" else (FIXED_CLIENTS, size)
        found = measure(lines(m), "linear", {"clusters": K, "exchange": "gradient", "lr": 0.01}, 12, before)
    print(*found)


def in_a_process(name: str, size: int) -> list[float]:
    command = [sys.executable, __file__, "--case", name, str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def table(name: str, sizes: tuple[int, ...]) -> list[tuple[int, float]]:
    """Print one table; returns (size, milliseconds)."""
    print(f"\n{name:>9} {'ms/round':>9} {'passes':>7} {'memory':>7}")
    curve = []
    for size in sizes:
        round_, one_pass, memory = in_a_process(name, size)
        print(f"{size:>9,} {round_:>9.1f} {round_ / one_pass:>7.1f} {memory:>7.2f}", flush=True)
        curve.append((size, round_))
    return curve


def panel(left: float, title: str, curve: list[tuple[int, float]]) -> list[object]:
    """One plot with logarithmic axes and, dashed, what growth in proportion from the first point would be."""
    (first, low), (last, high) = curve[0], curve[-1]
    top = max(high, low * last / first)
    x, y = Scale(first, last, left + 60, left + 350, log=True), Scale(low / 2, top * 1.5, 250, 40, log=True)
    ink, grey = "#1f2937", "#9ca3af"
    words = {"font_family": "sans-serif", "font_size": 12, "fill": ink}
    drawn: list[object] = [tag("text", title, x=left + 60, y=22, **words)]
    for size, value in curve:
        drawn.append(tag("circle", cx=x(size), cy=y(value), r=3.5, fill="#2563eb"))
        drawn.append(tag("text", f"{size:,}", x=x(size), y=270, text_anchor="middle", **words | {"font_size": 10}))
    for tick in y.ticks():
        drawn.append(tag("line", x1=left + 60, x2=left + 350, y1=y(tick), y2=y(tick), stroke=grey, stroke_width=0.3))
        drawn.append(tag("text", f"{tick:g} ms", x=left + 54, y=y(tick) + 4, text_anchor="end", **words))
    points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in curve)
    drawn.append(tag("polyline", points=points, fill="none", stroke="#2563eb", stroke_width=2))
    ends = {"x1": x(first), "y1": y(low), "x2": x(last), "y2": y(low * last / first)}
    drawn.append(tag("line", **ends, stroke=grey, stroke_dasharray="5 4"))
    return drawn


def plot(file: Path, clients: list[tuple[int, float]], clusters: list[tuple[int, float]]) -> None:
    drawn = panel(0, f"a round by clients m (K={FIXED_CLUSTERS})", clients)
    drawn += panel(370, f"a round by clusters K (m={FIXED_CLIENTS:,})", clusters)
    white = tag("rect", width=740, height=290, fill="white")
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": "0 0 740 290", "width": 740, "height": 290}
    file.write_text(str(tag("svg", white, *drawn, **attributes)) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curves as SVG")
    parser.add_argument("--case", nargs=2, metavar=("NAME", "SIZE"), help="one case, in this process")
    chosen = parser.parse_args()
    if chosen.case:
        case(chosen.case[0], int(chosen.case[1]))
        sys.exit()
    print(f"coterie {coterie.__version__}: linear, n={SAMPLES}, d={DIMENSION}, float32, one thread")
    by_clients, by_clusters = table("clients", CLIENTS), table("clusters", CLUSTERS)
    milliseconds, _, memory = in_a_process("images", 2)
    print("\n4800 clients x 50 images, 784-200-10, 10 steps")
    print(f"{milliseconds / 1e3:.1f} s a round, memory {memory:.2f} x the data")
    if chosen.plot:
        plot(chosen.plot, by_clients, by_clusters)
