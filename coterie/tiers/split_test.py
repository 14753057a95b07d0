"""Split tests that need no threshold: a cluster is split if its members clearly differ and separate models fit better.

In a trial each client trains its cluster's model on a random half of its samples (two thirds for linear models, whose
clients may have hardly more samples than coefficients). The members of a cluster are divided
into two parts by these updates (or by the distance of the method), and each part makes a model. Updates of few samples
are noisy, so every member moves, a few times, to the part whose model has the lower loss on the half that trained it.
The other half of a client's samples has trained neither model. On it, let

    d_i = loss under the model of the second part - loss under the model of the first part.

Do the members differ?  If they all follow one distribution, the parts say nothing about the other halves: clients of
both parts have the same expected d_i. The agreement of a client is d_i minus the mean of all clients, with a minus sign
in the second part; its mean is then zero. This is tested by two one-sided tests over clients, each at half the level: a
t-test weighted by samples, and a test with random signs, which keeps its power if a few clients have most of the
samples. Noise in the models, which makes separate models look worse than a common one, does not bias this test.

Is a split worthwhile?  The gain of a client is the loss under the cluster's model minus the loss under its part's
model. Models of all samples gain more than those of halves; a quadratic approximation says how much
(`HeldOut.expected_gain`). The expected gain must be above zero. For networks the gain must also be at least
four times its standard error.

Halvings of the samples are random, so a trial takes several, and each client's figures are means over them. Members are
divided in two ways, by the method's distance and by the cosines of their updates; each is tested at half the level, and
the better one counts. After an accepted split, every member joins the part whose model fits all its samples better.

The tests of a run share the rate of false splits: with K clusters, the j-th trial since the last change of the clusters
tests each at the level 6 / (pi^2 j^2) times rate / K, which adds up to the rate over any number of trials.

Two more tests use the same halvings:

merge   The parts are two clusters, and the common model starts at the mean of their models. The clusters merge if the
        expected gain of two models is not above zero.
bodies  The parts are all clusters, and only the body that they share is common or separate. Each cluster gets its own
        body if the mean gain is above zero, by the two tests above at the level of a single test in each trial.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal, Protocol

import numpy as np

from coterie.core.clusters import Params
from coterie.core.registry import register
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.tiers.distance import Distance, cosine_distances
from coterie.tiers.landmarks import MAX_COMPARED, Floats
from coterie.tiers.procedure import Cut, ProcedureStep, bipartition, spectral_parts, split
from coterie.tiers.view import Statistic, View

ERROR_RATE = 0.01
"""Largest probability that a run without groups splits a cluster."""
MIN_PART_SIZE = 2
"""Smallest number of members of a part."""


@dataclass(frozen=True)
class SplitTest:
    """The test of one cluster."""

    cluster: int
    clients: int
    """Number of members that took part."""
    gain: float
    """Mean gain of the split on held-out samples, weighted by samples."""
    error: float
    """Standard error of the gain."""
    loss: float
    """Mean loss of the cluster's model on the same samples."""
    p: float
    """Probability of at least this gain if the members do not differ."""
    level: float
    """The split is accepted if `p` is below this level."""
    parts: Sequence[Positions]
    """Members of the parts, as positions in `View.answered`."""
    change: str = "a split"
    """The tested change, for the record."""
    expected: float | None = None
    """Estimated gain if the models are trained on all samples; None if it was not estimated."""
    least: float = -math.inf
    """Smallest gain that counts, in standard errors."""

    @property
    def accepted(self) -> bool:
        """Whether each part gets its own model: the members clearly differ, and separate models lower the loss."""
        return self.p < self.level and self.lowers_loss

    @property
    def lowers_loss(self) -> bool:
        """Whether separate models are expected to lower the loss."""
        return (self.gain if self.expected is None else self.expected) > 0 and self.gain >= self.least * self.error

    @property
    def sentence(self) -> str:
        """The figures in words."""
        expected = "" if self.expected is None else f", {self.expected:.3g} expected with all samples"
        return (
            f"held-out loss {self.loss:.3g}, gain of {self.change} {self.gain:.3g} (standard error {self.error:.2g})"
            f"{expected}, p {self.p:.2g}, level {self.level:.2g}"
        )

    @property
    def expectation(self) -> Statistic:
        """The expected gain as a statistic for the record: two clusters merge if it is not above zero."""
        text = self.sentence.rpartition(", p ")[0]
        return replace(self.statistic, name="expected gain", value=self.expected or 0.0, threshold=0.0, text=text)

    @property
    def statistic(self) -> Statistic:
        """The test as a statistic for the record."""
        sizes = [len(part) for part in self.parts]
        more = {"gain": self.gain, "error": self.error, "loss": self.loss, "clients": self.clients, "parts": sizes}
        more |= {} if self.expected is None else {"expected": self.expected}
        return Statistic(self.cluster, "p", self.p, self.level, "below", self.sentence, more)


