"""Small runs written by hand, so that every expected number can be checked on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coterie.report.reading import RunData, run_from_parts

MakeRun = Callable[..., RunData]


def _records(clusters: Sequence[int], loss: Sequence[float], score: str | None) -> list[dict[str, Any]]:
    records = []
    for t, value in enumerate(loss):
        record: dict[str, Any] = {
            "round": t,
            "seconds": 0.5,
            "loss": value,
            "clusters": len(set(clusters)),
            "moved": 1 if t == 1 else 0,
            "answered": len(clusters),
            "missing": [],
            "rejected": [],
            "bytes_up": 1_000_000,
            "bytes_down": 2_000_000,
            "sizes": [list(clusters).count(k) for k in range(max(clusters) + 1)],
            "assignments": [clusters[-1], *clusters[1:]] if t == 0 else list(clusters),
        }
        if score:
            record |= {score: 0.5 + 0.1 * t, "worst_tenth": 0.4}
        records.append(record)
    return records


def _run(
    method: str = "ifca",
    seed: int = 0,
    *,
    scores: Sequence[float] = (0.9, 0.9, 0.8, 0.8),
    clusters: Sequence[int] = (0, 0, 1, 1),
    truth: Sequence[str] | None = None,
    certainty: Sequence[float] | None = None,
    ids: Sequence[str] | None = None,
    score: str = "accuracy",
    held_out: bool = True,
    loss: Sequence[float] = (1.0, 0.5, 0.25),
    metrics: dict[str, Any] | None = None,
    **config: Any,
) -> RunData:
    names = ids or [f"client-{i}" for i in range(len(scores))]
    K = max(clusters) + 1
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        row = {"id": name, "n": 10 + i, "cluster": clusters[i], "score": scores[i], "loss": 0.3}
        if truth is not None:
            row["truth"] = truth[i]
        if certainty is not None:
            rest = (1 - certainty[i]) / max(1, K - 1)
            row |= {"certainty": certainty[i], "losses": [0.1 if k == clusters[i] else 2.0 + i for k in range(K)]}
            row |= {"posterior": [certainty[i] if k == clusters[i] else rest for k in range(K)]}
        rows.append(row)
    summary = {
        "metrics": {
            "loss": loss[-1],
            "clusters": len(set(clusters)),
            "clients": len(rows),
            score: sum(scores) / len(scores),
            "worst_tenth": min(scores) if score == "accuracy" else max(scores),
            "evaluated_on": "held-out data" if held_out else "training data",
            "rounds": len(loss),
            "bytes_up": 1_000_000 * len(loss),
            "bytes_down": 2_000_000 * len(loss),
            "seconds": 0.5 * len(loss),
            **({"ari": 1.0} if truth is not None else {}),
            **(metrics or {}),
        },
        "clients": rows,
        "features": [2],
        "classes": 2,
    }
    settled = {"scenario": "rotated-digits", "method": method, "clients": len(rows), "clusters": K, "seed": seed}
    return run_from_parts(settled | config, _records(clusters, loss, score if held_out else None), summary)


@pytest.fixture
def make_run() -> MakeRun:
    return _run
