"""HCFL+: one body, a head for each cluster, and as many heads as the data calls for. (Guo, Tang, Lin 2025)

paper                     here
phi, theta_k              clusters.body, clusters.params (the last layer)
omega-tilde_i, omega_ij   a client's weights and those of its samples, kept by the client (eq. 4, 5); mu-tilde  mu
gamma_ijk                 responsibilities, once a round, in log space, under the backbone's objective
eq. 6, 7                  order=heads-first: all heads on features as they are, then the body; together: both at once
P_ic, P_i (eq. 11, 12)    class prototypes and mean feature, before training; their distance is eq. 9
rho                       split the cluster of the largest distance if that is rho above the mean there (alg. 2)
alg. 4                    the parts make the two heads; weights are halved (soft), or the parts written into them (hard)
lines 12-19               a cluster that nobody ranks first is removed
eq. 2                     the measure `objective` of every round, before training (fedem, fedrc)

The paper leaves the right rho open. By default held-out tests (`tiers/split_test.py`) take its place, and two more
steps that the paper does not have use the same test:
merge                     two clusters unite if one model is as good for both; merge=false: never
body                      each cluster gets a body of its own once that is surely better; body=shared, as in the paper:
                          never. With rho, neither step is taken

backbone  explains by     clients                                                   sets apart      mu    split
fedem     p(y|x)          train all heads by gamma                                  any shift       0     soft
fedrc     p(y|x)/P_k(y)   the same                                                  concepts only   0.4   soft
fesem     p(y|x)          train their cluster's head and join the one nearest to    any shift       none  hard
                          what came out; heads are averaged over members
fedsoft   p(y|x)          train and keep a head h_i of their own, pulled by         any shift       none  soft
                          (lambda/2) |h_i - sum_k omega-tilde_ik theta_k|^2;
                          theta_k = sum_i omega-tilde_ik N_i h_i / sum

Any shift is the paper's ASCP, concepts only its CSCP. fesem begins with the cluster of least loss, and so does a client
that was away while its cluster was split, among the parts. fedsoft finds weights as fedem does, by responsibilities of
the theta_k. Who has trained predicts by its own h_i; somebody new, who has none, by a mixture of the theta_k as in
fedem.
Equation 4 is read with index n on weights and likelihoods of the denominator; 6 and 7 are descents on the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.methods.backbones import NO_TWIN, BackboneMethod
from coterie.methods.base import Method
from coterie.methods.cfl import HeldOutSplit
from coterie.methods.fedem import ORDER_HELP, Order
from coterie.options import option
from coterie.tiers.assignment import AssignmentRule, EMMixture, NearestParameters, PersonalEM
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import Prototypes
from coterie.tiers.procedure import Procedure, ProcedureStep, RemoveUnclaimed, SplitByGap
from coterie.tiers.split_test import OwnBodiesByTest

MU = {"fedem": 0.0, "fedrc": 0.4}
"""mu-tilde of each backbone that has it, as in the paper's tables."""


@register("hcfl+")
@dataclass(frozen=True, kw_only=True)
class HCFLPlus(HeldOutSplit, BackboneMethod):
    """gamma_jk ~ w_jk L_k; heads, then body, by gamma; split by prototypes, remove what nobody ranks first."""

    rho: float | None = option(
        None,
        "split once the largest distance in a cluster is this far above the mean distance there (the paper: 0.05 to "
        "0.3); by default tests on held-out halves decide",
        above=0,
    )
    mu: float | None = option(
        None,
        "mu-tilde, how far samples have weights of their own; by default 0.4 (fedrc), 0 (fedem)",
        low=0,
        high=1,
    )
    principle: Literal["ascp", "cscp"] | None = option(
        None, "what sets clients apart: any shift (ascp) or concepts only (cscp); by default as the backbone does"
    )
    order: Order = option("heads-first", ORDER_HELP)
    split: Literal["soft", "hard"] | None = option(
        None,
        "whether a split halves the clients' weights (soft), or writes the parts into them (hard); by default hard, "
        "with rho soft",
    )
    body: Literal["auto", "shared"] = option(
        "auto",
        "whether all clusters share one body (shared, as in the paper), or each gets its own once a test on held-out "
        "halves finds that better (auto, where such tests decide about splits)",
    )
    merge: bool = option(True, "whether clusters that need no models of their own unite, by tests on held-out halves")
    remove: bool = option(True, "whether clusters that nobody ranks first are removed")
    grace: int = option(2, "number of rounds in which a cluster that comes from a split is not removed", low=0)
    warmup: int = option(0, "number of rounds before the first split", low=0)

    summary: ClassVar[str] = "one body and as many heads as the data calls for, split by what classes look like"
    learners: ClassVar[tuple[str, ...] | None] = ("mlp", "cnn", "module")
    no_twin: ClassVar[str] = NO_TWIN

    def for_learner(self, learner: Learner) -> Method:
        if learner.classes is None:
            raise ConfigError("hcfl+ compares the features of classes, but the targets are numbers: use fedem")
        return super().for_learner(learner)

    @property
    def placing(self) -> Placing:
        return "least-loss" if self.backbone == "fesem" else "mixture"

    def tiers(self) -> Tiers:
        by_default: Literal["ascp", "cscp"] = "cscp" if self.backbone == "fedrc" else "ascp"
        return self.grown(
            self._assignment(),
            Procedure(self._steps()),
            Prototypes(self.principle or by_default),
            ("body",),
            self.order,
        )

    def _steps(self) -> tuple[ProcedureStep, ...]:
        removal = (RemoveUnclaimed(self.grace),) if self.remove else ()
        if self.rho is not None:
            return (*removal, SplitByGap(self.rho, self._hard(), self.warmup, self.max_clusters))
        merge = (self.held_out_merge(),) if self.merge else ()
        bodies = (
            (OwnBodiesByTest(self.test_every, self.false_splits),)
            if self.body == "auto" and self.backbone != "fedsoft"
            else ()
        )
        return (*removal, *merge, self.held_out_split(self._hard(), self.warmup), *bodies)

    def _assignment(self) -> AssignmentRule:
        if self.backbone in MU:
            return EMMixture(MU[self.backbone] if self.mu is None else self.mu)
        if self.mu is not None:
            raise ConfigError(
                f"hcfl+: mu gives samples weights of their own, which backbone {self.backbone} does not have: leave mu "
                "out, or use backbone=fedem or fedrc"
            )
        return NearestParameters() if self.backbone == "fesem" else PersonalEM()

    def _hard(self) -> bool:
        """Whether the parts of a split are written into the clients' weights."""
        if self.backbone == "fesem" and self.split == "soft":
            raise ConfigError(
                "hcfl+: split=soft halves weights, but with backbone fesem a client has one cluster: leave split out"
            )
        by_default = "hard" if self.backbone == "fesem" or self.rho is None else "soft"
        return (self.split or by_default) == "hard"
