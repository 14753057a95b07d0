"""Gradient clustering against a plain loop of its update."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.server.clustering.gradient import gradient_clustering, nearest, refill, seeding_cost, walk
from coterie.server.clustering.kmeans import kmeans, lloyd, seeds
from tests.server.clustering.data import D_2, FIGURE_2, blobs, gaussian, solutions


def plain_walk(points, centres, alpha, steps):
    """Apply the update member by member until no centre moves by more than rounding."""
    centres = centres.copy()
    for _ in range(steps):
        before = centres.copy()
        labels = [int(np.argmin([((a - x) ** 2).sum() for x in centres])) for a in points]
        for k in range(len(centres)):
            centres[k] -= alpha * sum((centres[k] - a for a, label in zip(points, labels, strict=True) if label == k))
        if np.abs(centres - before).max() <= 1e-15:
            break
    return np.array(labels), centres


@pytest.mark.parametrize("step", [0.3, 1.0, 1.9])
@pytest.mark.parametrize("seed", range(4))
def test_the_result_equals_that_of_the_plain_loop(seed, step):
    points = gaussian(40, 3, seed)
    start = seeds(points, 4, seed, 0)
    labels, centres = plain_walk(points, start, step / 40, 2000)
    found = walk(points, start, step)
    assert found.tolist() == labels.tolist()
    for k in range(4):
        np.testing.assert_allclose(points[found == k].mean(axis=0), centres[k], atol=1e-9)


def test_clear_clusters_are_a_fixed_point():
    points, _ = blobs([10, 20, 30], [[0, 0], [3, 0], [0, 3]], noise=0.5)
    found = gradient_clustering(points, 3, 0)
    assert lloyd(points, found.centres).labels.tolist() == found.labels.tolist()


@pytest.mark.parametrize(("intervals", "n"), [(FIGURE_2, 50), (FIGURE_2, 400), (D_2, 100)])
def test_the_papers_models_are_recovered(intervals, n):
    for seed in range(2):
        points, truth = solutions(intervals, n, seed)
        assert gradient_clustering(points, len(intervals), seed).labels.tolist() == truth.tolist()


def test_clusters_far_from_the_origin_and_of_very_different_size():
    points, truth = blobs([300, 3, 30], [[1e6, 0], [1e6 + 5, 0], [1e6, 5]])
    assert gradient_clustering(points, 3, 0).labels.tolist() == truth.tolist()


def test_the_best_initialisation_is_used():
    """In 20 dimensions, most single greedy initialisations miss one of ten clusters; the best of ten does not."""
    points, truth = blobs([200] * 10, np.random.default_rng(0).uniform(-3, 3, (10, 20)), noise=1.0)
    one, ten = ([gradient_clustering(points, 10, s, seedings=r) for s in range(5)] for r in (1, 10))
    assert sum(found.labels.tolist() == truth.tolist() for found in one) <= 3
    assert all(found.labels.tolist() == truth.tolist() for found in ten)


def test_the_cost_of_an_initialisation_is_with_respect_to_the_means():
    # {0, 1} about 0.5 and {4, 10} about 7
    assert seeding_cost(np.array([[0.0], [1.0], [4.0], [10.0]]), np.array([[1.0], [4.0]])) == pytest.approx(0.5 + 18)


def test_without_clear_clusters_it_is_about_as_good_as_kmeans():
    points = gaussian(300, 4, 1)
    found = gradient_clustering(points, 7, 5).cost(points)
    assert found == pytest.approx(kmeans(points, 7, 5).cost(points), rel=0.1)


def test_many_points_without_clusters_stop_near_the_means():
    points = gaussian(3000, 3, 2)
    labels = walk(points, seeds(points, 6, 0, 0), 1.0)
    means = np.array([points[labels == k].mean(axis=0) for k in range(6)])
    again = nearest(points, means)
    assert 0 < (again != labels).mean() < 0.01


def test_an_empty_centre_goes_to_the_farthest_point():
    points = np.array([[0.0], [1.0], [10.0]])
    centres = np.array([[0.0], [99.0], [1.0]])
    labels = nearest(points, centres)
    assert labels.tolist() == [0, 2, 2]
    moved = refill(points, centres, labels, np.array([1.0, 0.0, 2.0]))
    assert moved.ravel().tolist() == [0.0, 10.0, 1.0]
    assert centres.ravel().tolist() == [0.0, 99.0, 1.0]
    assert walk(points, centres, 1.0).tolist() == [0, 2, 1]


@pytest.mark.parametrize("step", [0.0, -1.0, 2.0, float("nan")])
def test_a_diverging_step_is_refused(step):
    with pytest.raises(ConfigError, match=r"gradient_step must be above 0 and below 2 .*, got"):
        gradient_clustering(gaussian(5, 2, 0), 2, 0, step=step)


def test_the_bound_on_the_step_is_the_right_one():
    """One cluster of m points: the distance to the mean is multiplied by 1 - step; beyond 2 it grows."""
    points = gaussian(10, 2, 0)
    for step, grows in ((1.99, False), (2.01, True)):
        _, centres = plain_walk(points, points[:1], step / 10, 300)
        distance = np.linalg.norm(centres[0] - points.mean(axis=0))
        assert (distance > np.linalg.norm(points[0] - points.mean(axis=0))) == grows


def test_a_step_that_is_too_small_to_converge_is_reported(monkeypatch):
    monkeypatch.setattr("coterie.server.clustering.gradient.MOST_STEPS", 20)
    with pytest.raises(ConfigError, match=r"did not converge in 20 steps with gradient_step=1e-06: use a larger"):
        gradient_clustering(gaussian(50, 2, 0), 5, 0, step=1e-6)


def test_one_cluster_as_many_as_points_and_too_many():
    points = gaussian(5, 2, 0)
    assert gradient_clustering(points, 1, 0).labels.tolist() == [0] * 5
    assert gradient_clustering(points, 5, 0).labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"only 1 of the \d+ points are distinct"):
        gradient_clustering(np.ones((5, 2)), 2, 0)
