"""Table of measures: all optional figures of the records of rounds and of the final metrics.

Recording, the terminal, the report and the documentation iterate over `MEASURES`. Each measure declares whether it
applies to a snapshot. Users can add measures::
    @coterie.measure("largest_share", label="largest share", description="share of clients in the largest cluster")
    def largest_share(now):
        return max(now.sizes) / sum(now.sizes)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.numbers import finite, finite_numbers
from coterie.errors import ConfigError
from coterie.evaluate.certainty import SURE, Certainty
from coterie.evaluate.clients import Scores
from coterie.evaluate.metrics import parameter_error, worst_tenth
from coterie.evaluate.subspace import subspace_distance
from coterie.learners.representation import Representation
from coterie.methods.round import Step
from coterie.training.records import EARLIER_NAMES, ClientResult, Metrics, RoundRecord, attributes_of
from coterie.training.snapshot import Snapshot

Compute = Callable[[Snapshot], Any]
Applies = Callable[[Snapshot], bool]
Unit = Literal["score", "share", "index", "count", "number", "small number", "other"]
"""Format of a value: `score` as accuracy (percent) or RMSE, `share` in percent, `index` for a number from 0 to 1,
`small number` with an exponent, `other` for values that are not a single number and are not shown."""
Moment = Literal["round", "end"]
WHEN: Mapping[str, frozenset[Moment]] = {
    "round": frozenset({"round"}),
    "end": frozenset({"end"}),
    "both": frozenset({"round", "end"}),
}

DETAILED = 500
"""Largest number of clients for which a record contains the cluster of each client."""
DYING = 0.1
"""A cluster is dying if its share of the clients' weight is below this fraction of the equal share 1/K."""


def always(now: Snapshot) -> bool:
    """Return True, for measures that apply to every snapshot."""
    return True


@dataclass(frozen=True)
class Measure:
    """One optional figure.

    Args:
        name: Key of the figure in records and metrics.
        compute: Returns the value for a snapshot: a number, None if it is not finite, or another value that JSON
            supports.
        label: Title of its column in tables and of its line in the terminal.
        description: Meaning of the figure in one phrase, without a period.
        applies: Whether the figure is known for a snapshot; otherwise records leave it out.
        unit: How the value is written.
        better: Whether higher or lower values are better; None if neither is, or if it depends on the score.
        when: Whether the figure belongs to the record of each round, to the final metrics, or to both.
        sentence: Line of the terminal; empty for none. Braces contain names of measures and options, `clients` for the
            number of clients, and `honest` for the number of clients that are not attackers.
        progress: Whether the progress bar shows the figure.
        column: Whether tables that compare methods have a column for it.
        curve: Whether the report draws the figure by round.
    """

    name: str
    compute: Compute
    label: str
    description: str
    applies: Applies = always
    unit: Unit = "number"
    better: Literal["higher", "lower"] | None = None
    when: Literal["round", "end", "both"] = "both"
    sentence: str = ""
    progress: bool = False
    column: bool = False
    curve: bool = False


# ---- computations --------------------------------------------------------------------------------------------------


def _step(now: Snapshot) -> Step:
    assert now.step is not None, "measures of rounds are computed after a round"
    return now.step


def _has_scores(now: Snapshot) -> bool:
    return now.evaluation.scores is not None


def _mean(found: Scores | None) -> float | None:
    """Return the mean score over clients; None if no client was asked or it is not finite."""
    return finite(found.score.mean()) if found is not None and len(found.score) else None


def _mean_score(now: Snapshot) -> float | None:
    return _mean(now.evaluation.scores)


def _mean_loss(found: Scores | None) -> float | None:
    return None if found is None else finite(found.loss.mean())


def _worst(found: Scores | None, higher_is_better: bool) -> float | None:
    return finite(worst_tenth(found.score, higher_is_better)) if found is not None and len(found.score) else None


def _has_certainty(now: Snapshot) -> bool:
    return now.certainty is not None


def _certainty(now: Snapshot) -> Certainty:
    assert now.certainty is not None, "the measure applies only if the certainty is known"
    return now.certainty


