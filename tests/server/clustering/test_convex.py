"""Convex clustering: reference values, plain solvers, invariance, errors, checks of scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import (
    check_clustering,
    check_dict_unchanged,
    check_estimators_pickle,
    check_fit_idempotent,
    parametrize_with_checks,
)

from coterie.clustering import ConvexClustering, recovery_interval
from coterie.errors import ConfigError
from coterie.server.clustering.partition import by_first_appearance
from tests.server.clustering.convex_oracle import admm, objective, regression_points
from tests.server.clustering.data import D_2, FIGURE_2, blobs, gaussian, solutions

REFERENCE = {
    0.01: (58.1956051, [1] * 48),
    0.03: (161.0094436, [1] * 48),
    0.05: (245.9959121, [1] * 48),
    0.06: (281.9240266, [1] * 48),
    0.07: (313.5808480, [12] * 4),
    0.08: (341.1330370, [12] * 4),
    0.1: (384.0670535, [12] * 4),
    0.15: (421.8940185, [48]),
    0.2: (421.8940185, [48]),
    0.3: (421.8940185, [48]),
}


@pytest.mark.parametrize("lam", REFERENCE)
def test_objective_and_sizes_of_the_regression_data(lam):
    expected, sizes = REFERENCE[lam]
    points = regression_points()
    found = ConvexClustering(lam).fit(points)
    assert found.certified_
    assert found.objective_ == pytest.approx(expected, rel=1e-6)
    assert np.bincount(found.labels_).tolist() == sizes
    assert found.n_clusters_ == len(sizes)
    if len(sizes) == 4:
        assert (found.labels_ == np.arange(48) % 4).all()
    assert objective(points, found.centroids_[found.labels_], lam) == pytest.approx(found.objective_, rel=1e-12)
    assert 0 <= found.gap_ <= 1e-6 * found.objective_


def test_two_points_by_hand():
    """At distance 4, each moves lam towards the other: fused from lam = 2 on. 1/2 (1 + 1) + 1 * 2 = 3."""
    points = np.array([[0.0, 1.0], [4.0, 1.0]])
    found = ConvexClustering(1.0).fit(points)
    assert found.labels_.tolist() == [0, 1]
    np.testing.assert_allclose(found.centroids_, [[1, 1], [3, 1]], atol=1e-7)
    np.testing.assert_allclose(found.means_, points, atol=1e-12)
    assert found.objective_ == pytest.approx(3.0, rel=1e-9)
    fused = ConvexClustering(2.0).fit(points)
    assert fused.labels_.tolist() == [0, 0]
    assert fused.certified_
    np.testing.assert_allclose(fused.centroids_, [[2, 1]], atol=1e-12)
    assert fused.objective_ == pytest.approx(4.0, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 14), st.integers(1, 4), st.floats(0.02, 1.2), st.integers(0, 10**6))
def test_the_objective_is_that_of_a_plain_solver_and_the_gap_is_a_bound(m, d, share, seed):
    points = gaussian(m, d, seed)
    lam = share * 3 / m
    found = fitted(lam, points)
    plain = admm(points, lam)
    best = objective(points, plain, lam)
    assert found.objective_ - found.gap_ <= best * (1 + 1e-12)
    assert found.objective_ == pytest.approx(best, rel=1e-6)
    if found.certified_ and found.proved_lam_ == lam:
        _same_partition_as(plain, found)


def fitted(lam, points):
    """Fit without warnings: random points may be near a fusion, where there is no proof within the budget."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return ConvexClustering(lam).fit(points)