def gain_test(
    cluster: int, parts: Sequence[Positions], losses: Floats, samples: Floats, level: float, change: str = "a split"
) -> SplitTest:
    """Return the test of whether the models of parts have lower losses than one common model.

    Args:
        cluster: Number of the cluster.
        parts: Members of the parts, as positions in `View.answered`.
        losses: (n, 2) held-out loss of each member under the common model and under its part's model, in the order
            of the concatenated parts.
        samples: (n,) number of samples of each member.
        level: Level of the test.
        change: The tested change, for the record.
    """
    tested = _mean_test(losses[:, 0] - losses[:, 1], samples)
    loss = float(samples @ losses[:, 0] / samples.sum())
    return SplitTest(cluster, len(losses), tested.mean, tested.error, loss, tested.p, level, parts, change)


def trial_number(view: View, every: int) -> int | None:
    """Return the number of the trial after this round, from 1; None if there is none.

    Trials follow `every` rounds after the last change of the clusters (or the first round), and after twice, four
    times, eight times as many, and so on.
    """
    since = min(int(view.ages().min()), view.round + 1)
    times, rest = divmod(since, every)
    return None if rest or times < 1 or times & (times - 1) else times.bit_length()


@dataclass(frozen=True)
class HeldOut:
    """Held-out losses of the members of two parts, for one halving of their samples."""

    parts: Sequence[Positions]
    """Members of both parts, as positions in `View.answered`."""
    members: Positions
    """Members that sent losses, (n,)."""
    losses: Floats
    """Loss of each of them under the cluster's model, its own part's model and the other part's model, (n, 3)."""
    on_all: Floats
    """These losses on both halves, (n, 3)."""
    trained: float = 0.5
    """Share of the samples in the first half, which trained the models."""

    @property
    def gains(self) -> Floats:
        """Decrease of each member's loss by its part's model, (n,)."""
        return self.losses[:, 0] - self.losses[:, 1]

    def among(self, members: Positions) -> HeldOut:
        """Return the losses of these members, in this order."""
        row = {int(member): at for at, member in enumerate(self.members)}
        rows = [row[int(member)] for member in members]
        return replace(self, members=members, losses=self.losses[rows], on_all=self.on_all[rows])

    def expected_gain(self, samples: Floats) -> float:
        """Return the mean gain that models of all samples would have, by a quadratic approximation of the loss.

        Let the true models of two parts with shares a and b of the samples differ by d, so that a member's loss under
        the other part's model is higher by d^2 / 2, without regard to the noise of the models. The gain is a b d^2 / 2
        minus a term that is proportional to the variance of the models, and so to 1 / samples: models of all samples
        have the share `trained` of it.
        """
        share = samples / samples.sum()
        first = float(share[np.isin(self.members, self.parts[0])].sum())
        apart = float(share @ (self.losses[:, 2] - self.losses[:, 1]))
        without_noise = first * (1 - first) * max(0, apart)
        return self.trained * float(share @ self.gains) + (1 - self.trained) * without_noise

    def placed(self) -> Sequence[Positions]:
        """Return the parts with every member in the part whose model fits all its samples better.

        The test has used the second halves, so that they may now help to place the members.
        """
        moves = self.members[self.on_all[:, 2] < self.on_all[:, 1]]
        stay = [part[~np.isin(part, moves)] for part in self.parts]
        placed = [
            np.union1d(own, np.intersect1d(other, moves)) for own, other in zip(stay, self.parts[::-1], strict=True)
        ]
        return placed if min(map(len, placed)) >= MIN_PART_SIZE else self.parts

    def agreement(self, samples: Floats) -> Floats:
        """Return by how much more each member prefers its part's model than all members do on average, (n,)."""
        side = np.where(np.isin(self.members, self.parts[0]), 1.0, -1.0)
        preference = side * (self.losses[:, 2] - self.losses[:, 1])  # for the model of the first part
        found: Floats = side * (preference - samples @ preference / samples.sum())
        return found


