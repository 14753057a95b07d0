"""Separation of clusters against plain loops and by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from coterie.server.clustering import separation as module
from coterie.server.clustering.kmeans import kmeans
from coterie.server.clustering.partition import partition
from coterie.server.clustering.separation import separation
from tests.server.clustering.data import FIGURE_2, blobs, gaussian, solutions

FOUR = np.array([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0], [10.0, 6.0], [10.0, 3.0]])
"""Clusters {0, 1} with mean (0, 1), radius 1, diameter 2; {2, 3, 4} with mean (10, 3), radius 3, diameter 6."""
APART = math.hypot(10, 2)


def measure(points, labels):
    return separation(points, partition(points, np.asarray(labels)))


def test_two_clusters_by_hand():
    found = measure(FOUR, [0, 0, 1, 1, 1])
    assert found.sizes.tolist() == [2, 3]
    assert found.radii.tolist() == [1.0, 3.0]
    assert found.nearest == (0, 1)
    assert found.centre_distance == pytest.approx(APART, abs=1e-12)
    assert found.alpha == pytest.approx(APART / 3, abs=1e-12)
    # (13): max(2/2, 6/3) = 2 and sqrt(104) / (2 * 5 - 2 - 3)
    assert (found.lower, found.upper) == pytest.approx((2.0, APART / 5), abs=1e-12)
    assert found.recoverable is True
    assert [found.satisfied_by(lam) for lam in (1.99, 2.0, 2.03, 2.04)] == [False, True, True, False]
    assert found.warnings == ()
    # the first point is 1 from its own centre and |(10, 3)| from the other
    assert found.ambiguity[0] == pytest.approx(1 / math.hypot(10, 3), abs=1e-12)
    assert found.ambiguity[4] == 0.0


def plain(points, labels):
    """Return alpha, lower, upper and ambiguity, computed by loops."""
    m, clusters = len(points), sorted(set(labels))
    members = {k: [a for a, label in zip(points, labels, strict=True) if label == k] for k in clusters}
    means = {k: sum(members[k]) / len(members[k]) for k in clusters}
    radius = max(np.linalg.norm(a - means[k]) for k in clusters for a in members[k])
    apart = {(k, j): np.linalg.norm(means[k] - means[j]) for k in clusters for j in clusters if k < j}
    lower = max(np.linalg.norm(a - b) / len(members[k]) for k in clusters for a in members[k] for b in members[k])
    upper = min(distance / (2 * m - len(members[k]) - len(members[j])) for (k, j), distance in apart.items())
    ambiguity = [
        np.linalg.norm(a - means[k]) / min(np.linalg.norm(a - means[j]) for j in clusters if j != k)
        for a, k in zip(points, labels, strict=True)
    ]
    return min(apart.values()) / radius, lower, upper, ambiguity


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_plain_loops(seed):
    points = gaussian(40, 3, seed)
    part = kmeans(points, 6, 0)
    found = separation(points, part)
    alpha, lower, upper, ambiguity = plain(points, part.labels.tolist())
    assert (found.alpha, found.lower, found.upper) == pytest.approx((alpha, lower, upper), rel=1e-9)
    np.testing.assert_allclose(found.ambiguity, ambiguity, rtol=1e-9, atol=1e-12)


def test_blocks_of_rows_change_nothing(monkeypatch):
    points = gaussian(50, 3, 0)
    part = kmeans(points, 4, 0)
    whole = separation(points, part)
    monkeypatch.setattr(module, "BLOCK", 12)
    assert separation(points, part).ambiguity.tolist() == whole.ambiguity.tolist()


def test_many_points_have_bounds_instead_of_diameters(monkeypatch):
    points, truth = blobs([20, 30], [[0, 0], [9, 9]])
    exact = measure(points, truth)
    monkeypatch.setattr(module, "EXACT", 49)
    bound = measure(points, truth)
    assert exact.exact_diameters
    assert not bound.exact_diameters
    assert bound.lower == pytest.approx(max(2 * bound.radii / [20, 30]), rel=1e-12)
    assert exact.lower <= bound.lower <= 2 * exact.lower
    assert bound.upper == exact.upper
    assert bound.facts()["diameters"] == "at most twice the radius"


def test_bounds_that_do_not_decide_give_none(monkeypatch):
    points = gaussian(30, 2, 0)
    part = kmeans(points, 3, 0)
    assert separation(points, part).recoverable is False
    monkeypatch.setattr(module, "EXACT", 10)
    assert separation(points, part).recoverable is None
    assert separation(points, part).satisfied_by(0.1) is None


def test_the_interval_of_the_papers_models_is_empty_though_they_are_separate():
    """The ratio of the lower and upper ends is about 1.36 at n=400, although definition 1 holds clearly."""
    ratios = []
    for seed in range(3):
        points, truth = solutions(FIGURE_2, 400, seed)
        found = measure(points, truth)
        assert found.alpha > 5
        assert found.warnings == ()
        ratios.append(found.lower / found.upper)
    assert np.mean(ratios) == pytest.approx(1.36, rel=0.06)


def test_overlap_is_reported_with_its_numbers():
    points = gaussian(100, 10, 0)
    found = separation(points, kmeans(points, 2, 0))
    (sentence,) = found.warnings
    assert sentence.startswith("clusters overlap: the radius of cluster")
    assert f"separation {found.alpha:.2f}" in sentence
    assert f"is only {found.centre_distance:.3g} " in sentence


def test_clients_nearer_to_another_centre_are_counted():
    # the last point, of cluster 0 with mean (4, 1), is 6 from it and 0.9 from (10.33, 2)
    found = measure(np.vstack([FOUR, [[10.0, 1.0]]]), [0, 0, 1, 1, 1, 0])
    assert int((found.ambiguity > 1).sum()) == 1
    assert "1 of 6 clients are nearer to the centre of another cluster" in " ".join(found.warnings)


def test_clusters_of_one_client_are_reported():
    (one,) = measure(np.array([[0.0], [0.1], [9.0]]), [0, 0, 1]).warnings
    assert one == "cluster 1 has a single client: its model is trained by this client only"
    (all_,) = measure(10 * np.eye(7), range(7)).warnings
    assert all_.startswith("7 clusters have a single client each (0, 1, 2, 3, 4, ...)")


def test_the_separation_of_one_cluster_is_not_defined():
    found = measure(FOUR, [0] * 5)
    assert found.nearest is None
    assert found.recoverable is None
    assert found.ambiguity.tolist() == [0.0] * 5
    assert found.facts()["alpha"] is None
    assert found.facts()["interval_13"][1] is None
    assert "separation is not defined" in found.warnings[0]


@pytest.mark.parametrize("points", [FOUR[:1], np.ones((4, 2))])
def test_one_client_and_equal_clients(points):
    found = measure(points, [0] * len(points))
    assert found.radii.tolist() == [0.0]
    assert found.lower == 0.0
    json.dumps(found.facts(), allow_nan=False)


def test_equal_points_in_each_cluster_are_as_separate_as_can_be():
    found = measure(np.array([[0.0], [0.0], [1.0]]), [0, 0, 1])
    assert found.alpha == math.inf
    assert found.facts()["alpha"] is None
    assert found.facts()["separable"] is True
    assert found.recoverable is True


def test_facts_are_json_values():
    reported = json.loads(json.dumps(measure(FOUR, [0, 0, 1, 1, 1]).facts(), allow_nan=False))
    assert reported["separable"] is True
    assert reported["sizes"] == [2, 3]
    assert reported["recoverable_by_13"] is True
    assert reported["diameters"] == "exact"
    assert reported["ambiguity"]["nearer_to_another"] == 0
