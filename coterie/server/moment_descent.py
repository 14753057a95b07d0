"""Federated moment descent (phase 1 of Su, Xu, Yang): from any start to coarse models of k regressions.

A few anchors walk from a common theta_0 towards their own true models. The direction is sought in a subspace of
dimension k that all clients find together (`orthogonal_iteration`, algorithm 3 of the paper), in which the few samples
of one anchor are enough. Then anchors that have come to the same place are one group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.client.tasks import AnchorStep, MomentProduct
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.keys import Purpose, generator, key_for, keys_for_clients
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.server.anchors import Grouping, choose_anchors, group_anchors
from coterie.server.before import BEFORE, Cost

SPECTRUM = 12
"""Eigenvalues looked at to see how many groups there may be at most."""
CLEAR_OF_BULK = 1.75
"""An eigenvalue this much above the bulk may belong to a group."""
MOST_ITERATIONS = 25
"""Enough for a start 30 times as far as the plateau is high."""
PLATEAU = 0.9
"""Without T: the anchors stop when their mean sigma is still more than this share of the one before."""
COPIED_AT_ONCE = 500
"""Clients that are sent perturbed copies of their own in one exchange, to bound the memory."""


@dataclass(frozen=True)
class MomentSettings:
    """The paper's letters, with defaults from the data where it leaves them open."""

    k: int | None = None
    """Groups; None: as many as the anchors show."""
    anchors: int | None = None
    """n_H; None: ceil(3 k ln k)."""
    anchor_samples: int | None = None
    """Least n_i of an anchor; None: among the largest clients."""
    iterations: int | None = None
    """T; None: until the anchors stop getting closer, or 5 where every iteration needs clients of its own."""
    subspace_rounds: int = 10
    """T_1, exchanges of an orthogonal iteration."""
    moments: Literal["all-pairs", "two-points"] = "all-pairs"
    """`all-pairs` of a client's samples, all clients in every iteration; or `two-points` of fresh clients (the paper's
    letter), with fresh samples of the anchors too."""
    private_anchors: float = 0.0
    """Standard deviation of the noise on every client's two copies of the anchors' estimates (remark 2)."""
    start_norm: float = 0.0
    """|theta_0|, in a random direction."""
    delta: float | None = None
    """Delta, the least distance of two true models; None: read off the anchors."""
    epsilon: float = 0.1
    """With Delta given an anchor stops once its sigma is below epsilon Delta."""
    alpha: float | None = None
    """Least eigenvalue of the features' covariance; the step is alpha / (2 beta^2). None: 1/2 over the mean one."""
    beta: float | None = None
    """Largest eigenvalue of the features' covariance."""

    @property
    def most_iterations(self) -> int:
        """T, or a bound for it."""
        return self.iterations or (5 if self.moments == "two-points" else MOST_ITERATIONS)

    def step(self, covariance: float) -> float:
        """eta over sigma: alpha / (2 beta^2), or half of what the mean eigenvalue of the covariance asks for."""
        if self.alpha is None and self.beta is None:
            return 1 / (2 * covariance)
        alpha, beta = self.alpha or covariance, self.beta or covariance
        return alpha / (2 * beta**2)


@dataclass(frozen=True)
class Coarse:
    """What moment descent found."""

    centres: Tensor
    """(k, p), the mean estimate of each group of anchors."""
    anchors: Positions
    """(A,) where the anchors stand in the federation."""
    estimates: Tensor
    """(A, p)."""
    sigmas: Tensor
    """(T, A), about |Sigma (theta* - theta)| of each anchor before each iteration; NaN where it was not heard."""
    path: Tensor
    """(T + 1, A, p), the estimates from theta_0 on."""
    grouping: Grouping
    step: float
    """What the estimated length of the way is multiplied by."""
    cost: Cost

    def told(self, names: tuple[str, ...]) -> dict[str, Any]:
        """What was chosen and found, JSON-ready; `names` are the ids of all clients."""
        return {
            "clusters": self.grouping.k,
            "anchors": {names[i]: int(g) for i, g in zip(self.anchors, self.grouping.group, strict=True)},
            "delta": 2 * self.grouping.threshold,
            "merge_heights": self.grouping.heights.tolist(),
            "step": self.step,
            "sigma": [None if bool(row.isnan().all()) else float(row.nanmean()) for row in self.sigmas],
            "exchanges": self.cost.exchanges,
            "bytes_up": self.cost.bytes_up,
            "bytes_down": self.cost.bytes_down,
            "notes": list(self.grouping.notes),
        }