def split_test(
    cluster: int, halvings: Sequence[HeldOut], sizes: Mapping[int, int], level: float, least: float = -math.inf
) -> SplitTest | None:
    """Return the test of a division of a cluster in two, from several halvings of its members' samples.

    Each halving has its own parts. The figures of a client are means over the halvings.

    Args:
        cluster: Number of the cluster.
        halvings: Held-out losses for each halving, at least one.
        sizes: Number of held-out samples of each member.
        level: Level of the test.
        least: Smallest gain that counts, in standard errors.

    Returns:
        The test with the parts of the halving of the largest gain; None if fewer than two members sent losses in all
        halvings.
    """
    members = reduce(np.intersect1d, [each.members for each in halvings])
    if len(members) < MIN_PART_SIZE:
        return None
    samples = np.array([sizes[int(member)] for member in members], dtype=np.float64)
    known = [each.among(members) for each in halvings]
    gained = _mean_test(np.mean([each.gains for each in known], axis=0), samples)
    expected = float(np.mean([each.expected_gain(samples) for each in known]))
    apart = _mean_test(np.mean([each.agreement(samples) for each in known], axis=0), samples)
    loss = float(samples @ np.mean([each.losses[:, 0] for each in known], axis=0) / samples.sum())
    best = max(known, key=lambda each: float(samples @ each.gains))
    tested = SplitTest(cluster, len(members), gained.mean, gained.error, loss, apart.p, level, best.placed())
    return replace(tested, expected=expected, least=least)


@dataclass(frozen=True)
class _MeanTest:
    """Test of whether the mean of values of clients is above zero."""

    mean: float
    error: float
    p: float


def _mean_test(values: Floats, samples: Floats) -> _MeanTest:
    """Return the test of values (n,), weighted by samples (n,): the better of a t-test and a test of random signs."""
    from scipy.stats import t as student  # slow to import

    share = samples / samples.sum()
    effective = 1 / float((share**2).sum())
    scale = float(abs(values).max()) or 1.0  # keeps the squares finite if training diverges
    mean = float(share @ (values / scale))
    spread = float(share**2 @ (values / scale - mean) ** 2)
    mean, error = scale * mean, scale * math.sqrt(spread * effective / max(effective - 1, 1e-9))
    by_t = float(student.sf(mean / error, effective - 1)) if error > 0 and effective > 1 else 1.0
    return _MeanTest(mean, error, min(1.0, 2 * min(by_t, sign_flip_p(share * (values / scale)))))


def sign_flip_p(gains: Floats) -> float:
    """Return an upper bound on the probability that gains of these sizes and random signs have at least this sum.

    This is Chernoff's bound, min over s >= 0 of exp(sum_i log cosh(s g_i) - s sum_i g_i). It needs no estimate of a
    variance, so it keeps its power if a few clients have many samples and most have few.
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
        log_cosh = scaled + np.log1p(np.exp(-2 * scaled)) - math.log(2)
        return float(log_cosh.sum() - math.exp(log_s) * total / size.max())

    best = minimize_scalar(exponent, bounds=(-12.0, 12.0), method="bounded")
    return float(min(1.0, math.exp(best.fun)))


class Trials(Protocol):
    """Runs tests with the clients; implemented in `methods/trials.py`."""

    @abstractmethod
    def split_tests(
        self, view: View, partings: Sequence[Parting], least: int, most: int, level: float
    ) -> Sequence[SplitTest]:
        """Return the test of every cluster that has enough members, with the best of several partings."""
        ...

    @abstractmethod
    def merge_tests(self, view: View) -> Sequence[tuple[tuple[int, int], SplitTest]]:
        """Return tests of pairs of clusters against one model for both; each cluster is in at most one pair."""
        ...

    @abstractmethod
    def body_test(self, view: View, level: float) -> SplitTest | None:
        """Return the test of one body per cluster against the shared body; None if too few clients answered."""
        ...


Parting = Literal["distance", "updates"]
"""Division into two parts: complete linkage of the method's distance, or leading eigenvectors of the update cosines."""


def bipartition_by(parting: Parting, distance: Distance, rows: Params) -> tuple[Positions, Positions]:
    """Return two parts of clients, from their rows on the first half of their samples."""
    if parting == "distance":
        return bipartition(distance.server_pairwise(rows))
    return spectral_parts(cosine_distances(rows["own_change"]))


