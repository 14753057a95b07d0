"""Splits that calibrate themselves: a cluster is split if that lowers the loss on samples that took no part in it.

Every few rounds each client trains its cluster's model on a random half of its samples. The members of a cluster are
parted by these updates (or by what the method compares), and each part makes a model. On the other half of every
client's samples the model of its part is compared with the model of the whole cluster. The gain of client i is

    g_i = loss of the cluster's model - loss of the part's model,    on the half that has trained neither.

If all members follow one distribution, the parts are chance, and a part's model is the cluster's with more noise: the
mean gain is not above zero. Two one-sided tests over clients, at half the level each, therefore have at most the stated
rate of false splits: a t-test of the mean gain weighted by samples, and a test by random signs of the gains, which
keeps its power where a few clients have most of the samples. The tests of a run share its rate: the j-th trial of a run
with K clusters tests each at 6 / (pi^2 j^2) times rate / K, which adds up to the rate over any number of trials.

Members are parted in two ways, by the method's own distance and by the cosines of their updates; the better one counts,
at half the level. Before the test every member moves to the part whose model has the least loss on the half that
trained it, since updates of few samples are noisy.

Two more questions have the same form, a common model against one for each part:

merge   The parts are two clusters, and the common model starts at the mean of their models. They are united unless the
        gain of two models over one has a p-value below 0.5.
bodies  The parts are all clusters, and only the body that they share is common or their own. Each gets a body of its
        own if the mean gain is above zero, by the same test and at the level of a single test in each trial.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import numpy as np

from coterie.core.clusters import Params
from coterie.core.registry import register
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.tiers.distance import Distance, apart_by_angle
from coterie.tiers.landmarks import MOST, Floats
from coterie.tiers.procedure import Cut, ProcedureStep, bipartition, spectral_parts, split
from coterie.tiers.view import Statistic, View

RATE = 0.01
"""Probability that a run without groups splits a cluster, at most."""
FEWEST = 2
"""Least number of members of a part."""


@dataclass(frozen=True)
class SplitTest:
    """The test of one cluster."""

    cluster: int
    clients: int
    """Number of members that took part."""
    gain: float
    """Mean gain on held-out samples by a split, weighted by samples."""
    error: float
    """Standard error of the gain."""
    loss: float
    """Mean loss of the cluster's model on the same samples."""
    p: float
    """Probability of such a gain if the members do not differ."""
    level: float
    """A split is accepted below this probability."""
    parts: Sequence[Positions]
    """Members of the parts, as places in `View.answered`."""
    change: str = "a split"
    """What would bring the gain."""

    @property
    def accepted(self) -> bool:
        """Whether each part is to have a model of its own."""
        return self.p < self.level

    @property
    def sentence(self) -> str:
        """The figures in words."""
        return (
            f"held-out loss {self.loss:.3g}, gain by {self.change} {self.gain:.3g} (standard error {self.error:.2g}), "
            f"p {self.p:.2g}, level {self.level:.2g}"
        )

    @property
    def statistic(self) -> Statistic:
        """For the record."""
        sizes = [len(part) for part in self.parts]
        more = {"gain": self.gain, "error": self.error, "loss": self.loss, "clients": self.clients, "parts": sizes}
        return Statistic(self.cluster, "p", self.p, self.level, "below", self.sentence, more)


def split_test(
    cluster: int, parts: Sequence[Positions], losses: Floats, samples: Floats, level: float, change: str = "a split"
) -> SplitTest:
    """Return the test of one cluster.

    Args:
        cluster: Number of the cluster.
        parts: Members of the parts, as places in `View.answered`.
        losses: (n, 2) held-out loss of each member under the cluster's model and under that of its part, in the order
            of the parts, one after the other.
        samples: (n,) number of samples of each member.
        level: Level of the test.
        change: What would bring the gain, for the record.
    """
    from scipy.stats import t as student  # slow to import

    share = samples / samples.sum()
    effective = 1 / float((share**2).sum())
    gains = losses[:, 0] - losses[:, 1]
    scale = float(abs(gains).max()) or 1.0  # the squares of a training that diverges would overflow
    mean = float(share @ (gains / scale))
    spread = float(share**2 @ (gains / scale - mean) ** 2)
    mean, error = scale * mean, scale * math.sqrt(spread * effective / max(effective - 1, 1e-9))
    by_t = float(student.sf(mean / error, effective - 1)) if error > 0 and effective > 1 else 1.0
    p = min(1.0, 2 * min(by_t, sign_flip_p(share * gains)))
    return SplitTest(cluster, len(losses), mean, error, float(share @ losses[:, 0]), p, level, parts, change)


def sign_flip_p(gains: Floats) -> float:
    """Return an upper bound of the probability that the sum of these gains is as large, had each a random sign.

    It is Chernoff's bound, min over s >= 0 of exp(sum_i log cosh(s g_i) - s sum_i g_i), which needs no variance to be
    estimated, so that a few clients with many samples among many with few do not cost the test its power.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    total, size = float(gains.sum()), np.abs(gains)
    if total <= 0:
        return 1.0
    unit = size / size.max()
    if (gains >= 0).all():
        return float(0.5 ** np.count_nonzero(gains))

    def exponent(log_s: float) -> float:
        scaled = math.exp(log_s) * unit
        return float(
            (scaled + np.log1p(np.exp(-2 * scaled)) - math.log(2)).sum() - math.exp(log_s) * total / size.max()
        )

    best = minimize_scalar(exponent, bounds=(-12.0, 12.0), method="bounded")
    return float(min(1.0, math.exp(best.fun)))


class Trials(Protocol):
    """Carries out tests with the clients; `methods/trials.py`."""

    @abstractmethod
    def split_tests(
        self, view: View, partings: Sequence[Parting], least: int, most: int, level: float
    ) -> Sequence[SplitTest]:
        """Return the test of every cluster that has enough members: of the better one of several partings."""
        ...

    @abstractmethod
    def merge_tests(self, view: View, level: float) -> Sequence[tuple[tuple[int, int], SplitTest]]:
        """Return the test of pairs of clusters against one model for both; no cluster is in two pairs."""
        ...

    @abstractmethod
    def body_test(self, view: View, level: float) -> SplitTest | None:
        """Return the test of bodies of the clusters' own against the shared one; None if too few clients answered."""
        ...


