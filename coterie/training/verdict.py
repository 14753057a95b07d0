"""The decision whether to cluster: yes with K clusters, one model is as good, or the data cannot tell."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.registry import Registered, register
from coterie.core.validation import held_out_sizes
from coterie.errors import TrainingError
from coterie.training.gains import Floats, Gain, paired_gain, samples_needed

LEVEL = 0.95
"""Confidence of upper bounds, and of a decision for one more cluster if there are several."""
CLEAR = (1 + LEVEL) / 2
"""Confidence of a decision for several clusters: the interval of the gain over one model excludes 0."""
POWER = 0.8
"""Probability with which the recommended number of samples would show the gain."""
NEGLIGIBLE = 0.05
"""A gain below this share of one model's loss does not matter; for a regression this is 2.5 % of the RMSE."""


@dataclass(frozen=True)
class Measured:
    """A gain over one model in the units of the loss, or as RMSE in the units of the target."""

    unit: str
    """Name of the reduced error: `RMSE` or `log loss`."""
    base: float
    """Error of one model on held-out samples."""
    gain: float
    """Reduction of the error."""
    low: float
    """Lower end of the interval of the gain."""
    high: float
    """Upper end of the interval of the gain."""
    bound: float
    """Value below which the gain lies with 95 % confidence."""

    @classmethod
    def of(cls, gain: Gain, one: float | None) -> Measured:
        """Return a gain in the units in which it is reported.

        Args:
            gain: The estimate.
            one: Loss of a prediction with an error of 1, for a regression; None for classes.
        """
        ends = [gain.bound(1 - CLEAR), gain.bound(CLEAR), gain.bound(LEVEL)]
        if one is None:
            return cls("log loss", gain.base, gain.mean, *ends)
        base = math.sqrt(gain.base / one)
        return cls("RMSE", base, *(base - math.sqrt(max(0.0, gain.base - g) / one) for g in (gain.mean, *ends)))


class Verdict(Registered, ABC, family="verdict"):
    """Base class of the decisions."""

    @property
    @abstractmethod
    def trained(self) -> int:
        """Number of clusters that the run trains."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The decision in words."""

    @property
    def warning(self) -> str | None:
        """Warning before the user relies on the run; None if there is none."""
        return None


@register("cluster")
@dataclass(frozen=True)
class Cluster(Verdict):
    """The decision that K clusters predict held-out samples better than one model."""

    clusters: int
    gain: Measured | None
    """Gain over one model; None if the training of one model diverged."""

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
    """The decision that one model is as good, because the gain of clusters is bounded."""

    gain: Measured | None
    """Gain of the number of clusters with the largest bound; None if no other number was tried."""

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
    """The decision that there are too few samples: the gain may matter or be zero."""

    preferred: int
    """Number of clusters with the lowest held-out loss."""
    gain: Measured | None
    """Gain of the preferred number of clusters over one model, or of the next best if one model is preferred; None if
    only one client has held-out samples."""
    samples: int
    """Mean number of training samples of a client."""
    samples_needed: int | None
    """Mean number of samples of a client that would be enough; None if no number is."""
    clients_needed: int | None
    """Number of clients that would be enough, if more samples of the same clients are not."""

    @property
    def trained(self) -> int:
        return 1

    @property
    def sentence(self) -> str:
        found = self.gain
        if found is None:
            return "Cannot tell: only one client has held-out samples. More clients would be needed."
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
    """Return a number with three significant digits."""
    return f"{value:.3g}"


# ---- the decision rule ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Held-out losses of trial runs, for the m clients with held-out samples."""

    losses: Floats
    """Mean loss of each client for 1, 2, ... clusters and each trial run, (K, S, m); infinite after divergence."""
    counts: Floats
    """Number of held-out samples of each client, shape (m,)."""
    sizes: Floats
    """Number of samples of each client, shape (m,)."""
    share: float
    """Share of the samples that are held out."""
    one: float | None = None
    """Loss of a prediction with an error of 1, for a regression; None for classes."""

    @classmethod
    def of(cls, losses: Floats, sizes: npt.NDArray[np.int64], share: float, one: float | None = None) -> HeldOut:
        """Return the losses without clients that have none (NaN) in some trial run."""
        known = ~np.isnan(losses).any(axis=(0, 1))
        own = sizes[known]
        return cls(
            losses[:, :, known], held_out_sizes(own, share).astype(np.float64), own.astype(np.float64), share, one
        )

    @property
    def mean(self) -> Floats:
        """Mean loss of all held-out samples for each number of clusters, (K,)."""
        return np.asarray(np.average(self.losses.mean(axis=1), axis=1, weights=self.counts))

    @property
    def finite(self) -> npt.NDArray[np.bool_]:
        """Whether each number of clusters stayed finite, (K,)."""
        return np.asarray(np.isfinite(self.losses).all(axis=(1, 2)))

    def gain(self, first: int, second: int) -> Gain:
        """Return the gain of one number of clusters over another, both given by index."""
        return paired_gain(self.losses[first], self.losses[second], self.counts, self.share)

    def measured(self, gain: Gain) -> Measured | None:
        """Return a gain in the units in which it is reported; None if its error is unknown."""
        return Measured.of(gain, self.one) if math.isfinite(gain.error) else None


@dataclass(frozen=True)
class Judgement:
    """The decision, and the figures of each number of clusters that was tried; arrays have shape (K,)."""

    verdict: Verdict
    loss: Floats
    """Mean loss of all held-out samples."""
    behind: Floats
    """Estimated difference from the number of clusters with the lowest loss."""
    error: Floats
    """Standard error of `behind`; NaN after divergence."""


def judge(data: HeldOut) -> Judgement:
    """Return the decision.

    There are several clusters if the number with the lowest loss clearly beats one model. Then the smallest number is
    chosen that also clearly beats one model, and that the number with the lowest loss does not beat with confidence
    `LEVEL`.

    Raises:
        TrainingError: if the loss is infinite for every number of clusters.
    """
    loss, finite = data.mean, data.finite
    best = int(loss.argmin())
    if not finite[best]:
        raise TrainingError(
            "clusters=auto: the held-out loss is infinite in all trial runs: lower lr, or scale the features"
        )
    gains = {k: data.gain(k, best) for k in np.flatnonzero(finite).tolist()}
    chosen = 0
    if not finite[0] or gains[0].is_clear(CLEAR):
        close = [k for k, gain in gains.items() if 0 < k < best and not gain.is_clear(LEVEL)]
        chosen = next((k for k in close if not finite[0] or data.gain(0, k).is_clear(CLEAR)), best)
    behind, error = np.full(len(loss), np.inf), np.full(len(loss), np.nan)
    for k, gain in gains.items():
        behind[k], error[k] = gain.mean, gain.error
    return Judgement(_verdict(data, chosen, best), loss, behind, error)


def _verdict(data: HeldOut, chosen: int, best: int) -> Verdict:
    """Return the decision, given the indices of the chosen number of clusters and of the one with the lowest loss."""
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
    """Return the decision with a power calculation: the data that would show this gain, or that it is negligible."""
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
