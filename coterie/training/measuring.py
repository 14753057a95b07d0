"""What one round brought, in figures: the record of it, and the scores that the end is measured by, too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Note
from coterie.core.numbers import finite, finite_numbers
from coterie.errors import SilenceError
from coterie.evaluate.clients import Own, Scores, scores, training_losses
from coterie.evaluate.metrics import agreement, worst_tenth
from coterie.evaluate.newcomers import newcomer_scores, scores_of_own
from coterie.evaluate.placing import Density, Tree
from coterie.evaluate.subspace import subspace_distance
from coterie.learners.base import Learner
from coterie.learners.representation import BASIS
from coterie.server.loop import Round, ServerState, best_restart
from coterie.tiers.assignment import best
from coterie.training.divergence import DIVERGED, overflow_refused
from coterie.training.planning import Plan
from coterie.training.runs.folder import Record

DETAILED = 500
"""Up to so many clients a record holds every client's cluster; beyond, only sizes and moves."""


@overflow_refused()
def record_of(plan: Plan, done: Round, seconds: float) -> Record:
    """Return one JSON-ready dict; with several starts its figures are those of the one that leads."""
    restart = best_restart(done.state.loss)
    choice = done.state.choice[:, restart]
    known = choice >= 0
    K = done.state.clusters.K
    sizes = torch.bincount(choice[known], minlength=K).tolist()
    record: Record = {
        "round": done.state.round - 1,
        "seconds": round(seconds, 6),
        "loss": finite(done.state.loss[restart]),
        "clusters": sum(size > 0 for size in sizes),
        "moved": int(done.moved[restart]),
        "answered": done.answered,
        "missing": list(done.missing),
        "rejected": list(done.rejected),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "path": done.path,
    }
    if done.diverged:
        record["stopped"] = DIVERGED
    if plan.entry.groups != "self":
        record["sizes"] = sizes
        if len(choice) <= DETAILED:
            record["assignments"] = choice.tolist()
    if plan.before:
        then = torch.tensor([plan.before.get(client, -1) for client in plan.data.clients])
        record["reassigned"] = int(((choice != then) & known & (then >= 0)).sum())
    if plan.method.adapts:
        record["K"] = K
    if done.notes:
        record["notes"] = [note.plain() for note in done.notes]
    if done.events:
        record["events"] = [dict(event) for event in done.events]
    if done.likelihood is not None:
        record["likelihood"] = finite(done.likelihood[restart])
    if done.shares is not None and K > 1:
        record |= _who_is_dying(done.shares[restart])
    if len(done.state.loss) > 1:
        record |= {"start": restart, "start_losses": [finite(value) for value in done.state.loss]}
    due = done.state.round % plan.options.evaluate_every == 0 or done.state.round == plan.options.rounds
    if due and done.answered and plan.looks:  # where nobody answered, nobody would be heard about scores
        try:
            record |= _looked_at(plan, done.state, restart)
        except SilenceError as error:  # they may be back in the next round
            record["notes"] = [*record.get("notes", ()), Note(str(error)).plain()]
    record |= subspace_figures(plan, done.state.clusters.restart(restart))
    if plan.data.truth is not None and bool((known & ~plan.lying).any()):
        rows = (known & ~plan.lying).numpy()
        agreed = agreement(plan.data.truth[rows], choice.numpy()[rows])
        record |= {"ari": agreed["ari"], "identity": agreed["identity"]}
    return dict(finite_numbers(record))


def _looked_at(plan: Plan, state: ServerState, restart: int) -> dict[str, float | None]:
    """How well the models of a restart do, by those clients that have a cluster."""
    models, at = state.clusters.restart(restart), state.round - 1
    own = own_choice(plan, models, state.choice[:, restart], at)
    by = kept_by_clients(plan, state, restart)
    figures = validation_figures(plan, models, own, at, by)
    asked = honest(plan, with_test_samples(plan, own))
    if plan.data.tested is not None and bool((asked >= 0).any()):
        found = scores(plan.federation, models, asked, at, plan.learner.classes is None, by=by)
        figures |= score_figures(plan, found)
    if plan.entry.groups != "self":  # a model for each client: only at the end
        figures |= newcomer_figures(plan, models, float(state.loss[restart]), by, state.tree)
    return figures


def own_choice(plan: Plan, clusters: Clusters, said: Tensor, round_: int) -> Tensor:
    """(m,) the clusters that clients use, who may have said others: of those with one in `said` (m,). One restart.

    A client that hides its choice knows it, and takes the model that fits it best; nobody is told.
    """
    privacy = plan.method.privacy
    if privacy is None or privacy.choice is None:
        return said
    positions, losses = training_losses(plan.federation, clusters, None, round_)
    own = said.clone()
    own[torch.from_numpy(positions)] = best(torch.from_numpy(-losses)[:, None])[:, 0]
    return torch.where(said >= 0, own, said)


