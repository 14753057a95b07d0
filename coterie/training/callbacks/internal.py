"""Callbacks of every run: early stopping by `patience`, the privacy budget, the run folder, and client states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from coterie.core.state import ServerState
from coterie.engines.remote import RemoteClients
from coterie.engines.simulation import Simulation
from coterie.training.budget import Spending
from coterie.training.callbacks.base import Callback, Progress, TrainingRun
from coterie.training.exploding import EXPLODED, has_exploded
from coterie.training.planning import Plan
from coterie.training.records import RoundRecord
from coterie.training.result import Result
from coterie.training.runs.files import writing
from coterie.training.runs.folder import RunFolder
from coterie.training.stopping import SETTLED, Settling, Watch


def progress_of(run: TrainingRun) -> Progress:
    """Return the present state of a run that the loop has started."""
    assert run.progress is not None, "the loop sets it"
    return run.progress


def with_clients(plan: Plan, state: ServerState) -> ServerState:
    """Return the state with a copy of the simulated clients' states, as a checkpoint contains it."""
    store = plan.federation.store
    return state if store is None else replace(state, clients=store.copy())


@dataclass
class Patience(Callback):
    """The option `patience`: ends the run when the loss stops improving; with validation, keeps the best models."""

    watch: Watch
    keeps_best: bool

    reason: ClassVar[str] = "patience"

    def on_start(self, run: TrainingRun) -> None:
        for record in run.records:
            self.watch.see(record)

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        progress = progress_of(run)
        if self.watch.see(record) and self.keeps_best:
            progress.best = with_clients(progress.plan, progress.state)
        return self.watch.exhausted


@dataclass
class SettledLoss(Callback):
    """The option `rounds=auto`: ends the run when the training loss has settled."""

    settling: Settling

    reason: ClassVar[str] = SETTLED

    def on_start(self, run: TrainingRun) -> None:
        for record in run.records:
            self.settling.see(record)

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        self.settling.see(record)
        return self.settling.reached


@dataclass
class Exploding(Callback):
    """Ends a run whose training loss explodes."""

    plan: Plan

    reason: ClassVar[str] = EXPLODED

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        return has_exploded(self.plan, [*run.records, record])


@dataclass
class PrivacyBudget(Callback):
    """Counts every round before its clients are asked, and ends the run before the budget is exceeded."""

    plan: Plan
    folder: RunFolder | None
    spending: Spending = field(init=False)

    reason: ClassVar[str] = "privacy"

    def __post_init__(self) -> None:
        # remote clients draw new noise when a run resumes, so all requests count; the ledger contains them all
        counted = counts_questions(self.plan) and self.folder is not None
        self.spending = Spending.of(self.plan, self.folder.asked() if self.folder is not None and counted else ())

    def on_start(self, run: TrainingRun) -> None:
        done = progress_of(run).state.round
        if not counts_questions(self.plan) or self.folder is None:
            self.spending = Spending.of(self.plan, range(done))

    def on_round_start(self, run: TrainingRun, round_: int) -> None:
        self.spending.ask(round_)
        if self.folder is not None and counts_questions(self.plan):
            self.folder.ask(round_)

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        return not self.spending.allows(record.round + 1)


def counts_questions(plan: Plan) -> bool:
    """Return whether every request to the clients spends privacy budget, so that a ledger must count them.

    A resumed simulation gives the same answers again; remote clients draw new noise, so their answers count again.
    """
    return plan.tiers.privacy is not None and not isinstance(plan.federation, Simulation)


@dataclass
class FolderWriter(Callback):
    """Writes records, checkpoints and the result to the run folder."""

    folder: RunFolder

    def on_round(self, run: TrainingRun, record: RoundRecord) -> None:
        progress = progress_of(run)
        plan, state = progress.plan, progress.state
        self.folder.append(record)
        if state.round % plan.settings.checkpoint_every == 0 or progress.last:
            write_clients(plan, self.folder)
            self.folder.checkpoint(with_clients(plan, state), progress.best)

    def on_end(self, run: TrainingRun, result: Result) -> None:
        self.folder.finish(result.parameters, result.summary(), result.extra_arrays)


def write_clients(plan: Plan, folder: RunFolder) -> None:
    """Write a file with the location of each remote client."""
    if isinstance(plan.data, RemoteClients):
        with writing(folder.path):
            plan.data.save(folder.path)


@dataclass
class StateRelease(Callback):
    """Tells remote clients which of their states the run will not return to."""

    folder: RunFolder | None

    def on_round(self, run: TrainingRun, record: RoundRecord) -> None:
        progress = progress_of(run)
        federation, state, best = progress.plan.federation, progress.state, progress.best
        if not progress.plan.tiers.assignment.keeps or federation.store is not None:
            return
        accepted = state.accepted if self.folder is None else self.folder.oldest_accepted()
        if accepted is not None:
            federation.release(accepted if best is None else torch.minimum(accepted, best.accepted))
