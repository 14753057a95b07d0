"""Opposite labels: two classes, two ways to label them, wrong labels as many as asked for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from coterie import ConfigError, FederatedDataset, InputError, fit, scenario
from coterie.data.loaders import store
from tests.data.loaders.make import images


@cache
def digits(**options) -> FederatedDataset:
    return scenario("opposite-labels", **options)


@cache
def classes() -> dict[bytes, int]:
    """The class of every digit by its pixels; all 1797 are different."""
    source = load_digits()
    found = {
        (image / 16).astype(np.float32).tobytes(): int(y) for image, y in zip(source.images, source.target, strict=True)
    }
    assert len(found) == 1797
    return found


def numbers(x: np.ndarray) -> np.ndarray:
    """Which digit each row of features is."""
    return np.array([classes()[row[:-1].tobytes()] for row in x])


def of_client(population: FederatedDataset, client: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(int(population.train.starts[client]), int(population.train.stops[client]))
    return population.train.x[rows].numpy(), population.train.y[rows].numpy()


def wrong(population: FederatedDataset) -> np.ndarray:
    """Which labels are not those of the group, (m, n)."""
    digit = numbers(population.train.x.numpy()).reshape(len(population.truth), -1)
    positive = np.where(population.truth == 0, 1, 2)[:, None]  # group 0 labels ones 1, group 1 twos
    return population.train.y.numpy().reshape(digit.shape) != (digit == positive)


def test_sizes_are_those_of_the_paper():
    found = digits()
    assert found.train.sizes.tolist() == [4] * 100
    assert found.train.x.shape == (400, 65)
    assert np.bincount(found.truth).tolist() == [50, 50]
    assert not np.array_equal(found.truth, np.sort(found.truth))
    assert found.options == {"dataset": "digits", "clients": 100, "samples": 4, "noise": 0.0, "noise_kind": "exact"}
    assert found.profile.classes == 2


def test_features_are_pixels_between_zero_and_one_and_a_constant():
    x = digits().train.x
    assert (float(x.min()), float(x[:, :-1].max())) == (0.0, 1.0)
    assert (x[:, -1] == 1).all()
    assert (digits().test.x[:, -1] == 1).all()


def test_a_client_has_two_images_of_either_class():
    for client in range(100):
        assert sorted(numbers(of_client(digits(), client)[0])) == [1, 1, 2, 2]


def test_without_noise_the_groups_label_the_opposite_way():
    assert not wrong(digits()).any()


@pytest.mark.parametrize("group", [0, 1])
def test_no_image_is_twice_in_a_group_or_among_the_test_images(group):
    found = digits()
    rows = [of_client(found, client)[0] for client in np.flatnonzero(found.truth == group)]
    trained = {row.tobytes() for row in np.concatenate(rows)}
    assert len(trained) == 200
    assert not trained & {row.tobytes() for row in found.test.x.numpy()}


def test_test_images_are_shared_and_labelled_in_the_way_of_the_group():
    found = digits(noise=0.5)
    each = int(found.test.sizes[0])
    assert found.test.x.shape == (2 * each, 65)
    for client, group in enumerate(found.truth):
        rows = slice(int(found.test.starts[client]), int(found.test.stops[client]))
        assert rows == slice(group * each, (group + 1) * each)
        assert np.array_equal(found.test.y[rows] == 1, numbers(found.test.x[rows].numpy()) == 1 + group)


@pytest.mark.parametrize(
    ("samples", "noise", "count"),
    [(4, 0.2, 1), (4, 0.125, 1), (4, 0.3, 1), (4, 0.4, 2), (4, 0.5, 2), (10, 0.2, 2), (10, 0.25, 3), (2, 0.5, 1)],
)
def test_exact_noise_is_the_nearest_whole_number_for_every_client(samples, noise, count):
    found = digits(clients=20, samples=samples, noise=noise)
    assert wrong(found).sum(axis=1).tolist() == [count] * 20


def test_exact_noise_falls_anywhere():
    # 100 wrong labels over 4 places: 25 each with a standard deviation of 4.3
    assert np.abs(wrong(digits(noise=0.2)).sum(axis=0) - 25).max() < 5 * 4.3


def test_chance_noise_is_independent_for_each_label():
    found = np.stack([wrong(digits(noise=0.2, noise_kind="iid", seed=seed)) for seed in range(10)])
    # 4000 labels: 0.2 with a standard error of 0.0063
    assert found.mean() == pytest.approx(0.2, abs=5 * 0.0063)
    # of 1000 clients 0.8^4 = 41 % have none, with a standard error of 1.6 %
    assert (found.sum(axis=2) == 0).mean() == pytest.approx(0.8**4, abs=5 * 0.016)


def test_the_images_do_not_depend_on_the_noise():
    plain, noisy = digits(), digits(noise=0.3, noise_kind="iid")
    assert (plain.train.x == noisy.train.x).all()
    assert (plain.train.y != noisy.train.y).any()


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    one = digits(noise=0.2, seed=5)
    assert scenario("opposite-labels", seed=5, **one.options).fingerprint() == one.fingerprint()
    assert digits(noise=0.2, seed=6).fingerprint() != one.fingerprint()


def test_a_recommended_run_finds_the_groups():
    result = fit(digits())
    assert result.config["learner"] == "logistic:l2=0.01,bias=false"
    assert result.metrics["ari"] == 1
    assert result.metrics["accuracy"] > 0.95


@pytest.mark.parametrize(
    ("dataset", "shape", "first", "samples", "lr"),
    [("mnist", (28, 28), 1, 4, 0.1), ("cifar10", (3, 32, 32), 0, 40, 0.005)],
)
def test_other_images_have_their_own_classes_and_sizes(dataset, shape, first, samples, lr, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    source = images(dataset, 400, 30, shape)
    store.save(source, "test")
    found = scenario("opposite-labels", dataset=dataset, clients=4)
    assert found.train.sizes.tolist() == [samples] * 4
    assert found.recommended["lr"] == lr
    known = {
        (image / np.float32(255)).tobytes(): int(y) for image, y in zip(source.x_train, source.y_train, strict=True)
    }
    for client, group in enumerate(found.truth):
        x, y = of_client(found, client)
        number = np.array([known[row[:-1].tobytes()] for row in x])
        assert np.bincount(number - first).tolist() == [samples // 2] * 2
        assert np.array_equal(y == 1, number == first + group)
    assert found.test.sizes.tolist() == [6] * 4  # 30 images of ten classes


def test_missing_data_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="get it with 'coterie data get mnist'"):
        scenario("opposite-labels", dataset="mnist")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "minst"}, "did you mean 'mnist'"),
        ({"clients": 5}, "clients must be a multiple of 2, one half for each group; got 5"),
        ({"samples": 3}, "samples must be a multiple of 2, one half for each class; got 3"),
        ({"clients": 400}, "clients=400 with samples=4 need 400 images of each class in a group, but digits has 1"),
        ({"noise": 0.1}, "noise=0.1 of 4 labels is less than half a label, so none would be wrong"),
        ({"noise": 0.6}, "noise must be a number at least 0 and at most 0.5, got 0.6"),
        ({"noise_kind": "iid_"}, "did you mean 'iid'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        scenario("opposite-labels", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
