"""Parallel work in threads with single-threaded linear algebra."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

from coterie.core.threads import one_thread

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def in_threads(work: Callable[[Job], Outcome], jobs: Sequence[Job], threads: int) -> list[Outcome]:
    """Apply a function to each job in parallel threads with single-threaded linear algebra.

    Args:
        work: The function.
        jobs: Its arguments.
        threads: Maximum number of threads.

    Returns:
        Results in the order of the jobs.
    """
    if len(jobs) == 1 or threads == 1:
        with one_thread():
            return [work(job) for job in jobs]
    gradients = torch.is_grad_enabled()

    def in_one_thread(job: Job) -> Outcome:
        with one_thread(), torch.set_grad_enabled(gradients):  # new threads do not inherit this setting
            return work(job)

    with one_thread():
        return list(_workers(threads).map(in_one_thread, jobs))


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """Return a cached thread pool: for new threads, torch and MKL would allocate their buffers again."""
    return ThreadPoolExecutor(threads, thread_name_prefix="coterie")


os.register_at_fork(after_in_child=_workers.cache_clear)  # a forked process does not have the threads of its parent