def _reassigned(now: Snapshot) -> int:
    """Return the number of clients in another cluster than in the run that this one continues."""
    then = torch.tensor([now.before.get(client, -1) for client in now.data.clients])
    return int(((now.choice != then) & (now.choice >= 0) & (then >= 0)).sum())


def _likelihood(now: Snapshot) -> float | None:
    found = _step(now).likelihood
    return None if found is None else finite(found[now.restart])


def _objective(now: Snapshot) -> float | None:
    found = _step(now).objective
    return None if found is None else finite(found[now.restart])


def _has_shares(now: Snapshot) -> bool:
    return _step(now).shares is not None and now.K > 1


def _shares(now: Snapshot) -> Tensor:
    found = _step(now).shares
    assert found is not None, "the measure applies only to rounds with shares"
    return found[now.restart]


def dying(shares: Tensor) -> list[int]:
    """Return the clusters with hardly any of the clients' weight, from the clusters' shares (K,)."""
    clusters: list[int] = torch.nonzero(shares < DYING / len(shares)).flatten().tolist()
    return clusters


def _has_restarts(now: Snapshot) -> bool:
    return len(now.restart_losses) > 1 or _had_restarts(now)


def _had_restarts(now: Snapshot) -> bool:
    """Return whether an earlier round had several restarts, of which a race kept one."""
    return bool(now.records) and "restart" in now.records[-1]


def _restart(now: Snapshot) -> int:
    return now.restart if len(now.restart_losses) > 1 else int(now.records[-1]["restart"])


def _subspace_distance(now: Snapshot) -> float | None:
    if now.bases is None or not np.isfinite(now.bases[0]).all():
        return None
    return subspace_distance(*now.bases)


def _coefficients(now: Snapshot) -> np.ndarray | None:
    """Return the coefficients (K, d) of linear models if the true ones are known and have the same shape."""
    true, found = now.data.true_models, _linear_coefficients(now)
    if true is None or found is None or found.shape[1:] != true.shape[1:]:
        return None
    return np.asarray(found.double().cpu().numpy())


def _linear_coefficients(now: Snapshot) -> Tensor | None:
    """Return the coefficients (K, d) of models that consist of linear coefficients only."""
    if isinstance(now.learner, Representation):
        return now.learner.coefficients(now.clusters.all_models())
    return now.clusters.params["weight"] if set(now.clusters.params) == {"weight"} else None


def _parameter_error(now: Snapshot) -> float | None:
    found, true = _coefficients(now), now.data.true_models
    if found is None or true is None or not np.isfinite(found).all():
        return None
    return parameter_error(true, found)


def _attackers(now: Snapshot) -> int:
    return int((now.attackers & (now.choice >= 0)).sum())


def _best(name: str) -> Callable[[Snapshot], list[tuple[float, int]]]:
    """Return a function of the best value of a score, and the number of rounds after which it was reached.

    It considers all rounds and the end, when another restart may be kept than the best one of the last round. It
    returns an empty list if no value is known.
    """

    def found(now: Snapshot) -> list[tuple[float, int]]:
        measure = MEASURES[name]
        known = [(record.get(name), record.round + 1) for record in now.records]
        known += [(measure.compute(now), len(now.records))] if measure.applies(now) else []
        better = max if now.classifies else min
        numbers = [(value, after) for value, after in known if value is not None]
        return [better(numbers, key=lambda pair: pair[0])] if numbers else []

    return found


def _best_of(name: str, label: str, sentence: str = "") -> tuple[Measure, Measure]:
    """Return the measures `best_NAME` and `best_NAME_after`, for data with newcomers, whose papers report both."""
    best = _best(name)

    def applies(now: Snapshot) -> bool:
        return now.data.newcomers is not None and bool(best(now))

    return (
        Measure(
            f"best_{name}",
            lambda now: best(now)[0][0],
            label=label,
            description=f"best value of {name} over all rounds",
            applies=applies,
            unit="score",
            when="end",
            sentence=sentence,
        ),
        Measure(
            f"best_{name}_after",
            lambda now: best(now)[0][1],
            label=f"{label} after",
            description=f"number of rounds after which {name} was best",
            applies=applies,
            unit="count",
            when="end",
        ),
    )


# ---- the table -----------------------------------------------------------------------------------------------------

