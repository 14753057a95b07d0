"""Random arrays in `from_arrays`, `from_rows` and `predict` are refused with one sentence, or used like plain ones."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import coterie
from coterie.core.arrays import native
from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Shard
from coterie.testing.checks import LAYOUTS
from tests.fuzz.cases import cases, refusal

Random = np.random.Generator
METHODS = ["fedavg", "local", "ifca", "odcl", "fedem"]


def pick(random: Random, options: Any) -> Any:
    return options[int(random.integers(len(options)))]


def plain(random: Random) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return valid clients; all numbers are small multiples of 1/8, which every floating type can represent."""
    shape = tuple(random.integers(1, 4, size=int(random.integers(1, 3))))
    kind = pick(random, ["numbers", "binary", "labels", "gaps"])
    clients = []
    for _ in range(int(random.integers(1, 5))):
        n = int(random.integers(1, 7))
        x = random.integers(-9, 10, size=(n, *shape)).astype(np.float64)
        labels = random.integers(0, 2 if kind == "binary" else 4, size=n)
        y = {"numbers": labels / 8, "gaps": np.array([-3, 0, 12, 99_999])[labels]}.get(kind, labels)
        clients.append((x, y))
    return clients


def laid_out(random: Random, array: np.ndarray) -> Any:
    """Return the same numbers in another layout, type or container."""
    names = [name for name in LAYOUTS if name != "float16" or np.abs(array).max(initial=0) < 100]
    found = LAYOUTS[pick(random, names)](array)
    wrapped = pick(random, ["plain", "plain", "tensor", "series", "matrix"])
    if wrapped == "tensor" and isinstance(found, np.ndarray) and found.dtype.isnative:
        return torch.tensor(np.ascontiguousarray(found))
    if wrapped == "series" and np.ndim(found) == 1:
        return pd.Series(np.asarray(found).astype(np.asarray(found).dtype.newbyteorder("=")))
    if wrapped == "matrix" and np.ndim(found) == 2:
        return np.asmatrix(found)
    return found


def with_value(array: np.ndarray, random: Random, value: float) -> np.ndarray:
    copy = array.astype(np.float64)
    copy.flat[int(random.integers(copy.size))] = value
    return copy


