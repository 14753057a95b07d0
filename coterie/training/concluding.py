"""The end of a run: the restart to keep, the final assignment, the final figures and the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.clusters import Params, flat, unflat
from coterie.core.dataset import FederatedDataset, Profile
from coterie.core.numbers import finite, finite_numbers
from coterie.core.plain import to_plain
from coterie.core.schema import Schema
from coterie.core.state import ServerState, best_restart
from coterie.errors import DivergenceWarning
from coterie.evaluate.certainty import Certainty, ask_evidence, measure_certainty
from coterie.evaluate.clients import Own, Scores, Tuning, finetuned_scores, own_weights, training_losses
from coterie.evaluate.regression import Labels
from coterie.evaluate.samples import by_client, by_responsibility, sample_agreement
from coterie.methods.rates import RATE
from coterie.methods.round import assigned_groups
from coterie.training import divergence
from coterie.training.diagnostics import Diagnostics
from coterie.training.exploding import reference_of
from coterie.training.measures import measured
from coterie.training.planning import Plan
from coterie.training.records import ClientResult, Metrics, RoundRecord
from coterie.training.refit import REFIT
from coterie.training.result import SPLITS, Result
from coterie.training.snapshot import Evaluation, Snapshot, kept_by_clients


def has_stopped(records: Sequence[RoundRecord]) -> bool:
    """Return whether the run ended before its last round."""
    return bool(records) and records[-1].stopped is not None


@divergence.overflow_refused()
def conclude(
    plan: Plan,
    state: ServerState,
    found: Mapping[str, Any],
    records: list[RoundRecord],
    epsilon: float | None = None,
) -> Result:
    """Ask all clients once more and return the result of a run.

    Args:
        plan: The run.
        state: The state whose models are the final ones.
        found: Findings of the initialisation and their cost.
        records: Records of all rounds.
        epsilon: Privacy budget that a private run spent, including rounds that were started but not recorded.
    """
    end = FinalSnapshot.of(plan, state, records, epsilon, automatic=RATE in found)
    if end.why_diverged is not None:
        warnings.warn(end.why_diverged, DivergenceWarning, stacklevel=6)
    return Result(
        plan.config,
        plan.data.profile,
        plan.learner,
        end.clusters.models(),
        records,
        _metrics(end, found),
        _client_results(end),
        plan.data.fingerprint(),
        _extra_arrays(end) | {f"{SPLITS}{name}": rows for name, rows in end.state.tree.items()},
        None if end.kept is None else to_plain(end.kept.objective),
        plan.data.schema,
        plan.diagnosis,
        plan.data.column_notes,
        _diagnostics(end),
    )


def _metrics(end: FinalSnapshot, found: Mapping[str, Any]) -> Metrics:
    """Return the final figures, with the findings and the costs of the initialisation in `found`."""
    records = end.records
    kinds = ("moment_descent", "one_shot", "grouping", "chosen")
    initial = next(({kind} for kind in kinds if kind in found), set())
    before = [found[kind] for kind in ({"diagnosed", RATE, REFIT} & found.keys()) | initial]
    seconds = round(sum(record.seconds for record in records), 3) + found.get("initialization_seconds", 0)
    exchanges = {"exchanges": len(records) + sum(each["exchanges"] for each in before)} if before else {}
    return Metrics(
        diverged=end.why_diverged is not None,
        why_diverged=end.why_diverged,
        loss=finite(end.restart_losses[end.restart]),
        clusters=len(np.unique(end.known)),
        clients=len(end.known),
        evaluated_on=end.plan.evaluated_on,
        rounds=len(records),
        bytes_up=sum(record.bytes_up for record in records) + sum(each.get("bytes_up", 0) for each in before),
        bytes_down=sum(record.bytes_down for record in records) + sum(each.get("bytes_down", 0) for each in before),
        seconds=round(seconds, 3),
        stopped=records[-1].stopped if records else None,
        measures=measured(end, "end") | finite_numbers(found) | exchanges,
    )


# ---- the last snapshot ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FinalSnapshot(Snapshot):
    """The end of a run, after all clients have been asked for their clusters once more."""

    settled: FinalAssignment = field(kw_only=True)
    """The restart to keep and the final assignment."""
    automatic: bool = field(kw_only=True)
    """Whether the learning rate was found before the first round."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        state: ServerState,
        records: Sequence[RoundRecord],
        epsilon: float | None,
        automatic: bool,
    ) -> FinalSnapshot:
        """Return the last snapshot of the restart to keep."""
        settled = final_assignment(plan, state)
        losses = settled.restart_losses.tolist()
        return cls(
            plan, state, settled.restart, settled.own, losses, records, epsilon, settled=settled, automatic=automatic
        )

    @property
    def step(self) -> None:
        return None

    @property
    def measures_newcomers(self) -> bool:
        return True

    @property
    def positions(self) -> np.ndarray:
        """Positions of the clients that answered."""
        return self.settled.positions

    @property
    def known(self) -> np.ndarray:
        """Clusters of the clients that answered."""
        return np.asarray(self.choice.numpy()[self.positions])

    @cached_property
    def asked(self) -> Tensor:
        """Clusters of the clients that are asked for scores, -1 for the others, (m,)."""
        with_samples = self.with_validation_samples if self.data.tested is None else self.with_test_samples
        return self.honest(with_samples(self.choice))

    @cached_property
    def answers(self) -> Scores:
        """Scores of the clients."""
        if not self.plan.may_evaluate:
            return NOTHING_ASKED
        return self.ask_scores(self.asked, "test")

    @cached_property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.answers, self.ask_validation(self.choice) if self.plan.may_evaluate else None)

    @cached_property
    def why_diverged(self) -> str | None:
        """Sentence about the divergence and its reason; None if the training did not diverge."""
        return _why_diverged(self)

    @cached_property
    def certainty(self) -> Certainty | None:
        """Probability of each client's cluster; None if the method looks for no clusters or the models are unusable."""
        plan = self.plan
        if self.K == 1 or not self.finds_groups or not plan.may_evaluate or self.why_diverged is not None:
            return None
        evidence = ask_evidence(plan.federation, self.clusters, self.honest(self.choice), self.round)
        return measure_certainty(evidence, self.clusters, not self.classifies)

    @cached_property
    def finetuned(self) -> Scores | None:
        if self.tuning is None or not self.plan.may_evaluate:
            return None
        return finetuned_scores(self.plan.federation, self.clusters, self.asked, not self.classifies, self.tuning)

    @property
    def tuning(self) -> Tuning | None:
        """Fine-tuning of the clients' models; None if it was not asked for."""
        plan, rounds = self.plan, len(self.records)
        if plan.settings.finetune is None:
            return None
        # the proximal term serves rounds that end in an average, so fine-tuning does without it
        work = plan.tiers.local.without_prox(plan.settings.finetune)
        return Tuning(work, plan.tiers.local.rate(max(0, rounds - 1), plan.rounds), plan.settings.seed, rounds)

    @cached_property
    def sample_agreement(self) -> Mapping[str, float]:
        data = self.data
        if not isinstance(data, FederatedDataset) or data.sample_truth is None:
            return {}
        if self.kept is None or self.settled.components is None:
            return sample_agreement(data, self.positions, by_client(data.train, self.positions, self.known))
        found = by_responsibility(
            self.learner,
            self.clusters.models(),
            self.plan.tiers.objective,
            self.kept.common_of_restart(),
            float(self.state.loss[self.restart]),
            data.train,
            self.positions,
            self.settled.components,
        )
        return sample_agreement(data, self.positions, found)


