"""Comparison of the held-out error of clusters with that of the usual alternatives.

Clients return one row each: sums of losses on their held-out samples under every candidate. Nothing has a sample axis.
The pooled AUC is computed from counts of binned log-odds, which are added over clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.tasks import SiteScores
from coterie.core.clusters import Clusters
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast
from coterie.core.numbers import finite, finite_numbers
from coterie.core.shard import Positions
from coterie.evaluate.clients import Own, Tuning
from coterie.evaluate.frames import data_frame
from coterie.evaluate.site_models import SiteModel, linear_models, logistic_models
from coterie.learners.base import Learner
from coterie.learners.minimum import GeneralisedLinear

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
MINUS = "\N{MINUS SIGN}"
MOST_COEFFICIENTS = 200
"""Largest number of coefficients of one model, over all classes, with which the alternatives are fitted."""
MOST_AROUND_SMALL = 2
"""Largest number of decimals of a small difference with an interval wider than 10."""
MOST_DECIMALS = 6
"""Largest number of decimals of a difference; smaller differences are written with an exponent."""
FEWEST_CLIENTS = 5
"""Smallest number of clients with held-out samples for an interval."""
SMALL = 0.01
"""Share of the RMSE or log loss below which a difference is too small to matter, however certain it is."""
ROUNDING = 1e-9
"""Differences of RMSE below this share of the RMSE without features are rounding errors."""
PERFECT_R2, PERFECT_LOSS = 0.9999, 0.02
"""Smallest R², or largest share of the log loss without features and without errors, of a perfect prediction."""
RUN, CONSTANT, POOLED, SITE, ALONE, MIXED, TUNED = "run", "constant", "pooled", "site", "alone", "mixed", "tuned"
KEYS = (RUN, CONSTANT, POOLED, SITE, ALONE, MIXED, TUNED)
"""Candidates in the order of the rows that clients return; the last one only if clients fine-tune their models."""
PHRASES = {
    POOLED: "one model for all",
    SITE: "one model with an intercept for each client",
    ALONE: "one model for each client alone",
    MIXED: "a mixed model",
    TUNED: "the fine-tuned model of each client",
}
"""Names of the alternatives in sentences."""


@dataclass(frozen=True)
class Candidate:
    """A model of the comparison with its figures over all held-out samples."""

    key: str
    """`run`, `constant`, `pooled`, `site`, `alone`, `mixed` or `tuned`."""
    name: str
    loss: float | None
    """Mean squared error, or mean log-loss, over all held-out samples."""
    rmse: float | None = None
    """Root mean squared error over all held-out samples; None for a classification."""
    r2: float | None = None
    """Share of the variance around the mean target that is explained; None for a classification."""
    accuracy: float | None = None
    """Share of correct classes over all held-out samples; None for a regression."""
    auc: float | None = None
    """Area under the ROC curve over all held-out samples, the mean over classes if there are several."""
    per_client: float | None = None
    """Mean over clients of the accuracy or RMSE of each client."""


@dataclass(frozen=True)
class Difference:
    """Loss of an alternative minus that of the run's models: positive if the run's models are better."""

    key: str
    value: float
    """Difference of RMSE, or of log-loss."""
    low: float | None
    """Lower end of the 95 % interval over clients; None with too few clients."""
    high: float | None

    def turned(self) -> Difference:
        """Return the same difference with the opposite sign."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(self.key, -self.value, low, high)

    def widened(self, by: float) -> Difference:
        """Return the same difference with this much added to both sides of its interval."""
        if self.low is None or self.high is None:
            return self
        return Difference(self.key, self.value, self.low - by, self.high + by)

    @property
    def decimals(self) -> int | None:
        """Number of decimals that suits the width of the interval; None without an interval, and for a tiny one."""
        if self.low is None or self.high is None or not self.high > self.low:
            return None
        wanted = max(0, 1 - math.floor(math.log10(self.high - self.low)))
        if wanted == 0 and self.value:  # a wide interval around a small difference, which should not be shown as 0
            wanted = min(max(0, -math.floor(math.log10(abs(self.value)))), MOST_AROUND_SMALL)
        return wanted if wanted <= MOST_DECIMALS else None

    def texts(self) -> tuple[str, str, str]:
        """Return value and ends with the number of decimals that suits the width of the interval."""
        value, low, high = (number(each, self.decimals) for each in (self.value, self.low, self.high))
        return value, low, high

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `same`: whether the interval is above, below or around 0."""
        if self.low is None or self.high is None:
            return "same"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "same"


@dataclass(frozen=True)
class Baselines:
    """Held-out figures of a run's models and of the alternatives."""

    classification: bool
    clustered: bool
    """Whether the run's models are those of several clusters."""
    samples: int
    """Number of held-out samples."""
    clients: tuple[str, ...]
    """Clients with held-out samples."""
    held_out: tuple[int, ...]
    """Number of held-out samples of each of them."""
    alone: int
    """Number of clients with enough training rows for a local model."""
    candidates: tuple[Candidate, ...]
    differences: tuple[Difference, ...]
    """Differences to the pooled model, site intercepts, local models and the mixed model, in this order, and to the
    fine-tuned models if there are any."""
    scores: tuple[tuple[float, ...], ...]
    """RMSE or accuracy of each client with each candidate."""
    base_rate: float | None = None
    """Share of the most frequent class among the training samples; None for a regression."""
    deviation: float | None = None
    """Standard deviation of the clients' intercepts in the mixed model, in units of the target or log-odds."""

    def candidate(self, key: str) -> Candidate:
        """Return one of the candidates."""
        return self.candidates[KEYS.index(key)]

    def difference(self, key: str) -> Difference:
        """Return the difference of an alternative to the run's models."""
        return next(each for each in self.differences if each.key == key)

    @property
    def best_alternative(self) -> Candidate:
        """Alternative with the lowest held-out loss."""
        others = [each for each in self.candidates if each.key not in (RUN, CONSTANT) and each.loss is not None]
        return min(others, key=lambda each: math.inf if each.loss is None else each.loss)

    @property
    def caution(self) -> str:
        """Warning if one model for all makes almost no error, as if a feature contains the target; else empty."""
        if not self._is_perfect(self.candidate(POOLED)):
            return ""
        return (
            "One model for all predicts the held-out samples almost without error: probably a feature holds the target "
            "or was computed from it. Leave that feature out; otherwise all other figures of this run mean little."
        )

    def _is_perfect(self, one: Candidate) -> bool:
        if not self.classification:
            return one.r2 is not None and one.r2 > PERFECT_R2
        without = self.candidate(CONSTANT).loss
        return one.accuracy == 1 and None not in (one.loss, without) and (one.loss or 0) < PERFECT_LOSS * (without or 0)

    def sentences(self) -> list[str]:
        """Return sentences on whether this run predicts better than one model, fine-tuned and the best alternative."""
        tuned = [each.key for each in self.candidates if each.key == TUNED]
        others = dict.fromkeys((POOLED, *tuned, self.best_alternative.key))
        return [*([self.caution] if self.caution else []), *map(self._against, others)]

    def _against(self, key: str) -> str:
        """Return text such as `The clusters predict better than one model for all: RMSE 16.1 against 20.3 (...)`."""
        difference, phrase = self.difference(key), PHRASES[key]
        who, verb = ("The clusters", "predict") if self.clustered else ("The model of this run", "predicts")
        figures = self._figures(RUN, key)
        if difference.low is None or difference.high is None:
            return f"{who} and {phrase}: {figures}. There are too few clients for an interval of the difference."
        worse = difference.value < 0
        size, low, high = difference.turned().texts() if worse else difference.texts()
        interval = f"difference {size}, 95 % interval {low} to {high}"
        matters = "; a difference below 1 % hardly matters" if self._is_small(difference) else ""
        if difference.verdict == "same":
            return f"{who} and {phrase} cannot be told apart: {figures} ({interval}); the difference is within noise."
        if difference.verdict == "better":
            return f"{who} {verb} better than {phrase}: {figures} ({interval}){matters}."
        return (
            f"{phrase[0].upper()}{phrase[1:]} predicts better than {who[0].lower()}{who[1:]}: "
            f"{self._figures(key, RUN)} ({interval}){matters}."
        )

    def _is_small(self, difference: Difference) -> bool:
        other = self.candidate(difference.key)
        whole = other.loss if self.classification else other.rmse
        return whole is not None and abs(difference.value) < SMALL * whole

    def _figures(self, key: str, other: str) -> str:
        """Return text such as `RMSE 1.10 against 1.73`, or `log loss 0.585 against 0.670, AUC 0.765 against 0.621`."""
        one, two = self.candidate(key), self.candidate(other)
        auc = f", AUC {one.auc:.3f} against {two.auc:.3f}" if one.auc is not None and two.auc is not None else ""
        return self.figures(key, other) + auc

    def figures(self, key: str, other: str) -> str:
        """Return `RMSE 1.10 against 1.73` or `log loss 0.585 against 0.670`, with the decimals of the difference."""
        one, two = self.candidate(key), self.candidate(other)
        decimals = self.difference(other if key == RUN else key).decimals
        if self.classification:
            return f"log loss {number(one.loss, decimals)} against {number(two.loss, decimals)}"
        return f"RMSE {number(one.rmse, decimals)} against {number(two.rmse, decimals)}"

    def to_frame(self) -> Any:
        """Return the candidates as a pandas DataFrame, with the differences to the run's models.

        Raises:
            InputError: if pandas is not installed.
        """
        gaps = {each.key: asdict(each) for each in self.differences}
        rows = []
        for each in self.candidates:
            known = {name: value for name, value in asdict(each).items() if value is not None and name != "key"}
            gap = gaps.get(each.key, {})
            ends = {"difference": gap.get("value"), "low": gap.get("low"), "high": gap.get("high")}
            rows.append(known | ends)
        return data_frame(rows, "name")

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain values for JSON."""
        return dict(finite_numbers(asdict(self)))

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Baselines:
        """Return the value that `to_json` described."""
        nested = {
            "clients": tuple(plain["clients"]),
            "held_out": tuple(plain["held_out"]),
            "candidates": tuple(Candidate(**each) for each in plain["candidates"]),
            "differences": tuple(Difference(**each) for each in plain["differences"]),
            "scores": tuple(tuple(row) for row in plain["scores"]),
        }
        return cls(**{**plain, **nested})


def number(value: float | None, decimals: int | None = None) -> str:
    """Return a number with these decimals, or with three significant digits and no exponent where that stays short."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if decimals is not None:
        text = f"{value:.{decimals}f}"
    elif value == 0 or not 1e-4 <= abs(value) < 1e6:
        text = f"{value:.3g}"
    else:
        text = f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


