"""Differences between groups: profiles of their samples, and the coefficients in which they differ most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.tasks import GroupSums
from coterie.core.clusters import Clusters
from coterie.core.federation import Federation
from coterie.core.messages import Broadcast
from coterie.core.numbers import finite_numbers
from coterie.evaluate.baselines import number
from coterie.evaluate.frames import data_frame
from coterie.evaluate.regression import Labels

Floats = npt.NDArray[np.float64]

MOST_FEATURES = 500
"""Largest number of features with which profiles are computed."""
CLEAR = 2.5
"""Number of standard errors by which a coefficient must differ from that of the other groups to be named."""
NOTABLE = 0.25
"""Smallest share of the largest difference of its group with which a difference is named."""
MOST_NAMED = 3
SAMPLES_FOR_EACH_COEFFICIENT = 20
"""Number of samples that a group needs for each of its log-odds."""
ROUNDING = 1e-12
"""Share of a feature's scale below which a mean counts as zero up to rounding."""
LEVEL = "level"
"""Name of the difference in the output at the mean of all features."""


@dataclass(frozen=True)
class GroupProfile:
    """Profile of the training samples of one group's clients, in original units."""

    cluster: int
    clients: int
    samples: int
    means: tuple[float, ...]
    """Mean of each feature; the share of samples for a 0/1 feature."""
    target: float | None = None
    """Mean target of a regression."""
    target_deviation: float | None = None
    shares: tuple[float, ...] = ()
    """Share of each class."""


