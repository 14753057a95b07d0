"""CFL: all clients train one model; when it no longer helps them all, clusters are split in two. (Sattler et al. 2020)

paper                      here
Delta theta_i              row `change`: client i's update of its cluster's model
eps_1, eps_2               eps1, eps2: |mean of Delta theta_i| < eps_1 and max |Delta theta_i| > eps_2, L2 norms
alpha_ij                   cosine of two updates; complete linkage makes the largest one between the two parts small
gamma_max                  gate: split only if gamma_max < sqrt((1 - alpha_cross) / 2)

The paper's thresholds are lengths that depend on the model, the step size and the data. By default none is needed: a
cluster is split if tests on held-out halves of its members' samples show that they differ (`tiers/split_test.py`).
With eps1 or eps2 the paper's rule decides.

After a split, the model of each part is the mean of its members' updated models. Clusters are never merged or removed.

A new client joins the cluster whose model has the lowest loss on its samples (newcomers=loss). The paper keeps the tree
of splits (newcomers=tree), with the model that was split and the mean update of each part. A newcomer trains this model
on its own samples, descends to the part whose mean update has the larger cosine with its own, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.methods.base import TieredMethod
from coterie.options import option
from coterie.tiers.assignment import Assigned
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.procedure import Procedure, ProcedureStep, SplitByNorm
from coterie.tiers.split_test import ERROR_RATE, MergeByTest, Parting, SplitByTest

PAPER_EPS1, PAPER_EPS2, PAPER_WARMUP = 0.4, 1.6, 20
"""Thresholds of the authors' code, used if only some of them are given."""


@dataclass(frozen=True, kw_only=True)
class HeldOutSplit:
    """Settings of splits that are decided by tests on held-out halves of the clients' samples."""

    false_splits: float = option(
        ERROR_RATE,
        "largest probability that a run without groups splits a cluster, if tests on held-out halves of the clients' "
        "samples decide about splits",
        above=0,
        high=0.5,
    )
    test_every: int = option(
        5,
        "number of rounds from the start, or from a change of the clusters, to the next tests about splits; without a "
        "change, tests follow after 2, 4, 8 ... times as many rounds",
        low=1,
    )
    max_clusters: int | None = option(None, "largest number of clusters", low=1)

    def held_out_split(
        self,
        hard: bool = True,
        warmup: int = 0,
        partings: tuple[Parting, ...] = ("distance", "updates"),
        share: float = 1.0,
    ) -> SplitByTest:
        """Return the step of the procedure."""
        return SplitByTest(
            partings,
            every=self.test_every,
            warmup=warmup,
            rate=self.false_splits,
            max_clusters=self.max_clusters,
            hard=hard,
            share=share,
        )

    def held_out_merge(self) -> MergeByTest:
        """Return the step that merges clusters which do not need separate models."""
        return MergeByTest(self.test_every)


@dataclass(frozen=True, kw_only=True)
class NormSplit(HeldOutSplit):
    """Settings of splits by the norms of updates, or by tests if no threshold is given."""

    eps1: float | None = option(
        None,
        "a cluster is split only if the norm of its mean update is below this (eps_1); by default tests decide "
        "instead; 0.4 if only eps2 is given",
        above=0,
    )
    eps2: float | None = option(
        None,
        "a cluster is split only if the norm of some member's update is above this (eps_2); by default tests decide "
        "instead; 1.6 if only eps1 is given",
        low=0,
    )
    thresholds: Literal["absolute", "relative"] = option(
        "absolute", "whether eps1 is a norm (absolute), or a share of the largest norm of a member's update (relative)"
    )
    warmup: int | None = option(
        None, "number of rounds before the first split; by default 20 with eps1 and eps2, 0 with tests", low=0
    )
    least: int = option(3, "with eps1 and eps2: smallest number of members of a cluster that may be split", low=2)
    gate: float | None = option(
        None,
        "gamma_max, with eps1 and eps2: split only if the updates of the parts differ by this much; by default always",
        low=0,
    )

    @property
    def weight_after_split(self) -> float:
        """Share of a member's weight that its part of a split receives; 1 if every client has one cluster."""
        return 1.0

    def norm_split(self) -> ProcedureStep:
        """Return the step of the procedure.

        Raises:
            ConfigError: if a setting of splits by norms is given without its thresholds.
        """
        if self.eps1 is None and self.eps2 is None:
            if self.gate is not None or self.thresholds == "relative":
                given = "gate" if self.gate is not None else "thresholds=relative"
                raise ConfigError(
                    f"{given} applies to splits by norms only: set eps1 and eps2 too, or leave {given} out"
                )
            return self.held_out_split(warmup=self.warmup or 0, share=self.weight_after_split)
        return SplitByNorm(
            PAPER_EPS1 if self.eps1 is None else self.eps1,
            PAPER_EPS2 if self.eps2 is None else self.eps2,
            self.thresholds == "relative",
            PAPER_WARMUP if self.warmup is None else self.warmup,
            self.least,
            self.gate,
            self.max_clusters,
        )


@register("cfl")
@dataclass(frozen=True, kw_only=True)
class CFL(NormSplit, TieredMethod):
    """All clients train one model; a cluster is split in two when its members' updates disagree.

    theta_c <- mean over members; split c if |mean of Delta theta_i| < eps_1 and max |Delta theta_i| > eps_2.

    Example:
        >>> import coterie
        >>> from coterie.methods import CFL
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, CFL(max_clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        1
    """

    newcomers: Literal["loss", "tree"] = option(
        "loss", "how a new client finds its cluster: by the lowest loss, or down the tree of splits by its own updates"
    )

    summary: ClassVar[str] = "one model for all, split in two when it no longer helps all members of a cluster"
    citation: ClassVar[str] = (
        "Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization "
        "under Privacy Constraints, 2020"
    )
    twin: ClassVar[str | None] = "fedavg"
    private_options: ClassVar[Mapping[str, Any]] = {"eps1": PAPER_EPS1, "eps2": PAPER_EPS2}
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared", "restarts", "clusters"})

    @property
    def placing(self) -> Placing:
        return "tree" if self.newcomers == "tree" else "least-loss"

    def tiers(self) -> Tiers:
        return self.compose(
            assignment=Assigned(),
            procedure=Procedure((self.norm_split(),)),
            distance=UpdateCosine(),
            K=1,
            tree=self.newcomers == "tree",
        )
