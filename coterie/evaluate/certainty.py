"""The certainty of an assignment: the probability of each cluster for each client, given the models found.

By Bayes' rule it is proportional to pi_k exp(-evidence_ik), where pi_k is the share of the clients that model k fits
best. The evidence of a client against a cluster is the sum of its samples' losses under the cluster's model, in nats.
Taken as it is, that sum is overconfident, for three reasons that are corrected here:

- A squared error is no log-likelihood. It is divided by twice the mean squared error of the clients' own models.
- The model of the own cluster was trained on the client's training samples. The loss that this saves is the share of
  the client in the samples of the cluster times the effective number of parameters, which is estimated from the
  difference between the losses on held-out and on training samples. That is a mean: what a single client saves has a
  variance of about the same size, so training samples count the less, the more the own model has memorised of them.
- Models are wrong, noise has heavy tails, and the models were found with the same training samples. So training samples
  and held-out samples count by a weight of at most 1. The weight of held-out samples is estimated from how well one
  half of them predicts the other half, over all clients; the weight of training samples from how well they predict the
  held-out samples. Both are means over all weights that predict well, so that few clients give small weights.

Without held-out samples nothing can be measured: training samples then count by half, models with many parameters for
their samples get no certainty. docs/certainty.md has the measured calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.tasks import Compare
from coterie.core.clusters import Clusters
from coterie.core.expected import parameter_count
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.errors import SilenceError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SURE = 0.95
"""Smallest probability of its cluster with which a client counts as sure of its group."""
FEWEST_HELD_OUT = 20
"""Smallest number of held-out samples of all clients from which weights are estimated."""
UNMEASURED_WEIGHT = 0.5
"""Weight of training samples if there are no held-out samples to measure it."""
SAMPLES_PER_PARAMETER = 5
"""Smallest number of training samples for each parameter with which training losses alone are informative."""
LEAST_WEIGHT = math.exp(-4)
TRIED_WEIGHTS = np.exp(np.linspace(math.log(LEAST_WEIGHT), 0, 45))
WEIGHT_DEVIATION = 2.0
"""Standard deviation of the prior of the logarithm of a weight, whose mode is 1."""
CLIENTS_AT_ONCE = 1000
"""Clients whose scores are computed at once for all weights, which bounds the memory."""
MOST_NATS = 1e12
"""Evidence of a model whose loss is not finite."""
NATS_NEEDED = 5.8
"""Expected evidence against the nearest cluster with which 4 of 5 clients are sure.

The evidence has about twice its mean as variance. With mean u^2 it exceeds log(19), the odds of 95 %, in 80 % of the
cases if u^2 - 0.84 sqrt(2) u = log(19), so that u^2 = 5.8.
"""
MIXED = 3.0
"""Standard errors by which the clients of a cluster must differ for a warning that it may hide several groups."""
LEAST_DIFFERENCE = 0.005
"""Share of the variance of the scores that differences between clients must explain for the same warning."""


@dataclass(frozen=True)
class Evidence:
    """Figures that clients report about their samples under every model; see `Compare`."""

    positions: Positions
    """Clients that answered, ascending; shape (a,)."""
    own: Ints
    """Cluster of each client, (a,)."""
    samples: Ints
    """Number of training samples, (a,)."""
    held_out: Floats
    """Number of held-out samples, (a,)."""
    training_losses: Floats
    """Mean loss on training samples, (a, K)."""
    losses: Floats
    """Mean loss on held-out samples, (a, K); 0 without any."""
    half_losses: Floats
    """Mean loss on every other held-out sample, the first included, (a, K)."""
    pairs: Floats
    """Sum of the products of the scores of different samples, (a,)."""
    pairs_variance: Floats
    """Variance of `pairs` if the model fits the client, (a,)."""
    spread: Floats
    """Sum of the squared scores, (a,)."""
    compared: Ints
    """Number of samples behind the last three figures, (a,)."""
    score: Mapping[int, Floats]
    """Sum of the scores in each cluster that has clients."""

    @property
    def K(self) -> int:
        return int(self.losses.shape[1])

    def mine(self, values: Floats) -> Floats:
        """Return the value (a,) of each client's own cluster, of values (a, K)."""
        return values[np.arange(len(values)), self.own]

    @property
    def shown_losses(self) -> tuple[Positions, Floats]:
        """Clients and their mean losses (clients, K): on held-out samples, or on training samples if there are none."""
        some = self.held_out > 0
        return (self.positions[some], self.losses[some]) if some.any() else (self.positions, self.training_losses)


