"""The end of a run: which start won, who belongs where, how well it does and what it cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.dataset import FederatedDataset
from coterie.core.numbers import finite, finite_numbers
from coterie.core.plain import to_plain
from coterie.errors import DivergenceWarning
from coterie.evaluate.clients import Own, Scores, finetuned_scores, own_weights, scores, training_losses
from coterie.evaluate.metrics import SURE, agreement, parameter_error, worst_tenth
from coterie.evaluate.regression import memberships, regression_report
from coterie.evaluate.samples import by_client, by_responsibility, sample_agreement
from coterie.learners.linear import Linear
from coterie.learners.representation import Representation
from coterie.server.loop import ServerState, best_restart
from coterie.server.loop import settle as settle_restart
from coterie.training import divergence
from coterie.training.measuring import (
    honest,
    kept_by_clients,
    newcomer_figures,
    score_figures,
    score_name,
    subspace_figures,
    validation_figures,
    with_test_samples,
    with_validation_samples,
)
from coterie.training.planning import Plan
from coterie.training.result import SPLITS, Result
from coterie.training.runs.folder import Record
from coterie.training.starting import Begun
from coterie.training.starts import DECOMPOSED_COSINE, MOMENT_DESCENT, ODCL

MOST_PRODUCTS = 2 * 10**10
"""Samples times squared coefficients up to which the diagnostics of linear models are computed; a second or two."""


def has_stopped(records: list[Record]) -> bool:
    """Whether the run ended before its last round."""
    return bool(records) and "stopped" in records[-1]


def _best_rounds(plan: Plan, records: list[Record], ended: Mapping[str, Any]) -> dict[str, Any]:
    """The best figures of all rounds beside those of the last, and after how many rounds, for tables that show both."""
    best: dict[str, Any] = {}
    better = min if plan.learner.classes is None else max
    for name in (score_name(plan.learner), "newcomers"):
        # of several starts the end may take another than the one that led in the last round
        seen = [*records, {**ended, "round": len(records) - 1}]
        known = [(record[name], record["round"] + 1) for record in seen if record.get(name) is not None]
        if known and plan.data.newcomers is not None:
            value, after = better(known, key=lambda pair: pair[0])
            best |= {f"best_{name}": value, f"best_{name}_after": after}
    return best


@divergence.overflow_refused()
def conclude(done: Begun, records: list[Record], epsilon: float | None = None) -> Result:
    """Ask everybody once more: which start won, who belongs where, how well does it do.

    epsilon: what a private run has given away, rounds included that were asked and are in no record.
    """
    plan, state = done.plan, done.state
    if plan.method.adapts and plan.method.weights.assigned:
        plan = replace(plan, groups=state.choice[:, 0])
    last = state.round - 1
    kept = kept_by_clients(plan, state, 0)
    if not plan.looks:
        settled = _as_said(state)
    else:
        settled = _settled(plan, state) if kept is None else _settled_softly(plan, state, kept)
    positions, own, restart, start_losses = settled.positions, settled.own, settled.restart, settled.start_losses
    clusters = settle_restart(state, restart).clusters
    chooses = not plan.method.weights.assigned and clusters.K > 1
    doubtful = clusters.K > 1 and plan.entry.groups == "found"  # whose clusters may be wrong, whoever found them
    scored = with_validation_samples(plan, own) if plan.data.tested is None else with_test_samples(plan, own)
    asked = honest(plan, scored)
    by = kept_by_clients(plan, state, restart)
    found = (
        scores(plan.federation, clusters, asked, last, plan.learner.classes is None, margin=doubtful, by=by)
        if plan.looks
        else NOTHING_ASKED
    )
    lost = _why_diverged(plan, state, records, clusters, settled, found)
    if lost is not None:  # what certainty is computed from says nothing about models that are lost
        found, settled = replace(found, margin=None, losses=None), replace(settled, losses=None)
    rows = _client_rows(plan, own, positions, found)
    if (personal := _finetuned(plan, clusters, asked, len(records))) is not None:
        by_client = dict(zip(personal.positions.tolist(), personal.score.tolist(), strict=True))
        rows = [
            {**row, "finetuned": finite(by_client[i])} if i in by_client else row
            for i, row in zip(positions.tolist(), rows, strict=True)
        ]
    if settled.weights is not None:
        rows = [{**row, "weights": each.tolist()} for row, each in zip(rows, settled.weights, strict=True)]
    if settled.components is not None and plan.method.objective.client_components(clusters.K) > clusters.K:
        rows = [{**row, "components": each.tolist()} for row, each in zip(rows, settled.components, strict=True)]
    if isinstance(plan.learner, Linear) and chooses and settled.losses is not None:
        sizes = plan.federation.sizes[positions]
        posterior = memberships(settled.losses, sizes, own.numpy()[positions], plan.learner)
        rows = [{**row, "posterior": each.tolist()} for row, each in zip(rows, posterior, strict=True)]
    metrics: dict[str, Any] = {"diverged": lost is not None} | ({} if lost is None else {"why_diverged": lost})
    metrics |= _metrics(plan, records, own.numpy()[positions], positions, found, clusters, float(start_losses[restart]))
    if plan.looks:
        metrics |= validation_figures(plan, clusters, own, last, by)
    metrics |= _how_it_ended(plan, state, records)
    if epsilon is not None:
        metrics |= {"epsilon": epsilon, "delta": plan.options.privacy_delta}
    metrics |= _with_the_beginning(metrics, done.told)
    metrics |= newcomer_figures(plan, clusters, float(state.loss[restart]), by, state.tree)
    metrics |= _sample_figures(plan, state, settled)
    metrics |= _best_rounds(plan, records, metrics)
    if personal is not None:
        worst = worst_tenth(personal.score, plan.learner.classes is not None)
        metrics |= {"finetuned": finite(personal.score.mean()), "finetuned_worst_tenth": finite(worst)}
    if lost is None and (regression := _regression(plan, clusters, own, last)) is not None:
        metrics["regression"] = regression
    if len(start_losses) > 1:
        metrics |= {"start": restart, "start_losses": [finite(v) for v in start_losses]}
    elif records and "start" in records[-1]:
        metrics["start"] = records[-1]["start"]
    if lost is not None:
        warnings.warn(lost, DivergenceWarning, stacklevel=6)
    return Result(
        plan.config,
        plan.data.profile,
        plan.learner,
        clusters.models(),
        records,
        finite_numbers(metrics),
        finite_numbers(rows),
        plan.data.fingerprint(),
        _beside(plan, clusters, positions, by) | {f"{SPLITS}{name}": rows for name, rows in state.tree.items()},
        None if by is None else to_plain(by.objective),
        plan.data.schema,
    )


TRAINED = frozenset({ODCL, DECOMPOSED_COSINE, MOMENT_DESCENT})
"""The starts whose models clients have trained, so that these may have diverged themselves."""


def _why_diverged(
    plan: Plan,
    state: ServerState,
    records: list[Record],
    clusters: Clusters,
    settled: _Settled,
    found: Scores,
) -> str | None:
    """Return the sentence that says that and why the training diverged, or None if it did not.

    The models are those of the last round, or of an earlier one whose validation loss was the least.
    """
    last = state.round == len(records) and bool(records) and records[-1].get("stopped") == divergence.DIVERGED
    clean = plan.beginning not in TRAINED and plan.method.work.full_batch_steps is not None
    with np.errstate(over="ignore"):
        evaluated = float(found.loss.mean()) if len(found.loss) else None
    outcome = divergence.Outcome(
        models_finite=all(bool(torch.isfinite(p).all()) for p in clusters.all_models().values()),
        updates_finite=not last,
        loss=float(settled.start_losses[settled.restart]) if plan.looks else None,
        trained=settled.trained,
        unfit=tuple(plan.data.clients[i] for i in settled.unfit),
        evaluated=evaluated,
        reference=divergence.reference(
            plan.learner.classes,
            _zero_loss(plan),
            next((record["loss"] for record in records if record["loss"] is not None), None),
            clean,
        ),
        noised=plan.method.privacy is not None,
    )
    why = divergence.why_diverged(outcome)
    lr = plan.method.rate(max(0, state.round - 1)) if plan.options.rounds else None
    return None if why is None else divergence.sentence(why, lr, isinstance(plan.learner, Linear))


def _zero_loss(plan: Plan) -> float | None:
    """The training loss of a model that always predicts 0; None for classes, and for clients elsewhere."""
    if plan.learner.classes is not None or not isinstance(plan.data, FederatedDataset):
        return None
    targets = plan.data.train.y[None].double()
    return float(plan.learner.loss(torch.zeros_like(targets), targets).mean())


def _beside(plan: Plan, clusters: Clusters, positions: np.ndarray, by: Own | None) -> Params:
    """What predicts besides the models: of a joint density its Gaussians, of simulated clients their own models."""
    if by is None:
        return {}
    if plan.method.weights.mixture:
        return {name: value[0] for name, value in by.common_of_restart().items()}
    shelf, rows = plan.federation.shelf, torch.from_numpy(positions)
    if shelf is None or "model" not in shelf.arrays:
        return {}
    vectors, mean = shelf.arrays["model"][rows, by.restart], flat(clusters.params).mean(dim=0).cpu()
    own = unflat(torch.where((by.accepted[rows] != NEVER)[:, None], vectors, mean.to(vectors)), clusters.params)
    body = {name: p.cpu().expand(len(rows), *p.shape[1:]) for name, p in clusters.shared.items()}
    return {"personal": flat(own | body)}


def _finetuned(plan: Plan, clusters: Clusters, own: Tensor, rounds: int) -> Scores | None:
    """How clients do with what they make of their own cluster's model by themselves; None where nobody asks for it.

    A pull to the model received is for rounds that end in an average, so these steps go without it.
    """
    if plan.options.finetune is None or not plan.looks:
        return None
    return finetuned_scores(
        plan.federation,
        clusters,
        own,
        rounds,
        plan.learner.classes is None,
        work=replace(plan.method.work, steps=plan.options.finetune, epochs=None, prox=0.0, implicit=False),
        lr=plan.method.rate(max(0, rounds - 1)),
        seed=plan.options.seed,
    )


def _with_the_beginning(metrics: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What the beginning found out, and the totals with what it took."""
    ways = ("moment_descent", "one_shot", "grouping", "chosen")
    found: Mapping[str, Any] = next((told[way] for way in ways if way in told), {})
    costs = {**found, "seconds": told.get("beginning_seconds", 0)}
    totals = {name: metrics[name] + costs.get(name, 0) for name in ("bytes_up", "bytes_down", "seconds")}
    exchanges = {"exchanges": metrics["rounds"] + found["exchanges"]} if found else {}
    return {**told, **totals, **exchanges, "seconds": round(totals["seconds"], 3)}