def _why_diverged(end: FinalSnapshot) -> str | None:
    """Return a sentence about the divergence and its reason, or None if the training did not diverge.

    The models are those of the last round, or of an earlier one with the lowest validation loss.
    """
    plan, state, records, settled, found = end.plan, end.state, end.records, end.settled, end.answers
    last = state.round == len(records) and bool(records) and records[-1].stopped == divergence.DIVERGED
    with np.errstate(over="ignore"):
        evaluated = float(found.loss.mean()) if len(found.loss) else None
    outcome = divergence.Outcome(
        models_finite=all(bool(torch.isfinite(p).all()) for p in end.clusters.all_models().values()),
        updates_finite=not last,
        loss=end.restart_losses[end.restart] if plan.may_evaluate else None,
        trained=settled.trained,
        unfit=tuple(plan.data.clients[i] for i in settled.unfit),
        evaluated=evaluated,
        reference=reference_of(plan, records),
        noised=plan.tiers.privacy is not None,
    )
    why = divergence.why_diverged(outcome)
    lr = plan.tiers.local.rate(max(0, state.round - 1), plan.rounds) if plan.rounds else None
    return None if why is None else divergence.sentence(why, lr, end.automatic)


def _extra_arrays(end: FinalSnapshot) -> Params:
    """Return arrays that predictions need besides the models: Gaussians of a joint density, or personal models."""
    kept, clusters, rows = end.kept, end.clusters, torch.from_numpy(end.positions)
    if kept is None:
        return {}
    if end.plan.tiers.assignment.mixture:
        return {name: value[0] for name, value in kept.common_of_restart().items()}
    store = end.plan.federation.store
    if store is None or "model" not in store.arrays:
        return {}
    vectors, mean = store.arrays["model"][rows, kept.restart], flat(clusters.params).mean(dim=0).cpu()
    own = unflat(torch.where((kept.accepted[rows] != NEVER)[:, None], vectors, mean.to(vectors)), clusters.params)
    body = {name: p.cpu().expand(len(rows), *p.shape[1:]) for name, p in clusters.shared.items()}
    return {"personal": flat(own | body)}


