"""Snapshots of a run: models and assignment at one moment, with everything that measures need.

A measure reads a snapshot and depends neither on the method nor on the moment. Clients are asked once, and their
answers are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.dataset import ClientDirectory
from coterie.core.numbers import finite
from coterie.core.shard import ClientId
from coterie.core.state import ServerState, best_restart
from coterie.errors import SilenceError
from coterie.evaluate.certainty import Certainty
from coterie.evaluate.clients import Own, Scores, scores, training_losses
from coterie.evaluate.metrics import agreement
from coterie.evaluate.newcomers import newcomer_scores, scores_of_own
from coterie.evaluate.placing import Density, Tree
from coterie.learners.base import Learner
from coterie.learners.representation import BASIS
from coterie.methods.round import Step
from coterie.tiers.assignment import best
from coterie.training.planning import Plan
from coterie.training.records import RoundRecord


@dataclass(frozen=True)
class Evaluation:
    """Clients' answers on how well the models fit them; None if they were not asked."""

    scores: Scores | None = None
    """Scores on test samples; at the end of a run without test samples, on validation or training samples."""
    validation: Scores | None = None
    """Scores on validation samples."""
    silence: str | None = None
    """Reason why clients that were asked did not answer."""


@dataclass(frozen=True, eq=False)
class Snapshot(ABC):
    """Models and assignment at one moment of a run: after a round (`RoundSnapshot`) or at its end."""

    plan: Plan
    state: ServerState
    restart: int
    """Restart whose figures are recorded."""
    choice: Tensor
    """Cluster of each client as far as the server knows it, or -1, (m,)."""
    restart_losses: Sequence[float]
    """Training loss of each restart."""
    records: Sequence[RoundRecord] = ()
    """Records of all rounds before this moment."""
    epsilon: float | None = None
    """Privacy budget spent so far; None for a run without differential privacy."""

    # ---- facts that depend on the moment -------------------------------------------------------------------------

    @property
    @abstractmethod
    def evaluation(self) -> Evaluation:
        """Answers of the clients about the models."""

    @property
    @abstractmethod
    def measures_newcomers(self) -> bool:
        """Whether the scores of newcomers are measured at this moment."""

    @property
    @abstractmethod
    def step(self) -> Step | None:
        """The round that has just been trained; None at the end of the run."""

    # ---- declared facts ------------------------------------------------------------------------------------------

    @property
    def data(self) -> ClientDirectory:
        return self.plan.data

    @property
    def learner(self) -> Learner:
        return self.plan.learner

    @property
    def classifies(self) -> bool:
        """Whether this is a classification, with accuracy as its score."""
        return self.plan.learner.classes is not None

    @property
    def shares_models(self) -> bool:
        """Whether clients share models; False if each has a personal model."""
        return not self.plan.method.groups.personal

    @property
    def finds_groups(self) -> bool:
        """Whether the method looks for groups; False if they are given or there is only one."""
        return self.plan.method.groups.found

    @cached_property
    def attackers(self) -> Tensor:
        """Whether each client is a simulated attacker, (m,); scores and agreement leave attackers out."""
        return self.plan.attacking

    @property
    def changes_clusters(self) -> bool:
        """Whether the method changes the number of clusters during training."""
        return self.plan.tiers.adapts

    @property
    def before(self) -> Mapping[ClientId, int]:
        """Cluster of each client in the run that this one continues; empty if there is none."""
        return self.plan.before

    @property
    def delta(self) -> float | None:
        """Delta of the differential privacy guarantee."""
        return self.plan.settings.privacy_delta

    @property
    def round(self) -> int:
        """Number of the last round, from 0."""
        return self.state.round - 1

    @property
    def K(self) -> int:
        return self.state.clusters.K

    # ---- models and clients --------------------------------------------------------------------------------------

    @cached_property
    def clusters(self) -> Clusters:
        """The models of the restart."""
        return self.state.clusters.keep_restart(self.restart)

    @cached_property
    def kept(self) -> Own | None:
        """State that clients keep and predict with; None if they predict with the model of their cluster."""
        return kept_by_clients(self.plan, self.state, self.restart)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of clients in each cluster."""
        counts: list[int] = torch.bincount(self.choice[self.choice >= 0], minlength=self.K).tolist()
        return counts

    @cached_property
    def agreement(self) -> Mapping[str, float]:
        """Agreement of the assignment with the true groups; empty if these or all assignments are unknown."""
        rows = ((self.choice >= 0) & ~self.attackers).numpy()
        truth = self.data.truth
        if truth is None or not rows.any():
            return {}
        return _agreement(truth[rows].astype(np.int64).tobytes(), self.choice.numpy()[rows].tobytes())

    @cached_property
    def newcomers(self) -> float | None:
        """Mean score of newcomers, one for each true group; None if it is not finite."""
        found = _newcomer_scores(self)
        return finite(found.mean() if self.classifies else np.sqrt(found).mean())

    @cached_property
    def bases(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Learned and true basis (d, c) of a linear representation; None if there are none to compare."""
        found, true = {**self.clusters.params, **self.clusters.shared}.get(BASIS), self.data.true_basis
        if true is None or found is None or len(found) != 1 or found.shape[2] != len(true):
            return None
        return found[0].T.double().cpu().numpy(), true

    # ---- facts that are known only at the end --------------------------------------------------------------------

    @property
    def sample_agreement(self) -> Mapping[str, float]:
        """Agreement of the clusters of single samples with their true groups; empty if unknown."""
        return {}

    @property
    def certainty(self) -> Certainty | None:
        """Probability of each client's cluster; None if unknown."""
        return None

    @property
    def finetuned(self) -> Scores | None:
        """Scores after each client has fine-tuned its model; None without fine-tuning."""
        return None

    # ---- requests to clients -------------------------------------------------------------------------------------

    def ask_scores(self, own: Tensor, on: Literal["test", "validation"]) -> Scores:
        """Return the scores of the clients that have a cluster in `own` (m,), with the model of that cluster."""
        federation, regression = self.plan.federation, not self.classifies
        return scores(federation, self.clusters, own, self.round, regression, on=on, by=self.kept)

    def ask_validation(self, own: Tensor) -> Scores | None:
        """Return the scores of clients with validation samples and a cluster in `own` (m,); None if there are none."""
        asked = self.with_validation_samples(own)
        if self.plan.validated is None or not bool((asked >= 0).any()):
            return None
        return self.ask_scores(asked, "validation")

    def with_validation_samples(self, own: Tensor) -> Tensor:
        """Return `own` (m,) with -1 for clients that have no validation samples."""
        return own if self.plan.validated is None else torch.where(self.plan.validated, own, -1)

    def with_test_samples(self, own: Tensor) -> Tensor:
        """Return `own` (m,) with -1 for clients that have no test samples."""
        tested = self.data.tested
        return own if tested is None else torch.where(torch.from_numpy(tested), own, -1)

    def honest(self, own: Tensor) -> Tensor:
        """Return `own` (m,) with -1 for attackers, which are not asked for scores."""
        return torch.where(self.attackers, -1, own)


