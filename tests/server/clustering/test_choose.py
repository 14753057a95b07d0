"""Common interface of all clustering algorithms: settings, order, sizes, invalid input, and facts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coterie.errors import ConfigError, InputError
from coterie.server.clustering.choose import CLUSTERINGS, ClusterSettings, cluster_points, rotated
from tests.server.clustering.data import FIGURE_2, blobs, gaussian, solutions

COUNTED = [name for name in CLUSTERINGS if name != "convex"]
BLOBS, TRUTH = blobs([8, 7, 9], [[0, 3, 0], [3, 0, 0], [-2, -2, 4]])


@cache
def of_blobs(name, clusters):
    """Return the clusters of the blobs, which must not be modified."""
    return cluster_points(BLOBS, ClusterSettings(name, clusters), 0)


@pytest.mark.parametrize("name", CLUSTERINGS)
@pytest.mark.parametrize("clusters", [None, 3])
def test_every_clustering_finds_clear_clusters(name, clusters):
    found = of_blobs(name, clusters)
    assert found.labels.tolist() == TRUTH.tolist()
    assert found.labels.dtype == np.int64
    assert found.K == 3
    assert found.facts["warnings"] == []


@pytest.mark.parametrize(
    ("name", "clusters"), [("kmeans++", None), ("spectral", 10), ("convex", None), ("gradient", 10)]
)
def test_the_models_of_the_paper_are_found(name, clusters):
    points, truth = solutions(FIGURE_2, 400, 0)
    found = cluster_points(points, ClusterSettings(name, clusters), 0)
    assert found.labels.tolist() == truth.tolist()


def test_a_path_without_groups_reports_the_number_of_the_silhouette():
    """In 20 dimensions, distances within and between groups are similar: the path fuses all points at once."""
    centres = np.random.default_rng(0).standard_normal((3, 20))
    points, truth = blobs([7, 7, 7], centres * 0.6, noise=0.3)
    found = cluster_points(points, ClusterSettings("convex"), 0)
    assert set(found.facts["convex"]["path"]["K"]) == {1, 21}
    (reported,) = (each for each in found.facts["warnings"] if "no groups" in each)
    assert "it has K=21, 1, none of them at several lambdas" in reported
    assert reported.endswith("finds 3 clusters: set convex_weights=knn, or clustering=kmeans++ and clusters=3")
    followed = cluster_points(points, ClusterSettings("convex", convex_weights="knn"), 0)
    assert followed.labels.tolist() == truth.tolist()
    assert followed.facts["warnings"] == []


def between_one_and_all():
    """Return a K of the path of the blobs other than its ends and the true one."""
    offered = of_blobs("convex", None).facts["convex"]["path"]["K"]
    return next(K for K in offered if 3 < K < len(BLOBS) - 1)


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_the_partition_does_not_depend_on_the_order_of_clients(name):
    points, K = (BLOBS, between_one_and_all()) if name == "convex" else (gaussian(60, 3, 0), 6)
    shuffle = np.random.default_rng(1).permutation(len(points))
    settings = ClusterSettings(name, K)
    one = cluster_points(points, settings, 0)
    other = cluster_points(points[shuffle], settings, 0)
    together = one.labels[:, None] == one.labels[None]
    assert one.K == K
    assert (together[shuffle][:, shuffle] == (other.labels[:, None] == other.labels[None])).all()
    assert other.separation.ambiguity.tolist() == pytest.approx(one.separation.ambiguity[shuffle].tolist(), rel=1e-9)


def test_settings_reach_their_clustering(monkeypatch):
    points = gaussian(80, 5, 4)
    parts = [cluster_points(points, ClusterSettings("spectral", 2, spectral_parts=p), 0).labels for p in (1, 3)]
    assert parts[0].tolist() != parts[1].tolist()
    monkeypatch.setattr("coterie.server.clustering.gradient.MOST_STEPS", 20)
    with pytest.raises(ConfigError, match="with gradient_step=1e-06: use a larger"):
        cluster_points(points, ClusterSettings("gradient", 6, gradient_step=1e-6), 0)


def test_more_dimensions_than_points_are_rotated_away_exactly():
    points = 3 + gaussian(12, 500, 0)
    turned = rotated(points)
    assert turned.shape == (12, 12)
    np.testing.assert_allclose(turned @ turned.T, points @ points.T, rtol=1e-9)
    assert rotated(points.T).shape == (500, 12)


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_long_solutions_are_clustered(name):
    points, truth = blobs([15, 15], np.vstack([np.full(3072, 0.1), np.full(3072, -0.1)]), noise=0.02)
    found = cluster_points(points, ClusterSettings(name, 2), 0)
    assert found.labels.tolist() == truth.tolist()
    own = np.linalg.norm(points - points[truth == 0].mean(axis=0), axis=1)[truth == 0]
    assert found.separation.radii[0] == pytest.approx(own.max(), rel=1e-9)


@pytest.mark.parametrize("name", CLUSTERINGS)
@pytest.mark.parametrize("points", [gaussian(1, 3, 0), np.ones((6, 3))])
def test_one_client_and_equal_clients_are_one_cluster(name, points):
    found = cluster_points(points, ClusterSettings(name), 0)
    assert (found.K, found.labels.tolist()) == (1, [0] * len(points))
    assert any("separation is not defined" in warning for warning in found.facts["warnings"])


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_more_clusters_than_clients_or_distinct_solutions_are_refused(name):
    with pytest.raises(ConfigError, match=r"between 1 and the number of points \(24\), got 25"):
        cluster_points(BLOBS, ClusterSettings(name, 25), 0)
    with pytest.raises(ConfigError, match=r"clusters=2 but only 1 of the 6 points are distinct"):
        cluster_points(np.ones((6, 3)), ClusterSettings(name, 2), 0)


@pytest.mark.parametrize(
    ("name", "clusters"), [("kmeans++", None), ("convex", None), *((name, 3) for name in CLUSTERINGS)]
)
def test_duplicates_stay_together(name, clusters):
    points = np.repeat(BLOBS, 3, axis=0)
    found = cluster_points(points, ClusterSettings(name, clusters), 0)
    assert found.labels.tolist() == np.repeat(TRUTH, 3).tolist()


@pytest.mark.parametrize("bad", [np.zeros(4), [[0.0], [np.nan]]])
def test_invalid_points_are_refused(bad):
    with pytest.raises(InputError, match="points"):
        cluster_points(bad, ClusterSettings(), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clustering": "kmeans"}, r"did you mean 'kmeans\+\+'"),
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"spectral_parts": 2}, "got 2"),
        ({"gradient_step": 2.5}, "below 2"),
        ({"lam": 0.1}, r"lam=0.1 needs clustering=convex, got kmeans\+\+"),
        ({"clustering": "convex", "lam": 0.1, "clusters": 3}, "leave out lam or clusters=3"),
        ({"clustering": "convex", "lam": 0.0}, "positive number or oracle13, got 0.0"),
        ({"clustering": "convex", "lam": float("nan")}, "positive number or oracle13, got nan"),
        ({"clustering": "convex", "lam": "oracle"}, "positive number or oracle13, got 'oracle'"),
        ({"clustering": "convex", "convex_weights": "nearest"}, "convex_weights"),
        ({"clustering": "convex", "convex_grid": "logs"}, "did you mean 'log'"),
        ({"clustering": "convex", "convex_rule": "c"}, "convex_rule"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ClusterSettings(**settings)


def test_a_fixed_lambda_is_used():
    lam = of_blobs("convex", None).facts["convex"]["lam"]
    fixed = cluster_points(BLOBS, ClusterSettings("convex", lam=lam), 0)
    assert fixed.labels.tolist() == TRUTH.tolist()
    assert fixed.facts["convex"]["lam"] == lam
    assert "path" not in fixed.facts["convex"]
    assert cluster_points(BLOBS, ClusterSettings("convex", lam=100 * lam), 0).K == 1
    assert cluster_points(BLOBS, ClusterSettings("convex", lam=1e-6 * lam), 0).K == 24


def test_a_number_of_clusters_is_searched_on_the_path():
    auto = of_blobs("convex", None).facts["convex"]["path"]
    offered = sorted(set(auto["K"]))
    assert len(offered) > 2
    for K in offered:
        found = cluster_points(BLOBS, ClusterSettings("convex", K), 0)
        assert found.K == K
        assert found.facts["convex"]["lam"] in auto["lambdas"]
        path = found.facts["convex"]["path"]
        assert path["K"][path["selected"]] == K
        assert path["lambdas"][path["selected"]] == found.facts["convex"]["lam"]
        assert path["K"] == auto["K"]
    missing = next(K for K in range(1, 24) if K not in offered)
    listed = ", ".join(map(str, offered))
    with pytest.raises(ConfigError, match=f"no lambda of the path has {missing} clusters, only {listed}: set"):
        cluster_points(BLOBS, ClusterSettings("convex", missing), 0)


def test_weights_of_neighbours_give_no_tree_and_no_condition():
    points, truth = blobs([6, 6, 6], [[0, 3, 0], [3, 0, 0], [-2, -2, 4]])
    found = cluster_points(points, ClusterSettings("convex", convex_weights="knn"), 0)
    assert found.labels.tolist() == truth.tolist()
    assert found.facts["convex"]["satisfies_13"] is None
    assert found.facts["convex"]["path"]["tree"] is None


@pytest.mark.parametrize(("grid", "rule"), [("equidistant", "b"), ("equidistant", "a-then-b"), ("log", "a-then-b")])
def test_the_grid_and_rule_of_the_paper_can_be_selected(grid, rule):
    found = cluster_points(BLOBS, ClusterSettings("convex", convex_grid=grid, convex_rule=rule), 0)
    lambdas = np.array(found.facts["convex"]["path"]["lambdas"])
    assert len(lambdas) == {"log": 25, "equidistant": 10}[grid]
    assert np.allclose(np.diff(lambdas), lambdas[1] - lambdas[0]) == (grid == "equidistant")
    assert found.labels.tolist() == TRUTH.tolist()


def test_only_the_oracle_choice_uses_the_true_clusters():
    settings = ClusterSettings("convex", lam="oracle13")
    found = cluster_points(BLOBS, settings, 0, truth=TRUTH)
    assert found.labels.tolist() == TRUTH.tolist()
    low, high = found.facts["separation"]["interval_13"]
    assert low <= found.facts["convex"]["lam"] < high
    shuffle = np.random.default_rng(0).permutation(len(BLOBS))
    other = cluster_points(BLOBS[shuffle], settings, 0, truth=TRUTH[shuffle])
    assert other.facts["convex"]["lam"] == pytest.approx(found.facts["convex"]["lam"], rel=1e-9)
    with pytest.raises(ConfigError, match="oracle13"):
        cluster_points(BLOBS, settings, 0)
    with pytest.raises(ConfigError, match="one true cluster for each of the 24 points, got 25"):
        cluster_points(BLOBS, settings, 0, truth=np.append(TRUTH, 0))
    wrong = np.arange(len(BLOBS)) % 2
    plain = cluster_points(BLOBS, replace(settings, lam=None), 0, truth=wrong)
    assert plain.labels.tolist() == TRUTH.tolist()


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_facts_are_json_values(name):
    found = of_blobs(name, None)
    reported = json.loads(json.dumps(found.facts, allow_nan=False))
    assert set(reported) == {"clustering", "K", "counted", "convex", "separation", "warnings"}
    assert reported["clustering"] == name
    assert (reported["counted"] is None) == (name == "convex")
    assert (reported["convex"] is None) == (name != "convex")
    if name == "convex":
        assert reported["convex"]["certified"] is True
        assert reported["convex"]["satisfies_13"] is True
        assert reported["convex"]["gap"] >= 0
        path = reported["convex"]["path"]
        assert len(path["lambdas"]) == len(path["K"]) == len(path["certified"])
        assert np.shape(path["tree"]) == (23, 4)


def test_warnings_of_all_steps_are_reported_together():
    found = cluster_points(gaussian(60, 4, 0), ClusterSettings(), 0)
    assert found.K == 1
    assert "a single Gaussian cluster can be split as well" in found.facts["warnings"][0]
    assert "separation is not defined" in found.facts["warnings"][1]
