"""Rounds in which each client's samples are read once: the interface, and the division of the clients into chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.blocks import Memory
from coterie.core.clusters import Params
from coterie.core.shard import Positions, Shard
from coterie.core.threads import Workers
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining

Array = npt.NDArray[Any]

MOST_MODELS = 256
"""Largest number of models, or of logits of a sample under all models, for which rounds in one pass are used. They were
faster than matrix products in all measurements up to this number, with 10 to 100 samples and 50 to 1000 features."""

CHUNK_BYTES = 2 << 20
"""Approximate size of the features of a chunk of clients."""
MOST_CHUNKS = 64
"""Largest number of chunks."""
SUMS_BYTES, SUMS_SHARE = 32 << 20, 32
"""Largest size of the sums of all chunks: this many bytes, or the size of the features divided by `SUMS_SHARE`."""
THREAD_BYTES = 1 << 20
"""Minimum size of the features for each thread."""


@dataclass(frozen=True)
class RoundWork:
    """Work of a round for all clients of a shard, who train one model in each restart."""

    models: Params
    """Models, {name: (S, ...)}."""
    clusters: int
    """Number of models of a restart (K); a client chooses the one with the lowest mean loss."""
    fixed: Tensor | None
    """Models that clients train without a choice, (m, R), -1 where they choose; None: all clients choose."""
    shard: Shard
    """Samples of the clients, on the CPU."""
    training: LocalTraining
    """Local training by full-batch steps."""
    lr: float
    """Learning rate of the round."""
    mass: Tensor
    """Weight of each client's change in the sums, (m,), float64."""
    workers: Workers = Workers()
    """Threads among which the clients are divided."""
    memory: Memory | None = None
    """Cache of arrays that depend on the samples only."""

    @property
    def restarts(self) -> int:
        """Number of models that each client trains (R)."""
        return len(self.weight) // self.clusters if self.fixed is None else self.fixed.shape[1]

    @property
    def weight(self) -> Tensor:
        """Weights of all models, (S, ...)."""
        return self.models["weight"]


@dataclass(frozen=True)
class RoundResult:
    """Result of a round for all clients of a shard."""

    rows: Tensor
    """Model that each client trained, (m, R)."""
    loss: Tensor
    """Mean loss of each client under the model before training, (m, R), float64."""
    sums: Params
    """Sums of mass times change, {name: (S, ...)}."""

    @property
    def finite(self) -> bool:
        """Whether all sums and losses are finite, so that no client has to be left out."""
        return all(bool(value.isfinite().all()) for value in (self.loss, *self.sums.values()))


@dataclass(frozen=True, kw_only=True)
class MixtureWork(RoundWork):
    """Work of a round in which all clients train all models, weighted by their responsibilities for each sample."""

    prior: Tensor
    """Logarithm of each client's weight of each model, (m, S), float64."""
    usual: Tensor
    """Mean loss of each restart in the previous round, (R,); infinite if it is unknown."""
    by_share: bool
    """Whether the change of a model is weighted by the mean responsibility."""


@dataclass(frozen=True, kw_only=True)
class MixtureResult(RoundResult):
    """Result of such a round; `rows` are the models with the largest weights, and `loss` is that of the mixtures."""

    shares: Tensor
    """Mean responsibility of each model for each client's samples, (m, S), float64."""
    likelihood: Tensor
    """Mean log-likelihood of each client's samples under its mixture, (m, R), float64."""

    @property
    def finite(self) -> bool:
        return super().finite and all(bool(value.isfinite().all()) for value in (self.shares, self.likelihood))


class OnePassLearner(Learner, Protocol):
    """A learner with compiled rounds that read each client's samples once."""

    def one_pass_pays(self, training: LocalTraining, models: Params) -> bool:
        """Return whether such a round is possible, and faster than one with matrix products.

        Args:
            training: Local training.
            models: Models of the server, {name: (S, ...)}.
        """
        ...

    def one_pass(self, work: RoundWork) -> RoundResult:
        """Return the result of a round; its sums do not depend on the number of threads."""
        ...


class OnePassMixtureLearner(OnePassLearner, Protocol):
    """A learner with compiled rounds of mixtures."""

    def one_pass_mixture(self, work: MixtureWork) -> MixtureResult:
        """Return the result of a round; its sums do not depend on the number of threads."""
        ...


def has_one_pass_mixture(learner: Learner) -> TypeGuard[OnePassMixtureLearner]:
    """Return whether a learner has compiled rounds of mixtures, and the compiler is installed."""
    return hasattr(learner, "one_pass_mixture") and _has_compiler()


def has_one_pass(learner: Learner) -> TypeGuard[OnePassLearner]:
    """Return whether a learner has compiled rounds, and the compiler is installed."""
    return hasattr(learner, "one_pass") and _has_compiler()


@cache
def _has_compiler() -> bool:
    return find_spec("numba") is not None


Kernel = Callable[..., None]
"""Function that is called with samples, ranges of clients and arrays to fill; see `one_pass_kernels`."""