Parting = Literal["distance", "updates"]
"""Two parts by complete linkage of the method's distance, or by the leading eigenvectors of the cosines of updates."""


def parted(parting: Parting, distance: Distance, rows: Params) -> tuple[Positions, Positions]:
    """Return two parts of clients from their rows on the first half of their samples."""
    if parting == "distance":
        return bipartition(distance.server_pairwise(rows))
    return spectral_parts(apart_by_angle(rows["own_change"]))


@register("split-by-test")
@dataclass(frozen=True)
class SplitByTest(ProcedureStep):
    """A cluster is split if that lowers the loss on held-out halves of its members' samples, by a test."""

    partings: tuple[Parting, ...] = ("distance", "updates")
    """Ways to part the members of a cluster; the one with the larger gain counts, and they share the level."""
    every: int = 5
    """Number of rounds between trials."""
    warmup: int = 0
    """No trial before this round."""
    least: int = 2 * FEWEST
    """No cluster with fewer members is tested."""
    rate: float = RATE
    """Probability that a run without groups splits a cluster, at most."""
    max_clusters: int | None = None
    hard: bool = True
    """Whether the parts are written into the clients' weights; else everybody's are halved and the data decides."""
    most: int = MOST
    """Largest number of members of a cluster that are compared; the others join the nearer part."""
    splits: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = {
        "change": "how it changed the models it trained, and how half of its samples changes its cluster's model",
        "losses": "how well the models of its cluster and of its part fit the other half of its samples",
    }
    not_private: ClassVar[str] = (
        "tests on halves of the clients' samples send updates and losses without noise: give the method's threshold"
    )

    def server_propose(self, view: View) -> Regroup | None:
        if view.trials is None or view.round + 1 < self.warmup or (view.round + 1) % self.every:
            return None
        room = math.inf if self.max_clusters is None else self.max_clusters - view.K
        if room <= 0:
            return None
        trial = (view.round + 1) // self.every
        level = self.rate * 6 / (math.pi * trial) ** 2 / (view.K * len(self.partings))
        tests = view.trials.split_tests(view, self.partings, max(self.least, 2 * FEWEST), self.most, level)
        view.statistics.extend(test.statistic for test in tests)
        accepted = sorted((test for test in tests if test.accepted), key=lambda test: test.p)
        chosen = sorted(accepted[: int(min(room, len(accepted)))], key=lambda test: test.cluster)
        return split(view, [Cut(test.cluster, test.parts, test.sentence) for test in chosen], self.hard)


@register("merge-by-test")
@dataclass(frozen=True)
class MergeByTest(ProcedureStep):
    """Two clusters unite if, on held-out halves of their members' samples, two models are no better than one.

    Pairs of the nearest models are tested, each cluster in one pair. Clusters that come from a trial wait for the next.
    """

    every: int = 5
    """Number of rounds between trials."""
    least_p: float = 0.5
    """Clusters unite if the test for keeping them apart has at least this p-value."""
    splits: ClassVar[bool] = True
    needs_ages: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = SplitByTest.reveals
    not_private: ClassVar[str] = SplitByTest.not_private

    def server_propose(self, view: View) -> Regroup | None:
        if view.trials is None or (view.round + 1) % self.every or view.K < 2:
            return None
        tests = view.trials.merge_tests(view, self.least_p)
        view.statistics.extend(replace(test.statistic, fires="above") for _, test in tests)
        found = {pair: test for pair, test in tests if test.p >= self.least_p}
        if not found:
            return None
        new = [NewCluster((k,)) for k in range(view.K) if all(k not in pair for pair in found)]
        new += [NewCluster(pair, "average") for pair in found]
        new.sort(key=lambda cluster: cluster.parents[0])
        why = "; ".join(f"{one} and {two}: {test.sentence}" for (one, two), test in found.items())
        return Regroup(tuple(new), "merge", why)


@register("own-bodies-by-test")
@dataclass(frozen=True)
class OwnBodiesByTest(ProcedureStep):
    """Every cluster gets a body of its own if that lowers the loss on held-out halves of the clients' samples.

    The test waits until no cluster has come up since the trial before. Bodies are never shared again.
    """

    every: int = 5
    """Number of rounds between trials."""
    rate: float = RATE
    """Probability that bodies that do not differ are parted in a run, at most."""
    splits: ClassVar[bool] = True
    needs_ages: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = SplitByTest.reveals
    not_private: ClassVar[str] = SplitByTest.not_private

    def server_propose(self, view: View) -> Regroup | None:
        if view.trials is None or (view.round + 1) % self.every or view.K < 2 or not view.clusters.shared:
            return None
        if int(view.ages().min()) < self.every:
            return None
        test = view.trials.body_test(view, self.rate * 6 / (math.pi * ((view.round + 1) // self.every)) ** 2)
        if test is None:
            return None
        view.statistics.append(test.statistic)
        if not test.accepted:
            return None
        copies = tuple(NewCluster((k,)) for k in range(view.K))
        return Regroup(copies, "bodies", test.sentence, own_bodies=True)
