"""The rows of docs/benchmarks.md: what is measured, its goal, figures of other libraries, and why a goal is missed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import adaptive
import convex_clustering
import numpy as np
import phase_two
import soft
import torch
import workloads
from linear_round import Case, forget_peak, peak_memory, population, resident

import coterie
from coterie.clustering import ConvexClustering, recovery_interval
from coterie.learners.linear import Linear
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

ROUNDS, LOOPS = 15, 3
"""Number of timed rounds of ours, and of the plain loop."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Figures:
    """Medians of one row, in seconds."""

    seconds: float
    loop: float | None = None
    """The same work by a plain loop over the clients, in turns with ours."""
    limit: float | None = None
    """Lower limit of the time on this machine: see `limited_by`."""
    limited_by: str = ""
    """`pass`: one-thread `numpy.sum` over the features. `GEMM`: the operations of the direct form at the speed of a
    large matrix product with the same number of threads."""
    memory: float | None = None
    """Peak memory beyond what was used before, over that of the data."""


@dataclass(frozen=True)
class Goal:
    """Goal of a row: a largest time, a smallest speed relative to the loop, or a largest multiple of the limit."""

    value: float
    of: str
    """`seconds`, `loop` or `limit`."""


@dataclass(frozen=True)
class Row:
    """One row of the page."""

    key: str
    section: str
    name: str
    measure: Callable[[], Figures]
    threads: int = 2
    goal: Goal | None = None
    peer: str = ""
    """Figures of other libraries, which were measured on the same machine."""
    reason: str = ""
    """Reason for which the goal is missed, if it is."""
    long: bool = False
    """Whether only `make bench-long` measures it."""


def in_turns(ours: Work, *others: Work, rounds: int = ROUNDS, loops: int = LOOPS) -> list[float]:
    """Return the median seconds of each; the first is timed `rounds` times, the others in turns with its first ones.

    The others run with one thread and with all threads of torch, and the better of both counts: the threads of torch
    often cost more than they save in a loop of small operations.
    """
    threads = torch.get_num_threads()
    both = sorted({1, threads})
    mine: list[float] = []
    theirs: list[dict[int, list[float]]] = [{count: [] for count in both} for _ in others]
    for turn in range(rounds + 1):  # the first turn is for warming up
        mine.append(_timed(ours))
        for found, work in zip(theirs, others if turn <= loops else (), strict=False):
            for count in both:
                torch.set_num_threads(count)
                found[count].append(_timed(work))
            torch.set_num_threads(threads)
    return [
        statistics.median(mine[1:]),
        *(min(statistics.median(times[1:]) for times in found.values()) for found in theirs),
    ]


def _timed(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def gemm_seconds(flop: float) -> float:
    """Return the seconds for this number of operations at the speed of a large product, by the fastest library."""
    square, best = workloads.SQUARE, float("inf")
    ways: list[Work] = [lambda: square @ square]
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(square, square, None, "none", [], ""))
    for way in ways:
        way()
        for _ in range(5):
            started = time.perf_counter()
            way()
            best = min(best, time.perf_counter() - started)
    return flop * best / (2 * len(square) ** 3)


