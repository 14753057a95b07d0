"""Connections to Dask clusters: one for each text of `workers`, open until the process ends."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from coterie.cluster import worker
from coterie.cluster.address import Workers, is_loopback, read_workers
from coterie.cluster.local import LocalWorkers
from coterie.errors import ConfigError, CoterieError, WorkerError

try:
    import dask
    from distributed import Client, Future, Security, wait
    from distributed.cfexecutor import ClientExecutor
    from distributed.comm.core import CommClosedError
    from tornado.platform.asyncio import BaseAsyncIOLoop

    from coterie.cluster.modules import ModuleFolders, module_folders, search_also
except ImportError as error:
    raise ConfigError(f"workers need Dask, which is not installed ({error}): pip install 'coterie[cluster]'") from error

CONNECT_SECONDS = 20
"""Longest time until a scheduler must answer."""
WAIT_SECONDS = 180
"""Longest time without any worker that has imported Coterie, after which work is given up."""
POLL_SECONDS = 1.0
"""Time between two looks at the cluster while a result is awaited."""
SEND_SECONDS = 0.001
"""Shortest time between two messages to the scheduler; Dask's own 10 ms would be added to most exchanges."""
PATIENT_POLLS = 3
"""Number of looks at the cluster at which no worker processes a task, after which the task counts as forgotten."""
NO_LIMIT = "100TB"
PACKAGE = "coterie"


class ForgottenTaskError(WorkerError):
    """Raised for a task that the scheduler has, but does not give to any worker."""


