"""Work in processes of its own, one a core, each with one-thread linear algebra.

Several small products at once beat one product cut in pieces, and do not collapse when the machine is shared.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

from coterie.errors import CoterieError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

POLL_SECONDS = 1.0
"""Between two looks at the jobs that are not finished."""


def in_processes(
    work: Callable[[Job], Outcome], jobs: Sequence[Job], workers: int | None, watch: Callable[[Sequence[Job]], None]
) -> Iterator[tuple[Job, Outcome | CoterieError]]:
    """Each job with what `work` made of it, as they finish; `watch` is called now and then with those that have not.

    A mistake of the user's (CoterieError) is an outcome, any other error is raised. If the caller stops, so do the
    processes.
    """
    if not jobs:
        return
    workers = min(len(jobs), workers or os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with _one_thread(), ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
        pending = {pool.submit(work, job): job for job in jobs}
        try:
            while pending:
                finished, _ = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                watch(list(pending.values()))
                for future in finished:
                    error = future.exception()
                    if error is not None and not isinstance(error, CoterieError):
                        raise error
                    yield pending.pop(future), error or future.result()
        except BaseException:
            for process in (pool._processes or {}).values():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its processes, and what they would find nobody reads."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started here use one thread for linear algebra."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
