"""How many threads linear algebra uses.

Torch's own threads wait for each other by spinning: when other processes want the machine, a single addition that is
cut in pieces can take a tenth of a second. So work is cut by clients, and what is done for one of them is not cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[int]:
    """Linear algebra of the calling thread uses one thread; gives the number that there was, which comes back."""
    before = torch.get_num_threads()  # asked first: torch settles what a thread begins with when it is asked
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
