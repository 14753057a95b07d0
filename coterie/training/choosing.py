"""Choice of the number of clusters by trial runs with K = 1, 2, ... on a part of every client's samples.

A trial run is the same run with fewer rounds; the other samples judge it. Its seed decides which samples are held out,
and the first models. All K share the seeds, so differences between them are paired client by client. `verdict.py`
contains the decision rule. Test data is not used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.keys import Purpose, key_for
from coterie.core.numbers import finite
from coterie.core.plain import to_plain
from coterie.core.validation import validation_split
from coterie.errors import ConfigError, DivergenceWarning
from coterie.evaluate.metrics import weighted_rand_index
from coterie.learners.base import Learner
from coterie.methods.base import TrialSettings
from coterie.methods.settings import USUAL_ROUNDS
from coterie.training.callbacks.base import Callback, TrainingRun
from coterie.training.planning import Plan
from coterie.training.records import RoundRecord
from coterie.training.result import Result
from coterie.training.runs.journal import TrialLog
from coterie.training.stopping import Watch
from coterie.training.verdict import HeldOut, judge

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHARE = 0.2
"""Share of each client's training samples that a trial run holds out."""
PART = 0.5
"""Largest share of the rounds that a trial run takes (docs/choosing-clusters.md)."""
SETTLED, SETTLED_ROUNDS = 1e-3, 5
"""A trial run ends when its training loss has not fallen by this share for this many consecutive rounds."""
MAX_CONSECUTIVE_WORSE = 2
"""No larger K is tried if this many in a row after the best one have a higher held-out loss."""
REPEATABLE = 0.8
"""Agreement between trial runs below which the user is warned that the clusters are unreliable."""
ABSENT = -1
"""Cluster of a client that did not answer."""


Outcome = dict[str, Any]
"""Result of a trial run, ready for JSON; see `_outcome`."""
RunTrials = Callable[[Sequence[Callable[[], Plan]]], Generator[Outcome, None, None]]
"""Function that yields the outcomes of trial runs in their order; the runs may be carried out in advance."""
OnTrial = Callable[[int, int], None]
"""Function of the number of finished trial runs and their largest possible number. It is called before the first trial
run and after each; both numbers are equal if larger numbers of clusters are skipped."""


@dataclass
class StopWhenSettled(Callback):
    """Ends a trial run when its training loss stops falling."""

    watch: Watch = field(default_factory=lambda: Watch("loss", SETTLED_ROUNDS, tolerance=SETTLED))
    reason: ClassVar[str] = "patience"

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        self.watch.see(record)
        return self.watch.exhausted


@dataclass(frozen=True)
class Trials:
    """Results and costs of all trial runs."""

    losses: Floats
    """Held-out loss of each client, for 1, 2, ... clusters and each seed, (K, S, m); NaN if nothing is held out."""
    clusters: Ints
    """Cluster of each client, or `ABSENT`, (K, S, m)."""
    sizes: Ints
    """Number of training samples of each client, held-out ones included, (m,)."""
    rounds: int
    """Largest number of rounds of a trial run."""
    bytes_up: int
    bytes_down: int
    exchanges: int


