"""Random tables in `from_table`, `fit` and `predict` are refused with one sentence, or read consistently."""

from __future__ import annotations

import csv
import datetime
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.data.encode import encode
from tests.fuzz.cases import cases, refusal

Random = np.random.Generator
Table = dict[str, list[Any]]
TEXTS = [
    "red",
    "grün",
    "",
    " ",
    "=1+1",
    "a,b",
    'say "x"',
    "1",
    "1,5",
    "NA",
    "true",
    "x" * 300,
    "雪",
    "-",
    "a\x00",
    "\t",
]
EXTREMES = [1e308, -1.7e308, 1e200, 1e99, 5e-324, 1e-200, 1e16, float("inf"), float("nan"), 10**400, -(10**25)]


def pick(random: Random, options: Any) -> Any:
    return options[int(random.integers(len(options)))]


def numbers(n: int, random: Random) -> list[Any]:
    return random.standard_normal(n).round(3).tolist()


def texts(n: int, random: Random) -> list[Any]:
    known = [pick(random, TEXTS) for _ in range(3)]
    return [pick(random, known) for _ in range(n)]


def some(values: list[Any], random: Random, others: list[Any], share: float = 0.1) -> list[Any]:
    return [pick(random, others) if random.random() < share else value for value in values]


COLUMNS: dict[str, Callable[[int, Random], list[Any]]] = {
    "numbers": numbers,
    "whole": lambda n, r: r.integers(-5, 100, size=n).tolist(),
    "tiny": lambda n, r: (r.standard_normal(n) * 1e-200).tolist(),
    "large": lambda n, r: (r.standard_normal(n) * 1e90).tolist(),
    "extreme": lambda n, r: some(numbers(n, r), r, EXTREMES),
    "missing": lambda n, r: some(numbers(n, r), r, [None, float("nan")]),
    "all missing": lambda n, r: [None] * n,
    "constant": lambda n, r: [3.5] * n,
    "truths": lambda n, r: (r.random(n) < 0.5).tolist(),
    "texts": texts,
    "texts with holes": lambda n, r: some(texts(n, r), r, [None]),
    "many texts": lambda n, r: [f"t{i}" for i in range(n)],
    "surrogates": lambda n, r: some(texts(n, r), r, ["\ud800"]),
    "mixed": lambda n, r: some(numbers(n, r), r, ["a", None, True, 3]),
    "decimals": lambda n, r: [Decimal(str(v)) for v in numbers(n, r)],
    "dates": lambda n, r: [datetime.date(2020, 1, 1 + i % 28) for i in range(n)],
    "times": lambda n, r: [datetime.datetime(2020, 1, 1 + i % 28) for i in range(n)],
    "bytes": lambda n, r: [b"a", b"b"] * (n // 2) + [b"c"] * (n % 2),
    "lists": lambda n, r: [[1, 2]] * n,
    "complex": lambda n, r: [1j] * n,
    "long field": lambda n, r: some(texts(n, r), r, ["y" * 140_000], 0.02),
}
SOUND = ["numbers", "whole", "truths", "texts"]
NAMES: list[Any] = ["a", "b", "c d", "é", "", "a\nb", "client", "1", '"', "x=1", " a", "\udfff", "=2", "a,b", 7, None]


def some_table(random: Random) -> Table:
    """Return a table of mostly valid columns, including a client and a target."""
    n = int(pick(random, [0, 1, 2, 5, 12, 30, 60]))
    kinds = SOUND if random.random() < 0.5 else sorted(COLUMNS)
    names = ["f", "g", "h"] if random.random() < 0.6 else [pick(random, NAMES) for _ in range(3)]
    columns = {name: COLUMNS[pick(random, kinds)](n, random) for name in names}
    owners = pick(
        random, [["s1", "s2", "s3"], ["s1"], [1, 2], [1.5, 2.0], ["a", "b", None], ["é", "\ud801"], [True, False]]
    )
    columns["site"] = [pick(random, owners) for _ in range(n)]
    columns["y"] = COLUMNS[pick(random, [*SOUND, *SOUND, *sorted(COLUMNS)])](n, random)
    return columns


def in_form(table: Table, random: Random, folder: Path) -> Any:
    """Return the table in one of the forms that `from_table` reads, or as a dict if it cannot be converted."""
    form = pick(random, ["dict", "arrays", "pandas", "polars", "arrow", "csv", "csv", "damaged", "parquet", "twice"])
    try:
        if form == "arrays":
            return {name: np.array(values) for name, values in table.items()}
        if form == "pandas":
            return pd.DataFrame(table)
        if form == "polars":
            return pl.DataFrame(table, strict=False)
        if form == "arrow":
            return pa.table(table)
        if form == "parquet":
            pq.write_table(pa.table(table), folder / "t.parquet")
            return spoiled(folder / "t.parquet", random) if random.random() < 0.3 else folder / "t.parquet"
        if form == "twice":
            return pd.DataFrame(table).T.drop_duplicates().T.set_axis([pick(random, [*table]) for _ in table], axis=1)
        if form in ("csv", "damaged"):
            written(table, random, folder / "t.csv")
            return spoiled(folder / "t.csv", random) if form == "damaged" else str(folder / "t.csv")
    except Exception:  # not every package accepts every table
        pass
    return table


def written(table: Table, random: Random, path: Path) -> None:
    encoding = pick(random, ["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])
    with open(path, "w", newline="", encoding=encoding, errors="replace") as file:
        writer = csv.writer(file, delimiter=pick(random, [",", ";", "\t"]))
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def spoiled(path: Path, random: Random) -> Path:
    """Cut, change or lengthen a file."""
    content = bytearray(path.read_bytes())
    for _ in range(int(random.integers(1, 4))):
        place = int(random.integers(len(content) + 1))
        how = pick(random, ["cut", "change", "insert"])
        content = content[:place] if how == "cut" else content
        part = pick(random, [b'"', b"\n", b",", b"\x00", b"\xff", b"\r\n\r\n", b"1e999"])
        content[place : place + (1 if how == "change" else 0)] = b"" if how == "cut" else part
    path.write_bytes(content)
    return path


def options_of(random: Random) -> dict[str, Any]:
    given: dict[str, Any] = {"client": "site", "target": "y"}
    if random.random() < 0.5:
        given["features"] = pick(
            random, [["f"], "f,g", ["g", "h"], ["f", "g", "h"], "f", [], ["f", "f"], 5, ["y"], [None]]
        )
    if random.random() < 0.2:
        given["holdout"] = pick(random, [0, 0.5, None, 1, -1, "a", float("nan")])
    if random.random() < 0.1:
        given |= pick(
            random,
            [{"client": "y"}, {"target": 3}, {"client": None}, {"target": "nobody"}, {"seed": -1}, {"seed": "a"}],
        )
    if random.random() < 0.2:
        given["standardize"] = False
    return given


def read_alike(label: str, data: FederatedDataset, source: Any) -> None:
    """Assert that the schema of the data gives the same features when it reads the table again."""
    parts = [data.train.x.numpy()] + ([] if data.test is None else [data.test.x.numpy()])
    whole = np.concatenate(parts)
    assert np.isfinite(whole).all(), f"{label}: accepted features that are not finite"
    assert len(set(data.clients)) == len(data.clients), label
    again, error = refusal(label, lambda: encode(data.schema, source))
    assert again is not None, f"{label}: a table that was accepted cannot be read again: {error}"
    rows = Counter(map(bytes, np.ascontiguousarray(again)))  # rows without a target are left out of the data
    assert Counter(map(bytes, np.ascontiguousarray(whole))) <= rows, f"{label}: other features in the second reading"


@pytest.mark.filterwarnings("ignore")
def test_random_tables_are_refused_or_read_consistently(tmp_path):
    accepted = 0
    for label, random in cases("tables", 450):
        source = in_form(some_table(random), random, tmp_path)
        given = options_of(random)
        label = f"{label} ({type(source).__name__})"
        data, _ = refusal(label, lambda s=source, g=given: coterie.from_table(s, **g))
        if data is not None:
            accepted += 1
            read_alike(label, data, source)
    assert accepted > 30, f"only {accepted} tables were accepted, so that little is tested"


@pytest.mark.filterwarnings("ignore")
def test_results_of_random_tables_predict_from_raw_rows(tmp_path):
    """After one round, predictions are finite or labels of the table, and the same after saving and loading."""
    for label, random in cases("fits of tables", 50):
        n = int(random.integers(8, 30))
        table = {name: COLUMNS[pick(random, [*SOUND, "tiny", "large", "constant"])](n, random) for name in ("f", "g")}
        table |= {"site": [f"s{i % 3}" for i in range(n)], "y": COLUMNS[pick(random, SOUND)](n, random)}
        source = in_form(table, random, tmp_path)
        data, _ = refusal(label, lambda s=source: coterie.from_table(s, client="site", target="y", features="f,g"))
        if data is None:
            continue
        method = pick(random, ["fedavg", "local", "ifca"])
        result, _ = refusal(label, lambda d=data, m=method: coterie.fit(d, m, rounds=1))
        if result is None:
            continue
        said, error = refusal(label, lambda r=result, s=source, c=data.clients[0]: r.predict(s, client=c))
        assert said is not None, f"{label}: {error}"
        check_answers(label, said, result, n)
        if random.random() < 0.2:
            result.save(tmp_path / label)
            again = coterie.load(tmp_path / label).predict(source, client=data.clients[0])
            assert again.tolist() == said.tolist(), label
        odd = in_form(some_table(random), random, tmp_path)
        said, _ = refusal(label, lambda r=result, s=odd, c=data.clients[0]: r.predict(s, client=c))
        if said is not None:
            check_answers(label, said, result, len(said))
        refusal(label, lambda r=result, s=odd: r.assign(s))
        refusal(label, lambda r=result, s=source, o=odd: r.predict(s, support=o))
        for array in (data.train.x.numpy(), data.train.x, data.train.x.tolist(), None, 5):
            with pytest.raises(coterie.InputError, match="the run was made from a table"):
                result.predict(array, client=data.clients[0])


def check_answers(label: str, said: np.ndarray, result: coterie.Result, rows: int) -> None:
    assert len(said) == rows, f"{label}: {len(said)} predictions for {rows} rows"
    if result.schema.classes:
        assert set(said.tolist()) <= set(result.schema.classes), f"{label}: {said} is no class"
    else:
        assert np.isfinite(said).all(), f"{label}: a prediction is not finite"