EXTREMES = [np.nan, np.inf, -np.inf, 1e308, -1.7e308, 1e200, 5e-324, -1e-310, 1e39, 1e19, 2.0**63]
ODD: dict[str, Callable[[np.ndarray, Random], Any]] = {
    "extreme value": lambda a, r: with_value(a, r, pick(r, EXTREMES)),
    "masked": lambda a, r: np.ma.array(a, mask=r.random(a.shape) < 0.3),
    "list of masked": lambda a, r: [np.ma.array(row, mask=True) for row in a],
    "object": lambda a, r: a.astype(object),
    "none inside": lambda a, r: np.where(r.random(a.shape) < 0.3, None, a.astype(object)),
    "complex": lambda a, r: a.astype(complex),
    "dates": lambda a, r: np.zeros(a.shape, dtype="datetime64[s]"),
    "durations": lambda a, r: np.zeros(a.shape, dtype="timedelta64[s]"),
    "texts": lambda a, r: a.astype(str),
    "bytes": lambda a, r: a.astype("S3"),
    "structured": lambda a, r: np.zeros(a.shape, dtype=[("a", "f4"), ("b", "i2")]),
    "ragged": lambda a, r: [list(range(int(r.integers(0, 4)))) for _ in range(len(a) + 1)],
    "nested": lambda a, r: [[a.tolist()], a.tolist()],
    "one axis less": lambda a, r: a[..., 0] if a.ndim > 1 else a.sum(),
    "one axis more": lambda a, r: a[..., None],
    "no rows": lambda a, r: a[:0],
    "no features": lambda a, r: a[..., :0],
    "fewer rows": lambda a, r: a[: len(a) // 2],
    "wider": lambda a, r: np.concatenate([a, a], axis=-1),
    "none": lambda a, r: None,
    "text": lambda a, r: "1 2 3",
    "number": lambda a, r: 5,
    "dict": lambda a, r: {"a": a},
    "set": lambda a, r: {1, 2},
    "date": lambda a, r: datetime.date(2020, 1, 1),
    "function": lambda a, r: len,
    "generator": lambda a, r: (row for row in a),
    "sparse": lambda a, r: sparse.csr_matrix(a.reshape(len(a), -1).astype(float)),
    "frame": lambda a, r: pd.DataFrame({"a": ["x"] * len(a)}),
    "nullable": lambda a, r: pd.array([None] * len(a), dtype="Int64"),
    "gradient": lambda a, r: torch.tensor(a.astype(np.float64), requires_grad=True),
    "huge integers": lambda a, r: np.full(a.shape, 10**30, dtype=object),
    "large integers": lambda a, r: np.full(a.shape, 2**64 - 1, dtype=np.uint64),
    "large labels": lambda a, r: np.full(a.shape, pick(r, [100_000, -100_000, 2**62, -(2**63)])),
    "long double": lambda a, r: a.astype(np.longdouble) * np.longdouble("1e4000"),
    "memory": lambda a, r: memoryview(np.ascontiguousarray(a)),
}
TRUTHS: list[Any] = [5, "ab", [1, 2], {"a": 1}, {1, 2}, np.zeros((2, 2)), np.array(3), [[1], [2]], len, ["\ud800"] * 2]
NAMES: list[Any] = [5, "ab", ["a", "a"], [1, "1"], ["\udfff", "b"], None, {1, 2}]
SIZES: list[Any] = [[3, 3], [6], [2, 5], [0, 6], [-1, 7], "6", 6, None, [[3, 3]], [3.0, 3.0], [2**62, 2**62], [1, [2]]]
IDS: list[Any] = ["a", "", "é", 7, "7", None, 1.5, (1, 2), True, "\ud800", "a\nb", "x" * 2000, b"a", float("nan")]


def keyed(random: Random, clients: list[Any]) -> Any:
    """Return the clients in a form that `from_arrays` accepts, or in one that it refuses."""
    form = pick(random, ["list", "tuple", "dict", "dict", "ids", "generator", "array"])
    if form in ("dict", "ids"):
        names = [f"c{i}" for i in range(len(clients))] if form == "dict" else [pick(random, IDS) for _ in clients]
        return dict(zip(names, clients, strict=True))
    if form == "generator":
        return (client for client in clients)
    return {"list": list, "tuple": tuple, "array": lambda c: np.array([None] * len(c))}[form](clients)


def rows_of(shard: Shard) -> list[tuple[list[float], list[float]]]:
    return [
        (shard.x[a:b].double().flatten().tolist(), shard.y[a:b].double().tolist())
        for a, b in zip(shard.starts, shard.stops, strict=True)
    ]


def sound(label: str, data: FederatedDataset) -> None:
    assert bool(torch.isfinite(data.train.x).all()), f"{label}: accepted features that are not finite"
    assert bool(torch.isfinite(data.train.y).all()), f"{label}: accepted targets that are not finite"
    assert len(set(data.clients)) == len(data.clients), f"{label}: two clients have one id"


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_memory_layouts_change_nothing():
    for label, random in cases("layouts of arrays", 250):
        clients = plain(random)
        shown = [(laid_out(random, x), laid_out(random, y)) for x, y in clients]
        clean = coterie.from_arrays(clients)
        found, error = refusal(label, lambda shown=shown: coterie.from_arrays(shown))
        assert error is None, f"{label}: {error}"
        assert rows_of(found.train) == rows_of(clean.train), label
        assert found.labels == clean.labels, label


def test_layouts_of_flat_arrays_change_nothing():
    for label, random in cases("layouts of rows", 150):
        clients = plain(random)
        x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
        lay = LAYOUTS[pick(random, [name for name in LAYOUTS if name not in ("float16", "integers", "lists")])]
        sizes = pick(random, [list, tuple, np.array])([len(each) for _, each in clients])
        found, error = refusal(label, lambda x=x, y=y, s=sizes, lay=lay: coterie.from_rows(lay(x), lay(y), s))
        assert error is None, f"{label}: {error}"
        assert rows_of(found.train) == rows_of(coterie.from_arrays(clients).train), label


def test_odd_arrays_are_refused_or_valid():
    accepted = 0
    for label, random in cases("odd arrays", 450):
        clients: list[Any] = plain(random)
        place = int(random.integers(len(clients)))
        spoil, part = pick(random, sorted(ODD)), int(random.integers(2))
        pair = list(clients[place])
        pair[part] = ODD[spoil](pair[part], random)
        clients[place] = pick(random, [tuple(pair), tuple(pair), pair, pair[0], (*pair, 1), None])
        given = keyed(random, clients)
        extra = {"truth": pick(random, TRUTHS)} if random.random() < 0.3 else {}
        data, _ = refusal(f"{label} ({spoil})", lambda g=given, e=extra: coterie.from_arrays(g, **e))
        if data is not None:
            sound(f"{label} ({spoil})", data)
            accepted += 1
    assert accepted > 5, "too few cases are valid, so that little is tested"


def test_odd_flat_arrays_are_refused_or_valid():
    for label, random in cases("odd rows", 150):
        x, y = random.standard_normal((6, 2)), random.integers(0, 3, size=6)
        spoil = pick(random, sorted(ODD))
        if random.random() < 0.5:
            x = ODD[spoil](x, random)
        else:
            y = ODD[spoil](y, random)
        extra = {"ids": pick(random, NAMES)} if random.random() < 0.3 else {}
        size = pick(random, SIZES)
        data, _ = refusal(f"{label} ({spoil})", lambda x=x, y=y, s=size, e=extra: coterie.from_rows(x, y, s, **e))
        if data is not None:
            sound(f"{label} ({spoil})", data)


@pytest.mark.filterwarnings("ignore")
def test_accepted_arrays_can_be_used_for_training_and_prediction():
    """After one round, predictions are finite, or an error explains why there are none."""
    for label, random in cases("fits of arrays", 60):
        clients: list[Any] = [(laid_out(random, x), laid_out(random, y)) for x, y in plain(random)]
        x, y = clients[0]
        if random.random() < 0.4:
            x = with_value(np.asarray(x, dtype=np.float64), random, pick(random, EXTREMES[3:]))
            clients[0] = (x, y)
        data, _ = refusal(label, lambda clients=clients: coterie.from_arrays(clients))
        if data is None:
            continue
        method = pick(random, METHODS)
        options = {"odcl": {"clusters": 1}, "ifca": {"clusters": 2, "rounds": 1}}.get(method, {"rounds": 1})
        result, _ = refusal(label, lambda d=data, m=method, o=options: coterie.fit(d, m, **o))
        if result is not None:
            ask(label, random, result, x, y)


def ask(label: str, random: Random, result: coterie.Result, x: Any, y: Any) -> None:
    """Predict and assign the original samples, and odd ones."""
    spoil = pick(random, sorted(ODD))
    odd_x, odd_y = (ODD[spoil](native(np.asarray(each)), random) for each in (x, y))
    for given_x, given_y in ((x, y), (odd_x, y), (x, odd_y)):
        said, _ = refusal(f"{label} ({spoil})", lambda g=given_x: result.predict(g, client="0"))
        if said is not None:
            assert np.isfinite(said).all(), f"{label}: a prediction is not finite"
            known = set(result.schema.classes) or set(range(result.learner.classes or 0))
            assert not known or set(said.tolist()) <= known, f"{label}: predicted {said.tolist()} of {known}"
        refusal(f"{label} ({spoil})", lambda g=given_x, h=given_y: result.assign(g, h))
        refusal(f"{label} ({spoil})", lambda g=given_x, h=given_y: result.weigh(g, h))
        refusal(f"{label} ({spoil})", lambda g=given_x, h=given_y: result.predict(x, support=(g, h)))