BUILT_IN = (
    Measure(
        "sizes",
        lambda now: now.sizes,
        label="sizes",
        description="number of clients in each cluster",
        applies=lambda now: now.shares_models,
        unit="other",
        when="round",
    ),
    Measure(
        "assignments",
        lambda now: now.choice.tolist(),
        label="assignments",
        description=f"cluster of each client, with at most {DETAILED} clients; -1 if it is unknown",
        applies=lambda now: now.shares_models and len(now.choice) <= DETAILED,
        unit="other",
        when="round",
    ),
    Measure(
        "reassigned",
        _reassigned,
        label="reassigned",
        description="number of clients in another cluster than in the run that this one continues",
        applies=lambda now: bool(now.before),
        unit="count",
        when="round",
    ),
    Measure(
        "K",
        lambda now: now.K,
        label="K",
        description="number of clusters, for methods that change it",
        applies=lambda now: now.changes_clusters,
        unit="count",
        when="round",
    ),
    Measure(
        "likelihood",
        _likelihood,
        label="likelihood",
        description="mean log-likelihood of the training samples under the mixtures of their clients",
        applies=lambda now: _step(now).likelihood is not None,
        better="higher",
        when="round",
    ),
    Measure(
        "objective",
        _objective,
        label="objective",
        description="log-likelihood minus the penalty on samples whose weights differ from their client's (eq. 2 of "
        "HCFL+)",
        applies=lambda now: _step(now).objective is not None,
        better="higher",
        when="round",
    ),
    Measure(
        "shares",
        lambda now: [round(share, 6) for share in _shares(now).tolist()],
        label="shares",
        description="share of the clients' weight in each cluster, for mixtures",
        applies=_has_shares,
        unit="other",
        when="round",
    ),
    Measure(
        "dying",
        lambda now: dying(_shares(now)),
        label="dying",
        description=f"clusters whose share is below {DYING:g} of the equal share 1/K",
        applies=lambda now: _has_shares(now) and bool(dying(_shares(now))),
        unit="other",
        when="round",
    ),
    Measure(
        "restart",
        _restart,
        label="restart",
        description="restart whose figures are recorded",
        applies=_has_restarts,
        unit="other",
    ),
    Measure(
        "restart_losses",
        lambda now: list(now.restart_losses),
        label="restart losses",
        description="training loss of each restart",
        applies=lambda now: len(now.restart_losses) > 1,
        unit="other",
    ),
    Measure(
        "validation_loss",
        lambda now: _mean_loss(now.evaluation.validation),
        label="validation loss",
        description="mean loss on validation samples",
        applies=lambda now: now.evaluation.validation is not None,
        better="lower",
    ),
    Measure(
        "validation_accuracy",
        lambda now: _mean(now.evaluation.validation),
        label="validation accuracy",
        description="mean accuracy on validation samples",
        applies=lambda now: now.evaluation.validation is not None and now.classifies,
        unit="score",
        better="higher",
    ),
    Measure(
        "validation_rmse",
        lambda now: _mean(now.evaluation.validation),
        label="validation RMSE",
        description="mean root mean squared error on validation samples",
        applies=lambda now: now.evaluation.validation is not None and not now.classifies,
        unit="score",
        better="lower",
    ),
    Measure(
        "accuracy",
        _mean_score,
        label="accuracy",
        description="mean accuracy over clients",
        applies=lambda now: _has_scores(now) and now.classifies,
        unit="score",
        better="higher",
        sentence="{accuracy}  worst-off tenth {worst_tenth}",
        progress=True,
    ),
    Measure(
        "rmse",
        _mean_score,
        label="RMSE",
        description="mean root mean squared error over clients",
        applies=lambda now: _has_scores(now) and not now.classifies,
        unit="score",
        better="lower",
        sentence="{rmse}  worst-off tenth {worst_tenth}",
        progress=True,
    ),
    Measure(
        "worst_tenth",
        lambda now: _worst(now.evaluation.scores, now.classifies),
        label="worst tenth",
        description="mean score over the tenth of the clients with the worst scores",
        applies=_has_scores,
        unit="score",
    ),
    Measure(
        "ari",
        lambda now: now.agreement["ari"],
        label="ARI",
        description="adjusted Rand index: agreement with the true groups, 0 by chance and 1 if they are equal",
        applies=lambda now: bool(now.agreement),
        unit="index",
        better="higher",
        sentence="{ari} agreement with the truth",
        progress=True,
        column=True,
    ),
    Measure(
        "nmi",
        lambda now: now.agreement["nmi"],
        label="NMI",
        description="normalised mutual information of clusters and true groups",
        applies=lambda now: bool(now.agreement),
        unit="index",
        better="higher",
        when="end",
    ),
    Measure(
        "identity",
        lambda now: now.agreement["identity"],
        label="right clients",
        description="share of clients in the right cluster, under the best matching of clusters and true groups",
        applies=lambda now: bool(now.agreement),
        unit="share",
        better="higher",
    ),
    Measure(
        "finetuned",
        lambda now: _mean(now.finetuned),
        label="finetuned",
        description="mean score of the models that clients fine-tune by local steps after the last round and keep",
        applies=lambda now: now.finetuned is not None,
        unit="score",
        when="end",
        sentence="{finetuned}  worst-off tenth {finetuned_worst_tenth}, after {finetune} local steps of each client",
        column=True,
    ),
    Measure(
        "finetuned_worst_tenth",
        lambda now: _worst(now.finetuned, now.classifies),
        label="tuned worst",
        description="mean score after fine-tuning over the tenth of the clients with the worst scores",
        applies=lambda now: now.finetuned is not None,
        unit="score",
        when="end",
        column=True,
    ),
    Measure(
        "newcomers",
        lambda now: now.newcomers,
        label="newcomers",
        description="mean score of clients that did not train, one for each true group, with a few labelled samples",
        applies=lambda now: now.data.newcomers is not None and now.measures_newcomers,
        unit="score",
        sentence="{newcomers} for newcomers, one for each true group",
        column=True,
    ),
    *_best_of("newcomers", "best new", "{best_newcomers} for newcomers, after {best_newcomers_after} rounds"),
    *_best_of("accuracy", "best accuracy"),
    *_best_of("rmse", "best RMSE"),
    Measure(
        "attackers",
        _attackers,
        label="attackers",
        description="number of simulated attackers; scores and agreement are those of the other clients",
        applies=lambda now: _attackers(now) > 0,
        unit="count",
        when="end",
        sentence="{attackers} of {clients} clients ({poison}); scores and agreement are those of the other clients",
    ),
    Measure(
        "sure",
        lambda now: _certainty(now).sure,
        label="sure",
        description=f"number of clients that belong to their cluster with a probability of at least {SURE:g}",
        applies=_has_certainty,
        unit="count",
        when="end",
    ),
    Measure(
        "mixed",
        lambda now: list(_certainty(now).mixed),
        label="mixed",
        description="clusters whose clients differ so much that they may contain more than one group",
        applies=lambda now: _has_certainty(now) and bool(_certainty(now).mixed),
        unit="other",
        when="end",
    ),
    Measure(
        "calibration",
        lambda now: _certainty(now).calibration.to_json(),
        label="calibration",
        description="parameters that turn losses into probabilities of clusters",
        applies=_has_certainty,
        unit="other",
        when="end",
    ),
    Measure(
        "sample_ari",
        lambda now: now.sample_agreement["sample_ari"],
        label="sample ARI",
        description="adjusted Rand index of the clusters of single samples and their true groups",
        applies=lambda now: bool(now.sample_agreement),
        unit="index",
        better="higher",
        when="end",
        sentence="{sample_ari} agreement of single samples with the truth; {sample_identity} of the samples are in the "
        "right cluster",
        column=True,
    ),
    Measure(
        "sample_identity",
        lambda now: now.sample_agreement["sample_identity"],
        label="right samples",
        description="share of samples in the right cluster, under the best matching of clusters and true groups",
        applies=lambda now: bool(now.sample_agreement),
        unit="share",
        better="higher",
        when="end",
        column=True,
    ),
    Measure(
        "parameter_error",
        _parameter_error,
        label="error",
        description="largest distance between a true model and the model found for it",
        applies=lambda now: _coefficients(now) is not None,
        better="lower",
        when="end",
        sentence="{parameter_error} largest distance to a true model",
    ),
    Measure(
        "subspace_distance",
        _subspace_distance,
        label="subspace",
        description="sine of the largest angle between the learned subspace and the true one",
        applies=lambda now: now.bases is not None,
        unit="small number",
        better="lower",
        sentence="{subspace_distance} from the true subspace (sine of the largest angle)",
    ),
    Measure(
        "best_rounds",
        lambda now: now.state.round,
        label="kept after",
        description="number of rounds after which the final models were stored, if this was not the last round",
        applies=lambda now: now.state.round != len(now.records),
        unit="count",
        when="end",
    ),
    Measure(
        "epsilon",
        lambda now: now.epsilon,
        label="epsilon",
        description="spent privacy budget of the client that was asked most often",
        applies=lambda now: now.epsilon is not None,
        better="lower",
        column=True,
    ),
    Measure(
        "delta",
        lambda now: now.delta,
        label="delta",
        description="delta of the differential privacy guarantee",
        applies=lambda now: now.epsilon is not None,
        unit="small number",
        when="end",
    ),
)

