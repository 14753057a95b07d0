"""Clients in a folder of Parquet files, of which every process loads only those that it needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.dataset import ClientDirectory, FederatedDataset, Profile
from coterie.core.keys import hash_ids
from coterie.core.registry import register
from coterie.core.shard import ClientId, Positions, Shard
from coterie.core.source import DataSource
from coterie.errors import InputError

Array = npt.NDArray[Any]


def from_parquet_dir(
    folder: str | Path,
    *,
    client: str,
    target: str,
    test: str | Path | None = None,
    features: Sequence[str] | None = None,
    classes: int | None = None,
    name: str = "parquet",
) -> StoredClients:
    """Return the clients whose samples are in a folder of Parquet files, for data that no single process should load.

    Only the column of the clients is read. With `engine="dask"` every worker loads the rows of its own clients, so the
    folder must be on a disk that all machines share. With other engines, a run loads all rows. Values are used as they
    are; `coterie.from_table` reads tables that have to be encoded or scaled.

    Args:
        folder: Folder with files `*.parquet`, which are read in the order of their names. The rows of a client must be
            adjacent.
        client: Column with the id of the client.
        target: Column to predict: whole numbers are classes, other numbers a regression.
        test: Another folder, with files of held-out samples of the same clients in the same order, for scores; a client
            may have none.
        features: Columns to predict from, all of them numbers; by default all others.
        classes: Number of classes; by default one more than the largest label in the statistics of the files.
        name: Name of the data.

    Returns:
        The clients, which `coterie.fit` takes as it takes a dataset.

    Raises:
        InputError: if the files cannot be read, or the rows of a client are not adjacent.

    Example:
        >>> import coterie
        >>> folder = coterie.to_parquet_dir(coterie.scenario("mixed-regression", clients=6), "stored")
        >>> data = coterie.from_parquet_dir(folder, client="client", target="target")
        >>> len(data.clients), data.profile.features
        (6, (20,))
    """
    path = Path(folder).absolute()
    found = _files(path)
    schema = found[0].schema_arrow
    names = [each for each in schema.names if each not in (client, target)] if features is None else list(features)
    for column in (client, target, *names):
        if column not in schema.names:
            raise InputError(f"{path} has no column {column!r}: it has {', '.join(schema.names[:20])}")
    arrow: Any = import_module("pyarrow")
    odd = [each for each in names if not _is_number(arrow, schema.field(each).type)]
    if odd or not names:
        raise InputError(f"{path}: column {odd[0] if odd else '(none)'!r} holds no numbers: encode it, or leave it out")
    kind = schema.field(target).type
    if not _is_number(arrow, kind):
        raise InputError(f"{path}: target {target!r} holds {kind}, not numbers: number the classes from 0")
    is_classes = arrow.types.is_integer(kind)
    index = index_of(str(path), client)
    source = ParquetSource(str(path), client, target, tuple(names), index.digest)
    held_out = None
    if test is not None:
        other = Path(test).absolute()
        _check_columns(other, schema, [client, target, *names])
        source = replace(source, test=str(other), test_digest=index_of(str(other), client).digest)
        held_out = np.diff(source.test_starts) > 0
        found += _files(other)
    if not is_classes:
        labels = None
    elif classes is not None:
        labels = classes
    else:
        labels = _largest(found, target, path) + 1
    return StoredClients(
        name,
        ids=index.ids,
        counts=index.sizes,
        features=len(names),
        classes=labels,
        held_out=held_out,
        source=source,
    )


def _check_columns(path: Path, schema: Any, names: Sequence[str]) -> None:
    """Check that the files with the test samples have the columns of the training samples."""
    other = _files(path)[0].schema_arrow
    for name in names:
        if name not in other.names or other.field(name).type != schema.field(name).type:
            raise InputError(
                f"{path}: column {name!r} is missing, or not of type {schema.field(name).type} as in the training "
                "samples: write both in the same way"
            )


@dataclass(frozen=True)
class StoredClients(ClientDirectory):
    """Clients whose samples are in files, from `from_parquet_dir`."""

    _: KW_ONLY
    ids: tuple[ClientId, ...]
    """Ids of the clients."""
    counts: Positions
    """Number of samples of each client, (m,)."""
    features: int
    """Number of features (d)."""
    classes: int | None
    """Number of classes; None for a regression."""
    held_out: npt.NDArray[np.bool_] | None
    """Whether each client has test samples, (m,); None if there are no test samples at all."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.ids

    @property
    def profile(self) -> Profile:
        return Profile((self.features,), self.classes)

    @property
    def sizes(self) -> Positions:
        return self.counts

    @property
    def tested(self) -> npt.NDArray[np.bool_] | None:
        return self.held_out

    def fingerprint(self) -> str:
        assert isinstance(self.source, ParquetSource), "set when it was made"
        return self.source.digest + self.source.test_digest

    def training_only(self) -> StoredClients:
        assert isinstance(self.source, ParquetSource), "set when it was made"
        return replace(self, held_out=None, source=replace(self.source, test=None, test_digest=""))

    def in_memory(self) -> FederatedDataset:
        assert self.source is not None, "set when it was made"
        return replace(self.source.load(), name=self.name)


