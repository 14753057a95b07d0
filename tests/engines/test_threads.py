"""Parallel threads: single-threaded kernels, order of results, and unchanged settings of the caller."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from coterie.core.threads import one_thread
from coterie.engines.threads import in_threads


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_job_has_one_thread_and_the_setting_of_the_caller_stays(threads):
    assert in_threads(lambda _: torch.get_num_threads(), range(2 * threads), threads) == [1] * 2 * threads
    assert torch.get_num_threads() == threads
    fresh: list[int] = []
    newcomer = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    newcomer.start()
    newcomer.join()
    assert fresh == [threads]


def test_one_thread_is_for_the_block_only(threads):
    with one_thread() as before:
        assert (before, torch.get_num_threads()) == (threads, 1)
    assert torch.get_num_threads() == threads


def test_outcomes_come_in_the_order_of_the_jobs(threads):
    assert in_threads(lambda job: job**2, range(9), threads) == [job**2 for job in range(9)]


def test_a_job_computes_gradients_exactly_when_its_caller_does(threads):
    assert in_threads(lambda _: torch.is_grad_enabled(), range(3), threads) == [True] * 3
    with torch.no_grad():
        assert in_threads(lambda _: torch.is_grad_enabled(), range(3), threads) == [False] * 3


def test_an_error_reaches_the_caller(threads):
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda job: 1 / job, [1, 0], threads)


KERNELS = """
import os, threading, torch
torch.set_num_threads(2)
from coterie.engines.threads import in_threads
a = torch.randn(700, 700)
b = torch.randn(4, 200, 200)
work = lambda _: (a @ a, torch.bmm(b, b), torch.relu(a.repeat(9, 9)).sum())
running = lambda: len(os.listdir("/proc/self/task"))
both = threading.Barrier(2)
in_threads(lambda _: both.wait(), range(2), 2)
before = running()
in_threads(work, range(4), 2)
inside = running()
work(0)
print(inside - before, running() - inside)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process in /proc")
def test_kernels_in_a_job_start_no_threads_of_their_own():
    """In a separate process: jobs start no threads, but the same work of the caller does."""
    done = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