@dataclass(frozen=True)
class Chunks:
    """Division of the clients into chunks, which depends on sizes only and not on the number of threads."""

    bounds: Positions
    """First client of each chunk, and the number of clients at the end, (chunks + 1,)."""
    threads: int
    """Number of threads that are worth their overhead."""
    workers: Workers
    """Available threads."""

    @classmethod
    def of(cls, work: RoundWork) -> Chunks:
        """Return the chunks of the clients of a round, each with about the same number of samples."""
        sizes, x = work.shard.sizes, work.shard.x
        total = int(sizes.sum()) * (x[:1].numel() * x.element_size())
        model_bytes = sum(p.numel() * p.element_size() for p in work.models.values())
        affordable = max(SUMS_BYTES, total // SUMS_SHARE) // model_bytes
        count = min(MOST_CHUNKS, total // CHUNK_BYTES, affordable, len(sizes))
        if count <= 1:
            return cls(np.array([0, len(sizes)]), 1, work.workers)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        cuts = np.searchsorted(ends[1:], np.arange(1, count) * (int(ends[-1]) / count))
        bounds = np.array([0, *cuts, len(sizes)], dtype=np.int64)
        return cls(bounds, max(1, min(work.workers.count, total // THREAD_BYTES, count)), work.workers)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def run(self, kernel: Callable[[int, int], None]) -> None:
        """Call a function, which releases the interpreter lock, with ranges of chunks that cover all chunks."""
        if self.threads == 1:
            kernel(0, len(self))
            return
        ends = np.linspace(0, len(self), self.threads + 1).astype(np.int64).tolist()
        ranges = list(pairwise(ends))
        self.workers.run(lambda part: kernel(*part), ranges)


def run_round(kernel: Kernel, work: RoundWork, y: Array, *settings: object) -> RoundResult:
    """Run a kernel for all clients, and add up the sums of the chunks in their order.

    Args:
        kernel: The compiled round.
        work: Work of the round.
        y: Targets or labels of all samples, (N,).
        settings: Further arguments of the kernel.
    """
    shard, chunks, restarts = work.shard, Chunks.of(work), work.restarts
    weight = work.weight.contiguous().numpy()
    given_bias = work.models.get("bias")
    bias = np.zeros(weight.shape[:-1], weight.dtype) if given_bias is None else given_bias.contiguous().numpy()
    weight_sums = np.zeros((len(chunks) * (weight.size // weight.shape[-1]), weight.shape[-1]), weight.dtype)
    bias_sums = np.zeros((len(chunks), *bias.shape), weight.dtype)
    own = np.empty((len(shard), restarts), np.int64)
    loss = np.empty((len(shard), restarts))
    fixed = np.zeros((0, 0), np.int64) if work.fixed is None else work.fixed.numpy()
    x = samples(shard)
    given = (x, y, shard.starts, shard.stops, weight, bias, work.clusters, fixed, work.mass.numpy())
    filled = (weight_sums, bias_sums, own, loss)
    chunks.run(lambda first, last: kernel(*given, *settings, chunks.bounds, first, last, *filled))
    sums = {"weight": weight_sums.reshape(len(chunks), *weight.shape), "bias": bias_sums}
    return RoundResult(
        torch.from_numpy(own),
        torch.from_numpy(loss),
        {name: torch.from_numpy(sums[name].sum(axis=0)) for name in work.models},
    )


def samples(shard: Shard) -> Array:
    """Return the features of all samples as rows, (N, p), without a copy."""
    return shard.x.flatten(1).numpy()


# ---- several steps of linear models --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrices:
    """Gram matrix of each client, or its moment matrix if that is smaller."""

    values: Array
    """All matrices, one after the other."""
    offsets: Positions
    """Index of the first number of each client's matrix, (m,)."""


def stored_matrices(work: RoundWork, has_bias: bool) -> Matrices | None:
    """Return the matrices of all clients, which are computed once; None if they do not fit into the cache of the run.

    Args:
        work: Work of the round.
        has_bias: Whether models have a bias; then every sample has a last feature 1.
    """
    shard, memory = work.shard, work.memory
    x = shard.x.flatten(1)
    width = x.shape[1] + has_bias
    squares = np.minimum(shard.sizes, width) ** 2
    ends = np.cumsum(squares)
    if memory is None or int(ends[-1]) * x.element_size() > memory.limit:
        return None

    def make() -> Tensor:
        values = torch.empty(int(ends[-1]), dtype=x.dtype)
        for size in np.unique(shard.sizes).tolist():
            alike = np.flatnonzero(shard.sizes == size)
            for some in np.array_split(alike, -(-len(alike) * size * width * x.element_size() // CHUNK_BYTES)):
                rows = torch.from_numpy(shard.starts[some][:, None] + np.arange(size)).flatten()
                phi = x.index_select(0, rows).reshape(len(some), size, -1)
                phi = torch.cat([phi, torch.ones_like(phi[..., :1])], dim=2) if has_bias else phi
                found = phi @ phi.transpose(1, 2) if size <= width else phi.transpose(1, 2) @ phi
                places = torch.from_numpy((ends - squares)[some])[:, None] + torch.arange(found[0].numel())
                values[places] = found.flatten(1)
        return values

    name = ("small matrices", shard.starts.tobytes(), shard.stops.tobytes())
    return Matrices(memory.recall(name, make).numpy(), ends - squares)
