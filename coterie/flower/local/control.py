"""Control of a SuperLink: register nodes, start and stop runs, and read their status.

This is the only module that uses Flower's client of the Control API, which is private. The commands of `flwr` do the
same, but each of them takes seconds to start.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from coterie.errors import RunError

NEVER_PROXIED = "127.0.0.1,localhost"
"""Hosts that are reached without a proxy."""


@dataclass(frozen=True)
class Status:
    """Status of a run."""

    phase: str
    """`pending`, `starting`, `running` or `finished`."""
    outcome: str
    """Outcome of a finished run: `completed`, `failed` or `stopped`."""
    details: str
    """Reason of a failure."""

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.phase == "finished"

    @property
    def completed(self) -> bool:
        """Whether the run has ended without a failure."""
        return self.finished and self.outcome == "completed"


class Control:
    """Client of the Control API of a SuperLink on this machine.

    Args:
        address: Address of the SuperLink, such as 127.0.0.1:8000.
        ca: Certificate of the authority that signed the SuperLink's certificate.
    """

    def __init__(self, address: str, ca: Path) -> None:
        with _without_proxy():
            self._client = ControlHttpClient.from_server_address(
                address, False, ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def answers(self) -> bool:
        """Return whether the SuperLink responds."""
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.TransportError:
            return False
        return True

    def register(self, public_key: Path) -> int:
        """Register a public key in OpenSSH format if it is not registered, and return its node id."""
        pem = load_ssh_public_key(public_key.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with _as_run_error("register a node"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            known = {bytes(node.public_key): int(node.node_id) for node in nodes}
            if pem in known:
                return known[pem]
            return int(self._client.RegisterNode(RegisterNodeRequest(public_key=pem)).node_id)

    def nodes(self) -> dict[int, str]:
        """Return the status of each node by id: `registered`, `online`, `offline` or `unregistered`."""
        with _as_run_error("list the nodes"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            return {int(node.node_id): str(node.status) for node in nodes}

    def start(self, bundle: bytes) -> int:
        """Start a run of the app in this bundle, and return the number of the run."""
        fab = Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle)
        with _as_run_error("start the run"):
            return int(self._client.StartRun(StartRunRequest(fab=fab)).run_id)

    def status(self, run: int) -> Status:
        """Return the status of a run."""
        with _as_run_error("return the status of the run"):
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return Status(found.status, found.sub_status, found.details)

    def stop(self, run: int) -> None:
        """Stop a run."""
        with _as_run_error("stop the run"):
            self._client.StopRun(StopRunRequest(run_id=run))

    def log(self, run: int) -> Iterator[str]:
        """Yield the output of a run's server app until the run ends."""
        for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=0.0)):
            yield str(part.log_output)


@contextmanager
def _as_run_error(what: str) -> Iterator[None]:
    """Turn an HTTP error into a RunError; `what` is the requested action, such as "start the run"."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = " ".join(error.response.text.split()) or error.response.reason_phrase
        raise RunError(f"the SuperLink refused to {what}: {reason} (HTTP {error.response.status_code})") from None
    except httpx.HTTPError as error:
        raise RunError(f"the SuperLink did not {what}: {error or type(error).__name__}") from None


def never_proxied(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with proxies disabled for this machine."""
    names = [name for name in ("no_proxy", "NO_PROXY") if environment.get(name)] or ["NO_PROXY"]
    return {**environment, **{name: ",".join(filter(None, [environment.get(name), NEVER_PROXIED])) for name in names}}


@contextmanager
def _without_proxy() -> Iterator[None]:
    """Disable proxies for this machine while Flower's client is created: it reads them from the environment."""
    before = dict(os.environ)
    os.environ.update(never_proxied(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
