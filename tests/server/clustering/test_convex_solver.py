"""Parts of convex clustering: kernels against plain loops, screening, proofs, both ascents, both engines."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.server.clustering import convex_numba, convex_numpy
from coterie.server.clustering.convex_dual import Ascent, best_kernels, largest_jump, solve
from coterie.server.clustering.convex_memory import check_memory, default_limit
from coterie.server.clustering.convex_nodes import Nodes, screened, single_points
from coterie.server.clustering.partition import by_first_appearance
from tests.server.clustering.convex_oracle import admm, regression_points
from tests.server.clustering.data import gaussian

CYCLIC_ONLY = SimpleNamespace(**{**vars(convex_numba), "CYCLIC_LIMIT": 10**9})
ACCELERATED_ONLY = SimpleNamespace(**{**vars(convex_numba), "CYCLIC_LIMIT": 0})
ENGINES = pytest.mark.parametrize("kernels", [convex_numba, convex_numpy], ids=["numba", "numpy"])
K, D, LAM = 7, 3, 0.2
PAIRS = list(itertools.combinations(range(K), 2))


def problem(seed=0):
    """Return centres, sizes and feasible duals of seven nodes."""
    random = np.random.default_rng(seed)
    centres, sizes = random.standard_normal((K, D)), random.integers(1, 5, K).astype(float)
    duals = random.standard_normal((len(PAIRS), D))
    for e, (k, j) in enumerate(PAIRS):
        duals[e] *= LAM * sizes[k] * sizes[j] / np.linalg.norm(duals[e]) * random.random()
    return centres, sizes, duals


def cut(vector, radius):
    return vector * min(1.0, radius / np.linalg.norm(vector))


def plain_sums(duals):
    sums = np.zeros((K, D))
    for e, (k, j) in enumerate(PAIRS):
        sums[k] += duals[e]
        sums[j] -= duals[e]
    return sums


@ENGINES
def test_an_accelerated_pass_is_the_step_of_every_pair(kernels):
    points, sizes, duals = problem()
    before = 0.5 * problem(1)[2]
    expected, against = np.empty_like(duals), 0.0
    for e, (k, j) in enumerate(PAIRS):
        weight = sizes[k] * sizes[j]
        ahead = duals[e] + 0.7 * (duals[e] - before[e])
        expected[e] = cut(ahead + weight / sizes.sum() * (points[k] - points[j]), LAM * weight)
        against += (ahead - expected[e]) @ (expected[e] - duals[e]) / weight
    new, old = duals.copy(), before.copy()
    sums, found = kernels.accelerated_pass(new, old, points, sizes, LAM, 0.7)
    np.testing.assert_allclose(new, expected, atol=1e-12)
    np.testing.assert_array_equal(old, duals)
    np.testing.assert_allclose(sums, plain_sums(expected), atol=1e-12)
    assert found == pytest.approx(against, rel=1e-9)


def test_a_cyclic_pass_takes_the_best_dual_of_one_pair_after_the_other():
    centres, sizes, duals = problem()
    points = centres - plain_sums(duals) / sizes[:, None]
    expected, u = duals.copy(), points.copy()
    for e, (k, j) in enumerate(PAIRS):
        step = sizes[k] * sizes[j] / (sizes[k] + sizes[j])
        expected[e] = cut(expected[e] + step * (u[k] - u[j]), LAM * sizes[k] * sizes[j])
        u = centres - plain_sums(expected) / sizes[:, None]
    convex_numba.cyclic_pass(duals, points, sizes, LAM)
    np.testing.assert_allclose(duals, expected, atol=1e-12)
    np.testing.assert_allclose(points, u, atol=1e-12)


@ENGINES
def test_sums_distances_and_merged_duals(kernels):
    points, sizes, duals = problem()
    np.testing.assert_allclose(kernels.node_sums(duals, K), plain_sums(duals), atol=1e-12)
    total = sum(sizes[k] * sizes[j] * np.linalg.norm(points[k] - points[j]) for k, j in PAIRS)
    assert kernels.total_distance(points, sizes) == pytest.approx(total, rel=1e-12)
    labels = np.array([2, 0, 1, 0, 2, 3, 1])
    out = np.full((len(PAIRS), D), 9.0)
    kernels.merge_duals(duals, labels, out)
    for e, (a, b) in enumerate(itertools.combinations(range(4), 2)):
        pairs = [(1.0, f) for f, (k, j) in enumerate(PAIRS) if (labels[k], labels[j]) == (a, b)]
        pairs += [(-1.0, f) for f, (k, j) in enumerate(PAIRS) if (labels[k], labels[j]) == (b, a)]
        np.testing.assert_allclose(out[e], sum(sign * duals[f] for sign, f in pairs), atol=1e-12)


@ENGINES
def test_nodes_are_proved_apart_when_the_gap_is_below_their_distance(kernels):
    """Sizes 1 and 4 at distance 3: apart while gap (1 + 1/4) < 9, so below a gap of 7.2."""
    points, sizes = np.array([[0.0, 0.0], [3.0, 0.0], [100.0, 0.0]]), np.array([1.0, 4.0, 1.0])
    assert kernels.all_apart(points, sizes, 7.1999)
    assert not kernels.all_apart(points, sizes, 7.2001)


@ENGINES
def test_a_fused_set_is_proved_and_a_set_that_is_not_fused_never_is(kernels):
    """Points 0, 1 and 2 on a line are fused from lam = 1/2 on, where two duals pull each of the outer ones by 1."""
    centres, sizes, nothing = np.array([[0.0], [1.0], [2.0]]), np.ones(3), np.zeros((3, 1))
    members = np.arange(3)
    assert kernels.fusion_ratio(nothing, centres, sizes, members, 0.51, 20) <= 1
    assert kernels.fusion_ratio(nothing, centres, sizes, members, 0.667, 0) <= 1  # 2/3: the bound of screening
    assert kernels.fusion_ratio(nothing, centres, sizes, members, 0.66, 0) == pytest.approx(2 / 3 / 0.66)
    ratio = kernels.fusion_ratio(nothing, centres, sizes, members, 0.499, 200)
    assert ratio >= 0.5 / 0.499 - 1e-12
    assert kernels.fusion_ratio(nothing, centres, sizes, members, 0.4, 200) >= 0.5 / 0.4


@pytest.mark.parametrize("seed", range(4))
def test_both_engines_measure_the_same_fusion_ratio(seed):
    centres, sizes, duals = problem(seed)
    members = np.array([0, 2, 3, 6])
    one, other = (k.fusion_ratio(duals, centres, sizes, members, LAM, 20) for k in (convex_numba, convex_numpy))
    assert one == pytest.approx(other, rel=1e-9)


def test_numba_is_used_if_it_is_installed(monkeypatch):
    assert best_kernels() is convex_numba
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert best_kernels() is convex_numpy


def proved(points, lam, kernels, budget=2000):
    points = points - points.mean(axis=0)
    return solve(Ascent(single_points(points), lam, kernels), lam, float((points**2).sum()), budget, 1e-3)


@pytest.mark.parametrize("lam", [0.05, 0.0636, 0.064, 0.0645, 0.065, 0.07, 0.12])
def test_cyclic_and_accelerated_ascent_and_both_engines_prove_the_same_partition(lam):
    found = [proved(regression_points(), lam, k) for k in (CYCLIC_ONLY, ACCELERATED_ONLY, convex_numpy)]
    assert all(each.certified for each in found)
    assert {each.proved_lam for each in found} == {lam}
    first = by_first_appearance(found[0].nodes.owner)
    for each in found[1:]:
        assert (by_first_appearance(each.nodes.owner) == first).all()
        assert each.objective == pytest.approx(found[0].objective, rel=1e-7)


def test_accelerated_ascent_of_many_nodes_has_the_same_result():
    points = gaussian(320, 2, 0)
    points[:160] += 6
    one, other = (proved(points, 0.012, k) for k in (CYCLIC_ONLY, ACCELERATED_ONLY))
    assert one.certified
    assert other.certified
    assert 2 < one.nodes.K < 320
    assert (by_first_appearance(one.nodes.owner) == by_first_appearance(other.nodes.owner)).all()


def test_lambda_at_the_edge_of_a_fusion_is_proved_within_the_slack_or_not_at_all():
    """The cluster of all fuses at some lambda; 0.05 % below it the partition may be that of the fusion itself."""
    points = gaussian(12, 2, 3)
    low, high = 0.05, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fused = np.ptp(admm(points, middle, rounds=600), axis=0).max() < 1e-5
        low, high = (low, middle) if fused else (middle, high)
    found = proved(points, high * 0.9995, convex_numba)
    assert found.lam <= found.proved_lam <= found.lam * 1.001
    assert found.certified
    at_proved = proved(points, found.proved_lam * (1 + 1e-9), convex_numba)
    assert at_proved.nodes.K <= found.nodes.K
    assert proved(points, high * 1.002, convex_numba).nodes.K == 1


def test_screening_by_hand():
    """0, 1, 10, 12 at lam = 0.6: 1 <= 0.6 * 2 fuses the first two, 2 > 1.2 not the last two, 12 > 2.4 not all."""
    nodes = single_points(np.array([[0.0], [1.0], [10.0], [12.0]]))
    labels = screened(nodes, 0.6)
    assert by_first_appearance(labels).tolist() == [0, 0, 1, 2]
    assert by_first_appearance(screened(nodes, 1.0)).tolist() == [0, 0, 1, 1]
    assert screened(nodes, 3.0).tolist() == [0, 0, 0, 0]


def test_screening_continues_with_the_centres_of_fused_nodes():
    """At lam = 1, 0 and 2 fuse to a node of two at 1; 3.9 is 2.9 from it (3.9 from 0) and 2.9 <= 3 points."""
    nodes = single_points(np.array([[0.0], [2.0], [3.9]]))
    assert screened(nodes, 1.0).tolist() == [0, 0, 0]
    far = single_points(np.array([[0.0], [2.0], [4.1]]))
    assert len(set(screened(far, 1.0).tolist())) == 2


@pytest.mark.parametrize("seed", range(5))
def test_screened_nodes_are_fused_in_the_plain_solution(seed):
    points = gaussian(16, 2, seed)
    lam = 0.18
    labels = screened(single_points(points), lam)
    assert len(set(labels.tolist())) < 16
    u = admm(points, lam)
    for k in set(labels.tolist()):
        assert np.ptp(u[labels == k], axis=0).max() < 1e-6


def test_merged_nodes_keep_means_sizes_and_owners():
    nodes = Nodes(np.array([[0.0], [3.0], [9.0]]), np.array([1.0, 2.0, 1.0]), np.array([0, 1, 1, 2]))
    found = nodes.merged(np.array([0, 0, 1]))
    np.testing.assert_allclose(found.centres, [[2.0], [9.0]])  # (0 + 2 * 3) / 3
    assert found.sizes.tolist() == [3.0, 1.0]
    assert found.owner.tolist() == [0, 0, 0, 1]


def test_the_largest_jump():
    lengths = np.array([1e-9, 1e-8, 1e-3, 2e-3, 1.0])
    assert largest_jump(lengths, reach=0.5, scale=1.0) == 1e-8  # by 1e5; by 500 after 2e-3
    assert largest_jump(lengths, reach=5e-9, scale=1.0) == 1e-9  # the rest is proved to be distinct
    assert largest_jump(lengths, reach=1e-10, scale=1.0) == -1
    assert largest_jump(lengths, reach=0.5, scale=1e7) == 2e-3  # below 1e-5 is rounding


def test_the_limit_of_memory_is_half_of_what_is_available(monkeypatch, tmp_path):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 900 kB\nMemAvailable:   400 kB\n")
    monkeypatch.setattr("coterie.server.clustering.convex_memory.MEMINFO", info)
    assert default_limit() == 200 * 1024
    check_memory(200 * 1024, None, "it")
    monkeypatch.setattr("coterie.server.clustering.convex_memory.MEMINFO", tmp_path / "none")
    assert default_limit() == 2 * 2**30