@register("split-by-test")
@dataclass(frozen=True)
class SplitByTest(ProcedureStep):
    """Splits a cluster if its members differ and separate models lower the loss, by tests on held-out halves.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import SplitByTest, UpdateCosine
        >>> Tiered(procedure=(SplitByTest(every=5),), distance=UpdateCosine()).tiers().adapts
        True
    """

    partings: tuple[Parting, ...] = ("distance", "updates")
    """Ways to divide the members of a cluster; the one with the larger gain counts, and they share the level."""
    every: int = 5
    """Number of rounds from a change of the clusters to the first trial; the others follow after 2, 4, 8 times that."""
    warmup: int = 0
    """No trial before this round."""
    least: int = 2 * MIN_PART_SIZE
    """Smallest number of members of a cluster that is tested."""
    rate: float = ERROR_RATE
    """Largest probability that a run without groups splits a cluster."""
    max_clusters: int | None = None
    """Largest number of clusters; None for no limit."""
    hard: bool = True
    """Whether a split moves the members' weights to their parts; otherwise it halves them and training decides."""
    share: float = 1.0
    """If hard: share of a member's weight that its part receives. The rest stays divided equally among the parts, so
    that training can still correct the split."""
    most: int = MAX_COMPARED
    """Largest number of members that are compared with each other; the others join the nearer part."""
    splits: ClassVar[bool] = True
    needs_ages: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = {
        "change": "the update of the models it trained, and the update of its cluster's model by half of its samples",
        "losses": "the losses of the models of its cluster and of its part on the other half of its samples",
    }
    not_private: ClassVar[str] = (
        "tests on halves of the clients' samples send updates and losses without noise: set the method's threshold"
    )

    def server_propose(self, view: View) -> Regroup | None:
        trial = trial_number(view, self.every)
        if view.trials is None or view.round + 1 < self.warmup or trial is None:
            return None
        room = math.inf if self.max_clusters is None else self.max_clusters - view.K
        if room <= 0:
            return None
        level = self.rate * 6 / (math.pi * trial) ** 2 / (view.K * len(self.partings))
        tests = view.trials.split_tests(view, self.partings, max(self.least, 2 * MIN_PART_SIZE), self.most, level)
        view.statistics.extend(test.statistic for test in tests)
        accepted = sorted((test for test in tests if test.accepted), key=lambda test: test.p)
        chosen = sorted(accepted[: int(min(room, len(accepted)))], key=lambda test: test.cluster)
        return split(view, [Cut(test.cluster, test.parts, test.sentence) for test in chosen], self.hard, self.share)


@register("merge-by-test")
@dataclass(frozen=True)
class MergeByTest(ProcedureStep):
    """Merges two clusters if two models are not expected to be better than one, by held-out halves of their samples.

    Each test compares two clusters with similar models; a cluster is in at most one pair. New clusters wait for the
    next trial.

    Example:
        >>> from coterie.tiers import MergeByTest, Procedure, SplitByTest
        >>> len(Procedure((SplitByTest(), MergeByTest())).steps)
        2
    """

    every: int = 5
    """As in `SplitByTest`."""
    splits: ClassVar[bool] = True
    needs_ages: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = SplitByTest.reveals
    not_private: ClassVar[str] = SplitByTest.not_private

    def server_propose(self, view: View) -> Regroup | None:
        if view.trials is None or trial_number(view, self.every) is None or view.K < 2:
            return None
        tests = view.trials.merge_tests(view)
        view.statistics.extend(test.expectation for _, test in tests)
        found = {pair: test for pair, test in tests if not test.lowers_loss}
        if not found:
            return None
        new = [NewCluster((k,)) for k in range(view.K) if all(k not in pair for pair in found)]
        new += [NewCluster(pair, "average") for pair in found]
        new.sort(key=lambda cluster: cluster.parents[0])
        why = "; ".join(f"{one} and {two}: {test.expectation.text}" for (one, two), test in found.items())
        return Regroup(tuple(new), "merge", why)


@register("own-bodies-by-test")
@dataclass(frozen=True)
class OwnBodiesByTest(ProcedureStep):
    """Gives every cluster its own body if this lowers the loss on held-out halves of the clients' samples.

    Bodies are never shared again.

    Example:
        >>> from coterie.tiers import OwnBodiesByTest
        >>> OwnBodiesByTest(every=10).every
        10
    """

    every: int = 5
    """As in `SplitByTest`."""
    rate: float = ERROR_RATE
    """Largest probability that a run separates bodies that do not differ."""
    splits: ClassVar[bool] = True
    needs_ages: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = SplitByTest.reveals
    not_private: ClassVar[str] = SplitByTest.not_private

    def server_propose(self, view: View) -> Regroup | None:
        trial = trial_number(view, self.every)
        if view.trials is None or trial is None or view.K < 2 or not view.clusters.shared:
            return None
        test = view.trials.body_test(view, self.rate * 6 / (math.pi * trial) ** 2)
        if test is None:
            return None
        view.statistics.append(test.statistic)
        if not test.accepted:
            return None
        copies = tuple(NewCluster((k,)) for k in range(view.K))
        return Regroup(copies, "bodies", test.sentence, own_bodies=True)
