"""Estimate by how much one set of models predicts held-out samples better than another, with its standard error.

Clients are the independent units: the samples of a client share its group and its model. The estimated gain of a client
with n held-out samples has a variance of about

    between + within / n,

where `between` is the variance of the clients' true gains and `within` that of the gain of a single sample. Clients are
weighted by the inverse variance, as studies in a random-effects meta-analysis are (DerSimonian and Laird 1986): small
clients count by their samples, large ones nearly equally. The standard error does not rely on this model: it is the
jackknife (HC3) estimate over clients, plus the variation between trial runs beyond the noise of their samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SMALLEST_DF = 1.0
"""Smallest number of degrees of freedom, used if one client has nearly all samples."""


@dataclass(frozen=True)
class Gain:
    """Estimate of a mean paired difference of held-out losses; positive if the second set of models is better."""

    base: float
    """Mean loss under the first set of models, with the same weights."""
    mean: float
    """Mean difference."""
    error: float
    """Standard error; infinite for a single client."""
    df: float
    """Degrees of freedom of the error."""
    between: float
    """Variance of the true gains of clients."""
    within: float
    """Variance of the gain of a single sample."""

    def quantile(self, level: float) -> float:
        """Return the quantile of Student's t distribution at this level."""
        from scipy.special import stdtrit  # slow to import

        return float(stdtrit(self.df, level))

    def bound(self, level: float) -> float:
        """Return the value below which the true mean lies with this confidence."""
        return self.mean if self.error == 0 else self.mean + self.quantile(level) * self.error

    def is_clear(self, level: float) -> bool:
        """Return whether the true mean is above 0 with this confidence."""
        return self.mean > 0 and self.bound(1 - level) > 0


def paired_gain(first: Floats, second: Floats, counts: Floats, share: float) -> Gain:
    """Return the gain of the second set of models over the first.

    Args:
        first: Mean held-out loss of each client in each trial run under the first set of models, shape (S, m).
        second: The same under the second set.
        counts: Number of held-out samples of each client in one trial run, shape (m,).
        share: Share of the samples that a trial run holds out, which is also the share that two runs have in common.
    """
    gaps = first - second
    own = gaps.mean(axis=0)
    within = _within(gaps, counts, share)
    runs = len(gaps)
    noise = within * (1 + (runs - 1) * share) / runs / counts
    between = _between(own, counts, noise) if runs > 1 else 0.0  # one run cannot separate the two variances
    weight = _weights(counts, between, noise)
    mean = float(weight @ own)
    clients, clients_df = _over_clients(own - mean, weight)
    seeds = _over_runs(gaps, weight)
    error = float(np.sqrt(clients + seeds))
    df = _degrees(clients, clients_df, seeds, runs - 1)
    return Gain(float(weight @ first.mean(axis=0)), mean, error, df, between, float(noise @ counts / len(counts)))


def _within(gaps: Floats, counts: Floats, share: float) -> float:
    """Return the variance of a sample's gain, from differences between a client's trial runs; 0 for one run."""
    runs, clients = gaps.shape
    if runs == 1:
        return 0.0
    spread = _interaction(gaps, counts / counts.sum())
    return float((counts * spread**2).sum() / (clients * (runs - 1)) / (1 - share))


def _interaction(gaps: Floats, weight: Floats) -> Floats:
    """Return gaps (S, m) without the means of clients and of runs."""
    mean = gaps @ weight
    return np.asarray(gaps - gaps.mean(axis=0) - mean[:, None] + mean.mean())


def _between(own: Floats, counts: Floats, noise: Floats) -> float:
    """Return the variance of the clients' true gains that the noise of their samples does not explain."""
    weight = counts
    mean = weight @ own / weight.sum()
    expected = float(weight @ noise - (weight**2 @ noise) / weight.sum())
    found = float(weight @ (own - mean) ** 2)
    scale = float(weight.sum() - weight @ weight / weight.sum())
    return max(0.0, (found - expected) / scale) if scale > 0 else 0.0


def _weights(counts: Floats, between: float, noise: Floats) -> Floats:
    """Return inverse variances normalised to 1, or the normalised numbers of samples if no variance is known."""
    variance = between + noise
    weight = 1 / variance if (variance > 0).all() else counts.astype(np.float64)
    return np.asarray(weight / weight.sum())


def _over_clients(residuals: Floats, weight: Floats) -> tuple[float, float]:
    """Return the squared error of the mean by the jackknife over clients, and its degrees of freedom."""
    if len(weight) == 1:
        return np.inf, SMALLEST_DF
    leverage = np.minimum(weight, 1 - 1e-9)
    squared = float((weight**2 * residuals**2 / (1 - leverage) ** 2).sum())
    return squared, max(SMALLEST_DF, 1 / float(weight @ weight) - 1)


def _over_runs(gaps: Floats, weight: Floats) -> float:
    """Return the squared error of the mean between trial runs, beyond the noise of their samples."""
    runs = len(gaps)
    if runs == 1:
        return 0.0
    noise = float(((weight * _interaction(gaps, weight)) ** 2).sum() / (runs - 1))
    return max(0.0, float((gaps @ weight).var(ddof=1)) - noise) / runs


def _degrees(clients: float, clients_df: float, runs: float, runs_df: float) -> float:
    """Return the degrees of freedom of a sum of two estimated variances (Satterthwaite)."""
    if runs == 0 or not np.isfinite(clients):
        return clients_df
    return (clients + runs) ** 2 / (clients**2 / clients_df + runs**2 / runs_df)


# ---- required numbers of samples -----------------------------------------------------------------------------------

MOST_SAMPLES = 1000.0
"""Largest factor on the numbers of samples that is considered."""


def samples_needed(gain: Gain, counts: Floats, wanted: float) -> float | None:
    """Return the factor on the clients' samples at which the standard error would be `wanted`.

    Returns None if no number of samples is enough because clients differ too much; then more clients are needed.
    """
    if not gain.within > 0 or not np.isfinite(gain.error):
        return None
    factors = np.geomspace(1, MOST_SAMPLES, 400)
    variance = gain.between + gain.within / (factors[:, None] * counts)
    errors = 1 / np.sqrt((1 / variance).sum(axis=1))
    enough = errors * (gain.error / errors[0]) <= wanted
    return float(factors[enough.argmax()]) if enough.any() else None
