"""Pools of processes that run the jobs of experiments: on this machine, or wherever an executor has its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from coterie.cluster.executor import WorkerCall, check_shared, chosen_executor, outcome_of, submitted
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.experiments.processes import POLL_SECONDS, Answer, answered, in_processes, leave_if_importing_main

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class Pool(ABC):
    """Base class of pools."""

    @abstractmethod
    def run(
        self,
        work: Callable[[Job], Outcome],
        jobs: Sequence[Job],
        watch: Callable[[Sequence[Job]], None],
        folder: Path,
    ) -> Iterator[tuple[Job, Outcome | CoterieError]]:
        """Yield each job with the value of `work(job)`, in the order in which jobs finish.

        A CoterieError is yielded as the outcome of its job, an unexpected error is raised.

        Args:
            work: Function that can be pickled.
            jobs: Arguments of the calls, which can be pickled.
            watch: Function that is called at the start with all jobs, and then about once a second with those that may
                be running.
            folder: Folder that the jobs write to.
        """


@dataclass(frozen=True)
class Processes(Pool):
    """Worker processes that are started for the jobs, see `in_processes`."""

    count: int | None = None
    """Number of processes; None: one for each core."""

    def run(
        self,
        work: Callable[[Job], Outcome],
        jobs: Sequence[Job],
        watch: Callable[[Sequence[Job]], None],
        folder: Path,
    ) -> Iterator[tuple[Job, Outcome | CoterieError]]:
        return in_processes(work, jobs, self.count, watch)


@dataclass(frozen=True)
class OnExecutor(Pool):
    """An executor, which decides where and how many jobs run at a time; the folder must be visible there.

    A job that is run again by the executor, because its process ended, continues from its last checkpoint.
    """

    executor: Executor

    def run(
        self,
        work: Callable[[Job], Outcome],
        jobs: Sequence[Job],
        watch: Callable[[Sequence[Job]], None],
        folder: Path,
    ) -> Iterator[tuple[Job, Outcome | CoterieError]]:
        leave_if_importing_main()
        watch(jobs)
        if not jobs:
            return
        check_shared(self.executor, folder)
        call = WorkerCall.of(partial(answered, work))
        running = {submitted(self.executor, call, job): job for job in jobs}
        try:
            while running:
                done, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                watch(list(running.values()))
                for future in done:
                    job = running.pop(future)
                    try:
                        answer: Answer[Outcome] = outcome_of(future)
                    except RunError as error:
                        answer = Answer(error=error)
                    yield job, answer.outcome()
        finally:
            for future in running:
                future.cancel()


def chosen_pool(jobs: int | None, workers: str | None, executor: Executor | None = None) -> Pool:
    """Return the pool that a user has chosen.

    Args:
        jobs: Number of processes on this machine; None: one for each core.
        workers: Text such as `local:4` or `tls://scheduler:8786`.
        executor: The user's executor.

    Raises:
        ConfigError: if several are given, or one is not allowed.
        WorkerError: if the cluster cannot be reached.
    """
    if jobs is not None and (workers is not None or executor is not None):
        raise ConfigError("jobs is the number of processes on this machine: leave it out with workers or executor")
    chosen = chosen_executor(workers, executor)
    return Processes(jobs) if chosen is None else OnExecutor(chosen)