@dataclass
class Connection:
    """An open connection to a scheduler."""

    name: str
    """Text of `workers`."""
    client: Client
    local: LocalWorkers | None = None
    """The processes, if they were started here."""
    checked: set[str] = field(default_factory=set)
    """Addresses of workers that suit."""
    pending: dict[str, Future[dict[str, str]]] = field(default_factory=dict)
    """Checks of workers that have joined just now."""

    def workers(self) -> dict[str, Mapping[str, Any]]:
        """Return the present workers by address, except those that have joined just now and are still being checked.

        Raises:
            WorkerError: if none is ready within three minutes.
            ConfigError: if a worker has several threads or another version.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        with self.failures():
            while not (ready := self._ready()):
                if time.monotonic() > deadline:
                    raise self._no_workers()
                self._wait_for_change()
        return ready

    def _ready(self) -> dict[str, Mapping[str, Any]]:
        """Return the present workers that suit, after submitting and reading checks of the others."""
        found = self._known()
        for address in found.keys() - self.checked - self.pending.keys():
            place = {"workers": [address], "pure": False}
            # a worker that cannot read a function ends without a word, so the first one is not ours
            installed = self.client.submit(version, PACKAGE, **place)
            self.pending[address] = self.client.submit(worker.facts, installed, **place)
        # the check of a worker that has ended would never be done
        self.pending = {address: future for address, future in self.pending.items() if address in found}
        for address, future in list(self.pending.items()):
            if not future.done():  # type: ignore[no-untyped-call]
                continue
            with suppress(TimeoutError):  # the worker has ended since, and its result with it
                _check_facts(address, found[address], future)
                self.checked.add(address)
                del self.pending[address]
        return {address: facts for address, facts in found.items() if address in self.checked}

    def _known(self) -> dict[str, Mapping[str, Any]]:
        return dict(sorted(self.client.scheduler_info(n_workers=-1)["workers"].items()))

    def _wait_for_change(self) -> None:
        """Wait until a worker joins or the check of one is done, but not longer than until the next look."""
        with suppress(TimeoutError), self.client.as_current():
            if self.pending:
                checks = list(self.pending.values())
                wait(checks, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
            else:
                self.client.wait_for_workers(1, timeout=POLL_SECONDS)

    def _no_workers(self) -> WorkerError:
        if not self.pending:
            return WorkerError(f"workers={self.name} has no workers: start some, then resume the run")
        return WorkerError(
            f"worker {min(self.pending)} has not imported Coterie within {WAIT_SECONDS} s: resume the run when it is "
            "less busy"
        )

    def results(self, futures: Sequence[Future[Any]], name: str) -> list[Any]:
        """Return the results of tasks; wait as long as a worker processes one of them or a part of it.

        A task that prefers a worker is forgotten by the scheduler if at some moment there is no worker at all.

        Args:
            futures: The tasks.
            name: First part of the keys of the tasks and of all their parts.

        Raises:
            ForgottenTaskError: if no worker processes them.
            WorkerError: if a task failed, or the scheduler or all workers are lost.
        """
        idle = 0
        with self.failures():
            loop = self.client.loop
            assert isinstance(loop, BaseAsyncIOLoop), "the only kind of loop that Dask has"
            gathering = asyncio.run_coroutine_threadsafe(self._gathered(futures), loop.asyncio_loop)
            try:
                while idle < PATIENT_POLLS:
                    try:
                        return gathering.result(timeout=POLL_SECONDS)
                    except TimeoutError:
                        if gathering.done():
                            raise
                        idle = 0 if self._proceeds(futures, name) else idle + 1
            finally:
                gathering.cancel()
        raise ForgottenTaskError(f"no worker of {self.name} processes {name}: resume the run")

    async def _gathered(self, futures: Sequence[Future[Any]]) -> list[Any]:
        with self.client.as_current():
            await wait(futures)  # type: ignore[no-untyped-call]
        for future in futures:
            if future.status == "error":
                await future  # raises it
        found: list[Any] = await self.client.gather(list(futures), asynchronous=True)  # type: ignore[no-untyped-call]
        return found

    def _proceeds(self, futures: Sequence[Future[Any]], name: str) -> bool:
        """Return whether a worker processes one of these tasks, or all results are on their way."""
        self.workers()
        if all(future.done() for future in futures):  # type: ignore[no-untyped-call]
            return True
        processed = chain.from_iterable(self.client.processing().values())  # type: ignore[no-untyped-call]
        return any(str(key).startswith(name) for key in processed)

    def submit(self, work: Any, *args: Any, key: str, at: str | None = None, retries: int = 0) -> Future[Any]:
        """Submit a task.

        Args:
            work: Function of a module.
            args: Its arguments, or futures of them.
            key: Name of the task.
            at: Preferred worker, which is used while it is there.
            retries: Number of times that the task is run again after an unexpected error.
        """
        place = {} if at is None else {"workers": [at], "allow_other_workers": True}
        with self.failures(), dask.config.set({"distributed.admin.large-graph-warning-threshold": NO_LIMIT}):
            return self.client.submit(work, *args, key=key, pure=False, retries=retries, **place)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Convert failures of the cluster into WorkerErrors."""
        try:
            yield
        except CoterieError:
            raise
        except Exception as error:
            if self.client.status != "running" or isinstance(error, CommClosedError | ConnectionError):
                raise WorkerError(
                    f"the scheduler of workers={self.name} has ended or cannot be reached: start it again, then resume "
                    "the run"
                ) from error
            # the client keeps the error, which must not keep our frames, and so the task, in turn
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            error.__traceback__ = None
            raise WorkerError(
                f"a task on workers={self.name} failed ({type(error).__name__}: {error}): remove the cause, then "
                "resume the run"
            ) from error

    def executor(self) -> Executor:
        """Return an executor for jobs on these workers; a job whose worker ends is run again by another one.

        The functions of jobs may be in any module that this process finds, if all machines share its folder.
        """
        folders = module_folders()
        with self.failures():
            self.client.run_on_scheduler(search_also, folders)  # type: ignore[no-untyped-call]
            self.client.register_plugin(ModuleFolders(folders), name=f"folders-{self.client.id}")
        return ClientExecutor(self.client, pure=False)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the connection, and end the processes that were started here."""
        with suppress(Exception):
            self.client.close(timeout=5)  # type: ignore[no-untyped-call]
        if self.local is not None:
            self.local.end()


def _check_facts(address: str, info: Mapping[str, Any], future: Future[dict[str, str]]) -> None:
    """Check that a worker suits.

    Raises:
        ConfigError: if it does not.
        TimeoutError: if it has ended.
    """
    if info["nthreads"] != 1:
        raise ConfigError(
            f"worker {address} has {info['nthreads']} threads, but needs one: start it with --nthreads 1, and one "
            "process for each core (--nworkers)"
        )
    try:
        theirs, ours = future.result(timeout=POLL_SECONDS), worker.facts(version(PACKAGE))
    except ImportError as error:
        error.__traceback__ = None  # as in `failures`
        raise ConfigError(
            f"worker {address} cannot import {error.name or error}: install the same packages on all machines"
        ) from error
    other = next((name for name in ours if theirs.get(name) != ours[name]), None)
    if other is not None:
        raise ConfigError(
            f"worker {address} has {other} {theirs.get(other)}, and this process has {ours[other]}: install the same "
            "version on all machines"
        )


_OPEN: dict[str, Connection] = {}
logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it would print is raised as a WorkerError


def connected(name: str) -> Connection:
    """Return the connection to the workers that a text names; it is opened once and stays open.

    Args:
        name: Text such as `local:4` or `tls://scheduler:8786`.

    Raises:
        ConfigError: if the text is not allowed, or a worker does not suit.
        WorkerError: if no scheduler answers, or it has no workers.
    """
    known = _OPEN.get(name)
    if known is not None and known.client.status == "running":
        return known
    if known is not None:
        disconnect(name)
    wanted = read_workers(name)
    _register_closing()
    local = None if wanted.count is None else LocalWorkers.start(wanted.count)
    try:
        connection = Connection(name, _client(name, wanted, local), local)
        _OPEN[name] = connection
        connection.workers()
    except BaseException:
        _OPEN.pop(name, None)
        if local is not None:
            local.end()
        raise
    return connection


def _client(name: str, wanted: Workers, local: LocalWorkers | None) -> Client:
    try:
        security = Security(require_encryption=True) if wanted.encrypted else None  # type: ignore[no-untyped-call]
        address = wanted.address if local is None else local.address
        client = Client(  # type: ignore[no-untyped-call]
            address,
            timeout=CONNECT_SECONDS,
            security=security,
            set_as_default=False,
            # from another machine, perhaps only the scheduler can be reached
            direct_to_workers=is_loopback(urlsplit(address).hostname or ""),
        )
        assert client.scheduler_comm is not None, "connected"
        client.scheduler_comm.interval = SEND_SECONDS
        return client
    except TypeError as error:  # Dask's error for missing files of TLS
        raise ConfigError(
            f"workers={name} needs the certificates of the cluster ({error}): set DASK_DISTRIBUTED__COMM__TLS__CA_FILE "
            "and ...__CLIENT__CERT and ...__CLIENT__KEY (docs/cluster.md)"
        ) from error
    except (OSError, TimeoutError) as error:
        raise WorkerError(f"no scheduler answers at {name}: check the address, and that it is running") from error


def disconnect(name: str) -> None:
    """Close the connection to these workers, if there is one."""
    known = _OPEN.pop(name, None)
    if known is not None:
        known.close()


@cache
def _register_closing() -> None:
    atexit.register(_disconnect_all)


def _disconnect_all() -> None:
    for name in list(_OPEN):
        disconnect(name)