@dataclass(frozen=True, eq=False)
class RoundSnapshot(Snapshot):
    """Models and assignment after a round."""

    done: Step = field(kw_only=True)
    """Result of the round."""

    @classmethod
    def after(
        cls, plan: Plan, done: Step, records: Sequence[RoundRecord] = (), epsilon: float | None = None
    ) -> RoundSnapshot:
        """Return the snapshot after a round; with several restarts, that of the one with the lowest loss."""
        state = done.state
        restart = best_restart(state.loss)
        return cls(plan, state, restart, state.choice[:, restart], state.loss.tolist(), records, epsilon, done=done)

    @property
    def step(self) -> Step:
        return self.done

    @cached_property
    def is_due(self) -> bool:
        """Whether the options require an evaluation after this round, and clients may be asked."""
        due = self.plan.evaluates_after(self.state.round)
        # if no client answered in the round, none would answer now
        return due and self.done.answered > 0 and self.plan.may_evaluate

    @property
    def measures_newcomers(self) -> bool:
        return self.is_due and self.evaluation.silence is None and self.shares_models

    @cached_property
    def evaluation(self) -> Evaluation:
        if not self.is_due:
            return Evaluation()
        try:
            own = _choice_of_clients(self)
            return Evaluation(validation=self.ask_validation(own), scores=self._ask_test(own))
        except SilenceError as error:  # clients may be back in the next round
            return Evaluation(silence=str(error))

    def _ask_test(self, own: Tensor) -> Scores | None:
        asked = self.honest(self.with_test_samples(own))
        return None if self.data.tested is None or not bool((asked >= 0).any()) else self.ask_scores(asked, "test")


@lru_cache(maxsize=2)
def _agreement(truth: bytes, found: bytes) -> Mapping[str, float]:
    """Return the agreement of two assignments (int64), which in most rounds is that of the round before."""
    return agreement(*(np.frombuffer(part, dtype=np.int64) for part in (truth, found)))


def _choice_of_clients(snapshot: Snapshot) -> Tensor:
    """Return the clusters that clients use, (m,), which may differ from those they report in a private run.

    A client that hides its choice uses the model that fits it best, without reporting it.
    """
    plan, reported = snapshot.plan, snapshot.choice
    privacy = plan.tiers.privacy
    if privacy is None or privacy.choice is None:
        return reported
    positions, losses = training_losses(plan.federation, snapshot.clusters, None, snapshot.round)
    own = reported.clone()
    own[torch.from_numpy(positions)] = best(torch.from_numpy(-losses)[:, None])[:, 0]
    return torch.where(reported >= 0, own, reported)


def _newcomer_scores(snapshot: Snapshot) -> np.ndarray:
    """Return the score of each newcomer, (newcomers,): accuracy, or mean squared error."""
    plan, models = snapshot.plan, snapshot.clusters.models()
    newcomers, truth = plan.data.newcomers, plan.data.truth
    assert newcomers is not None, "the measure applies only to data with newcomers"
    if not snapshot.shares_models and truth is not None:
        return scores_of_own(plan.learner, models, newcomers, truth)
    placing, kept = plan.method.placing, snapshot.kept
    density = _density(plan, kept, snapshot.K) if placing == "density" and kept is not None else None
    tree = Tree(snapshot.state.tree, plan.tiers.local, float(plan.tiers.local.lr)) if placing == "tree" else None
    usual = float(snapshot.state.loss[snapshot.restart])
    return newcomer_scores(plan.learner, models, newcomers, placing, usual, density, tree)


def _density(plan: Plan, kept: Own, K: int) -> Density:
    """Return the joint density for a newcomer, with equal initial weights."""
    objective = plan.tiers.objective
    components = objective.client_components(K)
    return Density(objective, kept.common_of_restart(), torch.full((components,), 1 / components, dtype=torch.float64))


def kept_by_clients(plan: Plan, state: ServerState, restart: int) -> Own | None:
    """Return the state that clients keep and predict with; None if they predict with the model of their cluster."""
    objective = plan.tiers.objective
    predictor = plan.tiers.assignment.client_predictor(objective, restart, state.clusters.restarts)
    if predictor is None:
        return None
    return Own(predictor, restart, state.accepted, objective, objective.server_combine(state.tables), state.flows)
