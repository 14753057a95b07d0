"""Run jobs in worker processes, one for each core, each with single-threaded linear algebra.

Several small matrix products in parallel are faster than one product on several threads, also on a shared machine.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Generic, TypeVar

from coterie.errors import CoterieError, RunError, from_system
from coterie.plugins.loading import load_installed

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

POLL_SECONDS = 1.0
"""Longest time between two calls of `watch`, in seconds."""
RESTARTS = 2
"""Largest number of times that a job is run again after its process was killed."""
WORKER = "COTERIE_WORKER"
"""Environment variable that marks worker processes."""
UNGUARDED = 97
"""Exit code of a worker whose import of the user's script would start further workers."""
GUARD = 'put the calls of your script under `if __name__ == "__main__":`, because every worker process imports it again'
"""Advice for scripts without a main guard."""


def in_processes(
    work: Callable[[Job], Outcome], jobs: Sequence[Job], workers: int | None, watch: Callable[[Sequence[Job]], None]
) -> Iterator[tuple[Job, Outcome | CoterieError]]:
    """Yield each job with the value of `work(job)`, in the order in which jobs finish.

    A CoterieError is yielded as the outcome of its job, an unexpected error is raised. A job whose process was killed
    is run again, at most `RESTARTS` times; then its outcome is a RunError. The worker processes end with the caller,
    even if the caller is killed.

    Args:
        work: Function that is called in a worker process; it must be picklable.
        jobs: Arguments of the calls, which must be picklable.
        workers: Number of processes; None: one for each core.
        watch: Function that is called at the start with all jobs, since an earlier process may have run a part of them,
            and then about once a second with the running jobs.

    Yields:
        A job and its outcome.
    """
    leave_if_importing_main()
    watch(jobs)
    waiting = deque(_Task(job) for job in jobs)
    count = min(len(jobs), workers or os.cpu_count() or 1)
    pool: list[_Worker[Job, Outcome]] = []
    try:
        while waiting or pool:
            while waiting and len(pool) < count:
                pool.append(_Worker(work, waiting.popleft()))
            wait([handle for worker in pool for handle in worker.handles], POLL_SECONDS)
            watch([worker.task.job for worker in pool])
            for worker in list(pool):
                answer = worker.answer()
                if answer is None:
                    continue
                task = worker.task
                if answer.killed or not waiting:
                    worker.end()
                    pool.remove(worker)
                else:
                    worker.task = waiting.popleft()
                    worker.send_task()
                if answer.killed and task.killed < RESTARTS:
                    waiting.append(_Task(task.job, task.killed + 1))
                else:
                    yield task.job, answer.outcome()
    finally:
        for worker in pool:
            worker.end()


def leave_if_importing_main() -> None:
    """End this process if it is a worker that is still importing the user's script.

    A script without a main guard calls `compare` again in each of its workers. The parent recognises the exit code and
    explains what to do, so that the worker must not print a second error or start a second run.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "__mp_main__" and frame.f_code.co_name == "<module>":
            if WORKER in os.environ:
                os._exit(UNGUARDED)
            raise RunError(f"worker processes cannot be started here: {GUARD}")
        frame = frame.f_back


@dataclass(frozen=True)
class _Task(Generic[Job]):
    """A job, and the number of times that its process was killed."""

    job: Job
    killed: int = 0


@dataclass(frozen=True)
class Answer(Generic[Outcome]):
    """Answer of a worker: the value of its job, or the error."""

    value: Outcome | None = None
    error: Exception | None = None
    killed: bool = False
    """Whether the process has ended without an answer; the error has the reason."""

    def outcome(self) -> Outcome | CoterieError:
        """Return the value or the CoterieError; raise any other error."""
        if self.error is None:
            return self.value  # type: ignore[return-value]  # None only if Outcome allows None
        if isinstance(self.error, CoterieError):
            return self.error
        raise self.error


class _Worker(Generic[Job, Outcome]):
    """A worker process and its current task, which it receives as soon as it is ready."""

    def __init__(self, work: Callable[[Job], Outcome], task: _Task[Job]) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = task
        self._ready = False
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work))
        try:
            with _worker_environment():
                self._process.start()
        except OSError as error:
            raise RunError(
                f"no worker process could be started ({error.strerror or error}): end other programs or run fewer jobs "
                "in parallel"
            ) from error
        finally:
            theirs.close()

    @property
    def handles(self) -> tuple[Connection, int]:
        """Objects to wait for: one of them becomes ready when there is an answer or the process has ended."""
        return self._pipe, self._process.sentinel

    def answer(self) -> Answer[Outcome] | None:
        """Return the answer to the task, or None while there is none."""
        ended = not self._process.is_alive()  # before the pipe is read: an answer may precede the end
        try:
            while self._pipe.poll():
                message: Answer[Outcome] | None = self._pipe.recv()
                if message is not None:
                    return message
                self._ready = True
                self.send_task()
        except (EOFError, OSError):
            ended = True
        return self._answer_of_ended_process() if ended else None

    def send_task(self) -> None:
        """Send the task; `answer` notices if the process has ended meanwhile."""
        try:
            self._pipe.send(self.task.job)
        except OSError:
            self._process.kill()

    def end(self) -> None:
        """Kill the process, which is idle or whose answer is not needed; run folders survive a kill at any moment."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _answer_of_ended_process(self) -> Answer[Outcome]:
        self._process.join()
        code = self._process.exitcode or 0
        if code == UNGUARDED:
            raise RunError(f"worker processes cannot be started: {GUARD}")
        if code > 0 and not self._ready:
            raise RunError(f"a worker process ended with exit code {code} before it was ready: {GUARD}")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        times = f" {self.task.killed + 1} times" if self.task.killed else ""
        return Answer(
            error=RunError(
                f"its process {how}{times}, perhaps because memory ran out: run fewer jobs in parallel, then resume it"
            ),
            killed=True,
        )


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Start processes that use one thread for linear algebra and ignore Ctrl-C, since their parent ends them."""
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", WORKER: "1"}
    before = {name: os.environ.get(name) for name in settings}
    resource_tracker.ensure_running()  # otherwise it would start below, and unblock the signal
    masked = None if sys.platform == "win32" else signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if sys.platform != "win32" and masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)


# ---- in the worker process -----------------------------------------------------------------------------------


def _serve(pipe: Connection, work: Callable[[Job], Outcome]) -> None:
    """Run one job after the other until the parent ends this process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(CoterieError):  # raised again when a name of the plugin is looked up
        load_installed()
    pipe.send(None)  # ready
    while True:
        pipe.send(answered(work, pipe.recv()))


def answered(work: Callable[[Job], Outcome], job: Job) -> Answer[Outcome]:
    """Return the value of `work(job)`, or the error, in a form that can be sent to another process."""
    try:
        return Answer(work(job))
    except Exception as error:
        return Answer(error=from_system(error) or _portable(error))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to another process, with the traceback as a note."""
    error.add_note(f"in a worker process:\n{_traceback(error)}")
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__))


def _end_with_parent() -> None:
    """End this process with its parent, which cannot do that itself if it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
