"""Partitions are exact, never leave a client empty, and have the class proportions that they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import partition, partitioned
from coterie.errors import ConfigError, InputError

Y = np.random.default_rng(0).integers(0, 5, 200)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.floats(0.01, 100), st.integers(0, 5), st.integers(1, 3))
def test_every_sample_has_exactly_one_client_and_no_client_is_empty(clients, alpha, seed, least):
    for found in (partition.dirichlet(Y, clients, alpha, seed, least=least), partition.iid(len(Y), clients, seed)):
        assert len(found) == clients
        assert sorted(np.concatenate(list(found.values()))) == list(range(len(Y)))
        assert min(map(len, found.values())) >= least


def test_a_seed_draws_the_same_partition_again_and_another_one_differs():
    first, again, other = (partition.dirichlet(Y, 6, 0.5, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def shares(found: dict[str, np.ndarray]) -> np.ndarray:
    """Class proportions of each client, (clients, 5)."""
    return np.array([np.bincount(Y[own], minlength=5) / len(own) for own in found.values()])


def test_alpha_says_how_unequal_classes_are():
    """With alpha = 1000 all clients have about the proportions of all samples, with alpha = 0.02 about one class."""
    whole = np.bincount(Y, minlength=5) / len(Y)
    assert np.abs(shares(partition.dirichlet(Y, 5, 1000.0)) - whole).max() < 0.06
    assert shares(partition.dirichlet(Y, 5, 0.02)).max(axis=1).mean() > 0.75


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classes_per_client_is_a_bound_and_all_samples_are_used(classes):
    found = partition.classes_per_client(Y, 10, classes)
    assert max(len(np.unique(Y[own])) for own in found.values()) == classes
    assert sorted(np.concatenate(list(found.values()))) == list(range(len(Y)))


def test_by_column_keeps_the_order_of_first_appearance():
    found = partition.by_column(["b", "a", "b", 3])
    assert {name: own.tolist() for name, own in found.items()} == {"b": [0, 2], "a": [1], "3": [3]}
    with pytest.raises(InputError, match="no value in row 1"):
        partition.by_column(np.array(["a", None], dtype=object))


def test_texts_are_classes_too():
    assert len(partition.dirichlet(["cat", "dog"] * 10, 3, 1.0)) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: partition.dirichlet(Y, 300, 1.0),
            "300 clients with at least 1 samples each need 300",
        ),
        (lambda: partition.dirichlet(Y, 3, 0.0), "alpha must be a number above 0, got 0.0"),
        (lambda: partition.dirichlet(Y, 3, float("nan")), "alpha must be a number above 0"),
        (lambda: partition.iid(10, 0), "clients must be a whole number of at least 1, got 0"),
        (lambda: partition.classes_per_client(Y, 3, 6), "classes must be a number from 1 to 5"),
        (lambda: partition.classes_per_client(Y, 2, 2), "2 clients with 2 classes each cannot hold all 5 classes"),
    ],
)
def test_settings_that_cannot_work_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_numbers_are_no_classes():
    with pytest.raises(InputError, match="y must hold classes"):
        partition.dirichlet(np.linspace(0, 1, 10), 2, 1.0)


def test_a_partition_makes_clients_of_pooled_samples():
    x = np.arange(8.0).reshape(4, 2)
    data = partitioned(x, [0, 1, 0, 1], {"a": [2, 0], "b": [1, 3]}, test=(x, [0, 1, 0, 1], {"a": [1], "b": [0]}))
    assert data.clients == ("a", "b")
    assert data.train.x.tolist() == [[4, 5], [0, 1], [2, 3], [6, 7]]
    assert data.test.x.tolist() == [[2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({"a": [0, 4]}, "must hold positions from 0 to 3"),
        ({"a": [-1]}, "must hold positions from 0 to 3"),
        ({"a": [0.5]}, "must hold positions from 0 to 3"),
        ({"a": [0, 1], "b": [1]}, "gives sample 1 to a client twice"),
        ([[0, 1]], "must be a dict of positions for each client, got list"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(positions, message):
    with pytest.raises(InputError, match=message):
        partitioned(np.zeros((4, 2)), [0, 1, 0, 1], positions)


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_a_sample_without_a_class_is_refused(hole):
    y = np.array(["a", "b", hole] * 10, dtype=object)
    with pytest.raises(InputError, match="y has missing values"):
        partition.dirichlet(y, clients=2, alpha=1)
    with pytest.raises(InputError, match="y has missing values"):
        partition.classes_per_client(y, clients=2, classes=1)