def ask_evidence(federation: Federation, clusters: Clusters, own: Tensor, round_: int) -> Evidence:
    """Ask every client that has a cluster about all models, in one exchange.

    Args:
        federation: The clients.
        clusters: The models of one restart.
        own: (m,) the cluster of each client, or a negative number.
        round_: Number of the last round.

    Raises:
        SilenceError: if no client answers.
    """
    from coterie.client.tasks.compare import MOST_SAMPLES

    asked = np.flatnonzero((own >= 0).numpy())
    broadcast = Broadcast(round_, clusters, each={"own": own[torch.from_numpy(asked)]})
    reply: Reply = federation.ask(Compare(), broadcast, asked).reply
    if not reply.clients:
        raise SilenceError(f"none of the {len(asked)} clients answered when asked about the models: try again later")
    positions = positions_of(federation, reply.clients)
    rows = {name: value.numpy() for name, value in reply.rows.items()}
    sums, samples = reply.slotted["clusters"], federation.sizes[positions]
    return Evidence(
        positions,
        own.numpy()[positions],
        samples,
        compared=np.minimum(samples, MOST_SAMPLES),
        score=dict(zip(sums.slots.tolist(), sums.arrays["score"].numpy(), strict=True)),
        **rows,
    )


# ---- calibration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """Numbers by which losses become probabilities in one run."""

    prior: tuple[float, ...]
    """Probability of each cluster for a client without samples."""
    scale: float
    """Nats per unit of loss: 1 for classes, the inverse of twice the mean squared error for a regression."""
    held_out: float
    """Weight of held-out samples, and of the samples of a new client."""
    training: float
    """Weight of training samples."""
    parameters: float
    """Effective number of parameters of a model."""

    def of_sums(self, losses: Floats) -> Floats:
        """Return the probability of each cluster (..., K) for samples that no model was trained on.

        Args:
            losses: (..., K) sum of the losses of the samples under each model.
        """
        return _normalised(-self.held_out * _nats(losses * self.scale) + np.log(self.prior))

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as values that JSON can hold."""
        return {**self.__dict__, "prior": list(self.prior)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Calibration:
        """Return the calibration that `to_json` was called on."""
        return cls(**{**plain, "prior": tuple(plain["prior"])})


def calibrate(evidence: Evidence, squared_error: bool, parameters: int) -> Calibration | None:
    """Return how losses become probabilities; None if that cannot be estimated.

    Args:
        evidence: The replies of the clients.
        squared_error: Whether the loss is a squared error instead of a negative log-likelihood.
        parameters: Number of parameters of one model.
    """
    measured = evidence.held_out.sum() >= FEWEST_HELD_OUT
    if not measured and evidence.samples.sum() < SAMPLES_PER_PARAMETER * evidence.K * parameters:
        return None
    scale = _scale(evidence, measured) if squared_error else 1.0
    effective = min(_effective_parameters(evidence, scale), parameters) if measured else float(parameters)
    seen, unseen = _training_nats(evidence, scale, effective), _held_out_nats(evidence, scale)
    prior = _prior(seen + unseen)
    if not measured:
        return Calibration(tuple(prior.tolist()), scale, UNMEASURED_WEIGHT, UNMEASURED_WEIGHT, effective)
    first, second = _halves(evidence, scale)
    held_out = _mean_weight((_log_scores(first, second, prior) + _log_scores(second, first, prior)) / 2)
    tested = evidence.held_out > 0
    training = _mean_weight(_log_scores(seen[tested], held_out * unseen[tested], prior))
    return Calibration(tuple(prior.tolist()), scale, held_out, training, effective)


def probabilities(evidence: Evidence, by: Calibration) -> Floats:
    """Return the probability of each cluster for each client, (a, K), given all its samples."""
    held_out, training = _held_out_nats(evidence, by.scale), _training_nats(evidence, by.scale, by.parameters)
    return _normalised(-by.held_out * held_out - by.training * training + np.log(by.prior))


def samples_needed(evidence: Evidence, by: Calibration) -> Floats:
    """Return the number of held-out samples with which 4 of 5 clients of each cluster would be sure, (K,).

    It is infinite for a cluster without clients, and for one whose model predicts like that of another cluster.
    """
    likely = evidence.mine(probabilities(evidence, by)) >= 0.5
    needed = np.full(evidence.K, np.inf)
    tested = evidence.held_out.sum() >= FEWEST_HELD_OUT
    losses, weight = (evidence.losses, by.held_out) if tested else (evidence.training_losses, by.training)
    sizes = evidence.held_out if tested else evidence.samples
    for k in range(evidence.K):
        rows = likely & (evidence.own == k) & (sizes > 0)
        if not rows.any() or evidence.K < 2:
            continue
        mean = np.average(_nats(losses[rows] * by.scale), axis=0, weights=sizes[rows])
        nearest = weight * float(np.delete(mean - mean[k], k).min())
        needed[k] = np.ceil(NATS_NEEDED / nearest) if nearest > 0 else np.inf
    return needed


def _scale(evidence: Evidence, measured: bool) -> float:
    """Return the inverse of twice the mean loss of the own models; 0 if no model has any loss."""
    losses, sizes = (
        (evidence.losses, evidence.held_out) if measured else (evidence.training_losses, evidence.samples.astype(float))
    )
    known = np.where(np.isfinite(losses), losses, 0.0)
    own, largest = float(np.average(evidence.mine(known), weights=sizes)), float(known.max(initial=0))
    mean = max(own, 1e-12 * largest)  # without noise the lowest loss decides
    return 1 / (2 * mean) if mean > 0 else 0.0


def _nats(values: Floats) -> Floats:
    """Return sums of losses in nats, with a large number for models that do not fit at all."""
    return np.minimum(np.nan_to_num(values, nan=MOST_NATS, posinf=MOST_NATS), MOST_NATS)


def _effective_parameters(evidence: Evidence, scale: float) -> float:
    """Return the number of parameters that explains how much better own models do on training samples.

    With N samples in a cluster, the mean loss on samples of a member is lower by p / N nats if they were trained on.
    """
    trained = np.bincount(evidence.own, evidence.samples, evidence.K)
    tested = np.bincount(evidence.own, evidence.held_out, evidence.K)
    gap = evidence.mine(_nats(evidence.losses * scale)) - evidence.mine(_nats(evidence.training_losses * scale))
    total = float(np.average(gap, weights=evidence.held_out)) * float(tested.sum())
    used = tested > 0
    return max(0.0, total) / float((tested[used] / trained[used]).sum())


def _prior(nats: Floats) -> Floats:
    """Return the share of the clients that each model fits best, (K,), none of them 0.

    The clusters' own numbers of clients would not do: a mixture assigns clients by their weights, and of two models
    that are nearly the same it can give all clients to the one that is slightly worse.

    Args:
        nats: (a, K) evidence of each client against each cluster.
    """
    counts = np.bincount(nats.argmin(axis=1), minlength=nats.shape[1])
    return np.asarray((counts + 0.5) / (counts.sum() + 0.5 * nats.shape[1]))


def _held_out_nats(evidence: Evidence, scale: float) -> Floats:
    """Return the sums of the losses on held-out samples, (a, K)."""
    return _nats(evidence.losses * evidence.held_out[:, None] * scale)


def _training_nats(evidence: Evidence, scale: float, parameters: float) -> Floats:
    """Return the sums of the training losses (a, K), as if the own model had not been trained on them.

    They are divided by the square root of 1 + s, where s is the expected loss that the own model saves by having been
    trained on the client's samples, because the loss that is in fact saved has a standard deviation of about sqrt(s).
    """
    nats = _nats(evidence.training_losses * evidence.samples[:, None] * scale)
    trained = np.bincount(evidence.own, evidence.samples, evidence.K)
    saved = parameters * evidence.samples / trained[evidence.own]
    corrected = nats.copy()
    corrected[np.arange(len(nats)), evidence.own] += saved
    return np.asarray(corrected / np.sqrt(1 + saved)[:, None])


def _halves(evidence: Evidence, scale: float) -> tuple[Floats, Floats]:
    """Return the sums of the losses on the two halves of the held-out samples, of clients that have at least two."""
    rows = evidence.held_out >= 2
    count = evidence.held_out[rows, None]
    first = evidence.half_losses[rows] * np.ceil(count / 2)
    return _nats(first * scale), _nats((evidence.losses[rows] * count - first) * scale)


def _log_scores(seen: Floats, later: Floats, prior: Floats) -> Floats:
    """Return for each tried weight the probability of later samples given earlier ones, (w,).

    Args:
        seen: (a, K) nats of the samples that were seen, which count by the weight.
        later: (a, K) nats of the later samples.
        prior: (K,) probability of each cluster.
    """
    scores = np.zeros(len(TRIED_WEIGHTS))
    for first in range(0, len(seen), CLIENTS_AT_ONCE):
        rows = slice(first, first + CLIENTS_AT_ONCE)
        believed = -TRIED_WEIGHTS[:, None, None] * seen[rows] + np.log(prior)
        scores += (_log_sum(believed - later[rows]) - _log_sum(believed)).sum(axis=1)
    return scores


def _mean_weight(scores: Floats) -> float:
    """Return the geometric mean of the weights, each counting by how well it predicts and by a prior with mode 1."""
    logs = np.log(TRIED_WEIGHTS)
    return float(np.exp(_normalised(scores - (logs / WEIGHT_DEVIATION) ** 2 / 2) @ logs))


def _log_sum(values: Floats) -> Floats:
    """Return log(sum(exp(values))) over the last axis."""
    largest = values.max(axis=-1)
    return np.asarray(largest + np.log(np.exp(values - largest[..., None]).sum(axis=-1)))


def _normalised(logs: Floats) -> Floats:
    return np.asarray(np.exp(logs - _log_sum(logs)[..., None]))


# ---- clusters that may hide several groups -------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """Differences between the clients of one cluster, beyond those by chance."""

    statistic: float
    """Size of the differences in standard errors."""
    share: float
    """Share of the variance of the samples' scores between clients."""

    @property
    def hides_groups(self) -> bool:
        """Whether the clients differ so much that the cluster may hide more than one group."""
        return self.statistic >= MIXED and self.share >= LEAST_DIFFERENCE


