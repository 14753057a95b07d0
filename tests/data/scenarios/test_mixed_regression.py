"""Mixed regression: the data is what its options say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, scenario


def mixed(**options) -> FederatedDataset:
    return scenario("mixed-regression", **options)


def of_group(population: FederatedDataset, group: int) -> tuple[np.ndarray, np.ndarray]:
    train = population.train
    rows = [np.arange(train.starts[i], train.stops[i]) for i in np.flatnonzero(population.truth == group)]
    return train.x[np.concatenate(rows)].numpy(), train.y[np.concatenate(rows)].numpy()


def test_groups_have_exact_sizes():
    assert np.bincount(mixed(clients=10, groups=3).truth).tolist() == [4, 3, 3]
    shares = mixed(clients=10, groups=3, proportions="0.2,0.3,0.5")
    assert np.bincount(shares.truth).tolist() == [2, 3, 5]


def test_the_group_of_a_client_does_not_follow_from_its_place():
    truth = mixed(clients=60, groups=3).truth
    assert not np.array_equal(truth, np.sort(truth))


@pytest.mark.parametrize(
    ("samples", "clients", "sizes"),
    [("7", 5, [7] * 5), ("2x10+3x1", 5, [1, 1, 1, 10, 10]), ("5-5", 3, [5] * 3)],
)
def test_sizes_follow_the_grammar(samples, clients, sizes):
    assert sorted(mixed(clients=clients, samples=samples, groups=1).train.sizes.tolist()) == sizes


def test_a_range_of_sizes_is_drawn_from_end_to_end():
    sizes = mixed(clients=300, samples="1-4", groups=1).train.sizes
    counts = np.bincount(sizes, minlength=5)[1:]
    assert counts.sum() == 300
    assert (np.abs(counts - 75) < 5 * 7.5).all()  # binomial(300, 1/4) has standard deviation 7.5


def test_counted_sizes_are_given_to_random_clients():
    sizes = mixed(clients=40, samples="20x10+20x1", groups=1).train.sizes.tolist()
    assert sizes not in (sorted(sizes), sorted(sizes, reverse=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": "ten"}, "samples must look like 50, 10-200 or 900x10+20x50, got 'ten'"),
        ({"samples": "9-3"}, "the first number must not exceed the second"),
        ({"samples": "0"}, "would leave a client without samples"),
        ({"samples": "0-3", "clients": 50}, "would leave a client without samples"),
        ({"samples": "2x3+1x4", "clients": 9}, "describes 3 clients, but clients=9"),
        ({"noise": "a"}, "noise must be numbers separated by commas, got 'a'"),
        ({"noise": "0.1,0.2"}, "noise has 2 values for 3 groups: give one, or one for each"),
        ({"noise": "-1"}, "noise must be finite numbers of at least 0, got '-1'"),
        ({"proportions": "1,0,1"}, "shares must be above 0"),
        ({"proportions": "1,1"}, "proportions has 2 values for 3 groups"),
        ({"clients": 2, "groups": 3}, "2 clients cannot fill 3 groups"),
        ({"separation": 0.0}, "separation must be a number above 0"),
        ({"features": "uniform"}, "choose one of gaussian, rademacher"),
        ({"covariance": "diferent"}, "did you mean 'different'"),
        ({"dimension": 0}, "dimension must be a whole number at least 1"),
    ],
)
def test_senseless_options_are_refused_in_a_sentence(options, words):
    with pytest.raises(ConfigError) as caught:
        mixed(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("noise", ["nan", "inf"])
def test_noise_that_is_no_number_is_not_called_negative(noise):
    with pytest.raises(ConfigError) as caught:
        mixed(noise=noise)
    assert "negative" not in str(caught.value)


def test_noise_is_that_of_the_group():
    data = mixed(clients=30, samples="200", dimension=4, noise="0,0.5,2")
    for group, sigma in enumerate([0, 0.5, 2]):
        x, y = of_group(data, group)
        residual = y - x @ data.true_models[group]
        # 2000 samples: the standard error of a standard deviation is sigma / sqrt(4000)
        assert residual.std() == pytest.approx(sigma, abs=5 * sigma / np.sqrt(4000) + 1e-12)


def test_least_squares_recovers_the_true_models():
    data = mixed(clients=9, samples="50", dimension=5, noise="0")
    for group in range(3):
        x, y = of_group(data, group)
        found = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(found, data.true_models[group], atol=1e-10)


def test_a_clients_own_data_follow_its_own_label():
    data = mixed(clients=12, samples="30", dimension=3, noise="0", separation=1.0)
    for i, label in enumerate(data.truth):
        rows = slice(data.train.starts[i], data.train.stops[i])
        x, y = data.train.x[rows].numpy(), data.train.y[rows].numpy()
        errors = [np.abs(y - x @ model).max() for model in data.true_models]
        assert int(np.argmin(errors)) == label
        assert min(errors) < 1e-12


def test_held_out_samples_follow_the_clients_group():
    data = mixed(clients=6, dimension=3, noise="0", test_samples=40)
    assert data.test.sizes.tolist() == [40] * 6
    for i, label in enumerate(data.truth):
        rows = slice(data.test.starts[i], data.test.stops[i])
        np.testing.assert_allclose(data.test.x[rows].numpy() @ data.true_models[label], data.test.y[rows].numpy())
    assert len(data.test.y) == 3 * 40


@pytest.mark.parametrize("separation", [0.5, 3.0])
def test_the_least_distance_of_true_models_is_the_separation(separation):
    models = mixed(groups=4, separation=separation).true_models
    least = min(np.linalg.norm(a - b) for a, b in combinations(models, 2))
    assert least == pytest.approx(separation, rel=1e-12)


def test_true_models_are_of_unit_length_on_average():
    models = mixed(groups=50, clients=50, dimension=40, samples="1").true_models
    assert (models**2).sum(axis=1).mean() == pytest.approx(1, abs=5 * np.sqrt(2 / 40 / 50))


def test_rademacher_features_are_plus_or_minus_one():
    x = mixed(features="rademacher", clients=20).train.x.numpy()
    assert np.unique(x).tolist() == [-1, 1]
    assert abs(x.mean()) < 5 / np.sqrt(x.size)


def test_gaussian_features_have_unit_covariance():
    x, _ = of_group(mixed(clients=20, samples="1000", dimension=4, groups=1), 0)
    np.testing.assert_allclose(np.cov(x.T), np.eye(4), atol=5 * np.sqrt(2 / 20000))


def test_different_covariances_have_eigenvalues_from_half_to_two_in_other_directions():
    data = mixed(clients=40, samples="1000", dimension=4, groups=2, covariance="different")
    covariances = [np.cov(of_group(data, g)[0].T) for g in range(2)]
    for covariance in covariances:
        # 20,000 samples: the relative standard error of an eigenvalue is about sqrt(2 / 20000) = 1 %
        values = np.linalg.eigvalsh(covariance)
        np.testing.assert_allclose(values, np.geomspace(0.5, 2, 4), rtol=0.05)
    assert np.abs(covariances[0] - covariances[1]).max() > 0.1


def test_the_seed_decides_everything():
    assert mixed(seed=3).fingerprint() == mixed(seed=3).fingerprint()
    assert mixed(seed=3).fingerprint() != mixed(seed=4).fingerprint()
    assert not np.array_equal(mixed(seed=3).true_models, mixed(seed=4).true_models)


def test_options_say_how_to_make_it_again():
    data = mixed(clients=7, samples="3-9", separation=2.0, seed=5)
    assert mixed(seed=5, **data.options).fingerprint() == data.fingerprint()


def test_ids_are_unique_and_sort_in_order():
    ids = mixed(clients=120).clients
    assert (ids[0], ids[-1]) == ("client-000", "client-119")
    assert list(ids) == sorted(set(ids))
