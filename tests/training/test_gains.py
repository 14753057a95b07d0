"""The paired gain of one set of models over another: by hand, against plain loops, and its properties."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.training.gains import Gain, paired_gain, samples_needed


def gain_of(gaps, counts, share: float = 0.2) -> Gain:
    """Return the gain if the second set of models has no loss at all."""
    first = np.asarray(gaps, dtype=np.float64)
    return paired_gain(first, np.zeros_like(first), np.asarray(counts, dtype=np.float64), share)


def test_one_run_by_hand():
    found = gain_of([[2.0, 4.0]], [1, 3])
    # weights 1/4 and 3/4: mean 3.5, residuals -1.5 and 0.5. Without the first client the mean is 4, without the second
    # it is 2: the jackknife is 0.5^2 + 1.5^2 = 2.5. Degrees of freedom: 1 / (1/16 + 9/16) - 1 = 0.6, at least 1.
    assert (found.base, found.mean) == pytest.approx((3.5, 3.5))
    assert found.error == pytest.approx(np.sqrt(2.5))
    assert found.df == 1


def test_two_runs_by_hand():
    found = gain_of([[1.0, 3.0], [1.0, 5.0]], [4, 4])
    # clients' means 1 and 4, runs' means 2 and 3, overall 2.5; what is left is 0.5 everywhere, with signs.
    # within: 4 samples x 4 x 0.25 / (2 clients x 1) / 0.8 = 2.5; of a mean of two runs that share a fifth of their
    # samples: 2.5 x 1.2 / 2 = 1.5, so 1.5 / 4 = 0.375 for a client.
    # between: 4 x (2.25 + 2.25) = 18 found, 1.5 expected from noise, over 8 - 32 / 8 = 4: 4.125. Equal weights.
    # clients: 2 x (0.5 x 1.5)^2 / 0.5^2 = 4.5 with 1 degree of freedom.
    # runs: variance of 2 and 3 is 0.5; of that 4 x 0.25^2 = 0.25 is noise; (0.5 - 0.25) / 2 = 0.125.
    assert found.mean == pytest.approx(2.5)
    assert (found.between, found.within) == pytest.approx((4.125, 1.5))
    assert found.error == pytest.approx(np.sqrt(4.625))
    assert found.df == pytest.approx(4.625**2 / (4.5**2 + 0.125**2))


def test_the_error_is_the_jackknife_over_clients():
    random = np.random.default_rng(0)
    counts = random.integers(1, 50, 9)
    gaps = random.standard_normal(9)
    without = [np.average(np.delete(gaps, i), weights=np.delete(counts, i)) for i in range(9)]
    plain = sum((np.average(gaps, weights=counts) - mean) ** 2 for mean in without)
    assert gain_of([gaps], counts).error == pytest.approx(np.sqrt(plain))


def test_clients_with_few_samples_count_little():
    """Ten clients with 100 samples show a gain of 1; two hundred with one sample add nothing but noise."""
    random = np.random.default_rng(1)
    large = 1 + 0.1 * random.standard_normal((3, 10))
    tiny = 1 + 20 * random.standard_normal((3, 200))
    found = gain_of(np.concatenate([large, tiny], axis=1), [100] * 10 + [1] * 200)
    assert found.is_clear(0.95)
    assert found.mean == pytest.approx(1, abs=0.2)
    mean = np.concatenate([large, tiny], axis=1).mean(axis=0)
    assert mean.std(ddof=1) / np.sqrt(210) > 0.5  # the unweighted mean is lost in it


def test_large_clients_that_differ_count_alike():
    """Where the gains of clients differ much more than samples do, a client with 1000 samples is one client."""
    random = np.random.default_rng(2)
    own = 5 + random.standard_normal(40)
    gaps = own + 0.01 * random.standard_normal((3, 40))
    found = gain_of(gaps, [1000] + [10] * 39)
    assert found.mean == pytest.approx(own.mean(), abs=0.01)
    assert found.df == pytest.approx(39, rel=0.05)


def test_units_do_not_matter():
    random = np.random.default_rng(3)
    gaps, counts = random.standard_normal((3, 8)), random.integers(1, 9, 8)
    one, other = gain_of(gaps, counts), gain_of(10 * gaps, counts)
    assert (other.mean, other.error, other.df) == pytest.approx((10 * one.mean, 10 * one.error, one.df))
    assert gain_of(-gaps, counts).mean == pytest.approx(-one.mean)


def test_coverage_of_the_interval():
    """Of 300 intervals with 95 % confidence, over clients of 1 to 60 samples, 91 to 99 % hold the true gain 0.3."""
    random = np.random.default_rng(4)
    hits = 0
    for _ in range(300):
        counts = np.round(60 ** random.random(25)).astype(int)
        own = 0.3 + 0.3 * random.standard_normal(25)
        found = gain_of(own + random.standard_normal((3, 25)) / np.sqrt(counts), counts, share=1e-9)
        hits += found.bound(0.025) < 0.3 < found.bound(0.975)
    assert 0.91 <= hits / 300 <= 0.99


def test_a_single_client_shows_nothing():
    found = gain_of([[9.0], [9.0]], [50])
    assert found.error == np.inf
    assert not found.is_clear(0.95)


def test_samples_that_would_be_enough():
    counts = np.full(10, 5.0)
    noisy = Gain(1, 0.1, 0.4, 9, between=0.0, within=8.0)  # the error falls with the root of the samples
    assert samples_needed(noisy, counts, 0.2) == pytest.approx(4, rel=0.02)
    assert samples_needed(Gain(1, 0.1, 0.4, 9, between=1.6, within=0.001), counts, 0.2) is None