def differences(evidence: Evidence, cluster: int) -> Differences:
    """Return how much the clients of a cluster differ: the score test of a variance component.

    Products of the scores of two samples of one client, each client divided by its number of samples, are compared with
    products of any two samples of the cluster. If all clients follow one model, both have the same mean, whatever the
    distribution of the scores is and whether or not the model has converged.
    """
    rows = evidence.own == cluster
    n, spread, score = evidence.compared[rows], evidence.spread[rows], evidence.score.get(cluster)
    variance = float((evidence.pairs_variance[rows] / n**2).sum())
    if score is None or not variance > 0 or not math.isfinite(variance):
        return Differences(0.0, 0.0)
    total = int(n.sum())
    any_two = (float(score @ score) - float(spread.sum())) / (total * (total - 1))
    excess = float((evidence.pairs[rows] / n).sum()) - (total - len(n)) * any_two
    return Differences(excess / math.sqrt(variance), excess / float(((n - 1) * spread / n).sum()))


# ---- all of it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certainty:
    """The certainty of an assignment."""

    evidence: Evidence
    calibration: Calibration
    probabilities: Floats
    """Probability of each cluster for each client, (a, K)."""
    needed: Floats
    """Number of samples with which 4 of 5 clients of each cluster would be sure, (K,)."""
    mixed: tuple[int, ...]
    """Clusters that may hide more than one group."""

    @property
    def own(self) -> Floats:
        """Probability of each client's cluster, (a,)."""
        return self.evidence.mine(self.probabilities)

    @property
    def sure(self) -> int:
        """Number of clients that are in their group with a probability of at least `SURE`."""
        return int((self.own >= SURE).sum())

    @property
    def undecided(self) -> npt.NDArray[np.bool_]:
        """Whether no cluster of a client has a probability of at least `SURE`, (a,)."""
        return np.asarray(self.probabilities.max(axis=1) < SURE)


def measure_certainty(evidence: Evidence, clusters: Clusters, squared_error: bool) -> Certainty | None:
    """Return the certainty of the assignment; None if too few samples are at hand to calibrate it.

    Args:
        evidence: The replies of the clients.
        clusters: The models that they are about.
        squared_error: Whether the loss is a squared error instead of a negative log-likelihood.
    """
    by = calibrate(evidence, squared_error, parameter_count(clusters.params))
    if by is None:
        return None
    mixed = tuple(k for k in range(evidence.K) if differences(evidence, k).hides_groups)
    return Certainty(evidence, by, probabilities(evidence, by), samples_needed(evidence, by), mixed)
