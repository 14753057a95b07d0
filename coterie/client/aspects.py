"""Aspects in which clients can differ: the designs and residuals that a diagnosis tests.

Every aspect is a model with design D (n, k), residuals r (n, c) of mean zero if clients do not differ, and the
derivative V of the residuals by the linear predictor, (n, c, c). The score of a client is S = sum_j D_j r_j^T. Its
square minus its diagonal part, U = |S|^2 - sum_j |D_j|^2 |r_j|^2, is a sum over pairs of different samples, so that its
mean is zero for clients of any size, also with unequal variances.

The distribution of U without differences comes from samples with random signs: signs e_j turn r_j into e_j r_j, the
pooled model is fitted again in one step, and U is computed again. Only sums over clients are needed for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.keys import Purpose, generator, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.shard import Shard

ASPECTS = ("model", "relation", "features", "labels", "conditional")
"""p(y|x) as one model; its slopes, with an intercept for each client; p(x); p(y); p(x|y)."""
DOUBTS = (0.0, 0.01, 0.1, 1.0)
"""Variances between clients, relative to the noise, for which the weights 1 / (1 + n_i t) of the tests are best."""
CLIP = 4.0
"""Standard deviations at which features are clipped before their squares are compared."""
SIGNS_AT_ONCE = 1_000_000
"""Number of random signs, or of scores with signs, that are held at once, so that they fit into the cache."""
SCORES = 50
"""Assumed number of scores of a client, from which the number of clients in a block follows."""
INTERCEPT_STEPS = 12
"""Largest number of Newton steps for the intercept of a client."""
INTERCEPT_SETTLED = 1e-6
"""Length of a Newton step below which an intercept is fitted; the error is about its square."""
INTERCEPT_RIDGE = 1e-3
"""Weight of the squared intercept of a client, which keeps that of a client with one class finite."""
MOST_TOGETHER = 12
"""Largest number of samples whose labels are compared with one another in the test of the slopes of two classes."""


@dataclass(frozen=True)
class Samples:
    """Samples of a block in the coordinates of the diagnosis; zeros where padded."""

    block: Block
    z: Tensor
    """Principal components of the features, mean 0 and variance 1 over all clients, (B, n, q)."""
    valid: Tensor
    """1 for real samples, 0 for padding, (B, n)."""
    counts: Tensor
    """n_i, (B,)."""

    @property
    def ones_and_z(self) -> Tensor:
        """Design of the pooled model, (B, n, 1 + q)."""
        return torch.cat([self.valid[..., None], self.z], dim=2)


def samples_of(block: Block, broadcast: Broadcast) -> Samples:
    """Return the samples of a block in the broadcast coordinates: `center` (d,) and `basis` (d, q)."""
    common = broadcast.common
    valid = torch.ones_like(block.y, dtype=torch.float64) if block.mask is None else block.mask.double()
    z = (block.x.double().flatten(2) - common["center"]) @ common["basis"]
    return Samples(block, z * valid[..., None], valid, block.sizes.double())


def on_cpu(shard: Shard) -> Shard:
    """Return the samples in main memory and in float64, like the arrays of the server."""
    return shard.to(torch.float64, torch.device("cpu"))


def sample_blocks(shard: Shard, broadcast: Broadcast) -> Iterator[Samples]:
    """Yield all clients of a shard in blocks."""
    for block in cut(on_cpu(shard), shard.hashes, 0):
        yield samples_of(block, broadcast)


# ---- residuals -----------------------------------------------------------------------------------------------


def residuals(samples: Samples, broadcast: Broadcast, predictor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return residuals (B, n, c) at a linear predictor (B, n, c), and their derivative (B, n, c, c); None: identity.

    A regression has c = 1 and targets in units of `y_scale`, the standard deviation of its residuals. C classes have
    logits u A, where the rows of A, the `contrast` (c, C), make the residuals uncorrelated with variance 1 if the
    classes do not depend on the features.
    """
    contrast = broadcast.common.get("contrast")
    valid = samples.valid[..., None]
    if contrast is None:
        y = (samples.block.y.double() - broadcast.scalars["y_center"]) / broadcast.scalars["y_scale"]
        return (y[..., None] - predictor) * valid, None
    p = _probabilities(broadcast, predictor)
    mean = p @ contrast.T
    observed = contrast.T[samples.block.y]
    spread = torch.einsum("ac,bnc,dc->bnad", contrast, p, contrast) - mean[..., :, None] * mean[..., None, :]
    return (observed - mean) * valid, spread * valid[..., None]


