"""Texts that name workers: `local:8`, `tcp://127.0.0.1:8786`, `tls://scheduler:8786`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from coterie.errors import ConfigError, shown

MOST_LOCAL = 512
"""Largest number of worker processes on this machine."""
EXPECTED = "expected local:N, tcp://HOST:PORT or tls://HOST:PORT"


@dataclass(frozen=True)
class Workers:
    """Workers to start on this machine, or the scheduler of a running cluster."""

    count: int | None
    """Number of worker processes to start; None: they are running."""
    address: str = ""
    """Address of the scheduler; empty if it will be started."""

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.address.startswith("tls://")


def read_workers(text: object) -> Workers:
    """Return the workers that a text names.

    Raises:
        ConfigError: if the text is not allowed, or names another machine without encryption.
    """
    if not isinstance(text, str):
        raise ConfigError(f"workers must be a text, got {shown(text)}: {EXPECTED}")
    local = re.fullmatch(r"local:(\d{1,4})", text)
    if local:
        count = int(local[1])
        if not 1 <= count <= MOST_LOCAL:
            raise ConfigError(f"workers={text}: start between 1 and {MOST_LOCAL} processes")
        return Workers(count)
    remote = re.fullmatch(r"(tcp|tls)://(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})", text)
    if not remote:
        raise ConfigError(f"workers={shown(text)} names no workers: {EXPECTED}, such as local:4")
    if remote[1] == "tcp" and not is_loopback(remote[2].strip("[]")):
        raise ConfigError(
            f"workers={text} would send data to another machine without encryption: start the scheduler and the "
            "workers with TLS and use tls:// (docs/cluster.md)"
        )
    return Workers(None, text)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
