"""What `flwr` says to a SuperLink: register nodes, start and stop runs, ask how they are.

The one place that uses Flower's client of the Control API, which is not part of its public names: the commands of
`flwr` do the same and take seconds each to start.
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


@dataclass(frozen=True)
class Status:
    """How a run is."""

    phase: str
    """pending, starting, running or finished."""
    outcome: str
    """Of a finished one: completed, failed or stopped."""
    details: str
    """Why it failed."""

    @property
    def finished(self) -> bool:
        return self.phase == "finished"

    @property
    def completed(self) -> bool:
        return self.finished and self.outcome == "completed"


class Control:
    """The Control API of the SuperLink at an address of this machine."""

    def __init__(self, address: str, ca: Path) -> None:
        with _without_proxy():
            self._client = ControlHttpClient.from_server_address(
                address, False, ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
            )

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def answers(self) -> bool:
        """Whether the SuperLink is there."""
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.TransportError:
            return False
        return True

    def register(self, public_key: Path) -> int:
        """The node id of this key (in OpenSSH's format), registered if it is not yet."""
        pem = load_ssh_public_key(public_key.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with _told("register a node"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            known = {bytes(node.public_key): int(node.node_id) for node in nodes}
            if pem in known:
                return known[pem]
            return int(self._client.RegisterNode(RegisterNodeRequest(public_key=pem)).node_id)

    def nodes(self) -> dict[int, str]:
        """{node id: registered, online, offline or unregistered}."""
        with _told("list the nodes"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            return {int(node.node_id): str(node.status) for node in nodes}

    def start(self, bundle: bytes) -> int:
        """Start a run of the app in this bundle; its number."""
        fab = Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle)
        with _told("start the run"):
            return int(self._client.StartRun(StartRunRequest(fab=fab)).run_id)

    def status(self, run: int) -> Status:
        """How a run is."""
        with _told("tell how the run is"):
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return Status(found.status, found.sub_status, found.details)

    def stop(self, run: int) -> None:
        """End a run."""
        with _told("stop the run"):
            self._client.StopRun(StopRunRequest(run_id=run))

    def log(self, run: int) -> Iterator[str]:
        """What the server's app of a run prints, until the run is over."""
        for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=0.0)):
            yield str(part.log_output)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn a refusal, or a SuperLink that is gone, into one sentence."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = " ".join(error.response.text.split()) or error.response.reason_phrase
        raise RunError(f"the SuperLink would not {what}: {reason} (HTTP {error.response.status_code})") from None
    except httpx.HTTPError as error:
        raise RunError(f"the SuperLink cannot be asked to {what}: {error or type(error).__name__}") from None


def never_proxied(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with this machine excepted from proxies."""
    names = [name for name in ("no_proxy", "NO_PROXY") if environment.get(name)] or ["NO_PROXY"]
    return {**environment, **{name: ",".join(filter(None, [environment.get(name), NEVER_PROXIED])) for name in names}}


@contextmanager
def _without_proxy() -> Iterator[None]:
    """The client reads proxies from the environment when it is made, and has no other way to be told."""
    before = dict(os.environ)
    os.environ.update(never_proxied(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