# ---- fitting and asking --------------------------------------------------------------------------------------


def applies(learner: Learner, clusters: Clusters) -> bool:
    """Return whether the alternatives can be fitted: for linear and logistic learners with not too many features."""
    if not isinstance(learner, GeneralisedLinear):
        return False
    _, p, q = learner.to_coefficients(clusters.all_models()).shape
    return (p + 1) * q <= MOST_COEFFICIENTS


def compare_with_alternatives(
    federation: Federation,
    learner: Learner,
    clusters: Clusters,
    own: Tensor,
    tested: Tensor,
    *,
    round_: int = 0,
    by: Own | None = None,
    tuning: Tuning | None = None,
) -> Baselines | None:
    """Fit the alternatives to the training samples of all clients and compare them on held-out samples.

    Args:
        federation: The clients.
        learner: A linear or logistic learner.
        clusters: The models of one restart.
        own: (m,) the cluster of each client, or a negative number; those with one are asked for sums.
        tested: (m,) the same for the clients that have held-out samples.
        round_: Number of the last round.
        by: What clients keep and predict with; None: they predict with the model of their cluster.
        tuning: Fine-tuning of the models of the clusters, which are compared with as well; None: no fine-tuning.

    Returns:
        The comparison; None for other learners, for models that are too large, and if no client has held-out samples.
    """
    asked, scored = np.flatnonzero((own >= 0).numpy()), np.flatnonzero((tested >= 0).numpy())
    if not isinstance(learner, GeneralisedLinear) or not applies(learner, clusters) or not len(scored):
        return None
    p = learner.to_coefficients(clusters.all_models()).shape[1] + (not learner.bias)
    fitted = (
        linear_models(federation, asked, p, round_)
        if learner.classes is None
        else logistic_models(federation, asked, p, learner.classes, round_)
    )
    answered, rows, bins = _ask_scores(federation, clusters, fitted, tested, scored, round_, by, tuning)
    names = [federation.clients[i] for i in answered]
    several = len(np.unique(own.numpy()[asked])) > 1
    return summarise(names, rows, bins, clustered=several, mixed=fitted[3], constant=fitted[0])