def _same_partition_as(plain, found):
    """Compare partitions where the plain solution is clear, which it is except near a fusion."""
    apart = np.linalg.norm(plain[:, None] - plain[None], axis=2)
    same = found.labels_[:, None] == found.labels_[None]
    assert apart[same].max() < 1e-2
    if not same.all():
        assert apart[~same].min() > 1e-9


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 20))
def test_the_number_of_clusters_never_grows_with_lambda(seed, m):
    points = gaussian(m, 3, seed)
    found = [fitted(lam, points) for lam in np.geomspace(0.005, 0.6, 9)]
    counts = [each.n_clusters_ for each in found if each.certified_]
    assert len(counts) > 4
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("lam", [0.06, 0.064, 0.066, 0.08])
def test_order_and_rotation_do_not_matter(lam):
    points = regression_points()
    expected = ConvexClustering(lam).fit(points)
    order = np.random.default_rng(0).permutation(48)
    mixed = ConvexClustering(lam).fit(points[order])
    assert (mixed.labels_ == by_first_appearance(expected.labels_[order])).all()
    rotation = np.linalg.qr(gaussian(6, 6, 1))[0]
    turned = ConvexClustering(lam).fit(points @ rotation + 5.0)
    assert (turned.labels_ == expected.labels_).all()
    np.testing.assert_allclose(turned.centroids_, expected.centroids_ @ rotation + 5.0, atol=2e-3)
    assert turned.objective_ == pytest.approx(expected.objective_, rel=1e-7)


def test_more_dimensions_than_the_points_span_change_nothing():
    points = regression_points()
    lifted = points @ gaussian(6, 500, 0)
    lifted *= np.sqrt((points**2).sum() / (lifted**2).sum())
    small = lifted @ np.linalg.svd(lifted, full_matrices=False)[2][:6].T
    one, other = ConvexClustering(0.07).fit(lifted), ConvexClustering(0.07).fit(small)
    assert one.centroids_.shape == (one.n_clusters_, 500)
    assert (one.labels_ == other.labels_).all()
    assert one.objective_ == pytest.approx(other.objective_, rel=1e-9)


def test_an_exhausted_budget_is_reported_and_the_gap_stays_a_bound():
    points = regression_points()
    with pytest.warns(ConvergenceWarning, match="max_passes=5"):
        found = ConvexClustering(0.065, max_passes=5).fit(points)
    assert not found.certified_
    assert found.gap_ > 0
    best = ConvexClustering(0.065).fit(points)
    assert best.certified_
    assert found.objective_ - found.gap_ <= best.objective_ <= found.objective_
    assert found.n_clusters_ >= best.n_clusters_
    for cluster in range(found.n_clusters_):  # clusters are certainly fused
        assert len(np.unique(best.labels_[found.labels_ == cluster])) == 1


def test_one_point_is_one_cluster():
    for lam in (1.0, "path"):
        found = ConvexClustering(lam).fit([[3.0, 4.0]])
        assert found.labels_.tolist() == [0]
        assert found.certified_
        assert (found.objective_, found.gap_) == (0.0, 0.0)
        np.testing.assert_allclose(found.centroids_, [[3, 4]])


@pytest.mark.parametrize("weights", ["uniform", "knn"])
def test_equal_points_are_one_cluster(weights):
    for lam in (1e-9, "path"):
        found = ConvexClustering(lam, weights=weights, n_neighbors=7).fit(np.full((8, 3), 2.5))
        assert found.labels_.tolist() == [0] * 8
        assert found.certified_
        assert found.objective_ == 0


def test_duplicates_are_together_for_any_lambda():
    points = np.repeat(regression_points()[:6], [1, 4, 1, 2, 1, 3], axis=0)
    found = ConvexClustering(1e-6).fit(points)
    assert found.certified_
    assert found.labels_.tolist() == np.repeat(np.arange(6), [1, 4, 1, 2, 1, 3]).tolist()


def test_the_ends_of_13():
    lower, upper = recovery_interval(regression_points(), np.arange(48) % 4)
    assert lower == pytest.approx(0.10637059, abs=1e-8)
    assert upper == pytest.approx(0.07304558, abs=1e-8)


def test_13_by_hand():
    """Clusters {0, 2} and {10, 13, 14}: diameters 2/2 and 4/3; means 1 and 37/3, (34/3) / (10 - 5) = 34/15."""
    points = np.array([[0.0], [10.0], [2.0], [13.0], [14.0]])
    lower, upper = recovery_interval(points, np.array([7, 3, 7, 3, 3]))
    assert lower == pytest.approx(4 / 3, rel=1e-12)
    assert upper == pytest.approx(34 / 15, rel=1e-12)
    assert recovery_interval(points, np.zeros(5, dtype=int)) == (pytest.approx(14 / 5), np.inf)
    assert ConvexClustering(1.5).fit(points).labels_.tolist() == [0, 1, 0, 1, 1]