def _regression(plan: Plan, clusters: Clusters, own: Tensor, last: int) -> dict[str, Any] | None:
    """Coefficients with intervals and the theory's guides, for linear models; None where they would cost too much."""
    if not isinstance(plan.learner, Linear) or plan.entry.groups == "self" or plan.method.privacy is not None:
        return None
    if int(plan.federation.sizes.sum()) * plan.learner.coefficients**2 > MOST_PRODUCTS:
        warnings.warn("intervals of the coefficients are left out: with so much data they take long", stacklevel=2)
        return None
    work, lr = plan.method.work, plan.method.rate(max(0, last)) if plan.options.rounds else None
    return regression_report(
        plan.federation,
        plan.learner,
        clusters,
        own,
        round_=last,
        lr=lr,
        steps=work.full_batch_steps,
        prox=work.implicit,
        names=plan.data.feature_names or None,
    )


@dataclass(frozen=True)
class _Settled:
    """Which start won, and who belongs where."""

    positions: np.ndarray
    """Who answered."""
    own: Tensor
    """(m,) each client's final cluster, or -1."""
    restart: int
    start_losses: np.ndarray
    """(R,) each restart's mean training loss."""
    losses: np.ndarray | None = None
    """(answered, K) mean training losses under the models of the restart that won, where all were measured."""
    weights: np.ndarray | None = None
    """(answered, K) each client's own weights, where it has some."""
    components: np.ndarray | None = None
    """(answered, P) the same of the objective's components."""
    unfit: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Those of `positions` whose training loss is not finite."""
    trained: float | None = None
    """Mean training loss under the models that clients last trained, where they may have left those."""


NOTHING_ASKED = Scores(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def _as_said(state: ServerState) -> _Settled:
    """By what clients said in their last rounds, where nobody may be asked as it is. One restart."""
    own = state.choice[:, 0]
    return _Settled(np.flatnonzero((own >= 0).numpy()), own, 0, np.array([np.nan]))


def _settled(plan: Plan, state: ServerState) -> _Settled:
    """By training loss: the least one of each client, and of each restart."""
    clusters = state.clusters
    positions, table = training_losses(plan.federation, clusters, plan.groups, state.round - 1)
    sizes, rows = plan.federation.sizes[positions], torch.from_numpy(positions)
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    if plan.groups is not None:
        own[rows] = plan.groups[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            loss = np.array([np.average(table[:, 0], weights=sizes)])
        return _Settled(positions, own, 0, loss, unfit=positions[~np.isfinite(table[:, 0])])
    by_restart = table.reshape(len(table), clusters.restarts, clusters.K)
    known = np.where(np.isfinite(by_restart), by_restart, np.inf)
    chosen = known.argmin(axis=2)
    told = state.choice.numpy()[positions]
    trained = np.where(told >= 0, told, chosen)
    if plan.method.weights.keeps:  # clients that have a cluster stay in it
        chosen = trained
    mine, before = (np.take_along_axis(known, each[:, :, None], axis=2)[:, :, 0] for each in (chosen, trained))
    with np.errstate(over="ignore"):
        losses, last = (np.average(each, axis=0, weights=sizes) for each in (mine, before))
    restart = int(np.argmin(losses))
    own[rows] = torch.from_numpy(chosen[:, restart])
    unfit = positions[~np.isfinite(mine[:, restart])]
    return _Settled(positions, own, restart, losses, by_restart[:, restart], unfit=unfit, trained=float(last[restart]))


def _settled_softly(plan: Plan, state: ServerState, by: Own) -> _Settled:
    """By the clients' own weights: the cluster that weighs most, and the restart of least loss in the last round.

    That loss is weighed sample by sample. The models' mean losses weighed by client would punish models that are good
    at some samples and bad at others, which is what a mixture is for.
    """
    positions, weights = own_weights(plan.federation, state.clusters, by, state.round - 1)
    restart = best_restart(state.loss)
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    components = torch.from_numpy(weights[:, restart])
    shares = plan.method.objective.client_by_cluster(components, state.clusters.K)
    own[torch.from_numpy(positions)] = shares.argmax(dim=1)
    losses = state.loss.numpy()
    return _Settled(positions, own, restart, losses, weights=shares.numpy(), components=components.numpy())


def _sample_figures(plan: Plan, state: ServerState, settled: _Settled) -> dict[str, Any]:
    """How well single samples are clustered, where the data knows; see `evaluate/samples.py`."""
    data, positions, by = plan.data, settled.positions, kept_by_clients(plan, state, settled.restart)
    if not isinstance(data, FederatedDataset) or data.sample_truth is None:
        return {}
    if by is None or settled.components is None:
        return sample_agreement(data, positions, by_client(data.train, positions, settled.own.numpy()[positions]))
    found = by_responsibility(
        plan.learner,
        state.clusters.restart(settled.restart).models(),
        plan.method.objective,
        by.common_of_restart(),
        float(state.loss[settled.restart]),
        data.train,
        positions,
        settled.components,
    )
    return sample_agreement(data, positions, found)


def _how_it_ended(plan: Plan, state: ServerState, records: list[Record]) -> dict[str, Any]:
    """Whether the run stopped early, and after how many rounds its models were taken if not after the last."""
    ended: dict[str, Any] = {"stopped": records[-1]["stopped"]} if has_stopped(records) else {}
    return ended if state.round == len(records) else ended | {"best_rounds": state.round}


def _client_rows(plan: Plan, own: Tensor, positions: np.ndarray, found: Scores) -> list[dict[str, Any]]:
    """One row for each client at `positions`; one without samples to be scored on has no score."""
    place = {int(i): at for at, i in enumerate(found.positions)}
    rows, lying = [], plan.lying
    for i in positions:
        at = place.get(int(i))
        row: dict[str, Any] = {
            "id": plan.data.clients[i],
            "n": int(plan.federation.sizes[i]),
            "cluster": int(own[i]),
            "score": None if at is None else finite(found.score[at]),
            "loss": None if at is None else finite(found.loss[at]),
        }
        if lying[i]:
            row["liar"] = True
        if plan.data.truth is not None:
            row["truth"] = plan.data.group_names[plan.data.truth[i]]
        if at is not None and found.margin is not None and found.losses is not None:
            row |= {"margin": finite(found.margin[at]), "losses": [finite(v) for v in found.losses[at]]}
        rows.append(row)
    return rows


def _metrics(
    plan: Plan,
    records: list[Record],
    known: np.ndarray,
    positions: np.ndarray,
    found: Scores,
    clusters: Clusters,
    loss: float,
) -> dict[str, Any]:
    """The final figures; `known` are the clusters of the clients at `positions`."""
    metrics: dict[str, Any] = {
        "loss": finite(loss),
        "clusters": len(np.unique(known)),
        "clients": len(known),
        **score_figures(plan, found),
        "evaluated_on": plan.evaluated_on,
        "rounds": len(records),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": round(sum(record["seconds"] for record in records), 3),
    }
    if found.margin is not None:
        metrics["sure"] = int((found.margin >= SURE).sum())
    lying = plan.lying.numpy()[positions]
    if plan.data.truth is not None and len(known) and not lying.all():
        metrics |= agreement(plan.data.truth[positions][~lying], known[~lying])
    if lying.any():
        metrics["liars"] = int(lying.sum())
    coefficients = _coefficients(plan, clusters)
    if plan.data.true_models is not None and coefficients is not None:
        weights = coefficients.double().cpu().numpy()
        if weights.shape[1:] == plan.data.true_models.shape[1:]:
            metrics["parameter_error"] = (
                parameter_error(plan.data.true_models, weights) if np.isfinite(weights).all() else None
            )
    return metrics | subspace_figures(plan, clusters)


def _coefficients(plan: Plan, clusters: Clusters) -> Tensor | None:
    """The coefficients (K, d) of models that are linear in the features and nothing else."""
    if isinstance(plan.learner, Representation):
        return plan.learner.coefficients(clusters.all_models())
    return clusters.params["weight"] if set(clusters.params) == {"weight"} else None