def networks(clients: int, samples: int, part: int) -> Figures:
    """W1: a round of IFCA; the loop runs on one client in `part`."""
    plan, few = workloads.first_plan(clients, samples), workloads.first_plan(clients // part, samples)
    loop = workloads.loop_ifca_mlp(few, initialize(few).state, 10, 0.1)
    ours, plain = in_turns(workloads.one_round(plan, initialize(plan).state), loop)
    layers = 2 * (784 * 200 + 200 * 10)
    flop = clients * samples * (4 * layers + 10 * (2 * layers + 2 * 200 * 10))
    return Figures(ours, plain * part, gemm_seconds(flop), "GEMM")


def fedavg() -> Figures:
    """W3."""
    plan = workloads.third_plan()
    state = initialize(plan).state
    ours, plain = in_turns(
        workloads.one_round(plan, state), workloads.loop_fedavg(plan, state, 10, 50, 0.1), rounds=41, loops=15
    )
    return Figures(ours, plain, gemm_seconds(10 * 600 * 2 * (2 * 784 * 200 + 3 * 200 * 10)), "GEMM")


def linear(starts: int) -> Figures:
    """W2: a round of IFCA, for each start."""
    plan = workloads.second_plan(starts)
    single = workloads.second_plan(1)
    loop = workloads.loop_ifca_linear(single, initialize(single).state)
    x = plan.data.train.x.numpy()
    work = workloads.one_round(plan, initialize(plan).state)
    ours, plain, one_pass = in_turns(work, loop, lambda: np.sum(x), rounds=41, loops=15)
    return Figures(ours / starts, plain, one_pass, "pass")


def synthetic_fit() -> Figures:
    """W2 as a user calls it: 300 rounds of `fit`, with everything around the rounds."""
    data = coterie.scenario("ifca-synthetic", clients=100, samples=100, dimension=1000, groups=2)
    x = data.train.x.numpy()

    def fit() -> object:
        return coterie.fit(data, "ifca", clusters=2, rounds=300, restarts=1, init="random")

    ours, one_pass = in_turns(fit, lambda: np.sum(x), rounds=3, loops=3)
    return Figures(ours, None, 300 * one_pass, "pass")


def mixed_phase(starts: int) -> Figures:
    """Phase 2 of mixed regression on setting C.2, for each start."""
    data = coterie.scenario(
        "mixed-regression", clients=920, samples="900x10+20x50", dimension=100, test_samples=1, seed=0
    )
    plan = phase_two.plan_for(data, "float64", starts)
    loop = phase_two.plain_loop(data, initialize(phase_two.plan_for(data, "float64", 1)).state)
    x = plan.data.train.x.numpy()
    ours, plain, one_pass = in_turns(phase_two.rounds_of(plan), loop, lambda: np.sum(x), rounds=41, loops=15)
    return Figures(ours / starts, plain, one_pass, "pass")


def soft_round(work: soft.Workload, method: str, multiplications: int) -> Figures:
    """FedEM or FedRC with three clusters: scores and two epochs of all models."""
    plan = soft.plan_of(work, method, clusters=soft.CLUSTERS)
    ours = soft.Ours(plan)
    mine, plain = in_turns(ours, soft.Loop(work, ours, method == "fedrc"))
    samples = work.clients * work.samples * soft.CLUSTERS
    return Figures(mine, plain, gemm_seconds(2 * samples * multiplications * (1 + 3 * soft.EPOCHS)), "GEMM")


def linear_mixture() -> Figures:
    """FedEM on linear models, one gradient step on all samples."""
    data = coterie.scenario("ifca-synthetic", clients=100, samples=100, dimension=1000, groups=2)
    plan = prepare(data, "fedem", "linear", {"clusters": 2, "lr": 0.01, "local_steps": 1, "rounds": 10**6})
    x = plan.data.train.x.numpy()
    ours, one_pass = in_turns(workloads.one_round(plan, initialize(plan).state), lambda: np.sum(x), rounds=41, loops=15)
    return Figures(ours, None, one_pass, "pass")


def heads(work: soft.Workload, K: int) -> Figures:
    """HCFL+ with K heads; instead of a loop, FedAvg with a pass that scores its model."""
    mine, scored = in_turns(
        soft.Ours(adaptive.plus(work, K, "fedem")), soft.FedAvgScored(soft.plan_of(work, "fedavg")), loops=ROUNDS
    )
    return Figures(mine, scored)


def small_federation() -> Figures:
    """A round of IFCA on 60 clients of 96 samples as a user calls `fit`, without the arithmetic of the learner."""
    data, rounds = workloads.small_federation(), 100
    arithmetic: list[float] = []

    def timed(work: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*given: object) -> object:
            started = time.perf_counter()
            result = work(*given)
            arithmetic.append(time.perf_counter() - started)
            return result

        return wrapped

    def outside() -> float:
        arithmetic.clear()
        started = time.perf_counter()
        coterie.fit(data, "ifca", clusters=2, rounds=rounds, restarts=1, init="random")
        return (time.perf_counter() - started - sum(arithmetic)) / rounds

    with (
        patch.object(Linear, "score", timed(Linear.score)),
        patch.object(Linear, "contribute", timed(Linear.contribute)),
    ):
        return Figures(statistics.median(outside() for _ in range(ROUNDS)))


def grown(clients: int, clusters: int = 4, restarts: int = 1) -> Figures:
    """A round of IFCA on linear models, 10 samples for each client, d = 100, float32, for each restart."""
    options = {"clusters": clusters, "local_steps": 1, "lr": 0.01, "rounds": 10**6, "dtype": "float32"}
    options |= {"init": "random", "restarts": restarts}
    few: Plan = prepare(population(Case(100, 10, 100, clusters)), "ifca", "linear", options)
    workloads.one_round(few, initialize(few).state)()  # the compiled code is loaded before
    before = resident()
    data = population(Case(clients, 10, 100, clusters))
    plan: Plan = prepare(data, "ifca", "linear", options)
    x = data.train.x.numpy()
    forget_peak()
    work = workloads.one_round(plan, initialize(plan).state)
    ours, one_pass = in_turns(work, lambda: np.sum(x), loops=ROUNDS)
    return Figures(ours / restarts, None, one_pass, "pass", (peak_memory() - before) / x.nbytes)


def convex(m: int, weights: str, recovery: bool) -> Figures:
    """Convex clustering of points in 20 dimensions: one lambda, or the whole path."""
    points, truth = convex_clustering.data(m, 20)
    ConvexClustering(0.5, weights=weights).fit(points[:40])  # compiled before
    lam: float | str = 1.02 * recovery_interval(points, truth)[0] if recovery else "path"
    seconds, _ = convex_clustering.seconds(lambda: ConvexClustering(lam, weights=weights).fit(points))
    return Figures(seconds)


def with_products(work: soft.Workload) -> int:
    """Return the multiplications of a forward pass for one sample."""
    found = soft.plan_of(work, "fedavg").run.learner.products
    return int(found)


def soft_rows() -> list[Row]:
    """Return the rows of FedEM, one for each workload."""
    mlp, many, _, cnn = soft.WORKLOADS
    rows = [
        Row("fedem-mlp", "Soft clusters", mlp.name, partial(soft_row, mlp), 2),
        Row("fedem-mlp-small", "Soft clusters", many.name, partial(soft_row, many), 2),
        Row("fedem-cnn-1", "Soft clusters", f"{cnn.name}, one thread", partial(soft_row, cnn), 1, Goal(1, "loop")),
        Row("fedem-linear", "Soft clusters", "linear, 100 x 100, d = 1000", linear_mixture, 2),
        Row("fedem-cnn", "Soft clusters", cnn.name, partial(soft_row, cnn), 2, Goal(2.5, "loop")),
    ]
    for K in (1, 3, 10):
        rows.append(Row(f"heads-mlp-{K}", "Cluster heads", f"{mlp.name}, K = {K}", partial(heads, mlp, K), 2))
        rows.append(Row(f"heads-cnn-{K}", "Cluster heads", f"{cnn.name}, K = {K}", partial(heads, cnn, K), 2))
    return rows


def soft_row(work: soft.Workload) -> Figures:
    """FedEM on one workload."""
    return soft_round(work, "fedem", with_products(work))


def growth_rows() -> list[Row]:
    """Return the rows of growth with clients, clusters and restarts."""
    memory_bound = Goal(1.6, "limit")
    rows = [
        Row(f"clients-{m}", "Growth", f"{m:,} clients", partial(grown, m), 2, memory_bound if m >= 10**6 else None)
        for m in (1_000, 3_000, 10_000, 30_000, 100_000)
    ]
    rows.append(
        Row("clients-1000000", "Growth", "1,000,000 clients", partial(grown, 10**6), 2, memory_bound, long=True)
    )
    rows += [
        Row(f"clusters-{K}", "Growth", f"10,000 clients, K = {K}", partial(grown, 10_000, K))
        for K in (1, 2, 4, 8, 16, 32, 64)
    ]
    rows += [
        Row(f"restarts-{R}", "Growth", f"1,000 clients, {R} restarts, each", partial(grown, 1_000, 4, R))
        for R in (1, 10, 100)
    ]
    return rows


def rows() -> Sequence[Row]:
    """Return all rows in the order of the page."""
    published, convex_name = "Published workloads", "Convex clustering"
    return [
        Row(
            "w1-1200",
            published,
            "W1: IFCA, 784-200-10, 10 steps, 1200 x 200",
            partial(networks, 1200, 200, 20),
            goal=Goal(4.2, "seconds"),
            peer="authors 31 s (1 thread), FedJAX 28 s",
        ),
        Row(
            "w1-4800",
            published,
            "W1: the same, 4800 x 50",
            partial(networks, 4800, 50, 20),
            goal=Goal(3.2, "seconds"),
            peer="authors 55 s (1 thread)",
        ),
        Row(
            "w2-fit",
            published,
            "W2: `fit`, 100 x 100, d = 1000, 300 rounds",
            synthetic_fit,
            goal=Goal(1.0, "seconds"),
            peer="authors 10.4 s",
            reason="linear models compute in float64 by default, in which the passes over the data take this long",
        ),
        Row("w2-1", published, "W2: a round, one start", partial(linear, 1)),
        Row("w2-30", published, "W2: a round, 30 starts, each", partial(linear, 30)),
        Row(
            "w3",
            published,
            "W3: FedAvg, 10 of 100 x 600, batches of 50",
            fedavg,
            goal=Goal(0.035, "seconds"),
            peer="FedJAX .082 s, pfl .101 s",
        ),
        Row("phase2-1", published, "Phase 2, C.2, one start", partial(mixed_phase, 1), 2, Goal(0.0012, "seconds")),
        Row(
            "phase2-10",
            published,
            "Phase 2, C.2, ten starts, each",
            partial(mixed_phase, 10),
            2,
            Goal(2e-4, "seconds"),
            reason="the goal is shorter than one pass over the data",
        ),
        Row(
            "small",
            published,
            "IFCA, linear, 60 x 96, 100 rounds of `fit`: a round without arithmetic",
            small_federation,
            1,
            Goal(0.0005, "seconds"),
        ),
        *soft_rows(),
        *growth_rows(),
        Row("knn-path-1000", convex_name, "Path, nearest neighbours, m = 1000", partial(convex, 1000, "knn", False), 1),
        Row("uniform-path-1000", convex_name, "Path, uniform, m = 1000", partial(convex, 1000, "uniform", False), 1),
        Row(
            "recovery-10000",
            convex_name,
            "One lambda in recovery, uniform, m = 10,000",
            partial(convex, 10_000, "uniform", True),
            1,
            Goal(10, "seconds"),
        ),
        Row(
            "knn-path-10000",
            convex_name,
            "Path, nearest neighbours, m = 10,000",
            partial(convex, 10_000, "knn", False),
            1,
            long=True,
        ),
    ]
