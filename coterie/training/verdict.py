"""The three answers to the question whether to cluster: yes with K clusters, one model is as good, or cannot tell."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.registry import Registered, register
from coterie.core.validation import aside_sizes
from coterie.errors import TrainingError
from coterie.training.gains import Floats, Gain, paired_gain, samples_needed

LEVEL = 0.95
"""Confidence of intervals and of upper bounds, and of a decision for one more cluster where there are several."""
CLEAR = (1 + LEVEL) / 2
"""Confidence of a decision for several clusters: the interval of the gain over one model does not hold 0."""
POWER = 0.8
"""Probability with which the number of samples that is called sufficient would show the gain."""
NEGLIGIBLE = 0.05
"""A gain below this share of one model's loss does not matter; for a regression that is 2.5 % of the RMSE."""


@dataclass(frozen=True)
class Measured:
    """A gain over one model in the units of the loss, or as RMSE in the units of the target."""

    unit: str
    """Name of the error that is lowered: `RMSE` or `log loss`."""
    base: float
    """Error of one model on held-out samples."""
    gain: float
    low: float
    """Lower end of the interval of the gain."""
    high: float
    bound: float
    """The gain is below this with 95 % confidence."""

    @classmethod
    def of(cls, gain: Gain, one: float | None) -> Measured:
        """Return a gain as it is reported.

        Args:
            gain: The estimate.
            one: Loss of a prediction that is wrong by 1, for a regression; None for classes.
        """
        ends = [gain.bound(1 - CLEAR), gain.bound(CLEAR), gain.bound(LEVEL)]
        if one is None:
            return cls("log loss", gain.base, gain.mean, *ends)
        base = math.sqrt(gain.base / one)
        return cls("RMSE", base, *(base - math.sqrt(max(0.0, gain.base - g) / one) for g in (gain.mean, *ends)))


class Verdict(Registered, ABC, family="verdict"):
    """Base of the answers."""

    @property
    @abstractmethod
    def trained(self) -> int:
        """Number of clusters that the run trains."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The answer in words."""

    @property
    def warning(self) -> str | None:
        """What the user should know before relying on the run; None if there is nothing."""
        return None


@register("cluster")
@dataclass(frozen=True)
class Cluster(Verdict):
    """K clusters predict held-out samples better than one model."""

    clusters: int
    gain: Measured | None
    """Over one model; None if the training of one model diverged."""

    @property
    def trained(self) -> int:
        return self.clusters

    @property
    def sentence(self) -> str:
        found = self.gain
        if found is None:
            return f"Cluster, K = {self.clusters}: the training of one model diverged."
        return (
            f"Cluster, K = {self.clusters}: the {found.unit} on held-out samples falls from {_number(found.base)} with "
            f"one model to {_number(found.base - found.gain)} (gain {_number(found.gain)}, 95 % interval "
            f"{_number(found.low)} to {_number(found.high)})."
        )


@register("one-model")
@dataclass(frozen=True)
class OneModel(Verdict):
    """One model is as good: a bound on the gain says so."""

    gain: Measured | None
    """Of the number of clusters with the largest bound over one model; None if no other number was tried."""

    @property
    def trained(self) -> int:
        return 1

    @property
    def sentence(self) -> str:
        found = self.gain
        if found is None:
            return "One model: no other number of clusters was tried."
        share = 100 * found.bound / found.base if found.base else 0.0
        base = f"{_number(found.base)} with one model"
        if found.bound <= 0:
            return (
                f"One model is as good: clusters found from these samples do not lower the {found.unit} on held-out "
                f"samples ({base}), with 95 % confidence."
            )
        return (
            f"One model is as good: clusters found from these samples lower the {found.unit} on held-out samples "
            f"({base}) by less than {_number(found.bound)} ({share:.2g} %), with 95 % confidence."
        )


@register("cannot-tell")
@dataclass(frozen=True)
class CannotTell(Verdict):
    """There are too few samples: the gain may be worth having, and may be nothing."""

    preferred: int
    """Number of clusters with the least held-out loss."""
    gain: Measured | None
    """Of the preferred number of clusters over one model; of the next best where one model is preferred. None where
    a single client can be judged."""
    samples: int
    """Mean number of training samples of a client."""
    samples_needed: int | None
    """Mean number of samples of a client that would be enough; None where no number is."""
    clients_needed: int | None
    """Number of clients that would be enough, where more samples of the same clients are not."""

    @property
    def trained(self) -> int:
        return 1

    @property
    def sentence(self) -> str:
        found = self.gain
        if found is None:
            return "Cannot tell: only one client has samples to be judged by. More clients would be needed."
        return (
            f"Cannot tell: too few samples. By the point estimate K = {self.preferred} is best, but against one model "
            f"({found.unit} {_number(found.base)} on held-out samples) clusters may gain anything from "
            f"{_number(found.low)} to {_number(found.high)} (95 % interval). {self._need}"
        )

    @property
    def _need(self) -> str:
        if self.samples_needed is not None:
            return f"Clients with about {self.samples_needed} samples would be needed, now they have {self.samples}."
        if self.clients_needed is not None:
            return f"About {self.clients_needed} clients would be needed."
        return "More clients with more samples would be needed."

    @property
    def warning(self) -> str | None:
        guess = f"; clusters={self.preferred} trains the best guess" if self.preferred > 1 else ""
        return f"too few samples to tell whether there are groups: one model is trained{guess}. {self._need}"


