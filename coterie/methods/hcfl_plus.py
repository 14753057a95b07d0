"""HCFL+: one body, a head for each cluster, and a number of heads that adapts to the data. (Guo, Tang, Lin 2025)

paper                     here
phi, theta_k              clusters.body, clusters.params (the last layer)
omega-tilde_i, omega_ij   a client's weights and those of its samples, kept by the client (eq. 4, 5); mu-tilde  mu
gamma_ijk                 responsibilities, once a round, in log space, under the backbone's objective
eq. 6, 7                  order=heads-first: all heads with fixed features, then the body; together: both at once
P_ic, P_i (eq. 11, 12)    class prototypes and mean feature, before training; their distance is eq. 9
rho                       split the cluster of the largest distance if it exceeds the mean there by rho (alg. 2)
alg. 4                    the parts make the two heads; weights are halved (soft), or set to zeros and ones (hard)
lines 12-19               a cluster to which no client gives its largest weight is removed
eq. 2                     the measure `objective` of every round, before training (fedem, fedrc)

The paper leaves the choice of rho open. By default, tests on held-out halves replace it (`tiers/split_test.py`), and
two more steps that are not in the paper use the same test:
merge                     two clusters merge if one model is as good for both; merge=false: never
body                      each cluster gets its own body once this is significantly better; body=shared, as in the
                          paper: never; body=own: from the start
With rho, neither step is used. After a split by tests, a client's weights lean towards its part (split=leaning), so
that the next responsibilities can move a client that was placed wrongly. A linear model has no body: clusters have
whole models, and the features of prototypes are the samples. The default order is together: it takes one pass over the
samples instead of two, and with a single cluster HCFL+ is then FedAvg.

backbone  likelihood      clients                                                   separated by    mu    split
fedem     p(y|x)          train all heads, weighted by gamma                        any shift       0     soft
fedrc     p(y|x)/P_k(y)   the same                                                  concepts only   0.4   soft
fesem     p(y|x)          train their cluster's head and join the cluster whose     any shift       none  hard
                          head is nearest to the result; averaged over members
fedsoft   p(y|x)          train and keep a personal head h_i, pulled by             any shift       none  soft
                          (lambda/2) |h_i - sum_k omega-tilde_ik theta_k|^2;
                          theta_k = sum_i omega-tilde_ik N_i h_i / sum

Any shift is the paper's ASCP, concepts only is its CSCP. With fesem, clients start in the cluster of lowest loss; so do
clients that were absent while their cluster was split, among its parts. With fedsoft, weights are found as in fedem, by
responsibilities of the theta_k. A client that trained predicts with its own h_i; a new client, which has none, with a
mixture of the theta_k as in fedem.
Equation 4 is read with index n on weights and likelihoods of the denominator; 6 and 7 are descents on the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.core.dataset import Profile
from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.minimum import GeneralisedLinear
from coterie.methods.backbones import NO_TWIN, WEIGHT_AFTER_SPLIT, BackboneMethod
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
"""Default mu-tilde of each backbone that uses it, as in the paper's tables."""
FEW_FEATURES = 50
"""Largest number of features for which the model is linear if the user chooses none."""