def test_the_oracle_rule_takes_lambda_from_13_of_the_true_clusters():
    points, truth = blobs([10, 10], [[0, 0], [40, 0]])
    lower, upper = recovery_interval(points, truth)
    assert lower < upper
    found = ConvexClustering("oracle13", random_state=3).fit(points, truth)
    assert lower <= found.lam_ < upper
    assert (found.labels_ == truth).all()
    again = ConvexClustering("oracle13", random_state=4).fit(points, truth)
    assert again.lam_ != found.lam_
    tight, labels = regression_points(), np.arange(48) % 4  # here (13) is empty
    assert ConvexClustering("oracle13").fit(tight, labels).lam_ == recovery_interval(tight, labels)[1]


@pytest.mark.parametrize("lam", [0, -1.0, np.nan, np.inf, None, [1.0], "b"])
def test_an_invalid_lambda_is_refused(lam):
    with pytest.raises(ConfigError, match="lam"):
        ConvexClustering(lam).fit(regression_points())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "unform"}, "did you mean 'uniform'"),
        ({"grid": "linear"}, "grid"),
        ({"rule": "c"}, "rule"),
        ({"n_neighbors": 0}, "n_neighbors must be a whole number from 1 on"),
        ({"grid_size": 1}, "grid_size must be"),
        ({"max_passes": 0}, "max_passes must be"),
        ({"memory_limit": 1.5}, "memory_limit must be"),
        ({"decay": -1}, "decay must be"),
        ({"weights": "knn", "rule": "a-then-b"}, "uniform weights"),
        ({"weights": "knn", "lam": "oracle13"}, "uniform weights"),
        ({"lam": "oracle13"}, "needs the true clusters"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ConvexClustering(**options).fit(regression_points())


def test_true_clusters_of_another_length_are_refused():
    with pytest.raises(ConfigError, match="one true cluster for each of the 48 points"):
        ConvexClustering("oracle13").fit(regression_points(), np.zeros(3))
    with pytest.raises(ConfigError, match="have different means"):
        ConvexClustering("oracle13").fit(np.zeros((4, 2)), [0, 0, 1, 1])


def test_points_that_are_not_finite_are_refused():
    points = regression_points()
    points[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        ConvexClustering(0.1).fit(points)


def test_problems_that_do_not_fit_into_memory_are_refused():
    """400 points apart in 50 dimensions: 3 * 8 * 50 * 400 * 399 / 2 = 95.8 MB of duals, but 1.9 MB of distances."""
    points = gaussian(400, 50, 0)
    with pytest.raises(ConfigError, match=r"400 points .* up to 0\.0958 GB .* the limit is 0\.05 GB"):
        ConvexClustering(1e-4, memory_limit=50_000_000).fit(points)
    with pytest.raises(ConfigError, match=r"the distances of 400 points would need up to 0\.00192 GB"):
        ConvexClustering(1e-4, memory_limit=1_000_000).fit(points)
    assert ConvexClustering(1.0, memory_limit=50_000_000).fit(points).n_clusters_ == 1  # fused from the start


@pytest.mark.parametrize(("intervals", "n", "K"), [(FIGURE_2, 100, 10), (D_2, 200, 4)])
def test_the_path_finds_the_clusters_of_the_papers_models(intervals, n, K):
    points, truth = solutions(intervals, n, seed=0)
    found = ConvexClustering().fit(points)
    assert found.certified_
    assert found.n_clusters_ == K
    assert (found.labels_ == truth).all()


@parametrize_with_checks([ConvexClustering(0.5, weights="knn", n_neighbors=3)])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's checks warn about each other
        check(estimator)


@pytest.mark.parametrize(
    "check", [check_clustering, check_dict_unchanged, check_estimators_pickle, check_fit_idempotent]
)
def test_scikit_learns_checks_of_a_fitted_path(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check("ConvexClustering", ConvexClustering(weights="knn", n_neighbors=3, grid_size=2))
