"""Executors for whole jobs: the workers of a Dask cluster, or an executor of the user."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coterie.cluster.allocation import keep_freed_memory
from coterie.core.threads import one_thread
from coterie.errors import ConfigError, CoterieError, RunError, WorkerError, shown
from coterie.plugins.loading import VARIABLE, load_installed, load_plugin

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class WorkerCall:
    """A function that runs in another process as it would here: with the same plugins, and one thread."""

    work: Callable[..., Any]
    plugins: tuple[str, ...]
    """Paths of plugin files."""

    @classmethod
    def of(cls, work: Callable[..., Any]) -> WorkerCall:
        """Return the function with the plugins of this process."""
        return cls(work, tuple(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))))

    def __call__(self, *args: Any) -> Any:
        keep_freed_memory()
        with suppress(CoterieError):  # raised again when a name of the plugin is looked up
            load_installed()
            for path in self.plugins:
                load_plugin(path)
        with one_thread():
            return self.work(*args)


def chosen_executor(workers: str | None, executor: Executor | None) -> Executor | None:
    """Return the executor that a user has chosen; None if jobs run on this machine as usual.

    Args:
        workers: Text such as `local:4` or `tls://scheduler:8786`.
        executor: The user's executor.

    Raises:
        ConfigError: if both are given, or one is not allowed.
        WorkerError: if the cluster cannot be reached.
    """
    if executor is not None:
        if workers is not None:
            raise ConfigError("workers and executor both say where jobs run: give only one of them")
        if not isinstance(executor, Executor):
            raise ConfigError(f"executor must be a concurrent.futures.Executor, got {shown(executor)}")
        return executor
    if workers is None:
        return None
    from coterie.cluster.connection import connected  # needs an extra

    return connected(workers).executor()


def outcome_of(future: Future[Outcome]) -> Outcome:
    """Return the result of a job that has ended.

    Raises:
        WorkerError: if the executor itself has failed; other jobs fail then, too.
        RunError: if only this job was lost, because the processes that ran it ended again and again.
    """
    try:
        return future.result()
    except CoterieError:
        raise
    except (BrokenExecutor, CancelledError) as error:
        raise WorkerError(
            f"the workers have ended ({type(error).__name__}): start them again, then resume the unfinished runs"
        ) from error
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # Dask's, which is an extra
            raise RunError(
                "the workers that ran it have ended several times, perhaps because memory ran out: resume it on "
                "workers with more memory"
            ) from error
        raise


def submitted(executor: Executor, work: Callable[..., Outcome], *args: Any) -> Future[Outcome]:
    """Submit a call.

    Raises:
        WorkerError: if the executor has ended.
    """
    try:
        return executor.submit(work, *args)
    except RuntimeError as error:  # also BrokenExecutor
        raise WorkerError(f"the executor takes no jobs ({error}): pass a new one, then resume the runs") from error


def check_shared(executor: Executor, folder: Path) -> None:
    """Check that the executor's workers see a folder.

    Raises:
        RunError: if they do not.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f"shared.{secrets.token_hex(8)}.tmp"
    token.touch()
    try:
        seen = outcome_of(submitted(executor, _sees, str(token)))
    finally:
        token.unlink(missing_ok=True)
    if not seen:
        raise RunError(f"the workers do not see {folder}: choose a folder (out) on a disk that all machines share")


def _sees(path: str) -> bool:
    return Path(path).is_file()
