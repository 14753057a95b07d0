"""Who may bring which clients, and what their data must look like: the server's own rules for nodes.

::

    [[nodes]]                                        # nodes.toml
    key = "ecdsa-sha2-nistp384 AAAAE2VjZHNh..."      # the node's public key, as in its .pub file
    clients = ["ward-1", "ward-2"]

    [[nodes]]
    id = 1234567890123456789                         # or the node id that Flower gave it
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
from coterie.flower.schema import Demanded
from coterie.flower.untrusted import check_texts, is_count, shown
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES

Entries = Mapping[str | int, Iterable[ClientId]]
"""Client ids by a node's id, or by its public key as text."""


@dataclass(frozen=True)
class AllowList:
    """The clients that each node may bring. A node that is not listed may bring none."""

    by_id: Mapping[int, frozenset[ClientId]] = field(default_factory=dict)
    by_key: Mapping[bytes, frozenset[ClientId]] = field(default_factory=dict)
    """By public key, as DER."""

    @classmethod
    def read(cls, source: str | Path | Entries) -> AllowList:
        """Return the list in a TOML file, or in a mapping from node ids or public keys to client ids."""
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
                    f"client {taken[0]!r} is allowed at node {shown(owner[taken[0]])} and at {shown(node)}: a client "
                    "lives at one node"
                )
            owner |= dict.fromkeys(ids, node)
            if isinstance(node, int):
                by_id[node] = ids
            else:
                by_key[_der(node.encode())] = ids
        return cls(by_id, by_key)

    def of(self, node: int, key: bytes) -> frozenset[ClientId]:
        """Return the clients that this node may bring; `key` is its public key, empty where nobody knows it."""
        found = self.by_id.get(node, frozenset())
        return found | self.by_key.get(_der(key), frozenset()) if key and self.by_key else found


@dataclass(frozen=True)
class Admission:
    """The rules that a node must keep before its clients take part."""

    allowed: AllowList | None = None
    """None: every node may bring any client that no other node has brought."""
    demanded: Demanded = field(default_factory=Demanded)
    most_clients: int = MOST_CLIENTS
    """Clients of one node."""
    most_samples: int = MOST_SAMPLES
    """n_i of one client."""

    def __post_init__(self) -> None:
        for name, value in (("most_clients", self.most_clients), ("most_samples", self.most_samples)):
            if not is_count(value, 1, 2**53):
                raise ConfigError(f"{name} must be a whole number from 1 on, got {shown(value)}")

    def foreign(self, node: int, key: bytes, clients: Iterable[ClientId]) -> str | None:
        """Say which of these clients the node may not bring; None: it may bring all."""
        if self.allowed is None:
            return None
        known = self.allowed.of(node, key)
        if not known:
            return "is not in the list of allowed nodes"
        odd = next((client for client in clients if client not in known), None)
        return None if odd is None else f"brings client {odd!r}, which is not allowed there"


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
            raise ConfigError(f"{path}: every [[nodes]] needs key or id, each once, and clients = [...]")
        found[node] = table["clients"]
    if not found:
        raise ConfigError(f"{path}: no node is listed, write [[nodes]] with key or id and clients")
    return found


def _der(key: bytes) -> bytes:
    """Return a public key, in OpenSSH's format or as PEM, in one format."""
    try:
        load = load_pem_public_key if key.lstrip().startswith(b"-----") else load_ssh_public_key
        return load(key.strip()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm, TypeError):
        raise ConfigError(
            f"{shown(key.decode(errors='replace'))} is no public key: give what is in the node's .pub file"
        ) from None
