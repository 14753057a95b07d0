"""Data of one shard: where a worker loads it from, and its form as bytes for data that exists in memory only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import first_line
from coterie.core.clusters import Params, plain_layout
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import hash_ids
from coterie.core.messages import pack, unpack
from coterie.core.plain import from_plain, to_plain
from coterie.core.shard import ClientId, Positions, Shard
from coterie.core.source import DataSource, StoredRows
from coterie.errors import InputError


@dataclass(frozen=True)
class ShardRecipe:
    """How a worker gets the clients of a shard."""

    digest: str | None
    """Digest of the clients and their samples, which a worker checks after loading; None if the source checks it."""
    first: int
    """Position of the first client."""
    stop: int
    """Position after the last client."""
    tested: bool
    """Whether the run uses the clients' test samples."""
    source: DataSource | None = None
    """Source of the data; None if it is sent."""
    attackers: tuple[ClientId, ...] = ()
    """Clients of the shard that attack."""

    def encode(self) -> str:
        """Return the recipe as JSON."""
        return json.dumps(to_plain(self))

    @classmethod
    def decode(cls, text: str) -> ShardRecipe:
        """Return the recipe that `encode` returned."""
        recipe: ShardRecipe = from_plain(cls, json.loads(text))
        return recipe

    @property
    def positions(self) -> Positions:
        """Positions of the clients."""
        return np.arange(self.first, self.stop)

    def checked(self, data: FederatedDataset) -> FederatedDataset:
        """Return the clients of the shard if they are those of the run.

        Raises:
            InputError: if their samples differ.
        """
        if self.digest is not None and data.fingerprint() != self.digest:
            raise InputError(
                f"a worker loaded other samples for clients {self.first} to {self.stop - 1} than the run has: make the "
                "same files, packages and plugins available on all machines"
            )
        return data


def shard_of(data: FederatedDataset, positions: Positions, tested: bool) -> FederatedDataset:
    """Return some of the clients with a copy of their samples only.

    Args:
        data: All clients.
        positions: Positions of the clients.
        tested: Whether to keep their test samples.
    """
    part = data.take(positions)
    test = None if part.test is None or not tested else part.test.alone()
    return FederatedDataset("shard", part.train.alone(), test)


def framed(parts: Sequence[bytes]) -> bytes:
    """Return several messages as one, since Dask looks into lists of arguments one by one."""
    lengths = json.dumps([len(part) for part in parts]).encode()
    return b"".join([len(lengths).to_bytes(8, "little"), lengths, *parts])


def unframed(data: bytes) -> list[bytes]:
    """Return the messages that `framed` joined."""
    start = 8 + int.from_bytes(data[:8], "little")
    found = []
    for length in json.loads(data[8:start]):
        found.append(data[start : start + length])
        start += length
    return found


def encode_shard(data: FederatedDataset, stored: StoredRows | None = None) -> bytes:
    """Serialise the clients of a shard with their samples.

    Args:
        data: The clients.
        stored: Their features in a file, which then stay there.
    """
    arrays = _arrays("train", data.train) | ({} if data.test is None else _arrays("test", data.test))
    if stored is not None:
        del arrays["train/x"]
    return pack(({"ids": data.clients, "stored": to_plain(stored)}, arrays))


def stored_part(data: FederatedDataset, positions: Positions) -> StoredRows | None:
    """Return the features of adjacent clients in a file; None if they are not there, or not in the clients' order."""
    starts, stops = data.train.starts[positions], data.train.stops[positions]
    if data.stored is None or not np.array_equal(starts[1:], stops[:-1]):
        return None
    return data.stored.part(int(starts[0]), int(stops[-1]))


def decode_shard(data: bytes) -> FederatedDataset:
    """Return the clients that `encode_shard` serialised."""
    header, arrays = unpack(data)
    ids = tuple(header["ids"])
    if header["stored"] is not None:
        arrays["train/x"] = _read(from_plain(StoredRows, header["stored"]))
    train = _shard("train", ids, arrays)
    return FederatedDataset("shard", train, _shard("test", ids, arrays) if "test/x" in arrays else None)


def _read(stored: StoredRows) -> Tensor:
    try:
        mapped = np.memmap(stored.path, stored.dtype, "r", stored.offset, stored.shape)
    except (OSError, ValueError) as error:
        raise InputError(
            f"a worker cannot read {stored.path} ({first_line(error)}): put it on a disk that all machines share"
        ) from None
    return torch.from_numpy(np.array(mapped))


def _arrays(name: str, shard: Shard) -> Params:
    ranges = {"starts": torch.from_numpy(shard.starts), "stops": torch.from_numpy(shard.stops)}
    return {f"{name}/{each}": array for each, array in ({"x": shard.x, "y": shard.y} | ranges).items()}


def _shard(name: str, ids: tuple[ClientId, ...], arrays: Params) -> Shard:
    x, y = (plain_layout(arrays[f"{name}/{each}"]) for each in ("x", "y"))
    starts, stops = (arrays[f"{name}/{each}"].numpy() for each in ("starts", "stops"))
    return Shard(ids, hash_ids(ids), x, y, starts, stops)


@contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Read relative paths as in the folder in which the run was started.

    A folder that does not exist on this machine is left out; absolute paths still work.
    """
    before = Path.cwd()
    if Path(folder).is_dir():
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