@register("hcfl+")
@dataclass(frozen=True, kw_only=True)
class HCFLPlus(HeldOutSplit, BackboneMethod):
    """One shared body and a head for each cluster; clusters are split by class prototypes, and unused ones are removed.

    gamma_jk ~ w_jk L_k; heads, then body, by gamma; split by prototypes; remove clusters that are never ranked first.

    Example:
        >>> import coterie
        >>> from coterie.methods import HCFLPlus
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, HCFLPlus(max_clusters=4), learner="mlp:hidden=8", rounds=1)
        >>> len(result.models)
        1
    """

    rho: float | None = option(
        None,
        "split a cluster if its largest distance exceeds the mean distance inside by this much (the paper: 0.05 to "
        "0.3); by default tests on held-out halves decide",
        above=0,
    )
    mu: float | None = option(
        None,
        "mu-tilde, how much samples have their own weights: 0, none; 1, only; by default 0.4 (fedrc), 0 (fedem)",
        low=0,
        high=1,
    )
    principle: Literal["ascp", "cscp"] | None = option(
        None, "what separates clients: any shift (ascp) or concepts only (cscp); by default that of the backbone"
    )
    order: Order = option("together", ORDER_HELP)
    split: Literal["soft", "hard", "leaning"] | None = option(
        None,
        "how a split changes the clients' weights: halves them (soft), sets them to zeros and ones (hard), or gives "
        "95 % to the client's part (leaning); by default leaning, but soft with rho and hard with backbone=fesem",
    )
    body: Literal["auto", "shared", "own"] = option(
        "auto",
        "whether all clusters share one body (shared, as in the paper), each has its own (own), or each gets its own "
        "once a test on held-out halves finds this better (auto, if such tests decide about splits); a linear model "
        "has no body, and each cluster has a whole model",
    )
    merge: bool = option(True, "whether clusters that do not need separate models merge, by tests on held-out halves")
    remove: bool = option(True, "whether clusters to which no client gives its largest weight are removed")
    grace: int = option(2, "number of rounds in which a cluster that comes from a split is not removed", low=0)
    warmup: int = option(0, "number of rounds before the first split", low=0)

    summary: ClassVar[str] = "one body and as many heads as the data needs, split by class prototypes"
    learners: ClassVar[tuple[str, ...] | None] = ("logistic", "mlp", "cnn", "module")
    no_twin: ClassVar[str] = NO_TWIN

    @classmethod
    def usual_learner(cls, profile: Profile) -> str:
        """Return logistic for a few features, which a hidden layer hardly improves, and mlp for more, as of images."""
        few = profile.classes is not None and math.prod(profile.features) <= FEW_FEATURES
        return "logistic" if few else "mlp"

    def for_learner(self, learner: Learner) -> Method:
        if learner.classes is None:
            raise ConfigError("hcfl+ compares the features of classes, but this is a regression: use fedem")
        if isinstance(learner, GeneralisedLinear) and self.body == "auto":
            return replace(self, body="own").for_learner(learner)
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
            () if self.body == "own" else ("body",),
            self.order,
        )

    def _steps(self) -> tuple[ProcedureStep, ...]:
        removal = (RemoveUnclaimed(self.grace),) if self.remove else ()
        if self.rho is not None:
            return (*removal, SplitByGap(self.rho, self._split() != "soft", self.warmup, self.max_clusters))
        merge = (self.held_out_merge(),) if self.merge else ()
        bodies = (
            (OwnBodiesByTest(self.test_every, self.false_splits),)
            if self.body == "auto" and self.backbone != "fedsoft"
            else ()
        )
        return (*removal, *merge, self._held_out_split(), *bodies)

    def _assignment(self) -> AssignmentRule:
        if self.backbone in MU:
            return EMMixture(MU[self.backbone] if self.mu is None else self.mu)
        if self.mu is not None:
            raise ConfigError(
                f"hcfl+: mu gives samples their own weights, which backbone {self.backbone} does not have: leave mu "
                "out, or use backbone=fedem or fedrc"
            )
        return NearestParameters() if self.backbone == "fesem" else PersonalEM()

    def _held_out_split(self) -> ProcedureStep:
        found = self._split()
        return self.held_out_split(
            found != "soft", self.warmup, share=WEIGHT_AFTER_SPLIT if found == "leaning" else 1.0
        )

    def _split(self) -> Literal["soft", "hard", "leaning"]:
        """Return how a split changes the clients' weights."""
        if self.backbone == "fesem" and self.split in ("soft", "leaning"):
            raise ConfigError(
                f"hcfl+: split={self.split} divides weights, but with backbone fesem every client has one cluster: "
                "leave split out"
            )
        if self.rho is not None and self.split == "leaning":
            raise ConfigError(
                "hcfl+: split=leaning applies to splits by tests only: use soft or hard, or leave rho out"
            )
        if self.split is not None:
            return self.split
        if self.backbone == "fesem":
            return "hard"
        return "leaning" if self.rho is None else "soft"