def _ask_scores(
    federation: Federation,
    clusters: Clusters,
    fitted: Sequence[SiteModel],
    own: Tensor,
    asked: Positions,
    round_: int,
    by: Own | None,
    tuning: Tuning | None,
) -> tuple[Positions, dict[str, Floats], Floats | None]:
    """Return the clients that answered, their rows, and the bins of a classification."""
    at = torch.from_numpy(asked)
    each = {"own": own[at], "intercepts": torch.from_numpy(np.stack([one.intercepts[asked] for one in fitted], axis=1))}
    common = {"theta": torch.from_numpy(np.stack([one.theta for one in fitted]))}
    if by is not None:
        each, common = each | by.each(at), common | by.common_of_restart()
    only = None if by is not None else own[at][:, None]
    if tuning is None:
        broadcast = Broadcast(round_, clusters, only, each=each, common=common)
    else:
        broadcast = Broadcast(tuning.round, clusters, only, {"lr": tuning.lr}, each=each, common=common)
    task = SiteScores(predictor=None if by is None else by.predictor, tuning=None if tuning is None else tuning.task)
    reply = federation.ask(task, broadcast, asked).reply
    rows = {name: value.numpy() for name, value in reply.rows.items()}
    bins = reply.sums.get("bins")
    return positions_of(federation, reply.clients), rows, None if bins is None else bins.numpy()


# ---- figures -------------------------------------------------------------------------------------------------


