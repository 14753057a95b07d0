"""K-means clustering, and partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from coterie.errors import ConfigError, InputError
from coterie.server.clustering.kmeans import kmeans, lloyd
from coterie.server.clustering.partition import by_first_appearance, checked, partition, places, totals
from tests.server.clustering.data import D_2, FIGURE_2, gaussian, solutions


def plain_cost(points, labels):
    cost = 0.0
    for k in set(labels):
        members = [a for a, label in zip(points, labels, strict=True) if label == k]
        mean = sum(members) / len(members)
        cost += sum(float(((a - mean) ** 2).sum()) for a in members)
    return cost


@pytest.mark.parametrize("seed", range(3))
def test_nine_points_get_the_cheapest_of_all_partitions(seed):
    points = gaussian(9, 2, seed)
    least = min(plain_cost(points, labels) for labels in itertools.product(range(3), repeat=9) if len(set(labels)) == 3)
    found = kmeans(points, 3, 0)
    assert found.cost(points) == pytest.approx(least, rel=1e-12)
    assert found.cost(points) == pytest.approx(plain_cost(points, found.labels), rel=1e-12)


@pytest.mark.parametrize(("intervals", "n"), [(FIGURE_2, 50), (FIGURE_2, 400), (D_2, 100)])
def test_the_papers_models_are_recovered(intervals, n):
    for seed in range(3):
        points, truth = solutions(intervals, n, seed)
        assert kmeans(points, len(intervals), seed).labels.tolist() == truth.tolist()


def test_labels_are_numbered_by_first_appearance():
    assert by_first_appearance(np.array([7, 2, 7, 0, 2])).tolist() == [0, 1, 0, 2, 1]
    assert by_first_appearance(np.array([0])).tolist() == [0]


def test_a_partition_has_the_means_of_its_clusters():
    points = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [6.0, 8.0]])
    part = partition(points, np.array([5, 3, 5, 3]))
    assert part.labels.tolist() == [0, 1, 0, 1]
    assert part.centres.tolist() == [[0.0, 1.0], [5.0, 4.0]]
    # 1 + 1 about (0, 1); (1 + 16) twice about (5, 4)
    assert part.cost(points) == pytest.approx(36.0, abs=1e-12)
    sums, sizes = totals(points, part.labels, 3)
    assert sums.tolist() == [[0.0, 2.0], [10.0, 8.0], [0.0, 0.0]]
    assert sizes.tolist() == [2, 2, 0]


def test_the_same_seed_gives_the_same_on_any_number_of_threads():
    points = gaussian(3000, 5, 0)
    with threadpool_limits(limits=2):
        two = kmeans(points, 8, 3, restarts=2)
    with threadpool_limits(limits=1):
        one = kmeans(points, 8, 3, restarts=2)
    assert two.labels.tolist() == one.labels.tolist()
    assert two.centres.tolist() == one.centres.tolist()


def test_more_restarts_are_never_worse():
    points = gaussian(60, 3, 1)
    costs = [kmeans(points, 7, 5, restarts=r).cost(points) for r in (1, 30)]
    assert costs[1] < costs[0]


def test_points_that_are_equal_up_to_rounding_are_not_distinct():
    three = np.array([[1.0, 2.0], [3.0, 4.0], [-5.0, 0.1]])
    rounded = np.repeat(three, 4, axis=0) * (1 + 1e-15 * np.arange(12)[:, None])
    assert places(rounded) == 3
    assert places(np.full((5, 2), 0.1)) == 1
    assert places(np.zeros((5, 2))) == 1
    assert places(1e6 + 1e-4 * three) == 3
    assert kmeans(rounded, 3, 0).labels.tolist() == np.repeat([0, 1, 2], 4).tolist()


def test_more_clusters_than_distinct_points_are_refused():
    points = np.array([[1.0], [1.0], [2.0]])
    with pytest.raises(ConfigError, match=r"clusters=3 but only 2 of the 3 points are distinct: choose at most 2"):
        kmeans(points, 3, 0)


@pytest.mark.parametrize("K", [0, -1, 4])
def test_a_number_of_clusters_out_of_range_is_refused(K):
    with pytest.raises(ConfigError, match=rf"between 1 and the number of points \(3\), got {K}"):
        kmeans(gaussian(3, 2, 0), K, 0)


def test_every_point_can_be_a_cluster_and_all_can_be_one():
    points = gaussian(6, 2, 0)
    assert kmeans(points, 6, 0).labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert kmeans(points, 1, 0).labels.tolist() == [0] * 6
    assert kmeans(points[:1], 1, 0).labels.tolist() == [0]


def test_lloyd_continues_from_the_given_centres_until_no_point_changes():
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    # from 0 and 1: {0}, {1, 2, 10} with mean 4.33; then {0, 1, 2}, {10}
    found = lloyd(points, np.array([[0.0], [1.0]]))
    assert found.labels.tolist() == [0, 0, 0, 1]
    assert found.centres.ravel().tolist() == [1.0, 10.0]


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 2)), np.zeros((2, 0)), [[1.0, np.nan]], [[np.inf], [1.0]]])
def test_invalid_points_are_refused(bad):
    with pytest.raises(InputError, match="points"):
        checked(bad)
