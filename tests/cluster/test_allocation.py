"""Freed memory in a process like Dask's workers."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from coterie.cluster.allocation import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        torch.zeros(1 << 20).sum()  # 4 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Dask changes the C library of Linux only")
def test_freed_memory_is_used_for_the_next_tensor():
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, text=True)
    assert int(done.stdout) < 50 * 1000 / 2  # otherwise there is one for each of the 1000 pages of every tensor