DYING = 0.1
"""A cluster is dying whose part of the clients' weight is below this part of its equal share 1/K."""


def _who_is_dying(shares: Tensor) -> dict[str, list[float] | list[int]]:
    """What part of the clients' weight each cluster has, (K,), and which of them hardly have any."""
    dying = torch.nonzero(shares < DYING / len(shares)).flatten().tolist()
    return {"shares": [round(share, 6) for share in shares.tolist()], **({"dying": dying} if dying else {})}


def newcomer_figures(
    plan: Plan, clusters: Clusters, usual: float, by: Own | None, splits: Params
) -> dict[str, float | None]:
    """The mean score of newcomers, one for each true group, where the data has some; `usual` is the training loss."""
    newcomers, truth, regression = plan.data.newcomers, plan.data.truth, plan.learner.classes is None
    if newcomers is None:
        return {}
    models = clusters.models()
    if plan.entry.groups == "self" and truth is not None:
        found = scores_of_own(plan.learner, models, newcomers, truth)
    else:
        placing = plan.entry.placing(plan.options.own)
        density = _density(plan, by, clusters.K) if placing == "density" and by is not None else None
        tree = Tree(splits, plan.method.work, plan.method.lr) if placing == "tree" else None
        found = newcomer_scores(plan.learner, models, newcomers, placing, usual, density, tree)
    return {"newcomers": finite(np.sqrt(found).mean() if regression else found.mean())}


def subspace_figures(plan: Plan, clusters: Clusters) -> dict[str, float | None]:
    """How far the one basis of a linear representation is from the true one, where both are known; one restart."""
    found, true = {**clusters.params, **clusters.shared}.get(BASIS), plan.data.true_basis
    if true is None or found is None or len(found) != 1 or found.shape[2] != len(true):
        return {}
    basis = found[0].T.double().cpu().numpy()
    return {"subspace_distance": subspace_distance(basis, true) if np.isfinite(basis).all() else None}


def _density(plan: Plan, by: Own, K: int) -> Density:
    """For somebody new, whose weights start from equal ones."""
    objective = plan.method.objective
    components = objective.client_components(K)
    return Density(objective, by.common_of_restart(), torch.full((components,), 1 / components, dtype=torch.float64))


def score_figures(plan: Plan, found: Scores) -> dict[str, float | None]:
    """The mean over clients, and over the worst-off tenth of them; None if a model does not fit somebody at all."""
    name = score_name(plan.learner)
    if not len(found.score):  # nobody was asked
        return {name: None, "worst_tenth": None}
    figures = {name: found.score.mean(), "worst_tenth": worst_tenth(found.score, name == "accuracy")}
    return {key: finite(value) for key, value in figures.items()}


def validation_figures(
    plan: Plan, clusters: Clusters, own: Tensor, round_: int, by: Own | None
) -> dict[str, float | None]:
    """Loss and score on validation samples, the mean over the clients that have some and a cluster in `own` (m,)."""
    asked = with_validation_samples(plan, own)
    if plan.validated is None or not bool((asked >= 0).any()):
        return {}
    regression = plan.learner.classes is None
    found = scores(plan.federation, clusters, asked, round_, regression, on="validation", by=by)
    figures = {"loss": found.loss.mean(), score_name(plan.learner): found.score.mean()}
    return {f"validation_{name}": finite(value) for name, value in figures.items()}


def with_validation_samples(plan: Plan, own: Tensor) -> Tensor:
    """The clusters (m,) of those clients that have validation samples; the others are not asked."""
    return own if plan.validated is None else torch.where(plan.validated, own, -1)


def with_test_samples(plan: Plan, own: Tensor) -> Tensor:
    """The clusters (m,) of those clients that have test samples: one with a single row of a table has none."""
    tested = plan.data.tested
    return own if tested is None else torch.where(torch.from_numpy(tested), own, -1)


def honest(plan: Plan, own: Tensor) -> Tensor:
    """The clusters (m,) of those clients that do not lie: the others are not asked for scores."""
    return torch.where(plan.lying, -1, own)


def score_name(learner: Learner) -> str:
    """`accuracy` for classes, `rmse` for numbers."""
    return "rmse" if learner.classes is None else "accuracy"


def is_soft(plan: Plan) -> bool:
    """Whether clients predict by a mixture of their own."""
    return plan.method.weights.mixture


def kept_by_clients(plan: Plan, state: ServerState, restart: int) -> Own | None:
    """What clients predict by that they keep for themselves; None: the model of their cluster."""
    objective = plan.method.objective
    predictor = plan.method.weights.client_predictor(objective, restart, state.clusters.restarts)
    if predictor is None:
        return None
    return Own(predictor, restart, state.accepted, objective, objective.server_combine(state.tables), state.flows)
