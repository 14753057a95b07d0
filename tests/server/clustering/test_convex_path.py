"""The clusterpath: grids, rules for the choice of lambda, merge tree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage

from coterie.clustering import ConvexClustering, recovery_interval
from coterie.server.clustering.convex_path import (
    allowed_by_rule_a,
    allowed_by_rule_b,
    equidistant_grid,
    log_grid,
    merge_tree,
    most_frequent_count,
)
from coterie.server.clustering.partition import by_first_appearance
from tests.server.clustering.convex_oracle import regression_points
from tests.server.clustering.data import blobs, gaussian


def nested(labels_path) -> bool:
    """Return whether every cluster is contained in a cluster of each later partition."""
    pairs = itertools.pairwise(labels_path)
    return all(len(np.unique(fine)) == np.unique(np.stack([fine, coarse]), axis=1).shape[1] for fine, coarse in pairs)


def test_the_path_of_the_regression_data():
    points = regression_points()
    found = ConvexClustering().fit(points)
    assert found.certified_path_.all()
    assert found.n_clusters_ == 4
    assert (found.labels_ == np.arange(48) % 4).all()
    assert len(found.lambdas_) == 25
    assert found.n_clusters_path_[0] > 24
    assert found.n_clusters_path_[-1] == 1
    assert nested(found.labels_path_)
    ratios = found.lambdas_[1:] / found.lambdas_[:-1]
    np.testing.assert_allclose(ratios, ratios[0])
    assert found.lam_ == found.lambdas_[found.selected_]


@pytest.mark.parametrize("at", [0, 12, 17, 20, 24])
def test_each_lambda_of_a_path_equals_a_separate_solution(at):
    points = regression_points()
    path = ConvexClustering().fit(points)
    alone = ConvexClustering(path.lambdas_[at]).fit(points)
    assert (alone.labels_ == path.labels_path_[at]).all()


def test_the_chosen_lambda_has_the_objective_of_that_lambda():
    points = regression_points()
    path = ConvexClustering().fit(points)
    alone = ConvexClustering(path.lam_).fit(points)
    assert path.objective_ == pytest.approx(alone.objective_, rel=1e-7)
    np.testing.assert_allclose(path.centroids_, alone.centroids_, atol=1e-3)


def test_the_tree_gives_every_partition_of_the_path():
    found = ConvexClustering(grid_size=12).fit(gaussian(30, 2, 0))
    assert is_valid_linkage(found.merge_tree_)
    for lam, labels in zip(found.lambdas_, found.labels_path_, strict=True):
        cut = fcluster(found.merge_tree_, lam * (1 + 1e-12), "distance")
        assert (by_first_appearance(cut) == labels).all()


def test_the_tree_by_hand():
    """1 and 3 fuse at 0.5, then 0 with them and 2 with 4 at 1, then all at 2."""
    labels = [np.array(row) for row in ([0, 1, 2, 1, 3], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0])]
    assert merge_tree([0.5, 1.0, 2.0], labels).tolist() == [
        [1, 3, 0.5, 2],
        [0, 5, 1.0, 3],
        [2, 4, 1.0, 2],
        [6, 7, 2.0, 5],
    ]


def test_most_frequent_count():
    counts = [9, 9, 9, 9, 5, 5, 4, 3, 3, 1, 1]
    assert most_frequent_count(counts, allowed_by_rule_b(counts, 10)) == 4  # 5 and 3 live twice: the finer, its first
    assert most_frequent_count([9, 3, 3, 3, 2, 1], allowed_by_rule_b([9, 3, 3, 3, 2, 1], 9)) == 2  # the middle of three
    assert most_frequent_count([9, 8, 1], allowed_by_rule_b([9, 8, 1], 9)) is None
    assert allowed_by_rule_b([5, 4, 2, 1], 8) == [False, True, True, False]


def test_rule_a_allows_nontrivial_partitions_that_satisfy_13_only():
    points, truth = blobs([6, 6], [[0, 0], [30, 0]])
    lower, upper = recovery_interval(points, truth)
    trivial = [np.arange(12), np.zeros(12, dtype=int)]
    lambdas = [1e-9, lower * 0.9, lower, upper * 0.999, upper, 1e9]
    assert allowed_by_rule_a(points, lambdas, [trivial[0], truth, truth, truth, truth, trivial[1]]) == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_then_b_prefers_the_lambdas_that_satisfy_13():
    points, truth = blobs([8, 8], [[0, 0], [30, 0]])
    found = ConvexClustering(grid="equidistant", rule="a-then-b").fit(points)
    lower, upper = recovery_interval(points, truth)
    assert (found.labels_ == truth).all()
    assert lower <= found.lam_ < upper
    tight = ConvexClustering(grid="equidistant", rule="a-then-b").fit(regression_points())  # (13) never holds for K=4
    assert tight.n_clusters_ == 4


def test_the_papers_grid_by_hand():
    """All separate up to 0.07, one cluster from 0.15 on: 0.1 / 1.25^2 = 0.064 and 0.1 * 1.25^2 = 0.15625."""
    grid = equidistant_grid(lambda lam: 9 if lam <= 0.07 else 1 if lam >= 0.15 else 4, 9, 1, 10)
    np.testing.assert_allclose(grid, np.linspace(0.064, 0.15625, 10))


def test_the_ends_of_a_log_grid_are_where_the_clusters_change():
    """More than half of 9 are apart up to 0.07, all are one from 0.15 on; both are found up to a factor of 1.2."""
    grid = log_grid(lambda lam: 6 if lam <= 0.07 else 1 if lam >= 0.15 else 4, (1e-4, 40.0), 9, 1, 5)
    assert 0.07 / 1.2 < grid[0] <= 0.07
    assert 0.15 <= grid[-1] < 0.15 * 1.2
    np.testing.assert_allclose(grid[1:] / grid[:-1], grid[1] / grid[0])


def test_lambdas_without_a_proof_stay_between_the_ends():
    grid = log_grid(lambda lam: 6 if lam <= 0.01 else 1 if lam >= 2 else np.nan, (1e-4, 40.0), 9, 1, 5)
    assert grid[0] <= 0.01
    assert grid[-1] >= 2


@pytest.mark.parametrize("seed", range(3))
def test_the_path_of_points_without_structure_starts_with_many_clusters(seed):
    found = ConvexClustering().fit(gaussian(60, 3, seed))
    assert found.n_clusters_path_[0] > 30
    assert found.n_clusters_path_[-1] == 1


def test_the_papers_grid_ends_where_it_should():
    found = ConvexClustering(grid="equidistant").fit(regression_points())
    assert len(found.lambdas_) == 10
    assert found.n_clusters_path_[0] == 48
    assert found.n_clusters_path_[-1] == 1
    np.testing.assert_allclose(np.diff(found.lambdas_), np.diff(found.lambdas_)[0])
    assert ConvexClustering(found.lambdas_[0] * 1.25).fit(regression_points()).n_clusters_ < 48
    assert ConvexClustering(found.lambdas_[-1] / 1.25).fit(regression_points()).n_clusters_ > 1


def test_the_grid_of_the_paper_starts_with_all_distinct_points():
    points = np.vstack([regression_points(), regression_points()[:5]])
    found = ConvexClustering(grid="equidistant", grid_size=4).fit(points)
    assert found.n_clusters_path_[0] == 48
    assert found.merge_tree_[:5, 2].tolist() == [found.lambdas_[0]] * 5


@pytest.mark.parametrize("m", [2, 3])
def test_without_a_k_between_the_ends_there_is_one_cluster(m):
    found = ConvexClustering().fit(np.arange(m, dtype=float)[:, None] ** 2)
    assert found.n_clusters_ == 1
    assert found.certified_
    assert found.n_clusters_path_[0] > 1


def test_near_duplicates_do_not_stretch_the_grid():
    points = regression_points()
    points[1] = points[5] + 1e-9
    assert ConvexClustering().fit(points).lambdas_[0] > 1e-3


def test_a_single_lambda_has_no_attributes_of_a_path():
    assert not hasattr(ConvexClustering(0.1).fit(regression_points()), "lambdas_")
