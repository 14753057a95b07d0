"""Federated moment descent: coarse models of k regressions from any start. Phase 1 of Su, Xu, Yang 2022.

paper           here
H, n_H          anchors (ceil(3 k ln k) unless given), drawn among clients with anchor_samples samples
T, T_1          iterations, subspace_rounds
theta_0         start_norm times a random direction (0: the origin)
Delta, epsilon  delta, epsilon; estimated from the anchors if they are not given
step 14         anchor_step=paper: alpha / (2 beta^2) times sigma, or half over the mean eigenvalue of the covariance;
                ours: line-search, and least-squares in the subspace of whitened features (the default)
alpha, beta     alpha, beta, for the paper's step
Y, A            moments: all pairs of a client's samples (ours), or two points of new clients (literally as in the
paper) remark 2        private_anchors: noise on every client's own two copies of the anchors' estimates

A few anchors move from a common theta_0 towards their own true models. Their direction lies in a subspace of dimension
k that all clients find together (`orthogonal_iteration`, algorithm 3 of the paper), in which the few samples of one
anchor are enough. The paper's step size suits features whose second moments are near a multiple of the identity; with
correlated or uncentred features it is far too long, and the anchors diverge. By default, the subspace is therefore
sought among features whitened by the pooled X^T X, and an anchor moves to the smallest squared error of its own samples
in it. Finally, anchors that arrive at the same place form a group. The client halves are the tasks `FeatureProducts`,
`MomentProduct` and `AnchorStep`. This method returns the coarse models; `two-phase` refines them, and
init=moment-descent uses them as the first models of any other method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.tasks.anchor_step import AnchorStep, StepRule
from coterie.client.tasks.feature_products import FeatureProducts
from coterie.client.tasks.held_out_choice import HeldOutChoice
from coterie.client.tasks.moment_product import MomentProduct
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.keys import Purpose, generator, key_for, keys_for_clients
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.learners.base import Learner
from coterie.learners.linear import Linear, as_linear
from coterie.methods.anchors import (
    Grouping,
    candidate_groupings,
    choose_anchors,
    default_anchors,
    fewest_as_good,
    group_anchors,
    miss_probability,
    recommended,
)
from coterie.methods.base import Method
from coterie.methods.exchanges import Cost
from coterie.methods.run import BEFORE, FirstModels, Initializer, Run
from coterie.methods.settings import WITHOUT_ROUNDS
from coterie.methods.small_groups import small_groups
from coterie.options import Auto, check_fields, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.composition import Tiers

SPECTRUM = 12
"""Number of eigenvalues that are computed to bound the number of groups."""
CLEAR_OF_BULK = 1.75
"""An eigenvalue that exceeds the bulk by this factor may belong to a group."""
MOST_ITERATIONS = 25
"""Largest number of iterations; enough for a start whose error is 30 times the final one."""
PLATEAU = 0.9
"""Without T, the anchors stop when their mean sigma is more than this share of the previous one."""
INDEPENDENT = 1e-10
"""Directions of the scaled features with a smaller share of the largest eigenvalue are left out."""
FIRST_ANCHORS = 24
"""Smallest initial number of anchors with clusters=auto: a group of a tenth of the clients then has none with
probability 8 %."""
MOST_ANCHORS = 64
"""Number of anchors from which no more are added with clusters=auto."""
COPIED_AT_ONCE = 500
"""Number of clients that receive their own perturbed copies in one exchange, which bounds the memory."""


@register("moment-descent")
@dataclass(frozen=True, kw_only=True)
class MomentDescent(Method, Initializer):
    """Coarse models of k linear regressions from any start, estimated with a few anchor clients.

    U <- leading directions of the clients' moments; theta_a <- least squares of anchor a in U; group the theta_a.

    As the `init` of another method it makes that method's first models, with that method's number of clusters.

    Example:
        >>> import coterie
        >>> from coterie.methods import MomentDescent
        >>> data = coterie.scenario("mixed-regression", clients=20, groups=2, dimension=3)
        >>> result = coterie.fit(data, MomentDescent(clusters=2))
        >>> len(result.models)
        2
    """

    clusters: int | Auto = option(2, "number of clusters (K); auto: the number that the anchors show", low=1)
    anchors: int | None = option(
        None,
        "number of anchor clients (n_H); by default 3 k ln k, rounded up, or, with clusters=auto, as many as are "
        "needed to miss no group with probability 95 %",
        low=1,
    )
    anchor_samples: int | None = option(
        None, "smallest number of samples of an anchor; by default the largest clients are anchors", low=2
    )
    iterations: int | None = option(
        None, "number of steps of the anchors (T); by default until their errors stop falling", low=1
    )
    subspace_rounds: int = option(10, "number of exchanges in which the clients find a subspace together (T_1)", low=1)
    moments: Literal["all-pairs", "two-points"] = option(
        "all-pairs",
        "products over all pairs of a client's samples, or over two points of clients that are new in every iteration "
        "(literally as in the paper; needs hundreds of clients per feature)",
    )
    count_groups: Literal["held-out", "merge-heights"] = option(
        "held-out",
        "clusters=auto: the smallest number of groups whose held-out loss on the other clients is close to the lowest, "
        "or the number at the largest jump of the anchors' merge heights (limited by the number of leading directions)",
    )
    private_anchors: float = option(
        0.0, "standard deviation of the noise on the anchors' estimates that clients receive (remark 2)", low=0
    )
    start_norm: float = option(0.0, "norm of the anchors' common initial model, in a random direction", low=0)
    delta: float | None = option(
        None, "smallest distance of two true models (Delta); by default estimated from the anchors", above=0
    )
    epsilon: float = option(0.1, "with delta: an anchor stops at this share of delta", above=0, high=1, needs="delta")
    anchor_step: StepRule = option(
        "least-squares",
        "length of an anchor's step: least-squares in the subspace of whitened features, line-search along the paper's "
        "direction, or the paper's length, which is safe only for second moments near a multiple of the identity",
    )
    alpha: float | None = option(
        None, "anchor_step=paper: smallest eigenvalue of the features' covariance; by default the mean one", above=0
    )
    beta: float | None = option(
        None, "anchor_step=paper: largest eigenvalue of the features' covariance; by default the mean one", above=0
    )

    summary: ClassVar[str] = "coarse models of linear regressions from any start, by a few anchor clients"
    citation: ClassVar[str] = (
        "Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression, 2022 (phase 1)"
    )
    trains: ClassVar[bool] = False
    learners: ClassVar[tuple[str, ...] | None] = ("linear",)
    no_twin: ClassVar[str] = "one model needs no anchors; the model found for K=1 is no average of the clients' models"
    finds_count: ClassVar[bool] = True
    models_trained: ClassVar[bool] = True
    reveals_rows: ClassVar[Mapping[str, str]] = {
        "anchor": "of the few anchors: its own model, estimated step by step",
        "sigma": "of the few anchors: the estimated error of that model",
    }
    refuses: ClassVar[frozenset[str]] = WITHOUT_ROUNDS | {"finetune"}

    def __post_init__(self) -> None:
        check_fields(self)
        if self.anchor_step != "paper" and (self.alpha is not None or self.beta is not None):
            raise ConfigError(
                f"alpha and beta set the length of the paper's step, but anchor_step={self.anchor_step} does not use "
                "them: set anchor_step=paper, or leave them out"
            )

    @property
    def initializer(self) -> Initializer:
        return self

    def check(self, learner: Learner) -> None:
        if not isinstance(learner, Linear):
            raise ConfigError(
                f"init=moment-descent supports learner linear only, but this run has {learner.spec}: use init=random"
            )

    def tiers(self) -> Tiers:
        averaging = Averaging().filled(Averaging(over="members", client_weight="uniform"))
        return Tiers(assignment=LowestLoss(), K=self.count, averaging=averaging)

    def first_models(self, run: Run) -> FirstModels:
        linear = as_linear(run.learner)
        coarse = self.descend(run.federation, linear.coefficients, run.tiers.K, run.seed, run.dtype, run.device)
        models = {name: p.to(run.dtype).to(run.device) for name, p in linear.named(coarse.centres).items()}
        if not all(bool(p.isfinite().all()) for p in models.values()):
            raise TrainingError("moment descent: the coarse models are not finite: standardise the columns")
        notes = tuple(f"moment descent: {note}" for note in (*coarse.grouping.notes, *_about_groups(run, coarse)))
        facts = {"moment_descent": coarse.facts(run.data.clients)}
        return FirstModels(models, coarse.grouping.k, found=facts, notes=notes)

    def descend(
        self, federation: Federation, width: int, k: int | None, seed: int, dtype: torch.dtype, device: torch.device
    ) -> Coarse:
        """Return the result of phase 1.

        Args:
            federation: The clients.
            width: Number of coefficients p, bias included.
            k: Number of groups; None: as many as the anchors show.
            seed: Seed of the run.
            dtype: Floating type of the models.
            device: Device of the models.

        Raises:
            TrainingError: if too few anchors answer, or the features are not finite.
            ConfigError: if the settings do not fit the clients.
        """
        server = _Server(federation, self, k, seed, Cost())
        theta_0 = _theta_0(width, self.start_norm, seed).to(dtype).to(device)
        if self.moments == "two-points":  # the anchors are not among the clients that find the subspace
            server.excluded = _anchors(federation, self, k, k, seed)
        most, basis = server.first_subspace(theta_0)
        anchors = _anchors(federation, self, k, most, seed)
        paths = server.find_paths(anchors, theta_0, basis)
        if len(paths.anchors) < (k or 1):
            answered = f"only {len(paths.anchors)} of {len(anchors)} anchors answered"
            raise TrainingError(f"{answered}, fewer than clusters={k}")
        grouping = server.grouped(paths, most)
        while (more := self._more_anchors(federation, anchors, paths, grouping, seed)) is not None:
            anchors = np.concatenate([anchors, more])
            paths = paths.joined(server.find_paths(more, theta_0, basis))
            grouping = server.grouped(paths, most)
        estimates = paths.path[-1]
        centres = torch.stack([estimates[torch.from_numpy(grouping.group == g)].mean(dim=0) for g in range(grouping.k)])
        step = self.step_size(server.covariance) if self.anchor_step == "paper" else None
        return Coarse(centres, paths, grouping, step, server.cost, self.anchor_step, federation.sizes)

    def _more_anchors(
        self, federation: Federation, anchors: Positions, paths: AnchorPaths, grouping: Grouping, seed: int
    ) -> Positions | None:
        """Return as many further anchors if their number is free and the smallest group may have been missed.

        At least half of the clients stay out, because their losses decide how many groups there are.
        """
        room = len(federation.clients) // 2 - len(anchors)
        enough = len(paths.anchors) >= recommended(grouping.k, float(grouping.shares.min()))
        if self.anchors is not None or not grouping.held_out or enough or room < 1 or len(anchors) >= MOST_ANCHORS:
            return None
        wanted = len(anchors) + min(len(anchors), room)
        drawn = choose_anchors(federation, None, 1, self.anchor_samples, seed, wanted)
        new = drawn[~np.isin(drawn, anchors)][: wanted - len(anchors)]
        return new if len(new) else None

    @property
    def most_iterations(self) -> int:
        """T, or its upper bound."""
        return self.iterations or (5 if self.moments == "two-points" else MOST_ITERATIONS)

    def step_size(self, covariance: float) -> float:
        """Return eta over sigma: alpha / (2 beta^2), or half over the mean eigenvalue of the covariance."""
        if self.alpha is None and self.beta is None:
            return 1 / (2 * covariance)
        alpha, beta = self.alpha or covariance, self.beta or covariance
        return alpha / (2 * beta**2)


def _about_groups(run: Run, coarse: Coarse) -> Iterator[str]:
    """Yield a warning about groups of one or two anchors if the anchors decide how many groups there are."""
    if run.tiers.K is None:
        more = f"set anchors={2 * len(coarse.anchors)} and see whether the group remains"
        yield from small_groups(coarse.grouping.group, "anchor", more)


@dataclass(frozen=True)
class AnchorPaths:
    """The anchors that answered, and the estimates that they passed through."""

    anchors: Positions
    """Positions of the anchors in the federation, (A,)."""
    path: Tensor
    """Estimates from theta_0 on, (T + 1, A, p)."""
    sigmas: Tensor
    """Estimates of |Sigma (theta* - theta)| of each anchor before each iteration, (T, A); NaN if it did not answer.

    With whitened features it is |Sigma^(1/2) (theta* - theta)|, the root mean square error of the predictions."""

    def joined(self, more: AnchorPaths) -> AnchorPaths:
        """Return these anchors and others from the same start; anchors that arrived earlier keep their estimates."""
        T = max(len(self.sigmas), len(more.sigmas))
        paths = [torch.cat([w.path, w.path[-1:].expand(T - len(w.sigmas), -1, -1)]) for w in (self, more)]
        sigmas = [
            torch.cat([w.sigmas, w.sigmas.new_full((T - len(w.sigmas), w.sigmas.shape[1]), torch.nan)])
            for w in (self, more)
        ]
        anchors = np.concatenate([self.anchors, more.anchors])
        return AnchorPaths(anchors, torch.cat(paths, dim=1), torch.cat(sigmas, dim=1))


@dataclass(frozen=True)
class Coarse:
    """The coarse models that moment descent found."""

    centres: Tensor
    """Mean estimate of each group of anchors, (k, p)."""
    paths: AnchorPaths
    grouping: Grouping
    step: float | None
    """Factor of the estimated error that gives the step length with anchor_step=paper; else None."""
    cost: Cost
    anchor_step: StepRule
    sizes: Positions
    """Numbers of samples of the clients, (m,)."""

    @property
    def anchors(self) -> Positions:
        """Positions of the anchors in the federation, (A,)."""
        return self.paths.anchors

    @property
    def path(self) -> Tensor:
        """Estimates of the anchors from theta_0 on, (T + 1, A, p)."""
        return self.paths.path

    @property
    def estimates(self) -> Tensor:
        """Final estimates of the anchors, (A, p)."""
        return self.paths.path[-1]

    @property
    def coverage(self) -> dict[str, Any]:
        """Return the probability that a group has no anchor, and the recommended number of anchors."""
        share = float(self.grouping.shares.min())
        return {
            "smallest_share": share,
            "chance_of_a_missed_group": miss_probability(self.grouping.shares, len(self.anchors)),
            "recommended_anchors": recommended(self.grouping.k, share) if share > 0 else None,
        }

    @property
    def conditions(self) -> dict[str, dict[str, float | bool | None]]:
        """Return the figures in the conditions of theorem 1, up to its unknown constants, and whether they hold.

        An anchor has at least k samples; all clients together have at least p; no group is missed with probability
        95 %; and the mean distance of the anchors from their groups' centres is below a quarter of the smallest
        distance of two centres.
        """
        k, p = self.centres.shape
        least, enough = int(self.sizes[self.anchors].min()), self.coverage["recommended_anchors"]
        own = self.centres[torch.from_numpy(self.grouping.group)]
        error = float((self.estimates - own).norm(dim=1).mean())
        separation = float(torch.pdist(self.centres.double()).min()) if k > 1 else None
        share = None if separation is None or separation == 0 else error / separation
        return {
            "samples_of_an_anchor": {"value": least, "needed": k, "holds": least >= k},
            "samples": {"value": int(self.sizes.sum()), "needed": p, "holds": int(self.sizes.sum()) >= p},
            "anchors": {
                "value": len(self.anchors),
                "needed": enough,
                "holds": enough is not None and len(self.anchors) >= enough,
            },
            "error_over_delta": {"value": share, "needed": 0.25, "holds": None if share is None else share < 0.25},
        }

    def facts(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return all choices and findings, ready for JSON; `names` are the ids of all clients."""
        return {
            "clusters": self.grouping.k,
            "anchors": {names[i]: int(g) for i, g in zip(self.anchors, self.grouping.group, strict=True)},
            "delta": 2 * self.grouping.threshold,
            "merge_heights": self.grouping.heights.tolist(),
            "anchor_step": self.anchor_step,
            "step": self.step,
            "held_out": {str(k): loss for k, loss in self.grouping.held_out.items()},
            "coverage": self.coverage,
            "conditions": self.conditions,
            "sigma": [None if bool(row.isnan().all()) else float(row.nanmean()) for row in self.paths.sigmas],
            "exchanges": self.cost.exchanges,
            "bytes_up": self.cost.bytes_up,
            "bytes_down": self.cost.bytes_down,
            "notes": list(self.grouping.notes),
        }


