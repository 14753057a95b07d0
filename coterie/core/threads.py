"""Number of threads of linear algebra.

The threads of torch wait for each other by spinning. On a busy machine, a single addition that is divided among threads
can therefore take a tenth of a second. For this reason, work is divided among threads by clients, and all operations
for a client run in a single thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