def _number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


# ---- the rule ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Held-out losses of trial runs; of the clients, m have held-out samples."""

    losses: Floats
    """Mean loss of each client for 1, 2, ... clusters and each trial run, (K, S, m); infinite after divergence."""
    counts: Floats
    """Number of held-out samples of each client, shape (m,)."""
    sizes: Floats
    """Number of samples of each client, shape (m,)."""
    share: float
    """Share of the samples that is held out."""
    one: float | None = None
    """Loss of a prediction that is wrong by 1, for a regression; None for classes."""

    @classmethod
    def of(cls, losses: Floats, sizes: npt.NDArray[np.int64], share: float, one: float | None = None) -> HeldOut:
        """Return the losses without the clients that have none (NaN) in some trial."""
        known = ~np.isnan(losses).any(axis=(0, 1))
        own = sizes[known]
        return cls(losses[:, :, known], aside_sizes(own, share).astype(np.float64), own.astype(np.float64), share, one)

    @property
    def mean(self) -> Floats:
        """Mean loss of all held-out samples for each number of clusters, (K,)."""
        return np.asarray(np.average(self.losses.mean(axis=1), axis=1, weights=self.counts))

    @property
    def finite(self) -> npt.NDArray[np.bool_]:
        """Which numbers of clusters did not diverge, (K,)."""
        return np.asarray(np.isfinite(self.losses).all(axis=(1, 2)))

    def gain(self, first: int, second: int) -> Gain:
        """Return the gain of one number of clusters over another, both by their places."""
        return paired_gain(self.losses[first], self.losses[second], self.counts, self.share)

    def measured(self, gain: Gain) -> Measured | None:
        """Return a gain in the units that are reported; None if its error is not known."""
        return Measured.of(gain, self.one) if math.isfinite(gain.error) else None


@dataclass(frozen=True)
class Judgement:
    """The answer, and the figures of each number of clusters that was tried; arrays have shape (K,)."""

    verdict: Verdict
    loss: Floats
    """Mean loss of all held-out samples."""
    behind: Floats
    """Estimated difference to the number of clusters with the least loss."""
    error: Floats
    """Standard error of `behind`; NaN after divergence."""


def judge(data: HeldOut) -> Judgement:
    """Return the answer.

    There are several clusters if the number with the least loss clearly beats one model. Then the smallest number is
    taken that clearly beats one model, too, and that the one with the least loss does not beat with confidence `LEVEL`.

    Raises:
        TrainingError: if the loss is infinite for every number of clusters.
    """
    loss, finite = data.mean, data.finite
    best = int(loss.argmin())
    if not finite[best]:
        raise TrainingError(
            "clusters=auto: in all trial runs the held-out loss is infinite: lower lr, scale the features"
        )
    gains = {k: data.gain(k, best) for k in np.flatnonzero(finite).tolist()}
    chosen = 0
    if not finite[0] or gains[0].is_clear(CLEAR):
        able = [k for k, gain in gains.items() if 0 < k < best and not gain.is_clear(LEVEL)]
        chosen = next((k for k in able if not finite[0] or data.gain(0, k).is_clear(CLEAR)), best)
    behind, error = np.full(len(loss), np.inf), np.full(len(loss), np.nan)
    for k, gain in gains.items():
        behind[k], error[k] = gain.mean, gain.error
    return Judgement(_verdict(data, chosen, best), loss, behind, error)


def _verdict(data: HeldOut, chosen: int, best: int) -> Verdict:
    """The answer, given the places of the chosen number of clusters and of the one with the least loss."""
    if chosen > 0:
        gain = data.measured(data.gain(0, chosen)) if data.finite[0] else None
        return Cluster(chosen + 1, gain)
    gains = {k: data.gain(0, k) for k in np.flatnonzero(data.finite).tolist() if k}
    if not gains:
        return OneModel(None)
    rival = max(gains.values(), key=lambda gain: gain.bound(LEVEL))
    if rival.bound(LEVEL) <= NEGLIGIBLE * rival.base:
        return OneModel(data.measured(rival))
    return _cannot_tell(data, best, gains.get(best, rival))


def _cannot_tell(data: HeldOut, best: int, gain: Gain) -> CannotTell:
    """The answer with a power calculation: what would show this gain, or show that it does not matter."""
    shows = gain.mean / (gain.quantile(LEVEL) + gain.quantile(POWER))
    bounds = (NEGLIGIBLE * gain.base - gain.mean) / gain.quantile(LEVEL)
    wanted = max(shows, bounds)
    factor = samples_needed(gain, data.counts, wanted)
    mean, clients = float(data.sizes.mean()), len(data.sizes)
    more = None if factor is not None or not math.isfinite(gain.error) else clients * (gain.error / wanted) ** 2
    return CannotTell(
        best + 1,
        data.measured(gain),
        round(mean),
        None if factor is None else math.ceil(mean * factor),
        None if more is None else math.ceil(more),
    )
