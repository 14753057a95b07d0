"""Worker processes on this machine, started in a process that ends with its parent.

    python -m coterie.cluster.local 4

The first line of the output is the address of the scheduler. The process ends when its standard input ends, which also
happens if the parent is killed. It is separate, so that scripts without a main guard are not imported by workers.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from coterie.errors import WorkerError

START_SECONDS = 60
"""Longest time until the processes must be ready."""
FOREVER = 10**9
"""Seconds after which Dask gives up a worker that has ended, instead of waiting until it has been started again."""


@dataclass(frozen=True)
class LocalWorkers:
    """A scheduler and workers on this machine."""

    process: subprocess.Popen[str]
    address: str

    @classmethod
    def start(cls, count: int) -> LocalWorkers:
        """Start the processes.

        Raises:
            WorkerError: if they cannot be started.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "coterie.cluster.local", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None, "a pipe"
        address = process.stdout.readline().strip()
        if not address:
            process.kill()
            process.wait()
            raise WorkerError(
                f"{count} worker processes could not be started here: start fewer, or read the output above"
            )
        return cls(process, address)

    def end(self) -> None:
        """End the processes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None, "opened in start"
            pipe.close()
        try:
            self.process.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main(count: int) -> None:
    """Start a scheduler and workers, and wait until standard input ends."""
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.deploy.lost-worker-timeout": f"{FOREVER} s"}),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
    ):
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