def _diagnostics(end: FinalSnapshot) -> Diagnostics | None:
    """Return the source of `Result.coefficients`, `Result.baselines` and others; None if the training diverged."""
    plan = end.plan
    if end.why_diverged is not None:
        return None
    return Diagnostics(
        plan.federation,
        plan.learner,
        end.clusters,
        end.choice,
        round=end.round,
        lr=plan.tiers.local.rate(max(0, end.round), plan.rounds) if plan.rounds else None,
        work=plan.tiers.local,
        labels=_labels(plan.data.schema, plan.data.profile),
        remote=not isinstance(plan.data, FederatedDataset),
        may_ask=plan.tiers.privacy is None,
        shares_models=end.shares_models,
        tested=None if plan.evaluated_on == "training data" else end.asked,
        kept=end.kept,
        tuning=end.tuning if end.kept is None else None,
    )


MOST_UNNAMED = 30
"""Largest number of unnamed features that get the names x1, x2, ..."""


def _labels(schema: Schema, profile: Profile) -> Labels:
    """Return the names and scales of the features, the classes and the reference levels of a schema."""
    width = profile.features[0] if len(profile.features) == 1 and profile.features[0] <= MOST_UNNAMED else 0
    return Labels(
        features=schema.feature_names or tuple(f"x{j + 1}" for j in range(width)) or None,
        scales=schema.scales,
        classes=schema.classes,
        references=schema.references,
        target=schema.target,
    )


# ---- the final assignment ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinalAssignment:
    """The restart to keep and the final cluster of each client."""

    positions: np.ndarray
    """Positions of the clients that answered."""
    own: Tensor
    """Final cluster of each client, or -1, (m,)."""
    restart: int
    """The restart to keep."""
    restart_losses: np.ndarray
    """Mean training loss of each restart, (R,)."""
    weights: np.ndarray | None = None
    """Weights of each client, if clients keep weights, (answered, K)."""
    components: np.ndarray | None = None
    """Weights of the components of the objective, (answered, P)."""
    unfit: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Those of `positions` whose training loss is not finite."""
    trained: float | None = None
    """Mean training loss under the models that clients last trained, if clients may have left these since."""


NOTHING_ASKED = Scores(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def final_assignment(plan: Plan, state: ServerState) -> FinalAssignment:
    """Return the restart to keep and the final assignment, from the clients' answers if they may be asked."""
    if not plan.may_evaluate:
        return _as_reported(state)
    kept = kept_by_clients(plan, state, 0)
    return _by_loss(plan, state) if kept is None else _by_weight(plan, state, kept)


def _as_reported(state: ServerState) -> FinalAssignment:
    """Return the assignment that clients reported in their last rounds, for a single restart."""
    own = state.choice[:, 0]
    return FinalAssignment(np.flatnonzero((own >= 0).numpy()), own, 0, np.array([np.nan]))


