"""Calls callbacks as the training loop does, with the records of a real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.callbacks import Callback, TrainingRun

ROUNDS = 4


def data() -> coterie.FederatedDataset:
    """Six clients in two groups, each with a line of its own group."""
    draws = np.random.default_rng(0)
    clients = {}
    for number in range(6):
        x = draws.normal(size=(20, 2))
        clients[f"c{number}"] = (x, (3.0 if number % 2 else -3.0) * x[:, 0] + 0.1 * draws.normal(size=20))
    return coterie.from_arrays(clients, truth=[0, 1] * 3)


@cache
def result() -> coterie.Result:
    return coterie.fit(data(), "ifca", clusters=2, rounds=ROUNDS)


def run_in(folder: Path | None, first_round: int = 0, **settings: object) -> TrainingRun:
    before = list(result().records[:first_round])
    return TrainingRun({**result().config, **settings}, folder, first_round, ROUNDS, before)


def play(
    callback: Callback,
    run: TrainingRun,
    records: Sequence[Mapping[str, Any]] | None = None,
    error: Exception | None = None,
) -> None:
    """Drive a callback from the first round of the run to the result or to an error."""
    callback.on_start(run)
    for record in result().records[run.first_round :] if records is None else records:
        callback.on_round(run, record)
    if error is None:
        callback.on_end(run, result())
    else:
        callback.on_error(run, error)


def stopped_early() -> coterie.Result:
    """The result as it is when early stopping ended the run."""
    return replace(result(), metrics={**result().metrics, "stopped": "patience"})
