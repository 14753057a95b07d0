"""Admission rules of the server: the clients that each node may register, and the form that their data must have.

::

    [[nodes]]                                        # nodes.toml
    key = "ecdsa-sha2-nistp384 AAAAE2VjZHNh..."      # the node's public key, as in its .pub file
    clients = ["ward-1", "ward-2"]

    [[nodes]]
    id = 1234567890123456789                         # or the node id that Flower assigned
    clients = ["ward-3"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from coterie.core.shard import ClientId
from coterie.errors import ConfigError
from coterie.flower.schema import RequiredSchema
from coterie.flower.untrusted import check_texts, is_count, shown
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES

Entries = Mapping[str | int, Iterable[ClientId]]
"""Client ids by node id, or by the text of the node's public key."""


@dataclass(frozen=True)
class AllowList:
    """The clients that each node may register. A node that is not listed may register none."""

    by_id: Mapping[int, frozenset[ClientId]] = field(default_factory=dict)
    by_key: Mapping[bytes, frozenset[ClientId]] = field(default_factory=dict)
    """Client ids by public key in DER format."""

    @classmethod
    def read(cls, source: str | Path | Entries) -> AllowList:
        """Return the list of a TOML file, or of a mapping from node ids or public keys to client ids.

        Raises:
            ConfigError: if the file cannot be read, a key is invalid, or a client is listed at two nodes.
        """
        entries = source.items() if isinstance(source, Mapping) else _from_file(Path(source)).items()
        by_id: dict[int, frozenset[ClientId]] = {}
        by_key: dict[bytes, frozenset[ClientId]] = {}
        owner: dict[ClientId, str | int] = {}
        for node, clients in entries:
            try:
                ids = frozenset(check_texts(clients, "client ids"))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"allowed clients of node {shown(node)}: {error}") from None
            taken = sorted(ids & owner.keys())
            if taken:
                raise ConfigError(
                    f"client {taken[0]!r} is allowed at node {shown(owner[taken[0]])} and at {shown(node)}: list every "
                    "client at one node only"
                )
            owner |= dict.fromkeys(ids, node)
            if isinstance(node, int):
                by_id[node] = ids
            else:
                by_key[_der(node.encode())] = ids
        return cls(by_id, by_key)

    def of(self, node: int, key: bytes) -> frozenset[ClientId]:
        """Return the clients that this node may register; `key` is its public key, empty if it is unknown."""
        found = self.by_id.get(node, frozenset())
        return found | self.by_key.get(_der(key), frozenset()) if key and self.by_key else found


@dataclass(frozen=True)
class Admission:
    """Rules that a node must meet before its clients take part."""

    allowed: AllowList | None = None
    """None: every node may register any client that no other node has registered."""
    required: RequiredSchema = field(default_factory=RequiredSchema)
    most_clients: int = MOST_CLIENTS
    """Largest number of clients of one node."""
    most_samples: int = MOST_SAMPLES
    """Largest number of training or test samples of one client."""

    def __post_init__(self) -> None:
        for name, value in (("most_clients", self.most_clients), ("most_samples", self.most_samples)):
            if not is_count(value, 1, 2**53):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {shown(value)}")

    def foreign(self, node: int, key: bytes, clients: Iterable[ClientId]) -> str | None:
        """Return why the node may not register these clients; None if it may register all of them."""
        if self.allowed is None:
            return None
        known = self.allowed.of(node, key)
        if not known:
            return "is not in the list of allowed nodes"
        odd = next((client for client in clients if client not in known), None)
        return None if odd is None else f"registers client {odd!r}, which is not allowed at this node"


def _from_file(path: Path) -> dict[str | int, list[ClientId]]:
    try:
        tables = tomllib.loads(path.expanduser().read_text()).get("nodes")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the list of allowed nodes {str(path)!r} cannot be read: {error}") from None
    found: dict[str | int, list[ClientId]] = {}
    for table in tables if isinstance(tables, list) else ():
        node = table.get("key", table.get("id")) if isinstance(table, dict) else None
        odd = not isinstance(table, dict) or table.keys() not in ({"key", "clients"}, {"id", "clients"})
        if odd or not isinstance(node, str | int) or not isinstance(table["clients"], list) or node in found:
            raise ConfigError(
                f"{path}: every [[nodes]] table needs a key or an id that no other table has, and clients = [...]"
            )
        found[node] = table["clients"]
    if not found:
        raise ConfigError(f"{path} lists no node: add [[nodes]] tables with key or id, and clients")
    return found


def _der(key: bytes) -> bytes:
    """Return a public key in DER format; it may be given in OpenSSH or PEM format."""
    try:
        load = load_pem_public_key if key.lstrip().startswith(b"-----") else load_ssh_public_key
        return load(key.strip()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm, TypeError):
        raise ConfigError(
            f"{shown(key.decode(errors='replace'))} is not a public key: copy the content of the node's .pub file"
        ) from None