def _by_loss(plan: Plan, state: ServerState) -> FinalAssignment:
    """Return the assignment by the lowest training loss of each client, and the restart with the lowest mean loss."""
    clusters = state.clusters
    groups = assigned_groups(plan.tiers, state)
    positions, table = training_losses(plan.federation, clusters, groups, state.round - 1)
    sizes, rows = plan.federation.sizes[positions], torch.from_numpy(positions)
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    if groups is not None:
        own[rows] = groups[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            loss = np.array([np.average(table[:, 0], weights=sizes)])
        return FinalAssignment(positions, own, 0, loss, unfit=positions[~np.isfinite(table[:, 0])])
    by_restart = table.reshape(len(table), clusters.restarts, clusters.K)
    known = np.where(np.isfinite(by_restart), by_restart, np.inf)
    chosen = known.argmin(axis=2)
    reported = state.choice.numpy()[positions]
    trained = np.where(reported >= 0, reported, chosen)
    if plan.tiers.assignment.keeps:  # clients that have a cluster stay in it
        chosen = trained
    chosen_losses, before = (np.take_along_axis(known, each[:, :, None], axis=2)[:, :, 0] for each in (chosen, trained))
    with np.errstate(over="ignore"):
        losses, last = (np.average(each, axis=0, weights=sizes) for each in (chosen_losses, before))
    restart = best_restart(torch.from_numpy(losses))
    own[rows] = torch.from_numpy(chosen[:, restart])
    unfit = positions[~np.isfinite(chosen_losses[:, restart])]
    return FinalAssignment(positions, own, restart, losses, unfit=unfit, trained=float(last[restart]))


def _by_weight(plan: Plan, state: ServerState, by: Own) -> FinalAssignment:
    """Return the assignment by the clients' largest weights, and the restart with the lowest loss in the last round.

    That loss is weighted sample by sample. Mean losses of the models, weighted by client, would penalise models that
    fit some samples well and others badly, which is the purpose of a mixture.
    """
    positions, weights = own_weights(plan.federation, state.clusters, by, state.round - 1)
    restart = best_restart(state.loss)
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    components = torch.from_numpy(weights[:, restart])
    shares = plan.tiers.objective.client_by_cluster(components, state.clusters.K)
    own[torch.from_numpy(positions)] = shares.argmax(dim=1)
    losses = state.loss.numpy()
    return FinalAssignment(positions, own, restart, losses, weights=shares.numpy(), components=components.numpy())


# ---- clients -------------------------------------------------------------------------------------------------------

Column = Callable[[FinalSnapshot], Mapping[int, Any]]
"""An optional figure of the clients: a function that returns its values by the clients' positions."""


def _client_results(end: FinalSnapshot) -> list[ClientResult]:
    """Return the result of each client that answered; a client without samples to evaluate on has no score."""
    found = end.evaluation.scores or NOTHING_ASKED
    scores, losses = _by_position(found.positions, found.score), _by_position(found.positions, found.loss)
    certainty = _certainty(end)
    columns = {name: column(end) for name, column in CLIENT_COLUMNS.items()}
    return [
        ClientResult(
            id=end.data.clients[i],
            n=int(end.plan.federation.sizes[i]),
            cluster=int(end.choice[i]),
            score=scores.get(i),
            loss=losses.get(i),
            certainty=certainty.get(i),
            measures=finite_numbers({name: column[i] for name, column in columns.items() if i in column}),
        )
        for i in end.positions.tolist()
    ]


def _by_position(positions: np.ndarray, values: np.ndarray | None) -> dict[int, Any]:
    """Return values by the positions of their clients, with None for numbers that are not finite."""
    if values is None:
        return {}
    return dict(zip(positions.tolist(), finite_numbers(values.tolist()), strict=True))


def _is_attacker(end: FinalSnapshot) -> dict[int, bool]:
    return dict.fromkeys(torch.nonzero(end.attackers).flatten().tolist(), True)


def _true_group(end: FinalSnapshot) -> dict[int, str]:
    truth = end.data.truth
    return {} if truth is None else {i: end.data.group_names[group] for i, group in enumerate(truth)}


def _certainty(end: FinalSnapshot) -> dict[int, Any]:
    found = end.certainty
    return {} if found is None else _by_position(found.evidence.positions, found.own)


def _posterior(end: FinalSnapshot) -> dict[int, Any]:
    found = end.certainty
    return {} if found is None else _by_position(found.evidence.positions, found.probabilities)


def _samples_needed(end: FinalSnapshot) -> dict[int, Any]:
    """Return the number of samples with which an uncertain client could be assigned; it exceeds what it has."""
    found = end.certainty
    if found is None:
        return {}
    have = found.evidence.samples + found.evidence.held_out
    needed = np.maximum(found.needed[found.evidence.own], have + 1)
    known = found.undecided & np.isfinite(needed)
    return _by_position(found.evidence.positions[known], needed[known].astype(np.int64))


def _losses(end: FinalSnapshot) -> dict[int, Any]:
    found = end.certainty
    return {} if found is None else _by_position(*found.evidence.shown_losses)


def _finetuned(end: FinalSnapshot) -> dict[int, Any]:
    found = end.finetuned
    return {} if found is None else _by_position(found.positions, found.score)


def _weights(end: FinalSnapshot) -> dict[int, Any]:
    return _by_position(end.positions, end.settled.weights)


def _components(end: FinalSnapshot) -> dict[int, Any]:
    """Return the weights of the components of the objective, if a cluster has several."""
    several = end.plan.tiers.objective.client_components(end.K) > end.K
    return _by_position(end.positions, end.settled.components) if several else {}


CLIENT_COLUMNS: Mapping[str, Column] = {
    "attacker": _is_attacker,
    "truth": _true_group,
    "posterior": _posterior,
    "samples_needed": _samples_needed,
    "losses": _losses,
    "finetuned": _finetuned,
    "weights": _weights,
    "components": _components,
}
"""The optional figures of clients; see `ClientResult`."""
