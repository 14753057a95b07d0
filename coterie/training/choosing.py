"""How many clusters: trial runs with K = 1, 2, ... on a part of every client's samples, judged by the rest of them.

A trial run is the run itself with fewer rounds. Its seed decides the samples that are held out and the start; all K
share the seeds, so that differences between them are paired client by client. The smallest K wins whose held-out loss
is not clearly above the least one: noise does not argue for more clusters, and K = 1 says that there is nothing to gain
by telling clients apart. Test data takes no part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.keys import Purpose, key_for
from coterie.core.numbers import finite
from coterie.core.validation import hold_out
from coterie.errors import ConfigError, DivergenceWarning, TrainingError
from coterie.methods.base import TrialSettings
from coterie.training.planning import Plan
from coterie.training.result import Result
from coterie.training.runs.journal import TrialLog

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHARE = 0.2
"""Of each client's training samples, to judge by."""
PART = 0.5
"""Of the rounds, for a trial run; by then the numbers of clusters are far enough apart (docs/choosing-clusters.md)."""
CLEAR = 2.0
"""Standard errors from which a difference counts. One lets noise add clusters (docs/choosing-clusters.md)."""
REPEATABLE = 0.8
"""Agreement between trial runs below which the clusters are not to be trusted."""
ABSENT = -1
"""The cluster of a client that did not answer."""


OnTrial = Callable[[int, int], None]
"""Called with the number of finished trial runs and the number of all, before the first one and after each."""


@dataclass(frozen=True)
class Trials:
    """What the trial runs showed, and what they took."""

    losses: Floats
    """(K, S, m) held-out loss of each client, for 1, 2, ... clusters and each seed; NaN for one not to be judged."""
    clusters: Ints
    """(K, S, m) the cluster of each client, or `ABSENT`."""
    rounds: int
    """Of one trial run."""
    bytes_up: int
    bytes_down: int
    exchanges: int


@dataclass(frozen=True)
class Verdict:
    """Which number of clusters, and by how much the others are behind; arrays have shape (K,)."""

    chosen: int
    """A place in the arrays: one less than the number of clusters."""
    loss: Floats
    """Held-out loss, the mean over clients and seeds."""
    behind: Floats
    """How far it is above the least one."""
    error: Floats
    """Standard error of `behind`; none for the least loss itself."""


