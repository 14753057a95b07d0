"""Work side by side in threads, each with one-thread linear algebra."""

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
    """What `work` makes of each job, in order; at most `threads` run at a time, each with one-thread linear algebra."""
    if len(jobs) == 1 or threads == 1:
        with one_thread():
            return [work(job) for job in jobs]
    gradients = torch.is_grad_enabled()

    def alone(job: Job) -> Outcome:
        with one_thread(), torch.set_grad_enabled(gradients):  # a thread does not inherit it
            return work(job)

    with one_thread():
        return list(_workers(threads).map(alone, jobs))


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: new ones would cost torch and MKL their buffers every time."""
    return ThreadPoolExecutor(threads, thread_name_prefix="coterie")


os.register_at_fork(after_in_child=_workers.cache_clear)  # a forked process has none of its parent's threads