def moment_descent(
    federation: Federation, width: int, settings: MomentSettings, seed: int, dtype: torch.dtype, device: torch.device
) -> Coarse:
    """Phase 1: `width` p is the number of coefficients, bias included."""
    server = _Server(federation, settings, seed, Cost())
    theta_0 = _theta_0(width, settings.start_norm, seed).to(dtype).to(device)
    if settings.moments == "two-points":  # the anchors are not among those who find the subspace
        server.spared = _anchors(federation, settings, settings.k, seed)
    most, basis = server.first_subspace(theta_0)
    anchors = _anchors(federation, settings, most, seed)
    path, sigmas = server.walk(anchors, theta_0, basis)
    heard = ~sigmas.isnan().all(dim=0).numpy()  # an anchor that never answered knows nothing
    if heard.sum() < (settings.k or 1):
        raise TrainingError(f"only {heard.sum()} of {len(anchors)} anchors answered, fewer than clusters={settings.k}")
    estimates = path[-1][heard]
    grouping = group_anchors(estimates.double().cpu().numpy(), settings.k, most, settings.delta)
    centres = torch.stack([estimates[torch.from_numpy(grouping.group == g)].mean(dim=0) for g in range(grouping.k)])
    step = settings.step(server.covariance)
    return Coarse(centres, anchors[heard], estimates, sigmas[:, heard], path[:, heard], grouping, step, server.cost)


