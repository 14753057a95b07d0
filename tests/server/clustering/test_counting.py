"""Choice of the number of clusters: silhouette, test against one cluster, large federations."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.server.clustering.counting import (
    SAMPLE,
    by_silhouette,
    compare_with_one_cloud,
    count_clusters,
    sample,
)
from coterie.server.clustering.gradient import gradient_clustering
from coterie.server.clustering.kmeans import kmeans
from coterie.server.clustering.partition import partition
from coterie.server.clustering.spectral import spectral
from tests.server.clustering.data import D_2, FIGURE_2, blobs, gaussian, solutions

QUICK = partial(kmeans, restarts=3)


def count(points, **settings):
    return count_clusters(points, kmeans, **settings)


@pytest.mark.parametrize("n", [50, 400])
def test_the_ten_models_of_figure_2_are_counted(n):
    assert count(solutions(FIGURE_2, n, 0)[0]).K == 10


@pytest.mark.parametrize(("n", "expected"), [(400, 4), (50, 2)])
def test_four_models_on_a_line_need_many_samples(n, expected):
    assert expected == count(solutions(D_2, n, 0)[0], most=8).K


@pytest.mark.parametrize(("m", "p"), [(40, 1), (100, 20)])
def test_one_gaussian_cloud_is_one_cluster_in_most_draws(m, p):
    found = [count_clusters(gaussian(m, p, seed), QUICK, most=5, seed=seed).K for seed in range(4)]
    assert found == [1] * 4


def test_a_stretched_cloud_is_one_cluster():
    points = gaussian(200, 4, 0) * [10, 1, 1, 0.1] + 50
    counted = count(points, most=8)
    assert counted.K == 1
    assert counted.one_cloud is not None
    assert counted.one_cloud.explains
    assert "a single Gaussian cluster can be split as well" in counted.notes[0]


@pytest.mark.parametrize("cluster", [kmeans, spectral, gradient_clustering])
def test_any_clustering_can_be_counted_with(cluster):
    points, _ = blobs([20, 15, 25], 3 * np.eye(3, 20))
    assert count_clusters(points, cluster, most=5).K == 3


def test_equidistant_centres_are_counted():
    """Ten corners of a simplex: the best partition into two explains 11 % only."""
    points, _ = blobs([10] * 10, np.eye(10), noise=0.1)
    assert count(points).K == 10


def plain_silhouette(points, labels):
    scores = []
    for i, a in enumerate(points):
        distances = {
            k: [np.linalg.norm(a - b) for j, b in enumerate(points) if labels[j] == k and j != i] for k in set(labels)
        }
        own = distances.pop(labels[i])
        inside, outside = (np.mean(own) if own else 0.0), min(np.mean(d) for d in distances.values())
        scores.append((outside - inside) / max(inside, outside) if own else 0.0)
    return np.mean(scores)


def test_silhouettes_are_those_of_the_definition():
    points = gaussian(30, 3, 0)
    cut = {K: kmeans(points, K, 0) for K in (1, 2, 3, 12)}
    best, scores = by_silhouette(points, cut)
    assert list(scores) == [2, 3, 12]
    for K, score in scores.items():
        assert score == pytest.approx(plain_silhouette(points, cut[K].labels), abs=1e-9)
    assert scores[best] == max(scores.values())


def test_the_share_left_is_that_of_the_partition():
    points = np.array([[0.0], [1.0], [10.0], [11.0]])
    cloud = compare_with_one_cloud(points, partition(points, np.array([0, 0, 1, 1])), kmeans, 0)
    assert cloud.left == pytest.approx(1 / 101, abs=1e-12)
    assert len(cloud.left_in_clouds) == 20
    assert all(0 < share < 1 for share in cloud.left_in_clouds)


def test_clouds_have_the_mean_and_covariance_of_the_points():
    points = gaussian(400, 3, 0) @ np.array([[3.0, 0, 0], [1, 1, 0], [0, 0, 0.2]]) + [1, 2, 3]
    seen = []

    def watch(cloud, K, seed):
        seen.append(cloud)
        return kmeans(cloud, K, seed, restarts=1)

    compare_with_one_cloud(points, kmeans(points, 2, 0), watch, 0)
    clouds = np.concatenate(seen)
    np.testing.assert_allclose(clouds.mean(axis=0), points.mean(axis=0), atol=0.2)
    np.testing.assert_allclose(np.cov(clouds.T), np.cov(points.T), rtol=0.1, atol=0.1)


def test_equal_models_up_to_rounding_are_counted_exactly():
    points = np.repeat([[1.0, 2.0], [3.0, 4.0], [-5.0, 0.1], [7.0, 7.0]], 25, axis=0)
    points *= 1 + 1e-16 * np.arange(100)[:, None]
    assert count(points).K == 4


@pytest.mark.parametrize("points", [np.ones((1, 3)), gaussian(2, 3, 0), np.ones((50, 2))])
def test_degenerate_points_are_one_cluster(points):
    counted = count(points)
    assert (counted.K, counted.scores, counted.one_cloud) == (1, {}, None)
    assert "the number of clusters is 1" in counted.notes[0]


def test_the_limit_is_kept_and_reported():
    points, _ = blobs([10] * 6, 10 * np.eye(6))
    counted = count(points, most=4)
    assert counted.K == 4
    assert counted.notes == ("K=4 is the largest number that was tried: there may be more clusters",)
    assert count(points, most=1).K == 1


def test_bad_limits_are_refused():
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        count(gaussian(9, 2, 0), most=0)


def test_many_points_are_counted_by_a_random_sample():
    points, _ = blobs([30_000, 15_000, 5_000], [[0, 0], [5, 0], [0, 5]], noise=0.5)
    seen = sample(points, 1)
    assert seen.shape == (SAMPLE, 2)
    assert np.array_equal(seen, sample(points, 1))
    assert not np.array_equal(seen, sample(points, 2))
    assert len(np.unique(seen, axis=0)) == SAMPLE
    assert count_clusters(points, QUICK).K == 3


def test_facts_are_json_values():
    points, _ = blobs([8, 8], [[0, 0], [5, 5]])
    reported = json.loads(json.dumps(count(points).facts(), allow_nan=False))
    assert reported["K"] == 2
    assert reported["one_cloud"]["explains"] is False
    assert set(reported["scores"]) == {str(K) for K in range(2, 16)}