@dataclass
class _Server:
    """The server's side: asks clients and keeps track of the cost and of the scale of the features."""

    federation: Federation
    settings: MomentDescent
    k: int | None
    seed: int
    cost: Cost
    covariance: float = 1.0
    """Mean eigenvalue of the pooled covariance of the features."""
    whitening: Tensor | None = None
    """W with W^T Sigma W = I for the pooled second moment Sigma, (p, p); None: features are not whitened."""
    excluded: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Clients that are not asked for products."""

    def first_subspace(self, theta_0: Tensor) -> tuple[int, Tensor]:
        """Return the largest possible number of groups, and the basis (1, p, k) at the common start of all anchors."""
        p, k = len(theta_0), self.k
        width = min(p, SPECTRUM if k is None else k)
        random = generator(key_for(self.seed, Purpose.ANCHORS, 1)).standard_normal((p, width))
        basis = torch.linalg.qr(torch.from_numpy(random).to(theta_0)).Q[None]
        rounds = self.settings.subspace_rounds * (2 if k is None else 1)
        if self.settings.anchor_step == "least-squares":
            self.whitening = self._whitening().to(theta_0)
        else:
            self._product(theta_0[None], basis[:, :, :1], 0, False)  # measures the scale of the features
        basis = self.orthogonal_iteration(theta_0[None], basis, 0, rounds)
        return (k, basis) if k is not None else self._outstanding(theta_0, basis)

    def _whitening(self) -> Tensor:
        """Return W with W^T Sigma W = I, from the clients' pooled second moment Sigma (p, p)."""
        all_clients = np.arange(len(self.federation.clients))
        reply = self._ask(FeatureProducts(), Clusters({}, 0), all_clients, {})
        samples = float(reply.sums["samples"])
        moments = reply.sums["products"].double().cpu() / samples
        self._check_features(float(moments.diagonal().mean()))
        return whitening(moments, samples)

    def _outstanding(self, theta_0: Tensor, basis: Tensor) -> tuple[int, Tensor]:
        """Return the directions whose eigenvalues of Y at the start exceed the bulk; all of them if no bulk is seen."""
        if basis.shape[2] < SPECTRUM:
            return int(min(basis.shape[2], len(self.federation.clients) // 2)) or 1, basis
        seen = basis[0].T @ self._product(theta_0[None], basis, 0, False)[0]
        values, turn = torch.linalg.eigh((seen + seen.T) / 2)
        bulk = float(values.abs().sort().values[: SPECTRUM // 2].median())
        most = max(1, int((values > CLEAR_OF_BULK * bulk).sum()))
        return most, basis @ turn.flip(1)[:, :most]

    def orthogonal_iteration(self, theta: Tensor, basis: Tensor, t: int, rounds: int | None = None) -> Tensor:
        """Return the leading left singular vectors of each anchor's Y, (A, p, k), starting from `basis` (algorithm 3).

        With all pairs, Y is symmetric and one product suffices; otherwise Y^T and Y alternate. A basis of the whole
        space cannot be improved.
        """
        if basis.shape[1] == basis.shape[2]:
            return basis
        two_points = self.settings.moments == "two-points"
        for _ in range(rounds or self.settings.subspace_rounds):
            if two_points:
                basis = self._product(theta, basis, t, True)
            basis = torch.linalg.qr(self._product(theta, basis, t, False)).Q
        return basis

    def _product(self, theta: Tensor, basis: Tensor, t: int, turned: bool) -> Tensor:
        """Return Y basis (or Y^T basis) of each anchor, (A, p, k), averaged over the clients; W^T Y W if whitened."""
        task = MomentProduct(self.settings.moments, turned)
        basis = self.in_features(basis)
        clusters = Clusters({"anchor": theta, "basis": basis}, len(theta))
        asked = self._clients_of_iteration(t)
        if self.settings.private_anchors:
            clusters = Clusters({"basis": basis}, len(theta))
            parts = np.array_split(asked, -(-len(asked) // COPIED_AT_ONCE))
            replies = [self._ask(task, clusters, part, {"copies": self._copies(theta, part, t)}) for part in parts]
        else:
            replies = [self._ask(task, clusters, asked, {})]
        sums = merge(replies).sums
        if not sums or float(sums["mass"]) == 0:
            raise ConfigError(
                "moment descent needs pairs of samples of one client, but no client that answered has two samples: use "
                "init=random"
            )
        self._check_features(float(sums["energy"] / sums["samples"]) / theta.shape[1])
        product = sums["product"] / float(sums["mass"])
        return product if self.whitening is None else self.whitening.T @ product

    def in_features(self, basis: Tensor) -> Tensor:
        """Return a basis (A, p, k) of the whitened features in terms of the original features."""
        return basis if self.whitening is None else self.whitening @ basis

    def _check_features(self, covariance: float) -> None:
        self.covariance = covariance
        if not (math.isfinite(covariance) and covariance > 0):
            raise TrainingError(
                f"moment descent: the mean square of the features is {covariance:g}, so no step size can be chosen: "
                "standardise the columns"
            )

    def _clients_of_iteration(self, t: int) -> Positions:
        """Return all clients; with two points, a separate part of the clients for each iteration."""
        all_clients = np.arange(len(self.federation.clients))
        if self.settings.moments == "all-pairs":
            return all_clients
        others = np.setdiff1d(all_clients, self.excluded)
        keys = keys_for_clients(self.seed, Purpose.ANCHORS, 2, self.federation.hashes[others])
        return np.sort(others[np.argsort(keys, kind="stable")[t :: self.settings.most_iterations]])

    def _ask(self, task: MomentProduct | FeatureProducts, clusters: Clusters, asked: Positions, each: Params) -> Reply:
        reply = self.cost.count(self.federation.ask(task, Broadcast(BEFORE, clusters, each=each), asked))
        if not reply.clients:
            raise TrainingError(f"moment descent: none of the {len(asked)} clients that were asked has answered")
        return reply

    def _copies(self, theta: Tensor, asked: Positions, t: int) -> Tensor:
        """Return two independently perturbed copies of the estimates for each client, (m, 2, A, p)."""
        keys = keys_for_clients(self.seed, Purpose.PERTURBATION, t, self.federation.hashes[asked])
        noise = np.stack([generator(int(key)).standard_normal((2, *theta.shape)) for key in keys])
        return theta + self.settings.private_anchors * torch.from_numpy(noise).to(theta)

    def grouped(self, paths: AnchorPaths, most: int) -> Grouping:
        """Return the groups of the anchors: k, or as many as the other clients' loss or the merge heights show."""
        points, settings = paths.path[-1].double().cpu().numpy(), self.settings
        decided = self.k is not None or settings.delta is not None
        if not decided and settings.count_groups == "held-out" and (found := self._by_held_out_loss(paths)):
            return found
        return group_anchors(points, self.k, most, settings.delta)

    def _by_held_out_loss(self, paths: AnchorPaths) -> Grouping | None:
        """Return the candidate grouping with the fewest groups whose held-out loss is close to the lowest one."""
        points = paths.path[-1].double().cpu().numpy()
        others = np.setdiff1d(np.arange(len(self.federation.clients)), paths.anchors)
        if len(others) == 0 or not np.isfinite(points).all():
            return None
        tried = candidate_groupings(points, max(1, len(points) // 2))
        centres, members = _collections(paths.path[-1], tried)
        sent = Broadcast(BEFORE, Clusters({"centre": centres}, len(centres)), common={"members": members})
        sums = self.cost.count(self.federation.ask(HeldOutChoice(), sent, others)).sums
        if not sums or float(sums["clients"]) < 2:
            return None
        loss, products, count = sums["loss"].numpy(), sums["products"].numpy(), float(sums["clients"])
        if not (np.isfinite(loss).all() and np.isfinite(products).all()):
            return None
        group = tried[fewest_as_good(loss, products, count)]
        found = group_anchors(points, int(group.max()) + 1, len(points), None)
        return replace(
            found,
            notes=(),
            held_out={int(each.max()) + 1: float(mean) for each, mean in zip(tried, loss / count, strict=True)},
        )

    def find_paths(self, anchors: Positions, theta_0: Tensor, basis: Tensor) -> AnchorPaths:
        """Return the paths of the anchors from theta_0, without those that never answered.

        An anchor whose sigma is below the floor has arrived and is not asked again.
        """
        settings, count = self.settings, len(anchors)
        step, fresh = settings.step_size(self.covariance), _fresh_pairs(self.federation, anchors, settings)
        floor = torch.full((count,), settings.epsilon * (settings.delta or 0.0), dtype=torch.float64)
        path, bases = [theta_0.repeat(count, 1)], basis.repeat(count, 1, 1)
        sigmas: list[Tensor] = []
        walking = np.arange(count)
        while len(walking) and len(sigmas) < settings.most_iterations:
            t, theta = len(sigmas), path[-1].clone()
            if t > 0:
                bases[walking] = self.orthogonal_iteration(theta[walking], bases[walking], t)
            own = (theta[walking], self.in_features(bases[walking]), floor[walking])
            answered, theta_next, sigma = self.anchor_steps(anchors[walking], *own, step, t, fresh)
            rows = walking[answered]
            theta[rows] = theta_next
            lengths = torch.full((count,), torch.nan, dtype=torch.float64)
            lengths[rows] = sigma
            path.append(theta)
            sigmas.append(lengths)
            if settings.iterations is None and _level(sigmas):
                break
            walking = np.setdiff1d(walking, rows[(sigma <= floor[rows]).numpy()])
        answered = ~torch.stack(sigmas).isnan().all(dim=0).numpy()
        return AnchorPaths(anchors[answered], torch.stack(path)[:, answered], torch.stack(sigmas)[:, answered])

    def anchor_steps(
        self, anchors: Positions, theta: Tensor, bases: Tensor, floor: Tensor, step: float, t: int, fresh: int | None
    ) -> tuple[Positions, Tensor, Tensor]:
        """Let every anchor take one step; return those that answered, their estimates (H, p) and sigmas (H,)."""
        task = AnchorStep(fresh, t, self.settings.anchor_step)
        each = {"anchor": theta, "basis": bases, "floor": floor}
        broadcast = Broadcast(BEFORE, Clusters({}, 0), scalars={"step": step}, each=each)
        reply = self.cost.count(self.federation.ask(task, broadcast, anchors))
        place = {int(position): index for index, position in enumerate(anchors)}
        answered = np.array([place[int(i)] for i in positions_of(self.federation, reply.clients)], dtype=np.int64)
        if len(answered) == 0:
            return answered, theta[:0], torch.zeros(0, dtype=torch.float64)
        return answered, reply.rows["anchor"].to(theta), reply.rows["sigma"]


def _collections(estimates: Tensor, tried: Sequence[npt.NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """Return the distinct centres (N, p) of groupings of estimates (A, p), and the centres of each grouping, (G, N)."""
    places: dict[bytes, int] = {}
    centres: list[Tensor] = []
    owned: list[list[int]] = []
    for group in tried:
        own = []
        for g in range(int(group.max()) + 1):
            inside = group == g
            if (key := inside.tobytes()) not in places:
                places[key] = len(centres)
                centres.append(estimates[torch.from_numpy(inside)].mean(dim=0))
            own.append(places[key])
        owned.append(own)
    members = torch.zeros(len(tried), len(centres), dtype=torch.float64)
    for row, own in enumerate(owned):
        members[row, own] = 1
    return torch.stack(centres), members


def whitening(moments: Tensor, samples: float) -> Tensor:
    """Return W (p, p) with W^T Sigma W = I for second moments Sigma (p, p), estimated from `samples` samples.

    Columns are first scaled to a mean square of 1. p / samples is added to the diagonal, which matters if there are
    hardly more samples than coefficients. Zero columns, and directions in which features do not vary, become zeros.
    """
    p = len(moments)
    scale = moments.diagonal().sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0)
    values, vectors = torch.linalg.eigh(moments * inverse[:, None] * inverse)
    kept = values > INDEPENDENT * values[-1]
    roots = torch.where(kept, (values.clamp_min(0) + p / samples).rsqrt(), 0)
    found: Tensor = inverse[:, None] * (vectors * roots) @ vectors.T
    return found


def _anchors(federation: Federation, settings: MomentDescent, k: int | None, most: int | None, seed: int) -> Positions:
    """Return the positions of the anchors for k groups, or for up to `most`."""
    if most is None:
        raise ConfigError("moments=two-points cannot find the number of clusters: set clusters, or use all-pairs")
    if settings.anchors is not None and settings.anchors < (k or 1):
        raise ConfigError(
            f"anchors={settings.anchors} cannot show clusters={k}: set anchors to at least the number of clusters"
        )
    least = settings.anchor_samples
    if least is None and settings.moments == "two-points":
        least = 2 * settings.most_iterations
    count = None
    if k is None and settings.count_groups == "held-out" and settings.delta is None:
        count = max(default_anchors(most), min(FIRST_ANCHORS, len(federation.clients) // 2))
    return choose_anchors(federation, settings.anchors, most, least, seed, count)


def _theta_0(width: int, norm: float, seed: int) -> Tensor:
    direction = generator(key_for(seed, Purpose.ANCHORS, 3)).standard_normal(width)
    return torch.from_numpy(direction * (norm / np.linalg.norm(direction)))


def _fresh_pairs(federation: Federation, anchors: Positions, settings: MomentDescent) -> int | None:
    """Return l, the number of sample pairs of an anchor for each iteration; None if all are reused."""
    if settings.moments == "all-pairs":
        return None
    pairs = int(federation.sizes[anchors].min()) // (2 * settings.most_iterations)
    if pairs == 0:
        raise ConfigError(
            f"moments=two-points needs new pairs of an anchor's samples in each of {settings.most_iterations} "
            f"iterations, but an anchor has {federation.sizes[anchors].min()} samples: use all-pairs, or larger anchors"
        )
    return pairs


def _level(sigmas: Sequence[Tensor]) -> bool:
    """Return whether the anchors' sigmas, (A,) for each iteration, have stopped falling."""
    return len(sigmas) > 1 and float(sigmas[-1].nanmean()) > PLATEAU * float(sigmas[-2].nanmean())