def _probabilities(broadcast: Broadcast, predictor: Tensor) -> Tensor:
    """Return the probability of every class at a linear predictor (B, n, c), (B, n, C)."""
    logits = predictor @ broadcast.common["contrast"] + broadcast.common["absent"]
    return torch.softmax(logits.transpose(1, 2), dim=1).transpose(1, 2)  # ten times as fast as along a short last axis


def log_loss(samples: Samples, broadcast: Broadcast, predictor: Tensor) -> Tensor:
    """Return the log loss of every sample at a linear predictor, (B, n)."""
    logits = predictor @ broadcast.common["contrast"] + broadcast.common["absent"]
    loss = torch.logsumexp(logits, dim=-1) - logits.gather(-1, samples.block.y[..., None])[..., 0]
    return loss * samples.valid


def _with_own_intercepts(samples: Samples, broadcast: Broadcast) -> Aspect:
    """Return the aspect `relation`: common slopes (q, c) with a fitted intercept for each client."""
    offset = samples.z @ broadcast.common["slopes"]
    intercept = offset.new_zeros(len(offset), 1, offset.shape[2])
    if "contrast" not in broadcast.common:
        r, _ = residuals(samples, broadcast, offset)
        identity = torch.eye(offset.shape[2], dtype=offset.dtype)
        r = r - (r.sum(dim=1) / samples.counts[:, None])[:, None] * samples.valid[..., None]
        return Aspect(samples.z, r, samples.valid[..., None, None] * identity)
    contrast = broadcast.common["contrast"]
    observed = (contrast.T[samples.block.y] * samples.valid[..., None]).sum(dim=1)
    ridge = INTERCEPT_RIDGE * torch.eye(offset.shape[2], dtype=offset.dtype)
    for _ in range(INTERCEPT_STEPS):
        slope, curve = _intercept_sums(samples, broadcast, offset + intercept)
        slope = observed - slope - INTERCEPT_RIDGE * intercept[:, 0]
        step = torch.linalg.solve(curve + ridge, slope[..., None])[..., 0]
        longest = step.norm(dim=1, keepdim=True)
        intercept = intercept + (step / longest.clamp(min=1))[:, None]  # no step is longer than 1
        if float(longest.max()) < INTERCEPT_SETTLED:
            break
    return Aspect(samples.z, *residuals(samples, broadcast, offset + intercept))