@register("parquet")
@dataclass(frozen=True)
class ParquetSource(DataSource):
    """A folder of Parquet files."""

    folder: str
    client: str
    target: str
    features: tuple[str, ...]
    digest: str
    """Digest of names, sizes and footers of the files, and of the clients."""
    test: str | None = None
    """Folder with the test samples."""
    test_digest: str = ""
    """Digest of the files in this folder."""

    def load(self) -> FederatedDataset:
        return self.load_some(np.arange(len(_unchanged(self.folder, self.client, self.digest).ids)))

    def load_some(self, positions: Positions) -> FederatedDataset:
        index = _unchanged(self.folder, self.client, self.digest)
        first, stop = int(positions[0]), int(positions[-1]) + 1
        ids = index.ids[first:stop]
        train = self._shard(self.folder, ids, index.starts[first : stop + 1])
        test = None if self.test is None else self._shard(self.test, ids, self.test_starts[first : stop + 1])
        return FederatedDataset("parquet", train, test)

    def _shard(self, folder: str, ids: tuple[ClientId, ...], starts: Positions) -> Shard:
        """Return the samples of adjacent clients in a folder.

        Args:
            folder: The folder.
            ids: Ids of the clients.
            starts: First row of each, followed by the first row after them.
        """
        table = _rows(_files(Path(folder)), [*self.features, self.target], int(starts[0]), int(starts[-1]))
        x = np.stack([_numbers(table, name, folder) for name in self.features], axis=1)
        y = _numbers(table, self.target, folder)
        labels = torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iu" else np.float64))
        borders = starts - starts[0]
        return Shard(ids, hash_ids(ids), torch.from_numpy(x), labels, borders[:-1], borders[1:])

    @property
    def test_starts(self) -> Positions:
        """First row of each client in the folder with the test samples, followed by the number of rows, (m + 1,)."""
        assert self.test is not None, "checked by the caller"
        ids = _unchanged(self.folder, self.client, self.digest).ids
        tests = _unchanged(self.test, self.client, self.test_digest)
        return _test_starts(ids, tests.ids, tests.starts.tobytes(), self.test)


def _unchanged(folder: str, client: str, digest: str) -> Index:
    """Return the index of a folder, after checking that its files are those of the run."""
    index = index_of(folder, client)
    if index.digest != digest:
        raise InputError(f"the files in {folder} are not those of the run: restore them, or start another run")
    return index


@lru_cache(maxsize=4)
def _test_starts(ids: tuple[ClientId, ...], tests: tuple[ClientId, ...], starts: bytes, folder: str) -> Positions:
    place = {client: i for i, client in enumerate(ids)}
    unknown = next((client for client in tests if client not in place), None)
    if unknown is not None:
        raise InputError(f"{folder}: client {unknown!r} has no training samples: leave it out")
    found = np.array([place[client] for client in tests], dtype=np.int64)
    if (np.diff(found) < 0).any():
        raise InputError(f"{folder}: the clients are not in the order of the training samples: sort both in one way")
    sizes = np.zeros(len(ids), dtype=np.int64)
    sizes[found] = np.diff(np.frombuffer(starts, dtype=np.int64))
    return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True)
class Index:
    """Clients in a folder, in the order of their rows."""

    ids: tuple[ClientId, ...]
    starts: Positions
    """First row of each client, followed by the number of rows, (m + 1,)."""
    digest: str

    @property
    def sizes(self) -> Positions:
        """Number of rows of each client, (m,)."""
        return np.diff(self.starts)


def index_of(folder: str, client: str) -> Index:
    """Return the clients in a folder, from their column; it is read again if a file has changed."""
    path = Path(folder)
    state = hashlib.sha256()
    for file in _names(path):
        about = file.stat()
        state.update(f"{file.name} {about.st_size} {about.st_mtime_ns}".encode())
    return _index_of(folder, client, state.hexdigest())