def choose(
    plan: Plan, run_trials: RunTrials, log: TrialLog | None = None, on_trial: OnTrial | None = None
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan with its number of clusters, and the findings, ready for JSON.

    Args:
        plan: A plan whose number of clusters is chosen by trial runs.
        run_trials: Carries out trial runs.
        log: Log of finished trial runs; those that it contains are not run again.
        on_trial: Called after each trial run.
    """
    trials = _trials(plan, run_trials, log, on_trial)
    agreements = [agreement(row, trials.sizes) for row in trials.clusters]
    in_use = [_in_use(row) for row in trials.clusters]
    # extra clusters only help a random start: if all clients are in one cluster, K is 1
    single = np.array(in_use)[:, None, None] == 1
    losses = np.where(single, trials.losses[0], trials.losses)
    data = HeldOut.of(losses, trials.sizes, SHARE, _unit_loss(plan.learner))
    found = judge(data)
    K, caution = found.verdict.trained, found.verdict.warning
    chosen = {
        "by": "held-out loss",
        "clusters": K,
        "verdict": to_plain(found.verdict),
        "answer": found.verdict.sentence,
        "table": [
            {
                "clusters": k + 1,
                "loss": finite(found.loss[k]),
                "behind": finite(found.behind[k]),
                "se": finite(found.error[k]),
                "agreement": agreements[k],
                "in_use": in_use[k],
            }
            for k in range(len(found.loss))
        ],
        "seeds": trials.losses.shape[1],
        "rounds": trials.rounds,
        "share": SHARE,
        "judged": len(data.sizes),
        "warnings": [
            *([] if caution is None else [caution]),
            *_warnings_about(K, agreements, in_use, most_clusters(plan)),
        ],
        "bytes_up": trials.bytes_up,
        "bytes_down": trials.bytes_down,
        "exchanges": trials.exchanges,
    }
    return plan.decided(clusters=K), chosen


def trial_settings(plan: Plan) -> TrialSettings:
    """Return the settings of trial runs."""
    assert isinstance(plan.method, TrialSettings), "checked when the run is planned"
    return plan.method


def trial_rounds(plan: Plan) -> int:
    """Return the largest number of rounds of a trial run."""
    given = trial_settings(plan).choose_rounds
    return int(given) if given is not None else max(1, round(PART * (USUAL_ROUNDS if plan.settles else plan.rounds)))


def most_clusters(plan: Plan) -> int:
    """Return the largest number of clusters to try, at most the number of clients."""
    return min(int(trial_settings(plan).max_clusters), len(plan.data.clients))


def announcement(plan: Plan) -> str:
    """Return a sentence that announces the trial runs to the user."""
    most, seeds = most_clusters(plan), trial_settings(plan).choose_seeds
    return (
        f"choosing the number of clusters from 1 to {most}: up to {most * seeds} trial runs of at most "
        f"{trial_rounds(plan)} rounds"
    )


def _unit_loss(learner: Learner) -> float | None:
    """Return the loss of a prediction with an error of 1, which turns a mean loss into an RMSE; None for classes."""
    if learner.classes is not None:
        return None
    return float(learner.loss(torch.zeros(1, 1), torch.ones(1, 1)))


# ---- agreement -----------------------------------------------------------------------------------------------------


def agreement(clusters: Ints, sizes: Ints) -> float | None:
    """Return the mean adjusted Rand index of all pairs of trial runs; None for a single trial run.

    Clients are weighted by their numbers of samples, because the cluster of a client with one sample is arbitrary and
    says nothing about the clusters.

    Args:
        clusters: (S, m) cluster of each client in each trial run; clients with `ABSENT` are left out.
        sizes: (m,) number of training samples of each client.
    """
    pairs = []
    for one, other in combinations(clusters, 2):
        known = (one != ABSENT) & (other != ABSENT)
        pairs.append(weighted_rand_index(one[known], other[known], sizes[known].astype(np.float64)))
    return float(np.mean(pairs)) if pairs else None


def _in_use(clusters: Ints) -> float:
    """Return the number of clusters with clients, averaged over the rows of (S, m)."""
    return float(np.mean([len(np.unique(row[row != ABSENT])) for row in clusters]))


def _warnings_about(K: int, agreements: Sequence[float | None], in_use: Sequence[float], most: int) -> Iterator[str]:
    """Yield reasons not to rely on K clusters; the sequences have one value for each number of clusters tried."""
    agreed, used = agreements[K - 1], in_use[K - 1]
    if agreed is not None and agreed < REPEATABLE:
        yield (
            f"the trial runs with {K} clusters agree little on the groups (adjusted Rand index {agreed:.2f}): more "
            "clusters fit better, but another run may find other ones; try more restarts"
        )
    if used <= K - 0.5:
        yield (
            f"of {K} clusters only {used:.1f} had clients in the trial runs: extra clusters help a random start, so "
            "with more restarts fewer may be enough"
        )
    if K == most > 1:
        yield f"{K} is the largest number of clusters that was tried, and more may be better: set a larger max_clusters"


# ---- the trials ----------------------------------------------------------------------------------------------------


def _trials(plan: Plan, run_trials: RunTrials, log: TrialLog | None = None, on_trial: OnTrial | None = None) -> Trials:
    data, rounds = _own_samples(plan), trial_rounds(plan)
    most, seeds = most_clusters(plan), int(trial_settings(plan).choose_seeds)
    known = [] if log is None else log.read()
    on_trial = on_trial or (lambda done, total: None)
    outcomes: list[list[Outcome]] = []
    done = 0
    on_trial(len(known), most * seeds)
    unknown = list(product(range(most), range(seeds)))[len(known) :]
    found = run_trials([partial(_trial, plan, data, k + 1, s, rounds) for k, s in unknown])
    for _ in range(most):
        outcomes.append([])
        for _ in range(seeds):
            if done < len(known):
                outcome = known[done]
            else:
                outcome = next(found)
                if log is not None:
                    log.append(outcome)
                on_trial(done + 1, most * seeds)
            done += 1
            outcomes[-1].append(outcome)
        if _is_past_best(_losses(outcomes), data.sizes):
            break
    found.close()  # later trial runs are not needed
    if done < most * seeds:
        on_trial(done, done)
    flat = [outcome for row in outcomes for outcome in row]
    return Trials(
        _losses(outcomes),
        np.array([[outcome["clusters"] for outcome in row] for row in outcomes], dtype=np.int64),
        data.sizes,
        rounds,
        *(sum(outcome[name] for outcome in flat) for name in ("bytes_up", "bytes_down", "exchanges")),
    )


def one_by_one(train: Callable[[Plan], Result]) -> RunTrials:
    """Return a function that carries out trial runs in this process, each when its outcome is needed."""

    def run(trials: Sequence[Callable[[], Plan]]) -> Generator[Outcome, None, None]:
        for trial in trials:
            yield outcome_of(trial(), train)

    return run


def _losses(outcomes: Sequence[Sequence[Outcome]]) -> Floats:
    """Return the held-out losses, (K, S, m); losses that are not finite are stored as text."""
    return np.array([[[float(loss) for loss in outcome["losses"]] for outcome in row] for row in outcomes])


def _is_past_best(losses: Floats, sizes: Ints) -> bool:
    """Return whether the last numbers of clusters were all worse than an earlier one; larger ones are then skipped."""
    mean = HeldOut.of(losses, sizes, SHARE).mean
    return len(mean) - 1 - int(mean.argmin()) >= MAX_CONSECUTIVE_WORSE


def outcome_of(trial: Plan, train: Callable[[Plan], Result]) -> Outcome:
    """Carry out a trial run and return its result, ready for JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # a trial run that diverges is not chosen
        return _outcome(trial, train(trial))


def _own_samples(plan: Plan) -> ClientDirectory:
    """Return only the samples that the run trains on: no test data, no validation samples, no true groups."""
    share, seed, data = plan.settings.validation, plan.settings.seed, plan.data
    if share is None:
        return data.training_only()
    if not isinstance(data, FederatedDataset):
        raise ConfigError(
            "clusters=auto holds out samples itself, and remote clients can hold out samples only once: leave "
            "validation out, or set a number of clusters"
        )
    return validation_split(data, share, seed).training_only()


def _trial(plan: Plan, data: ClientDirectory, K: int, s: int, rounds: int) -> Plan:
    """Return the run with K clusters, trial seed s and held-out samples, evaluated once at its end."""
    seed = key_for(plan.settings.seed, Purpose.TRIAL, s) >> 1  # seeds have 63 bits
    once = {"rounds": rounds, "evaluate_every": rounds, "patience": None, "finetune": None}
    return plan.on(data, clusters=K, seed=seed, validation=SHARE, **once)


def _outcome(trial: Plan, result: Result) -> Outcome:
    """Return the result and the cost of a trial run, ready for JSON.

    These are the held-out loss and the cluster of each client, (m,) each. A loss is NaN if nothing is held out, and
    infinite after divergence; both are written as text, which `float` reads.
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
        "exchanges": result.metrics.rounds + 1,
    }


def _judging_bytes(result: Result) -> tuple[int, int]:
    """Return the bytes up and down of the last exchange of a trial run.

    Every client receives all models and returns three numbers for each restart: its training loss, by which the restart
    is chosen, its cluster, and its held-out loss.
    """
    starts, model = len(result.metrics.get("restart_losses", [0])), result.parameters[0]
    sent = sum(p.numel() * p.element_size() for p in model.values()) * len(result.parameters) * starts
    return 8 * 3 * starts * len(result.clients), sent * len(result.clients)