def summarise(
    clients: Sequence[str],
    rows: Mapping[str, Floats],
    bins: Floats | None,
    *,
    clustered: bool,
    mixed: SiteModel,
    constant: SiteModel,
) -> Baselines | None:
    """Return the comparison from the rows of the clients and the bins of their log-odds; None without any row."""
    classification = bins is not None
    if not clients:
        return None
    held, total = rows["held_out"], float(rows["held_out"].sum())
    hits = rows["hits"] if classification else rows["squares"]
    # the loss of a regression is half the squared error; its RMSE is the root of the mean squared error
    losses = rows["losses"] if classification else rows["squares"]
    means = losses.sum(axis=0) / total
    scores = hits / held[:, None] if classification else np.sqrt(hits / held[:, None])
    keys, names = KEYS[: losses.shape[1]], _names(clustered)
    candidates = tuple(
        Candidate(
            key=key,
            name=names[key],
            loss=finite(means[a]),
            rmse=None if classification else finite(np.sqrt(means[a])),
            r2=None if classification or not means[1] > 0 else finite(1 - means[a] / means[1]),
            accuracy=finite(hits[:, a].sum() / total) if classification else None,
            auc=area(bins[a]) if bins is not None else None,
            per_client=finite(scores[:, a].mean()),
        )
        for a, key in enumerate(keys)
    )
    floor = 0.0 if classification else ROUNDING * math.sqrt(max(float(means[1]), 0))
    gaps = tuple(
        difference(key, losses[:, KEYS.index(key)], losses[:, 0], held, classification).widened(floor)
        for key in keys[2:]
    )
    return Baselines(
        classification=classification,
        clustered=clustered,
        samples=int(total),
        clients=tuple(clients),
        held_out=tuple(int(n) for n in held),
        alone=int(rows["alone"].sum()),
        candidates=candidates,
        differences=gaps,
        scores=tuple(tuple(float(value) for value in row) for row in scores),
        base_rate=_base_rate(constant) if classification else None,
        deviation=mixed.deviation,
    )


def _names(clustered: bool) -> dict[str, str]:
    return {
        RUN: "clusters (this run)" if clustered else "this run",
        CONSTANT: "no features",
        POOLED: "one model for all",
        SITE: "site intercepts",
        ALONE: "one model per site",
        MIXED: "mixed model",
        TUNED: "clusters, fine-tuned" if clustered else "this run, fine-tuned",
    }


def _base_rate(constant: SiteModel) -> float:
    """Return the share of the most frequent class, from the log-odds of all classes against the reference."""
    odds = np.exp(np.append(0.0, constant.theta[-1]))
    return float(odds.max() / odds.sum())


def difference(key: str, other: Floats, mine: Floats, held: Floats, classification: bool) -> Difference:
    """Return the difference of RMSE or log-loss with its 95 % interval, over all held-out samples.

    Clients are the independent units, weighted by their held-out samples: with sums a_i and b_i of losses over n_i
    samples, the linearised deviation of client i from the difference of means is (a_i - n_i A - b_i + n_i B) / N, and
    for roots of mean squares each part is divided by twice its root. Its square is divided by 1 - n_i / N, since a
    large client pulls the means towards itself. The interval is by Student's t, whose degrees of freedom are those of
    as many equal clients, (sum of n_i)^2 / sum of n_i^2 - 1.
    """
    total, m = held.sum(), len(held)
    means = np.array([other.sum(), mine.sum()]) / total
    deviations = [(values - held * mean) / total for values, mean in zip((other, mine), means, strict=True)]
    if not classification:
        roots = np.sqrt(np.maximum(means, 0))
        value = roots[0] - roots[1]
        influence = sum(
            sign * each / (2 * root if root > 0 else np.inf)
            for sign, each, root in zip((1, -1), deviations, roots, strict=True)
        )
    else:
        value, influence = means[0] - means[1], deviations[0] - deviations[1]
    if m < FEWEST_CLIENTS or not np.isfinite(value):
        return Difference(key, float(value), None, None)
    from scipy.special import stdtrit  # slow to import

    shares = held / total
    variance = float((np.square(influence) / (1 - shares)).sum())
    freedom = max(1 / float(np.square(shares).sum()) - 1, 1.0)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)
    return Difference(key, float(value), float(value) - half, float(value) + half)


def area(bins: Floats) -> float | None:
    """Return the area under the ROC curve from counts (C', 2, bins) of samples outside and inside each class.

    It is the share of pairs in which the sample inside has the larger log-odds; equal bins count half. With several
    classes it is the mean over those that occur; None if there is none.
    """
    found = []
    for outside, inside in bins:
        if outside.sum() and inside.sum():
            below = np.cumsum(outside) - outside / 2
            found.append(float((inside * below).sum() / (inside.sum() * outside.sum())))
    return float(np.mean(found)) if found else None