@dataclass(frozen=True)
class Groups:
    """Profiles of all groups that have clients."""

    features: tuple[str, ...]
    deviations: tuple[float, ...]
    """Standard deviation of each feature over the samples of all groups."""
    means: tuple[float, ...]
    """Mean of each feature over the samples of all groups."""
    profiles: tuple[GroupProfile, ...]
    classes: tuple[str, ...] = ()
    target: str = ""

    def sentences(self, coefficients: Mapping[str, Any]) -> dict[int, str]:
        """Return for each group in words the coefficients in which it differs clearly; nothing for the others.

        Args:
            coefficients: The figures that `Result.coefficients` returns.
        """
        spread = dict(zip(self.features, self.deviations, strict=True))
        clear = {each.cluster: distinctions(coefficients, spread, each.cluster) for each in self.profiles}
        return {cluster: "; ".join(each.words() for each in found) for cluster, found in clear.items() if found}

    def to_frame(self) -> Any:
        """Return one row for each group as a pandas DataFrame: sizes, labels and the mean of each feature.

        Raises:
            InputError: if pandas is not installed.
        """
        rows = []
        for each in self.profiles:
            labels = dict(zip((f"share of {name}" for name in self.classes), each.shares, strict=True))
            target = {} if each.target is None else {f"mean {self.target or 'target'}": each.target}
            sizes = {"cluster": each.cluster, "clients": each.clients, "samples": each.samples}
            rows.append({**sizes, **target, **labels, **dict(zip(self.features, each.means, strict=True))})
        return data_frame(rows, "cluster")

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain values for JSON."""
        return dict(finite_numbers(asdict(self)))

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Groups:
        """Return the value that `to_json` described."""
        lists = ("features", "deviations", "means", "classes")
        profiles = tuple(
            GroupProfile(**{**each, "means": tuple(each["means"]), "shares": tuple(each["shares"])})
            for each in plain["profiles"]
        )
        return cls(**{**plain, **{name: tuple(plain[name]) for name in lists}, "profiles": profiles})


def ask_profiles(
    federation: Federation, own: Tensor, clusters: int, classes: int | None, labels: Labels, round_: int = 0
) -> Groups | None:
    """Ask every client that has a cluster for sums of its features and labels; None for features without names.

    Args:
        federation: The clients.
        own: (m,) the cluster of each client, or a negative number.
        clusters: Number of clusters.
        classes: Number of classes; None for a regression.
        labels: Names of features and classes, and the scaling of the features.
        round_: Number of the last round.
    """
    asked = np.flatnonzero((own >= 0).numpy())
    if not labels.features or len(labels.features) > MOST_FEATURES or not len(asked):
        return None
    rows = own[torch.from_numpy(asked)]
    reply = federation.ask(GroupSums(), Broadcast(round_, Clusters({}, K=clusters), each={"own": rows}), asked).reply
    if not reply.clients:
        return None
    found = reply.slotted["clusters"]
    sums = {name: value.numpy() for name, value in found.arrays.items()}
    return profiles_of(found.slots.tolist(), found.counts.tolist(), sums, classes, labels)


def profiles_of(
    slots: Sequence[int], counts: Sequence[int], sums: Mapping[str, Floats], classes: int | None, labels: Labels
) -> Groups:
    """Return the profiles from the sums of each cluster."""
    scales = np.array(labels.scales or [(0.0, 1.0)] * sums["features"].shape[1], dtype=np.float64)
    samples = sums["samples"]
    means = sums["features"] / samples[:, None] * scales[:, 1] + scales[:, 0]
    means = np.where(np.abs(means) < ROUNDING * (np.abs(scales[:, 0]) + scales[:, 1]), 0.0, means)
    overall = sums["features"].sum(axis=0) / samples.sum()
    variance = np.maximum(sums["squares"].sum(axis=0) / samples.sum() - overall**2, 0)
    names = tuple(str(label) for label in labels.classes) or tuple(str(k) for k in range(classes or 0))
    profiles = []
    for at, (cluster, clients) in enumerate(zip(slots, counts, strict=True)):
        shares = sums["labels"][at] / samples[at]
        number_ = classes is None
        profiles.append(
            GroupProfile(
                cluster,
                clients,
                int(samples[at]),
                tuple(means[at].tolist()),
                target=float(shares[0]) if number_ else None,
                target_deviation=math.sqrt(max(float(shares[1] - shares[0] ** 2), 0)) if number_ else None,
                shares=() if number_ else tuple(shares.tolist()),
            )
        )
    return Groups(
        features=tuple(labels.features or ()),
        deviations=tuple((np.sqrt(variance) * scales[:, 1]).tolist()),
        means=tuple((overall * scales[:, 1] + scales[:, 0]).tolist()),
        profiles=tuple(profiles),
        classes=names if classes is not None else (),
        target=labels.target,
    )


# ---- differences of coefficients -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Distinction:
    """A coefficient in which a group differs clearly from the others."""

    name: str
    value: float
    others: float
    """Mean of the other groups, weighted by their samples."""
    size: float
    """Difference in the output for one standard deviation of the feature."""

    def words(self) -> str:
        """Return text such as `stronger effect of price (-3.1 against -1.2 on average)`."""
        figures = f"({number(self.value)} against {number(self.others)} on average)"
        if self.name == LEVEL:
            return f"{'higher' if self.value > self.others else 'lower'} level at the mean of all features {figures}"
        least = min(abs(self.value), abs(self.others))
        if self.value * self.others < 0 and least > 0.1 * abs(self.value - self.others):
            return f"opposite effect of {self.name} {figures}"
        return f"{'stronger' if abs(self.value) > abs(self.others) else 'weaker'} effect of {self.name} {figures}"


def distinctions(coefficients: Mapping[str, Any], deviations: Mapping[str, float], cluster: int) -> list[Distinction]:
    """Return the coefficients in which a cluster differs most from the others, at most three, the largest first.

    Args:
        coefficients: The figures that `Result.coefficients` returns.
        deviations: Standard deviation of each feature, by name.
        cluster: The cluster.
    """
    used = [row for row in coefficients["clusters"] if row["clients"] and not _is_small(coefficients, row)]
    mine = next((row for row in used if row["cluster"] == cluster), None)
    rest = [row for row in used if row["cluster"] != cluster]
    if mine is None or not rest:
        return []
    found = []
    for j, name in enumerate(coefficients["names"]):
        spread = deviations.get(name.rpartition(": ")[2] if "classes" in coefficients else name)
        if spread:
            triple = [(row["estimate"][j], row["standard_errors"][j], row["samples"]) for row in (mine, *rest)]
            found += _clear(name, triple, spread)
    if mine.get("level") is not None:
        found += _clear(LEVEL, [(row["level"], row["level_error"], row["samples"]) for row in (mine, *rest)], 1.0)
    found.sort(key=lambda each: -each.size)
    return [each for each in found if each.size >= NOTABLE * found[0].size][:MOST_NAMED]


def _is_small(coefficients: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a group has too few samples for its log-odds, whose estimates are then too large."""
    return "classes" in coefficients and row["samples"] < SAMPLES_FOR_EACH_COEFFICIENT * len(coefficients["names"])


def _clear(name: str, figures: Sequence[tuple[float | None, float | None, int]], spread: float) -> list[Distinction]:
    """Return the difference of the first group to the mean of the others if it is clear; else nothing."""
    known = [(value, error, n) for value, error, n in figures if value is not None and error is not None]
    if None in figures[0] or len(known) < 2:
        return []
    (value, error, _), rest = known[0], known[1:]
    total = sum(n for _, _, n in rest)
    others = sum(each * n for each, _, n in rest) / total
    deviation = math.sqrt(error**2 + sum((each * n / total) ** 2 for _, each, n in rest))
    if abs(value - others) <= CLEAR * deviation:
        return []
    return [Distinction(name, value, others, abs(value - others) * spread)]