MEASURES: dict[str, Measure] = {each.name: each for each in BUILT_IN}
"""All measures by name, in the order in which tables show them."""

REQUIRED = frozenset(name for kind in (RoundRecord, ClientResult, Metrics) for name in attributes_of(kind))
RESERVED = REQUIRED | frozenset(EARLIER_NAMES)
"""Names that measures cannot use: those of required figures, and earlier names of figures."""


def measured(now: Snapshot, moment: Moment) -> dict[str, Any]:
    """Return the value of every measure that applies to the snapshot at this moment, by name."""
    found = {
        each.name: each.compute(now) for each in MEASURES.values() if moment in WHEN[each.when] and each.applies(now)
    }
    return dict(finite_numbers(found))


def measure(
    name: str,
    *,
    label: str = "",
    description: str = "",
    applies: Applies = always,
    unit: Unit = "number",
    better: Literal["higher", "lower"] | None = None,
    when: Literal["round", "end", "both"] = "both",
) -> Callable[[Compute], Compute]:
    """Return a decorator that adds a function to the table of measures.

    The function receives a snapshot of the run: `now.sizes` (number of clients in each cluster), `now.choice` (cluster
    of each client), `now.clusters` (the models), `now.data`, `now.agreement` and others. Its value appears in records,
    metrics, the terminal, comparisons and the report.

    Args:
        name: Key of the figure in records and metrics.
        label: Title of its column and of its line in the terminal; by default the name.
        description: Meaning of the figure in one phrase.
        applies: Whether the figure is known for a snapshot; otherwise records leave it out.
        unit: How the value is written.
        better: Whether higher or lower values are better.
        when: Whether the figure belongs to the record of each round, to the final metrics, or to both.

    Returns:
        A decorator that returns the function itself.

    Raises:
        ConfigError: if the name is taken by another function. The same function may be added again, for example when a
            notebook cell runs twice.

    Example:
        >>> import coterie
        >>> @coterie.measure("largest_share", label="largest share", description="share of the largest cluster")
        ... def largest_share(now):
        ...     return max(now.sizes) / sum(now.sizes)
        >>> data = coterie.scenario("mixed-regression", clients=8)
        >>> coterie.fit(data, "fedavg", rounds=1).metrics["largest_share"]
        1.0
    """

    def add(compute: Compute) -> Compute:
        holder = MEASURES.get(name)
        if name in RESERVED or (holder is not None and _origin(holder.compute) != _origin(compute)):
            raise ConfigError(f"there is already a figure called {name!r}: choose another name for the measure")
        MEASURES[name] = Measure(
            name,
            compute,
            label=label or name,
            description=description,
            applies=applies,
            unit=unit,
            better=better,
            when=when,
            sentence=f"{{{name}}} {_without_braces(description)}".rstrip(),
            column=when != "round",
            curve=when != "end",
        )
        return compute

    return add


def _without_braces(text: str) -> str:
    """Return the text with braces doubled, so that a format string prints it unchanged."""
    return text.replace("{", "{{").replace("}", "}}")


def _origin(compute: Compute) -> str:
    """Return the module and the qualified name of a function."""
    return f"{compute.__module__}.{getattr(compute, '__qualname__', '')}"
