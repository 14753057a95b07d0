"""Number of threads of linear algebra.

The threads of torch wait for each other by spinning. On a busy machine, a single addition that is divided among threads
can therefore take a tenth of a second. For this reason, work is divided among threads by clients, and all operations
for a client run in a single thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Job = Callable[[Any], object]
"""Function that is called with each of several values."""


def one_by_one(work: Job, values: Sequence[Any]) -> list[object]:
    """Call a function with one value after the other."""
    return [work(value) for value in values]


@dataclass(frozen=True)
class Workers:
    """Threads among which a task may divide its work itself."""

    count: int = 1
    """Number of threads."""
    run: Callable[[Job, Sequence[Any]], object] = one_by_one
    """Function that calls a function with each of several values, in these threads."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Context manager in which linear algebra of the calling thread uses one thread.

    It yields the previous number of threads and restores it at the end.
    """
    before = torch.get_num_threads()  # must be the first call: it also initialises the value for a new thread
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