def choose(
    plan: Plan, train: Callable[[Plan], Result], log: TrialLog | None = None, on_trial: OnTrial | None = None
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan with its number of clusters, and what was found, JSON-ready.

    Args:
        plan: A plan whose number of clusters is left to trial runs.
        train: Runs a plan to its end.
        log: Keeps the results of finished trial runs; those that it holds already are not run again.
        on_trial: Called after each trial run.
    """
    trials = _trials(plan, train, log, on_trial)
    verdict = judge(trials.losses)
    agreements, in_use = [agreement(row) for row in trials.clusters], [_in_use(row) for row in trials.clusters]
    # spare clusters only help a random start: where all clients are in one, there is one
    K = 1 if in_use[verdict.chosen] == 1 else verdict.chosen + 1
    told = {
        "by": "held-out loss",
        "clusters": K,
        "table": [
            {
                "clusters": k + 1,
                "loss": finite(verdict.loss[k]),
                "behind": finite(verdict.behind[k]),
                "se": finite(verdict.error[k]),
                "agreement": agreements[k],
                "in_use": in_use[k],
            }
            for k in range(len(verdict.loss))
        ],
        "seeds": trials.losses.shape[1],
        "rounds": trials.rounds,
        "share": SHARE,
        "judged": int(_judged(trials.losses).sum()),
        "warnings": list(_cautions(K, agreements, in_use)),
        "bytes_up": trials.bytes_up,
        "bytes_down": trials.bytes_down,
        "exchanges": trials.exchanges,
    }
    return plan.decided(clusters=K), told


def trial_settings(plan: Plan) -> TrialSettings:
    """Return how trial runs choose the number of clusters."""
    assert isinstance(plan.method, TrialSettings), "checked when the run is planned"
    return plan.method


def trial_rounds(plan: Plan) -> int:
    """Rounds of one trial run."""
    given = trial_settings(plan).choose_rounds
    return int(given) if given is not None else max(1, round(PART * plan.rounds))


def most_clusters(plan: Plan) -> int:
    """The largest number of clusters that is tried: never more than there are clients."""
    return min(int(trial_settings(plan).max_clusters), len(plan.data.clients))


def announcement(plan: Plan) -> str:
    """What is going to be done, for somebody who waits for it."""
    most, seeds = most_clusters(plan), trial_settings(plan).choose_seeds
    return f"{most * seeds} trial runs of {trial_rounds(plan)} rounds choose the number of clusters, 1 to {most}"


# ---- the rule ------------------------------------------------------------------------------------------------------


def judge(losses: Floats) -> Verdict:
    """The smallest K whose held-out loss is at most `CLEAR` standard errors behind the least; `losses` is (K, S, m).

    The standard error is that of the paired difference to the least one. Clients and seeds both make it uncertain, so
    both count: the variance of the clients' means (over seeds) divided by m, plus that of the seeds' means (over
    clients) divided by S. Clients that cannot be judged in every trial are left out.
    """
    losses = losses[:, :, _judged(losses)]
    mean = losses.mean(axis=(1, 2))
    best = int(mean.argmin())
    if not np.isfinite(mean[best]):
        raise TrainingError(
            "clusters=auto: in all trial runs the held-out loss is infinite: lower lr, scale the features"
        )
    with np.errstate(invalid="ignore"):  # a diverged number of clusters is infinitely far behind, its error unknown
        gaps = losses - losses[best]
        error = np.sqrt(_squared_error(gaps.mean(axis=1), alone=np.inf) + _squared_error(gaps.mean(axis=2), alone=0.0))
    error[best] = 0.0
    behind = mean - mean[best]
    return Verdict(int(np.flatnonzero(behind <= CLEAR * error)[0]), mean, behind, error)


def _judged(losses: Floats) -> npt.NDArray[np.bool_]:
    """(m,) who has a held-out loss in every trial."""
    return np.asarray(~np.isnan(losses).any(axis=(0, 1)))


def _squared_error(values: Floats, alone: float) -> Floats:
    """Of the mean of each row of (K, n); `alone` where a row has one value, which says nothing about its error."""
    n = values.shape[1]
    return values.var(axis=1, ddof=1) / n if n > 1 else np.full(len(values), alone)


def agreement(clusters: Ints) -> float | None:
    """The mean adjusted Rand index of all pairs of rows of (S, m), over the clients known in both; None for one row."""
    from sklearn.metrics import adjusted_rand_score  # slow to import

    pairs = []
    for one, other in combinations(clusters, 2):
        known = (one != ABSENT) & (other != ABSENT)
        pairs.append(adjusted_rand_score(one[known], other[known]))
    return float(np.mean(pairs)) if pairs else None


def _in_use(clusters: Ints) -> float:
    """How many clusters have a client, the mean over the rows of (S, m)."""
    return float(np.mean([len(np.unique(row[row != ABSENT])) for row in clusters]))


def _cautions(K: int, agreements: Sequence[float | None], in_use: Sequence[float]) -> Iterator[str]:
    """What speaks against trusting K clusters; one value for each number tried."""
    agreed, used = agreements[K - 1], in_use[K - 1]
    if agreed is not None and agreed < REPEATABLE:
        yield (
            f"the trial runs with {K} clusters agree little about who belongs together (adjusted Rand index "
            f"{agreed:.2f}): more clusters fit better, but these may be different ones next time; try more restarts"
        )
    if used <= K - 0.5:
        yield (
            f"of {K} clusters {used:.1f} were in use in the trial runs: spare ones help a random start, so with more "
            "restarts fewer may do"
        )
    if K == len(agreements) > 1:
        yield f"{K} is the largest number that was tried, and more may be better: give a larger max_clusters"


# ---- the trials ----------------------------------------------------------------------------------------------------


def _trials(
    plan: Plan, train: Callable[[Plan], Result], log: TrialLog | None = None, on_trial: OnTrial | None = None
) -> Trials:
    data, rounds = _own_samples(plan), trial_rounds(plan)
    shape = (most_clusters(plan), int(trial_settings(plan).choose_seeds), len(data.clients))
    losses, clusters = np.empty(shape), np.empty(shape, dtype=np.int64)
    up = down = 0
    known = [] if log is None else log.read()
    total, on_trial = shape[0] * shape[1], on_trial or (lambda done, total: None)
    on_trial(len(known), total)
    for number, (k, s) in enumerate(np.ndindex(shape[:2])):
        if number < len(known):
            outcome = known[number]
        else:
            trial = _trial(plan, data, k + 1, s, rounds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DivergenceWarning)  # a trial that diverges is out of the running
                outcome = _outcome(trial, train(trial))
            if log is not None:
                log.append(outcome)
            on_trial(number + 1, total)
        losses[k, s], clusters[k, s] = [float(loss) for loss in outcome["losses"]], outcome["clusters"]
        up, down = up + outcome["bytes_up"], down + outcome["bytes_down"]
    return Trials(losses, clusters, rounds, up, down, total * (rounds + 1))


def _own_samples(plan: Plan) -> ClientDirectory:
    """The samples that the run itself trains on and nothing else: no test data, no validation samples, no truth."""
    share, seed, data = plan.settings.validation, plan.settings.seed, plan.data
    if share is None:
        return data.training_only()
    if not isinstance(data, FederatedDataset):
        raise ConfigError(
            "clusters=auto holds out samples of its own, and clients that live elsewhere hold out once: leave "
            "validation out, or give a number of clusters"
        )
    return hold_out(data, share, seed).training_only()


def _trial(plan: Plan, data: ClientDirectory, K: int, s: int, rounds: int) -> Plan:
    """The run with K clusters, seed number s and samples held out; always to its last round, and judged once."""
    seed = key_for(plan.settings.seed, Purpose.TRIAL, s) >> 1  # seeds have 63 bits
    once = {"rounds": rounds, "evaluate_every": rounds, "patience": None, "finetune": None}
    return plan.on(data, clusters=K, seed=seed, validation=SHARE, **once)


def _outcome(trial: Plan, result: Result) -> dict[str, Any]:
    """What a trial run showed and took, JSON-ready.

    Held-out loss and cluster of each client, (m,) each. The loss is NaN where nothing is held out and infinite after
    divergence; both are written as text, which `float` reads.
    """
    assert trial.validated is not None
    place = {client: i for i, client in enumerate(trial.data.clients)}
    losses, clusters = np.full(len(place), np.nan), np.full(len(place), ABSENT)
    for row in result.clients:
        i = place[row["id"]]
        clusters[i] = row["cluster"]
        if trial.validated[i]:
            losses[i] = np.inf if row["loss"] is None or result.metrics["diverged"] else row["loss"]
    up, down = _judging_bytes(result)
    return {
        "losses": [loss if np.isfinite(loss) else str(loss) for loss in losses.tolist()],
        "clusters": clusters.tolist(),
        "bytes_up": result.metrics["bytes_up"] + up,
        "bytes_down": result.metrics["bytes_down"] + down,
    }


def _judging_bytes(result: Result) -> tuple[int, int]:
    """Up and down, of the last exchange of a trial run: every client gets all models and returns three numbers a start.

    They are its training loss, by which the start is chosen, its cluster and its held-out loss.
    """
    starts, model = len(result.metrics.get("start_losses", [0])), result.parameters[0]
    sent = sum(p.numel() * p.element_size() for p in model.values()) * len(result.parameters) * starts
    return 8 * 3 * starts * len(result.clients), sent * len(result.clients)