@cache
def _index_of(folder: str, client: str, state: str) -> Index:
    path = Path(folder)
    arrow: Any = import_module("pyarrow")
    files, digest = _files(path), hashlib.sha256()
    for name, file in zip(_names(path), files, strict=True):
        digest.update(f"{name.name} {name.stat().st_size}".encode())
        digest.update(repr(file.metadata.to_dict()).encode())
    chunks = [chunk for file in files for chunk in file.read(columns=[client]).column(client).chunks]
    coded = arrow.chunked_array(chunks).combine_chunks().dictionary_encode()
    if coded.null_count:
        raise InputError(f"{path}: column {client!r} has missing values: every row needs a client")
    codes = coded.indices.to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]]).astype(np.int64)
    ids = tuple(str(each) for each in coded.dictionary.to_pylist())
    if len(starts) - 1 != len(ids):
        twice = ids[int(np.argmax(np.bincount(codes[starts[:-1]]) > 1))]
        raise InputError(f"{path}: the rows of a client, such as {twice!r}, are not adjacent: sort them by {client!r}")
    digest.update("\n".join(ids).encode())
    digest.update(starts.tobytes())
    return Index(ids, starts, digest.hexdigest())


def _names(path: Path) -> list[Path]:
    found = sorted(path.glob("*.parquet"))
    if not found:
        raise InputError(f"{path} has no files *.parquet: name the folder that contains them")
    return found


def _files(path: Path) -> list[Any]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install 'coterie[tables]'") from None
    arrow: Any = import_module("pyarrow")
    try:
        return [parquet.ParquetFile(name) for name in _names(path)]
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read ({str(error).splitlines()[0]}): are all files whole?") from None


def _rows(files: Sequence[Any], columns: list[str], begin: int, end: int) -> Any:
    """Return rows of all files in sequence, reading only the row groups that contain them."""
    arrow: Any = import_module("pyarrow")
    parts, row = [], 0
    for file in files:
        groups, first = [], None
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row < end and row + count > begin:
                groups.append(group)
                first = row if first is None else first
            row += count
        if first is not None:
            table = file.read_row_groups(groups, columns=columns)
            parts.append(table.slice(max(0, begin - first), end - max(begin, first)))
    return arrow.concat_tables(parts or [files[0].schema_arrow.empty_table().select(columns)])


def _numbers(table: Any, name: str, folder: str) -> Array:
    """Return a column of numbers without missing values."""
    column = table.column(name)
    values: Array = column.to_numpy()
    if column.null_count or (values.dtype.kind == "f" and not np.isfinite(values).all()):
        raise InputError(f"{folder}: column {name!r} has missing or infinite values: fill them, or drop their rows")
    return values.astype(np.float64) if values.dtype == np.float16 else values


def _is_number(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_floating(kind))


def _largest(files: Sequence[Any], target: str, path: Path) -> int:
    """Return the largest label, from the statistics of the files."""
    found = []
    for file in files:
        column = file.schema_arrow.names.index(target)
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(column).statistics
            if statistics is None or not statistics.has_min_max:
                raise InputError(f"{path} has no statistics of the labels: give the number of classes (classes=...)")
            if statistics.min < 0:
                raise InputError(f"{path}: label {statistics.min} is negative: number the classes from 0")
            found.append(int(statistics.max))
    return max(found)


def to_parquet_dir(data: FederatedDataset, folder: str | Path, *, files: int = 8) -> Path:
    """Write the training samples of clients to a new folder of Parquet files, for `from_parquet_dir`.

    Args:
        data: The clients; a sample must be a list of numbers.
        folder: The folder, which must be new or empty.
        files: Number of files.

    Returns:
        The folder. Its columns are `client`, `target` and the features.

    Raises:
        InputError: if samples are not lists of numbers, or the folder contains files.

    Example:
        >>> import coterie
        >>> data = coterie.scenario("mixed-regression", clients=6)
        >>> folder = coterie.to_parquet_dir(data, "written", files=2)
        >>> len(list(folder.glob("*.parquet")))
        2
    """
    path, train = Path(folder), data.compact().train
    if train.x.dim() != 2:
        raise InputError(f"samples have shape {tuple(train.x.shape[1:])}, but a row is a list of numbers: flatten them")
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} contains files: choose a new folder")
    arrow, parquet = (import_module(each) for each in ("pyarrow", "pyarrow.parquet"))
    path.mkdir(parents=True, exist_ok=True)
    names = data.feature_names or tuple(f"x{i}" for i in range(train.x.shape[1]))
    parts = [part for part in np.array_split(np.arange(len(train)), files) if len(part)]
    for number, part in enumerate(parts):
        some = train.take(part).alone()
        columns = {"client": np.repeat(np.array(some.ids), some.sizes), "target": some.y.numpy()}
        columns |= {name: some.x[:, i].numpy() for i, name in enumerate(names)}
        parquet.write_table(arrow.table(columns), path / f"{number:05d}.parquet")
    return path