def _intercept_sums(samples: Samples, broadcast: Broadcast, predictor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over a client's samples of the means (B, c) and of their derivatives (B, c, c) of `residuals`."""
    contrast = broadcast.common["contrast"]
    p = _probabilities(broadcast, predictor) * samples.valid[..., None]
    mean = p @ contrast.T
    shares = p.sum(dim=1)
    return shares @ contrast.T, (contrast * shares[:, None]) @ contrast.T - mean.transpose(1, 2) @ mean


def feature_moments(samples: Samples, count: int) -> Tensor:
    """Return the first coordinates and their squares, which the test of the features compares, (B, n, 2 count)."""
    z = samples.z[..., :count].clamp(-CLIP, CLIP)
    return torch.cat([z, (z**2 - 1) * samples.valid[..., None]], dim=2)


def moments_of(samples: Samples, broadcast: Broadcast) -> Tensor:
    """Return the moments of the features with mean 0 and the identity as covariance over all clients, (B, n, c)."""
    h = feature_moments(samples, int(broadcast.scalars["moment_features"]))
    common = broadcast.common
    return (h - common["moment_mean"]) @ common["moment_map"] * samples.valid[..., None]


def label_codes(samples: Samples, broadcast: Broadcast) -> Tensor:
    """Return the class of every sample, or the number of the interval between `edges` with its target, (B, n)."""
    if "edges" not in broadcast.common:
        return samples.block.y
    return torch.bucketize(samples.block.y.double(), broadcast.common["edges"])


def label_design(samples: Samples, broadcast: Broadcast, count: int) -> Tensor:
    """Return indicators of the label, (B, n, count); for a regression with the standardised target and its square."""
    design = torch.nn.functional.one_hot(label_codes(samples, broadcast), count).double()
    if "edges" in broadcast.common:
        y = (samples.block.y.double() - broadcast.scalars["y_center"]) / broadcast.scalars["y_spread"]
        y = y.clamp(-CLIP, CLIP)[..., None]
        design = torch.cat([design, y, y**2 - 1], dim=2)  # inside a bin the features may depend on the target
    return design * samples.valid[..., None]


def aspect_of(name: str, samples: Samples, broadcast: Broadcast) -> Aspect | Profiled | Conditional:
    """Return one of the `ASPECTS` of the samples at the broadcast pooled fits."""
    common = broadcast.common
    if name == "model":
        design = samples.ones_and_z
        return Aspect(design, *residuals(samples, broadcast, design @ common["model"]))
    if name == "relation":
        if "contrast" in common and len(common["contrast"]) == 1:
            return Conditional.of(samples, common["slopes"], common["contrast"][0])
        return Profiled.of(_with_own_intercepts(samples, broadcast), samples, "contrast" in common)
    one = samples.valid[..., None]
    if name == "features":
        return Aspect(one, moments_of(samples, broadcast), None)
    rows = common["label_rows"]
    if name == "labels":
        return Aspect(one, rows[label_codes(samples, broadcast)] * one, None)
    design = label_design(samples, broadcast, len(rows))
    residual = moments_of(samples, broadcast) - design @ common["conditional"]
    # bins hold few samples of a client, so clients differ by a constant and a slope of the target; or by class
    tested = torch.cat([one, design[..., -2:-1]], dim=2) if "edges" in common else design
    return Aspect(tested, residual, None)


# ---- scores and their pairs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aspect:
    """Design, residuals and derivative of the residuals of the clients of a block; zeros where padded."""

    design: Tensor
    """D, (B, n, k)."""
    residual: Tensor
    """r, (B, n, c)."""
    spread: Tensor | None
    """V, (B, n, c, c); None: the identity."""

    @property
    def scores(self) -> Tensor:
        """The score of every sample as a vector, (B, n, k c)."""
        return _outer(self.design, self.residual)

    @property
    def hessian(self) -> Tensor:
        """sum_j D_j D_j^T x V_j of every client, (B, k c, k c); with V = identity only sum_j D_j D_j^T, (B, k, k)."""
        return self.curved(self.design, self.spread)

    def curved(self, weighted: Tensor, spread: Tensor | None) -> Tensor:
        """Return `hessian` with a weighted design (B, n, k) on one side and another spread."""
        if spread is None:
            return weighted.transpose(1, 2) @ self.design
        b, _, k = self.design.shape
        c = spread.shape[2]
        found = self.design.new_zeros(b, k, c, k, c)
        for first in range(c):
            for second in range(first, c):
                part = (weighted * spread[:, :, first, second, None]).transpose(1, 2) @ self.design
                found[:, :, first, :, second] = part
                found[:, :, second, :, first] = part
        return found.reshape(b, k * c, k * c)

    def square_and_diagonal(self) -> Tensor:
        """Return |S|^2 and sum_j |D_j|^2 |r_j|^2 of every client, (B, 2)."""
        square = (self.design.transpose(1, 2) @ self.residual).pow(2).sum(dim=(1, 2))
        diagonal = (self.design.pow(2).sum(dim=2) * self.residual.pow(2).sum(dim=2)).sum(dim=1)
        return torch.stack([square, diagonal], dim=1)

    def signed_scores(self, signs: Tensor) -> Tensor:
        """Return S for residuals times signs (B, draws, n), (B, draws, k c)."""
        return _times(signs, self.scores)

    def pairs(self, signs: Tensor, refit: Tensor) -> Tensor:
        """Return U for signs (B, draws, n) after a change `refit` (draws, k c) of the pooled model, (B, draws)."""
        lengths = self.design.pow(2).sum(dim=2, keepdim=True)
        scores, moved = self.signed_scores(signs), self._apply(self.hessian, refit)
        square = (scores - moved).pow(2).sum(dim=2)
        weighted = self.design * lengths
        if self.spread is None and torch.equal(weighted, self.design):  # all lengths are 1: the sums are known
            linear, bent = (scores * refit).sum(dim=2), (moved * refit).sum(dim=2)
        else:
            linear = (_times(signs, _outer(weighted, self._times_spread(self.residual))) * refit).sum(dim=2)
            squared = None if self.spread is None else self.spread @ self.spread
            bent = (self._apply(self.curved(weighted, squared), refit) * refit).sum(dim=2)
        return square - (self.square_and_diagonal()[:, 1, None] - 2 * linear + bent)

    def _times_spread(self, residual: Tensor) -> Tensor:
        return residual if self.spread is None else (self.spread @ residual[..., None])[..., 0]

    def _apply(self, matrix: Tensor, refit: Tensor) -> Tensor:
        """Return a matrix in the form of `hessian` times refit (draws, k c), (B, draws, k c)."""
        if self.spread is not None:
            return refit @ matrix
        draws, k = len(refit), self.design.shape[2]
        return torch.einsum("bij,djc->bdic", matrix, refit.reshape(draws, k, -1)).flatten(2)


@dataclass(frozen=True)
class Profiled:
    """An aspect with an intercept for each client, which is fitted again for every draw."""

    inner: Aspect
    inverse: Tensor
    """Inverse of sum_j V_j, (B, c, c)."""
    cross: Tensor
    """sum_j D_j x V_j, (B, k c, c)."""
    lengths: Tensor
    """Weights of the squared residuals with which the diagonal part of |S|^2 has the right mean, (B, n)."""
    stretch: Tensor
    """Factor by which the fitted intercept makes a residual too small, for the draws, (B, n)."""
    counted: Tensor
    """1 for clients with enough samples for a score of the slopes, else 0, (B,)."""
    valid: Tensor
    """1 for real samples, 0 for padding, (B, n)."""

    @classmethod
    def of(cls, inner: Aspect, samples: Samples, by_class: bool) -> Profiled:
        """Return the aspect with the arrays that fit the intercepts."""
        spread = inner.spread
        assert spread is not None
        total = spread.sum(dim=1)
        inverse = torch.linalg.inv(total + 1e-6 * torch.eye(total.shape[1], dtype=total.dtype))
        cross = torch.einsum("bnk,bnac->bkac", inner.design, spread).flatten(1, 2)
        leverage = torch.einsum("bnac,bca->bn", spread, inverse) / total.shape[1]
        stretch = (1 - leverage).clamp(min=1e-3).rsqrt()
        middle = inner.design.sum(dim=1) / samples.counts[:, None]
        lengths = (inner.design - middle[:, None]).pow(2).sum(dim=2) * samples.valid
        few = 2 if by_class else 3
        n = samples.counts.clamp(min=few)[:, None]
        counted = (samples.counts >= few).double()
        if by_class:  # approximate; the error is nearly the same for random signs
            lengths = n / (n - 1) * lengths
        else:  # unbiased for unequal variances: the share of the other samples is subtracted
            lengths = n / (n - 2) * (lengths - lengths.sum(dim=1, keepdim=True) / (n * (n - 1))) * samples.valid
        return cls(inner, inverse, cross, lengths * counted[:, None], stretch, counted, samples.valid)

    @property
    def hessian(self) -> Tensor:
        """Hessian of the slopes with the intercepts profiled out, (B, k c, k c)."""
        return self.inner.hessian - self.cross @ self.inverse @ self.cross.transpose(1, 2)

    @property
    def scores(self) -> Tensor:
        """Scores of the slopes with the intercepts projected out, (B, n, k c)."""
        return self._scores(self.inner.residual)

    @property
    def drawn(self) -> Tensor:
        """Residuals that get signs, with the variance of residuals without a fitted intercept, (B, n, c)."""
        return self.inner.residual * self.stretch[..., None]

    def _scores(self, r: Tensor) -> Tensor:
        return _outer(self.inner.design, r) - r @ (self.cross @ self.inverse).transpose(1, 2)

    def square_and_diagonal(self) -> Tensor:
        """Return |S|^2 and its diagonal part, (B, 2); equal for clients with too few samples."""
        n = self.lengths.shape[1]
        ones = self.lengths.new_ones(len(self.lengths), 1, n)
        square = self.scores.sum(dim=1).pow(2).sum(dim=1)
        still = self.cross.new_zeros(1, self.cross.shape[1])
        return torch.stack([square * self.counted, self._diagonal(self.inner.residual, ones, still)[:, 0]], dim=1)

    def signed_scores(self, signs: Tensor) -> Tensor:
        """Return S for residuals times signs (B, draws, n), (B, draws, k c)."""
        return _times(signs, self._scores(self.drawn))

    def pairs(self, signs: Tensor, refit: Tensor) -> Tensor:
        """Return U for signs (B, draws, n) after a change `refit` (draws, k c) of the pooled slopes, (B, draws)."""
        square = (self.signed_scores(signs) - refit @ self.hessian).pow(2).sum(dim=2)
        return square * self.counted[:, None] - self._diagonal(self.drawn, signs, refit)

    def _diagonal(self, r: Tensor, signs: Tensor, refit: Tensor) -> Tensor:
        """Return the diagonal part of residuals r after `refit` of the slopes and of the intercepts, (B, draws)."""
        spread = self.inner.spread
        assert spread is not None
        whole = Aspect(torch.cat([self.valid[..., None], self.inner.design], dim=2), r, spread)
        intercepts = (_times(signs, r) - refit @ self.cross) @ self.inverse
        moved = torch.cat([intercepts, refit.expand(len(r), -1, -1)], dim=2)
        weighted = whole.design * self.lengths[..., None]
        linear = (_times(signs, _outer(weighted, (spread @ r[..., None])[..., 0])) * moved).sum(dim=2)
        bent = (moved @ whole.curved(weighted, spread @ spread) * moved).sum(dim=2)
        fixed = (self.lengths * r.pow(2).sum(dim=2)).sum(dim=1)
        return fixed[:, None] - 2 * linear + bent


@dataclass(frozen=True)
class Conditional:
    """The slopes of two classes, for any intercepts of the clients.

    A client's samples are cut into parts. Given how often each label occurs in a part, the probability of each order of
    the labels does not depend on the intercept: with equal slopes the score of a part has mean zero exactly, for any
    number of samples, and parts are independent. Parts take the place of samples in U and get the signs.
    """

    design: Tensor
    """The samples of each part, (B, parts, g, k)."""
    residual: Tensor
    """Labels minus their expectations given the frequencies of the labels in the part, (B, parts, g)."""
    spread: Tensor
    """Minus the derivative of the residuals by the linear predictors of the part, (B, parts, g, g)."""

    @classmethod
    def of(cls, samples: Samples, slopes: Tensor, contrast: Tensor) -> Conditional:
        """Return the aspect at common slopes (q, 1) of logits u `contrast` (C,), of which two classes occur."""
        place, real = parts_of(samples.counts)
        rows = torch.arange(len(place))[:, None, None]
        z = samples.z[rows, place] * real[..., None]
        towards = contrast.max() - contrast.min()
        first = (samples.block.y[rows, place] == contrast.argmax()) & real
        left, covariance = given_their_number((z @ slopes)[..., 0] * towards, first, real)
        return cls(z, left * towards, covariance * towards**2)

    @property
    def scores(self) -> Tensor:
        """The score of every part, (B, parts, k)."""
        return torch.einsum("bsgk,bsg->bsk", self.design, self.residual)

    @property
    def hessian(self) -> Tensor:
        """Minus the derivative of the scores of every client, (B, k, k)."""
        return torch.einsum("bsgk,bsgl->bkl", self.design, self.spread @ self.design)

    def square_and_diagonal(self) -> Tensor:
        """Return |S|^2 and the sum of the squared scores of the parts, (B, 2); equal for clients with one part."""
        scores = self.scores
        return torch.stack([scores.sum(dim=1).pow(2).sum(dim=1), scores.pow(2).sum(dim=(1, 2))], dim=1)

    def signed_scores(self, signs: Tensor) -> Tensor:
        """Return S for scores of the parts times signs (B, draws, n), (B, draws, k)."""
        scores = self.scores
        return _times(signs[:, :, : scores.shape[1]], scores)

    def pairs(self, signs: Tensor, refit: Tensor) -> Tensor:
        """Return U for signs (B, draws, n) after a change `refit` (draws, k) of the pooled slopes, (B, draws)."""
        scores = self.scores
        moved = refit @ (self.design.transpose(2, 3) @ self.spread @ self.design)
        left = signs[:, :, : scores.shape[1]].transpose(1, 2)[..., None] * scores[:, :, None] - moved
        return left.sum(dim=1).pow(2).sum(dim=2) - left.pow(2).sum(dim=(1, 3))


def parts_of(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples of each part of clients with `counts` samples, (B, parts, g), and a mask of real samples.

    There are about (n / 2)^(1/2) parts, which keeps most pairs of samples in different parts and most differences
    between labels inside, but no part has more than `MOST_TOGETHER` samples.
    """
    many = torch.maximum((counts / 2).sqrt().ceil(), (counts / MOST_TOGETHER).ceil()).clamp(min=1).long()
    n = counts.long()[:, None, None]
    part = torch.arange(int(many.max()))[None, :, None]
    inside = torch.arange(int((counts / many).ceil().max()))[None, None]
    place = inside * many[:, None, None] + part
    real = (part < many[:, None, None]) & (place < n)
    return torch.where(real, place, 0), real


def given_their_number(offset: Tensor, first: Tensor, either: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels minus their expectations, (..., g), and covariances, (..., g, g), given the number of `first`.

    The samples in `either` have the first label with log-odds `offset` plus a constant that cancels. The law given
    the number is a mixture of independent labels over imaginary constants (a discrete Fourier transform). The real
    constant at which the number is most probable, up to a factor of 2^g, keeps the sums free of cancellation; an odd
    number of points keeps the factors away from zero.

    Args:
        offset: Log-odds of the first label, (..., g).
        first: Whether a sample has it, (..., g).
        either: Whether a sample counts, (..., g).
    """
    g = offset.shape[-1]
    number = first.sum(dim=-1, keepdim=True)
    open_ = (number > 0) & (number < either.sum(dim=-1, keepdim=True))  # otherwise there is only one order
    number = number * open_
    ranked = offset.masked_fill(~either, -torch.inf).sort(dim=-1, descending=True).values
    last, next_ = ranked.gather(-1, (number - 1).clamp(min=0)), ranked.gather(-1, number.clamp(max=g - 1))
    middle = torch.where(open_, (last + next_) / 2, 0)
    p = torch.sigmoid(offset - middle) * (either & open_)
    half = (g + 1) // 2
    angle = 2 * torch.pi / (2 * half + 1) * torch.arange(half + 1, dtype=offset.dtype)
    turn = torch.polar(torch.ones_like(angle), angle)
    factor = 1 + p[..., None] * (turn - 1)
    mixture = factor.prod(dim=-2) * torch.polar(torch.ones_like(angle), -number * angle)
    mixture[..., 1:] *= 2  # the other half are their complex conjugates
    mixture = mixture / mixture.real.sum(dim=-1, keepdim=True)
    tilted = p[..., None] * turn / factor
    weighted = tilted * mixture[..., None, :]
    mean = weighted.real.sum(dim=-1)
    covariance = (weighted @ tilted.transpose(-1, -2)).real - mean[..., :, None] * mean[..., None, :]
    covariance.diagonal(dim1=-2, dim2=-1).copy_(mean * (1 - mean))
    return (first & open_).to(mean.dtype) - mean, covariance


def _outer(design: Tensor, residual: Tensor) -> Tensor:
    return (design[..., :, None] * residual[..., None, :]).flatten(2)


def _times(signs: Tensor, values: Tensor) -> Tensor:
    """Return signs (B, draws, n) times values (B, n, w) in the precision of the signs, as float64."""
    return (signs @ values.to(signs.dtype)).double()


# ---- random signs --------------------------------------------------------------------------------------------


def signed(shard: Shard, broadcast: Broadcast, seed: int, draws: int) -> Iterator[tuple[Samples, Tensor]]:
    """Yield the clients of a shard in small blocks, with random signs (B, draws, n).

    The signs of a client depend on the seed and its id, so that they are the same in every exchange. They are in single
    precision, and so are their products: a distribution of 199 draws does not need more.
    """
    keys = keys_for_clients(seed, Purpose.DIAGNOSIS, 0, shard.hashes)
    for block in cut(on_cpu(shard), keys, 0):
        width = block.y.shape[1]
        count = max(1, SIGNS_AT_ONCE // (draws * max(width, SCORES)))
        for first in range(0, len(block.positions), count):
            part = part_of(block, slice(first, first + count))
            samples = samples_of(part, broadcast)
            drawn = np.zeros((len(part.positions), draws, width), dtype=np.float32)
            for b, (key, size) in enumerate(zip(part.keys, part.sizes.tolist(), strict=True)):
                drawn[b, :, :size] = _random_signs(int(key), draws, size)
            yield samples, torch.from_numpy(drawn)


def _random_signs(key: int, draws: int, size: int) -> np.ndarray:
    count = draws * size
    bits = np.unpackbits(np.frombuffer(generator(key).bytes(-(-count // 8)), dtype=np.uint8))[:count]
    return 1 - 2 * bits.reshape(draws, size).astype(np.float32)


def part_of(block: Block, rows: slice) -> Block:
    """Return some of the clients of a block."""
    mask = None if block.mask is None else block.mask[rows]
    return replace(
        block,
        positions=block.positions[rows],
        x=block.x[rows],
        y=block.y[rows],
        sizes=block.sizes[rows],
        mask=mask,
        keys=block.keys[rows],
    )
