"""What a statistician would fit, on data small enough to check by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from coterie import InputError, from_arrays, from_table
from coterie.core.dataset import FederatedDataset
from coterie.evaluate.mixed_model import alone_rmse, mixed_model_rmse, pooled_rmse


def two_lines() -> FederatedDataset:
    """Client a: y = x, client b: y = x + 2, both at x = 0 and 1; one held-out sample each at x = 2, on the line."""
    x, test = np.array([[0.0], [1.0]]), np.array([[2.0]])
    return from_arrays(
        {"a": (x, np.array([0.0, 1.0])), "b": (x, np.array([2.0, 3.0]))},
        test={"a": (test, np.array([2.0])), "b": (test, np.array([4.0]))},
    )


def test_pooled_least_squares_by_hand():
    """The line through the means is y = x + 1: at x = 2 it says 3, off by 1 for both."""
    np.testing.assert_allclose(pooled_rmse(two_lines()), [1, 1], atol=1e-9)


def test_each_client_alone_by_hand():
    np.testing.assert_allclose(alone_rmse(two_lines()), [0, 0], atol=1e-9)


def test_alone_with_fewer_samples_than_features_takes_the_shortest_slopes():
    """One sample: slope 0, so its target 5 is predicted; at a target of 8 the error is 3.

    Two samples (0,0)->1 and (1,1)->3: the shortest slopes with s1 + s2 = 2 are (1, 1), the intercept 1; at (1, 0) they
    say 2, and the target is 2.5.
    """
    data = from_arrays(
        {"one": (np.array([[3.0, 4.0]]), np.array([5.0])), "two": (np.array([[0.0, 0], [1, 1]]), np.array([1.0, 3]))},
        test={
            "one": (np.array([[9.0, 9.0]]), np.array([8.0])),
            "two": (np.array([[1.0, 0.0]]), np.array([2.5])),
        },
    )
    np.testing.assert_allclose(alone_rmse(data), [3, 0.5], atol=1e-9)


def balanced(random: np.random.Generator, m: int = 6, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    return random.normal(0, 3, m), random.normal(0, 1, (m, n))


def test_the_mixed_model_of_a_balanced_table_is_the_textbook_shrinkage():
    """Without a slope to find (the feature is orthogonal to all), restricted likelihood has a closed form.

    With m clients of n samples: sigma^2 = within mean square, tau^2 = (between mean square - sigma^2) / n, and what a
    client is predicted is mean + n tau^2 / (n tau^2 + sigma^2) (its mean - mean). Here the feature is the same pattern
    in every client and y has been made orthogonal to it, so that its slope is 0.
    """
    m, n = 6, 5
    effects, noise = balanced(np.random.default_rng(3), m, n)
    pattern = np.array([-2.0, -1, 0, 1, 2])
    noise -= np.outer(noise @ pattern, pattern) / (pattern @ pattern)
    y = effects[:, None] + noise
    x = pattern[:, None]
    data = from_arrays(
        {str(i): (x, y[i]) for i in range(m)}, test={str(i): (np.zeros((1, 1)), np.zeros(1)) for i in range(m)}
    )
    within = ((y - y.mean(axis=1, keepdims=True)) ** 2).sum() / (m * (n - 1) - 1)  # one degree for the slope
    between = n * ((y.mean(axis=1) - y.mean()) ** 2).sum() / (m - 1)
    share = 1 - within / between  # n tau^2 / (n tau^2 + sigma^2)
    expected = y.mean() + share * (y.mean(axis=1) - y.mean())
    np.testing.assert_allclose(mixed_model_rmse(data), np.abs(expected), rtol=1e-4)


def test_the_mixed_model_does_not_mind_collinear_or_scaled_features():
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), 12)
    u = random.standard_normal((96, 2))
    y = u @ [1.0, -2.0] + random.normal(0, 2, 8)[owner] + random.standard_normal(96)
    table = {"c": owner, "u": u[:, 0], "v": u[:, 1], "y": y}
    plain = mixed_model_rmse(from_table(table, client="c", target="y"))
    doubled = {**table, "sum": 1000 * u.sum(axis=1)}
    found = mixed_model_rmse(from_table(doubled, client="c", target="y", standardize=False))
    np.testing.assert_allclose(found, plain, rtol=1e-5)
    assert plain.mean() < pooled_rmse(from_table(table, client="c", target="y")).mean()


def test_no_difference_between_clients_gives_the_pooled_line():
    random = np.random.default_rng(2)
    x = random.standard_normal((40, 1))
    residual = random.standard_normal(40)
    residual -= residual.reshape(4, 10).mean(axis=1).repeat(10)  # clients differ less than chance would have it
    data = from_table({"c": np.repeat(range(4), 10), "x": x[:, 0], "y": 2 * x[:, 0] + residual}, client="c", target="y")
    np.testing.assert_allclose(mixed_model_rmse(data), pooled_rmse(data), rtol=0.05)


def test_a_client_without_held_out_samples_has_no_error():
    table = {"c": [*"aaaabbbbd"], "x": np.arange(9.0), "y": np.arange(9.0) ** 2}
    data = from_table(table, client="c", target="y")
    for errors in (pooled_rmse(data), alone_rmse(data), mixed_model_rmse(data)):
        assert np.isfinite(errors).tolist() == [True, True, False]


def test_figures_that_cannot_be_measured_have_a_reason(monkeypatch):
    x = np.ones((3, 1))
    with pytest.raises(InputError, match="no held-out samples"):
        pooled_rmse(from_arrays([(x, np.ones(3))] * 2))
    with pytest.raises(InputError, match="the labels are classes"):
        alone_rmse(from_arrays([(x, [0, 1, 0])] * 2, test=[(x, [0, 1, 0])] * 2))
    monkeypatch.setitem(sys.modules, "statsmodels.api", None)
    with pytest.raises(InputError, match=r"pip install 'coterie\[stats\]'"):
        mixed_model_rmse(two_lines())
