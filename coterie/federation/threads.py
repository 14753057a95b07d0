"""Work side by side in threads, each with one-thread linear algebra."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def in_threads(work: Callable[[Job], Outcome], jobs: Sequence[Job]) -> list[Outcome]:
    """What `work` makes of each job, in order; at most as many run at a time as torch has threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(job) for job in jobs]
    gradients = torch.is_grad_enabled()

    def alone(job: Job) -> Outcome:
        with torch.set_grad_enabled(gradients):  # a thread does not inherit it
            return work(job)

    return list(_workers(threads).map(alone, jobs))


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """So many threads that stay, with one-thread linear algebra each.

    To tell torch so takes milliseconds, so it is done once: a barrier makes every thread take part.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="coterie")
    everybody = Barrier(threads)

    def settle(_: int) -> None:
        torch.get_num_threads()  # what this thread begins with is settled by the first question, even after an answer
        torch.set_num_threads(1)
        everybody.wait()

    list(pool.map(settle, range(threads)))
    torch.set_num_threads(threads)  # threads that torch meets later begin with the number that was set last
    return pool


os.register_at_fork(after_in_child=_workers.cache_clear)  # a forked process has none of its parent's threads
