"""Trial runs on the workers of an executor: several at a time, with the outcomes in their order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie.cluster.executor import WorkerCall, outcome_of, submitted
from coterie.cluster.shard_data import ShardRecipe, decode_shard, encode_shard, in_folder, shard_of
from coterie.core.dataset import FederatedDataset, Profile
from coterie.core.plain import from_plain, to_plain
from coterie.core.schema import Schema
from coterie.errors import ConfigError
from coterie.files import read_tensors
from coterie.learners import make_learner
from coterie.methods.base import Method
from coterie.methods.settings import RunSettings
from coterie.training.choosing import Outcome, RunTrials
from coterie.training.planning import Plan, assembled

AHEAD = 32
"""Largest number of trial runs that are submitted before their outcomes are needed."""
RunTrial = Callable[[str, bytes | None], Outcome]
"""Function that carries out the trial run that `TrialJob.encode` describes, given samples that have no source."""


@dataclass(frozen=True)
class TrialJob:
    """Description of a trial run for another process."""

    method: Method
    settings: RunSettings
    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """Number of classes; None for a regression."""
    recipe: ShardRecipe
    """The clients."""
    folder: str
    """Folder in which the run was started."""

    @classmethod
    def of(cls, plan: Plan, recipe: ShardRecipe) -> TrialJob:
        """Return the description of a plan for these clients."""
        settings = replace(plan.settings, workers=None)
        features, classes = plan.data.profile.features, plan.learner.classes
        return cls(plan.method, settings, features, classes, recipe, str(Path.cwd()))

    @staticmethod
    def clients(plan: Plan) -> tuple[ShardRecipe, bytes | None]:
        """Return how a worker gets the clients of a plan, and their samples if they have no source.

        Raises:
            ConfigError: if the plan cannot be carried out in another process.
        """
        if not isinstance(plan.data, FederatedDataset):
            raise ConfigError("trial runs with remote clients run one after the other: leave workers and executor out")
        if str(plan.learner.spec).startswith("module:"):
            raise ConfigError(
                "trial runs on workers need a learner that they find by its name: register the function with "
                "coterie.learners.register_learner in a plugin file"
            )
        count, tested, source = len(plan.data.clients), plan.data.test is not None, plan.data.source
        data = shard_of(plan.data, np.arange(count), tested)
        return ShardRecipe(data.fingerprint(), 0, count, tested, source), None if source else encode_shard(data)

    def encode(self) -> str:
        """Return the description as JSON."""
        return json.dumps(to_plain(self))

    @classmethod
    def plan(cls, text: str, sent: bytes | None) -> Plan:
        """Return the plan that `encode` describes.

        Args:
            text: The description.
            sent: The clients, if they have no source.
        """
        job: TrialJob = from_plain(cls, json.loads(text))
        with in_folder(job.folder):
            recipe = job.recipe
            if recipe.source is None:
                assert sent is not None, "data without a source is sent"
                data = decode_shard(sent)
            else:
                data = shard_of(recipe.source.load().compact(), recipe.positions, recipe.tested)
            recipe.checked(data)
            profile = Profile(job.features, job.classes)
            if job.classes is not None:  # some may not occur among the training samples
                data = replace(data, schema=Schema(classes=tuple(range(job.classes))))
            learner = make_learner(str(job.settings.learner), profile, read_tensors)
            return assembled(job.method, data, learner, job.settings, None)


def on_workers(executor: Executor, run_trial: RunTrial) -> RunTrials:
    """Return a function that carries out trial runs on the workers of an executor.

    Args:
        executor: The executor.
        run_trial: Function of a module, which the workers call.
    """

    def run(trials: Sequence[Callable[[], Plan]]) -> Generator[Outcome, None, None]:
        work, waiting = WorkerCall.of(run_trial), deque(trials)
        running: deque[Future[Outcome]] = deque()
        clients: tuple[ShardRecipe, bytes | None] | None = None
        try:
            while waiting or running:
                while waiting and len(running) < AHEAD:
                    plan = waiting.popleft()()
                    clients = clients or TrialJob.clients(plan)  # the same for all trial runs
                    recipe, sent = clients
                    running.append(submitted(executor, work, TrialJob.of(plan, recipe).encode(), sent))
                yield outcome_of(running.popleft())
        finally:
            for future in running:
                future.cancel()

    return run
