"""Convex clustering with weights of nearest neighbours: graph, solution and proofs."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from coterie.clustering import ConvexClustering
from coterie.server.clustering import convex_numba, convex_numpy
from coterie.server.clustering.convex_graph import EdgeAscent, Graph, lambda_range, nearest_neighbours, solve_graph
from tests.server.clustering.convex_oracle import admm, edge_weights, objective, regression_points
from tests.server.clustering.data import blobs, gaussian

LINE = np.array([[0.0], [1.0], [3.0], [7.0]])


def test_the_graph_by_hand():
    """0-1, 1-0, 3-1 and 7-3 are nearest; squares 1, 4, 16 have the mean 7."""
    graph = nearest_neighbours(LINE, 1, 0.5)
    assert graph.ends.tolist() == [[0, 1], [1, 2], [2, 3]]
    np.testing.assert_allclose(graph.weights, np.exp([-0.5 / 7, -2 / 7, -8 / 7]), rtol=1e-12)
    assert graph.components.tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(graph.incidence.toarray(), [[1, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1]])


def test_weights_do_not_depend_on_the_scale():
    points = gaussian(20, 3, 0)
    one, other = nearest_neighbours(points, 4, 0.5), nearest_neighbours(1000 * points, 4, 0.5)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-9)


def test_carried_duals_meet_the_demand():
    graph = nearest_neighbours(gaussian(15, 2, 0), 6, 0.5)
    assert graph.components.max() == 0
    demand = gaussian(15, 2, 1)
    demand -= demand.mean(axis=0)
    np.testing.assert_allclose(graph.incidence.T @ graph.carried(demand), demand, atol=1e-9)


def test_merged_graphs_add_weights_and_duals():
    """Nodes 0 and 2 become one: edges 0-1 (dual 5) and 1-2 (dual 3) become 0-1 with 5 - 3, edge 0-2 disappears."""
    graph = Graph(LINE[:3], np.array([1.0, 1.0, 3.0]), np.array([[0, 1], [0, 2], [1, 2]]), np.array([2.0, 4.0, 0.5]))
    merged, duals = graph.merged(np.array([0, 1, 0]), np.array([[5.0], [7.0], [3.0]]))
    assert merged.ends.tolist() == [[0, 1]]
    assert merged.weights.tolist() == [2.5]
    assert duals.tolist() == [[2.0]]
    np.testing.assert_allclose(merged.centres, [[9 / 4], [1.0]])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lam", [0.05, 0.2, 0.6])
def test_the_solution_is_that_of_a_plain_solver(seed, lam):
    points = gaussian(14, 2, seed)
    points[:7] += 3
    graph = nearest_neighbours(points, 4, 0.5)
    found = solve_graph(graph, lam, 2000)
    u = admm(points, lam, edge_weights(graph))
    best = objective(points, u, lam, edge_weights(graph))
    assert found.objective == pytest.approx(best, rel=1e-6)
    assert found.objective - found.gap <= best * (1 + 1e-12)
    assert found.certified
    np.testing.assert_allclose(found.points, u, atol=2e-3)
    same = found.labels[:, None] == found.labels[None]
    linked = edge_weights(graph) > 0
    apart = np.linalg.norm(u[:, None] - u[None], axis=2)
    assert apart[same].max() < 1e-3
    if (linked & ~same).any():
        assert apart[linked & ~same].min() > 1e-6


def test_compiled_steps_equal_those_of_numpy():
    points = gaussian(40, 3, 1)
    points[:20] += 2
    graph = nearest_neighbours(points, 5, 0.5)
    zeros = np.zeros((len(graph.ends), 3))
    compiled, plain = (EdgeAscent(graph, 0.3, zeros, kernels) for kernels in (convex_numba, convex_numpy))
    inertias = []
    for _ in range(12):
        for ascent in (compiled, plain):
            ascent.run(10)
        inertias.append(compiled.inertia)
        np.testing.assert_allclose(compiled.duals, plain.duals, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(compiled.before, plain.before, rtol=1e-9, atol=1e-12)
        assert compiled.inertia == plain.inertia
    assert (np.diff(inertias) < 0).any()  # the momentum was reset


def test_every_step_of_the_ascent_is_safe():
    """Without momentum the dual value must never fall; the objective minus the gap is that value."""
    graph = nearest_neighbours(gaussian(30, 3, 0), 5, 0.5)
    ascent = EdgeAscent(graph, 0.2, np.zeros((len(graph.ends), 3)))
    values = []
    for _ in range(50):
        ascent.run(1)
        ascent.inertia = 1.0
        value, gap = graph.value(ascent.duals, 0.2)
        values.append(value - gap)
    assert (np.diff(values) > -1e-9).all()


def test_connected_components_are_reported_and_are_the_result_of_the_path():
    points, truth = blobs([8, 9, 7], [[0, 0], [9, 0], [0, 9]])
    found = ConvexClustering(weights="knn", n_neighbors=4).fit(points)
    assert found.n_components_ == 3
    assert (found.labels_ == truth).all()
    assert found.certified_
    huge = ConvexClustering(1e6, weights="knn", n_neighbors=4).fit(points)
    assert (huge.labels_ == truth).all()
    np.testing.assert_allclose(huge.centroids_, huge.means_, atol=1e-9)
    assert not hasattr(found, "merge_tree_")


def test_the_ends_of_the_path():
    points = regression_points()
    graph = nearest_neighbours(points - points.mean(axis=0), 15, 0.5)
    low, high = lambda_range(graph)
    assert graph.components.max() == 0
    assert solve_graph(graph, high, 100).labels.max() == 0
    few = solve_graph(graph, low * 0.99, 1000)
    assert few.certified
    assert few.labels.max() + 1 > 24


def test_a_connected_graph_finds_the_clusters_as_well():
    found = ConvexClustering(weights="knn", n_neighbors=15).fit(regression_points())
    assert found.n_components_ == 1
    assert found.certified_
    assert (found.labels_ == np.arange(48) % 4).all()


def test_an_exhausted_budget_is_reported():
    with pytest.warns(ConvergenceWarning, match="not certified"):
        found = ConvexClustering(0.2, weights="knn", n_neighbors=15, max_passes=1).fit(regression_points())
    assert not found.certified_
    best = ConvexClustering(0.2, weights="knn", n_neighbors=15).fit(regression_points())
    assert best.certified_
    assert found.objective_ - found.gap_ <= best.objective_ <= found.objective_ * (1 + 1e-9)


def test_one_point_and_more_neighbours_than_points():
    assert ConvexClustering(1.0, weights="knn").fit([[1.0, 2.0]]).labels_.tolist() == [0]
    assert ConvexClustering(100.0, weights="knn", n_neighbors=50).fit(LINE).labels_.tolist() == [0, 0, 0, 0]