@dataclass
class _Server:
    """Asks, and remembers what it has cost and what it has learned about the features."""

    federation: Federation
    settings: MomentSettings
    seed: int
    cost: Cost
    covariance: float = 1.0
    """Mean eigenvalue of the pooled covariance of the features."""
    spared: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Clients that are not asked for products."""

    def first_subspace(self, theta_0: Tensor) -> tuple[int, Tensor]:
        """How many groups there may be at most, and the basis (p, k) at the common start; one for all anchors."""
        p, k = len(theta_0), self.settings.k
        width = min(p, SPECTRUM if k is None else k)
        random = generator(key_for(self.seed, Purpose.ANCHORS, 1)).standard_normal((p, width))
        basis = torch.linalg.qr(torch.from_numpy(random).to(theta_0)).Q[None]
        rounds = self.settings.subspace_rounds * (2 if k is None else 1)
        self._product(theta_0[None], basis[:, :, :1], 0, False)  # how large the features are
        basis = self.orthogonal_iteration(theta_0[None], basis, 0, rounds)
        return (k, basis) if k is not None else self._outstanding(theta_0, basis)

    def _outstanding(self, theta_0: Tensor, basis: Tensor) -> tuple[int, Tensor]:
        """The directions whose eigenvalues of Y at the start stand out of the bulk; all where no bulk is seen."""
        if basis.shape[2] < SPECTRUM:
            return int(min(basis.shape[2], len(self.federation.clients) // 2)) or 1, basis
        seen = basis[0].T @ self._product(theta_0[None], basis, 0, False)[0]
        values, turn = torch.linalg.eigh((seen + seen.T) / 2)
        bulk = float(values.abs().sort().values[: SPECTRUM // 2].median())
        most = max(1, int((values > CLEAR_OF_BULK * bulk).sum()))
        return most, basis @ turn.flip(1)[:, :most]

    def orthogonal_iteration(self, theta: Tensor, basis: Tensor, t: int, rounds: int | None = None) -> Tensor:
        """Algorithm 3: the leading left singular vectors of each anchor's Y, (A, p, k), from `basis` on.

        With all pairs Y is symmetric and one product serves; else Y^T and Y take turns. A basis of the whole space
        cannot get any better.
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
        """Y basis (or Y^T basis) for each anchor, (A, p, k): a weighted mean over the clients."""
        task = MomentProduct(self.settings.moments, turned)
        clusters = Clusters({"anchor": theta, "basis": basis}, len(theta))
        asked = self._asked(t)
        if self.settings.private_anchors:
            clusters = Clusters({"basis": basis}, len(theta))
            parts = np.array_split(asked, -(-len(asked) // COPIED_AT_ONCE))
            replies = [self._ask(task, clusters, part, {"copies": self._copies(theta, part, t)}) for part in parts]
        else:
            replies = [self._ask(task, clusters, asked, {})]
        sums = merge(replies).sums
        if not sums or float(sums["mass"]) == 0:
            raise ConfigError(
                "moment descent learns from pairs of samples of one client, but no client that answered has two: "
                "use start=random"
            )
        self.covariance = float(sums["energy"] / sums["samples"]) / theta.shape[1]
        if not (math.isfinite(self.covariance) and self.covariance > 0):
            raise TrainingError(
                f"moment descent: the mean square of the features is {self.covariance:g}, so that no step size can be "
                "chosen: standardise the columns"
            )
        return sums["product"] / float(sums["mass"])

    def _asked(self, t: int) -> Positions:
        """Everybody; with two points a part of its own of the clients for each iteration."""
        everybody = np.arange(len(self.federation.clients))
        if self.settings.moments == "all-pairs":
            return everybody
        others = np.setdiff1d(everybody, self.spared)
        lots = keys_for_clients(self.seed, Purpose.ANCHORS, 2, self.federation.hashes[others])
        return np.sort(others[np.argsort(lots, kind="stable")[t :: self.settings.most_iterations]])

    def _ask(self, task: MomentProduct, clusters: Clusters, asked: Positions, each: Params) -> Reply:
        reply = self.cost.count(self.federation.ask(task, Broadcast(BEFORE, clusters, each=each), asked))
        if not reply.clients:
            raise TrainingError(f"moment descent: none of the {len(asked)} clients asked has answered")
        return reply

    def _copies(self, theta: Tensor, asked: Positions, t: int) -> Tensor:
        """Two independently perturbed copies of the estimates for each client, (m, 2, A, p); the same all along t."""
        keys = keys_for_clients(self.seed, Purpose.PERTURBATION, t, self.federation.hashes[asked])
        noise = np.stack([generator(int(key)).standard_normal((2, *theta.shape)) for key in keys])
        return theta + self.settings.private_anchors * torch.from_numpy(noise).to(theta)

    def walk(self, anchors: Positions, theta_0: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        """The anchors' way from theta_0, (T + 1, A, p), and their sigmas (T, A), NaN where one was not heard.

        An anchor below the floor has arrived and is not asked again.
        """
        settings, count = self.settings, len(anchors)
        step, fresh = settings.step(self.covariance), _fresh_pairs(self.federation, anchors, settings)
        floor = torch.full((count,), settings.epsilon * (settings.delta or 0.0), dtype=torch.float64)
        path, bases = [theta_0.repeat(count, 1)], basis.repeat(count, 1, 1)
        sigmas: list[Tensor] = []
        walking = np.arange(count)
        while len(walking) and len(sigmas) < settings.most_iterations:
            t, theta = len(sigmas), path[-1].clone()
            if t > 0:
                bases[walking] = self.orthogonal_iteration(theta[walking], bases[walking], t)
            own = (theta[walking], bases[walking], floor[walking])
            heard, theta_next, sigma = self.anchor_steps(anchors[walking], *own, step, t, fresh)
            rows = walking[heard]
            theta[rows] = theta_next
            lengths = torch.full((count,), torch.nan, dtype=torch.float64)
            lengths[rows] = sigma
            path.append(theta)
            sigmas.append(lengths)
            if settings.iterations is None and _level(sigmas):
                break
            walking = np.setdiff1d(walking, rows[(sigma <= floor[rows]).numpy()])
        return torch.stack(path), torch.stack(sigmas)

    def anchor_steps(
        self, anchors: Positions, theta: Tensor, bases: Tensor, floor: Tensor, step: float, t: int, fresh: int | None
    ) -> tuple[Positions, Tensor, Tensor]:
        """Every anchor moves by itself: which of them answered, their estimates (H, p) and sigmas (H,)."""
        task = AnchorStep(fresh, t)
        each = {"anchor": theta, "basis": bases, "floor": floor}
        broadcast = Broadcast(BEFORE, Clusters({}, 0), scalars={"step": step}, each=each)
        reply = self.cost.count(self.federation.ask(task, broadcast, anchors))
        place = {int(position): index for index, position in enumerate(anchors)}
        heard = np.array([place[int(i)] for i in positions_of(self.federation, reply.clients)], dtype=np.int64)
        if len(heard) == 0:
            return heard, theta[:0], torch.zeros(0, dtype=torch.float64)
        return heard, reply.rows["anchor"].to(theta), reply.rows["sigma"]


def _anchors(federation: Federation, settings: MomentSettings, k: int | None, seed: int) -> Positions:
    """Who the anchors are when there are k groups, or up to k."""
    if k is None:
        raise ConfigError("moments=two-points cannot tell the number of clusters: set clusters, or use all-pairs")
    if settings.anchors is not None and settings.anchors < (settings.k or 1):
        raise ConfigError(
            f"anchors={settings.anchors} cannot show clusters={settings.k}: ask for more anchors than clusters"
        )
    least = settings.anchor_samples
    if least is None and settings.moments == "two-points":
        least = 2 * settings.most_iterations
    return choose_anchors(federation, settings.anchors, k, least, seed)


def _theta_0(width: int, norm: float, seed: int) -> Tensor:
    direction = generator(key_for(seed, Purpose.ANCHORS, 3)).standard_normal(width)
    return torch.from_numpy(direction * (norm / np.linalg.norm(direction)))


def _fresh_pairs(federation: Federation, anchors: Positions, settings: MomentSettings) -> int | None:
    """l: pairs of samples an anchor has for each iteration; None where all are used again and again."""
    if settings.moments == "all-pairs":
        return None
    pairs = int(federation.sizes[anchors].min()) // (2 * settings.most_iterations)
    if pairs == 0:
        raise ConfigError(
            f"moments=two-points takes fresh pairs of an anchor's samples in each of {settings.most_iterations} "
            f"iterations, but an anchor has {federation.sizes[anchors].min()}: use all-pairs, or larger anchors"
        )
    return pairs


def _level(sigmas: Sequence[Tensor]) -> bool:
    """Whether the anchors' sigmas, (A,) for each iteration, have stopped falling."""
    return len(sigmas) > 1 and float(sigmas[-1].nanmean()) > PLATEAU * float(sigmas[-2].nanmean())
