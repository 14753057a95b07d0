"""Spectral k-means: projection, cores and results."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.server.clustering.kmeans import lloyd
from coterie.server.clustering.partition import partition
from coterie.server.clustering.spectral import core_means, core_of, project, spectral
from tests.server.clustering.data import D_2, FIGURE_2, blobs, gaussian, solutions


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("intervals", "n"), [(FIGURE_2, 50), (FIGURE_2, 400), (D_2, 100)])
def test_the_papers_models_are_recovered(intervals, n, parts):
    for seed in range(3):
        points, truth = solutions(intervals, n, seed)
        assert spectral(points, len(intervals), seed, parts=parts).labels.tolist() == truth.tolist()


def test_the_projection_is_that_of_the_uncentred_matrix():
    points = 5 + gaussian(12, 6, 0)
    values, vectors = np.linalg.eigh(points.T @ points)
    top = vectors[:, np.argsort(values)[-3:]]
    plain = points @ top @ top.T
    found = project(points, 3)
    assert found.shape == (12, 3)
    np.testing.assert_allclose(found @ found.T, plain @ plain.T, rtol=1e-9)


def test_more_clusters_than_dimensions_project_on_everything():
    points = gaussian(9, 2, 1)
    found = project(points, 5)
    np.testing.assert_allclose(found @ found.T, points @ points.T, rtol=1e-9, atol=1e-12)


def plain_core(projected, centres):
    core = np.zeros((len(projected), len(centres)), dtype=bool)
    for i, a in enumerate(projected):
        for k, centre in enumerate(centres):
            others = [np.linalg.norm(a - c) for c in np.delete(centres, k, axis=0)]
            core[i, k] = all(np.linalg.norm(a - centre) <= other / 3 for other in others)
    return core


def test_the_cores_are_those_of_the_definition():
    projected, centres = gaussian(200, 2, 2), gaussian(4, 2, 3)
    found = core_of(projected, centres)
    assert found.tolist() == plain_core(projected, centres).tolist()
    assert 0 < found.sum() < 200


def test_core_means_are_of_the_original_rows():
    """On a line at 0, 1, 4 | 9, 10 with centres 5/3 and 9.5: the point at 4 is 2.33 > 5.5/3 away, so no core point."""
    projected = np.array([[0.0], [1.0], [4.0], [9.0], [10.0]])
    points = np.hstack([projected, [[7.0], [9.0], [100.0], [1.0], [3.0]]])
    first = partition(projected, np.array([0, 0, 0, 1, 1]))
    np.testing.assert_allclose(core_means(points, projected, first), [[0.5, 8.0], [9.5, 2.0]], rtol=1e-12)


def test_an_empty_core_falls_back_on_its_cluster():
    """Centres 0 and 1: -0.95 is no core point, since 0.95 > 1.95/3; nor is 4, since 3 > 4/3; 0.95 is one of 1's."""
    projected = np.array([[-0.95], [0.95], [4.0], [4.0]])
    first = partition(projected, np.array([0, 0, 1, 1]))
    near = np.array([[0.0], [1.0]])
    core = core_of(projected, near)
    assert core.any(axis=0).tolist() == [False, True]
    part = type(first)(first.labels, near)
    np.testing.assert_allclose(core_means(projected, projected, part), [[0.0], [0.95]], atol=1e-12)


def test_the_third_part_ends_at_a_fixed_point_of_lloyd():
    points = gaussian(80, 5, 4)
    found = spectral(points, 4, 0)
    assert lloyd(points, found.centres).labels.tolist() == found.labels.tolist()


def test_part_one_alone_clusters_the_projection_and_averages_the_points():
    points = gaussian(80, 5, 4)
    one = spectral(points, 2, 0, parts=1)
    for k in range(2):
        np.testing.assert_allclose(one.centres[k], points[one.labels == k].mean(axis=0), rtol=1e-12)
    assert one.labels.tolist() != spectral(points, 2, 0, parts=3).labels.tolist()


def test_one_cluster_and_as_many_as_points():
    points, _ = blobs([2, 2], [[0, 0], [5, 5]])
    assert spectral(points, 1, 0).labels.tolist() == [0] * 4
    assert spectral(points, 4, 0).labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("parts", [0, 2, 4])
def test_other_parts_are_refused(parts):
    with pytest.raises(ConfigError, match=f"3 .* or 1 .*, got {parts}"):
        spectral(gaussian(5, 2, 0), 2, 0, parts=parts)


def test_more_clusters_than_distinct_points_are_refused():
    with pytest.raises(ConfigError, match=r"only 2 of the \d+ points are distinct"):
        spectral(np.repeat([[1.0, 0.0], [0.0, 1.0]], 5, axis=0), 3, 0)
