"""Runs that start from given models: those of a run folder, an earlier result, or arrays."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coterie.core.clusters import Clusters
from coterie.core.dataset import ClientDirectory
from coterie.core.federation import Federation
from coterie.core.plain import from_plain, from_text
from coterie.core.schema import Schema, plain_column
from coterie.core.shard import ClientId
from coterie.errors import ConfigError, shown, unknown_name
from coterie.evaluate.certainty import SURE, ask_evidence, measure_certainty
from coterie.learners.base import Learner
from coterie.methods.base import Method
from coterie.methods.initializers import GivenModels, Model
from coterie.methods.run import BEFORE, Initializer
from coterie.plugins.loading import knows
from coterie.training.result import Result, load

InitChoice = Initializer | str | Sequence[Model] | Result
"""Initializer, its text such as "odcl:clustering=spectral", run folder, earlier result, or K models as arrays."""


@dataclass(frozen=True)
class EarlierRun:
    """The earlier run whose models a run starts from."""

    assignments: Mapping[ClientId, int] = field(default_factory=dict)
    """Cluster of each client in the earlier run."""
    schema: Schema | None = None
    """Columns and classes of its data; None if they are no longer known."""


def initializer_of(choice: object, method: type[Method]) -> tuple[Initializer | None, EarlierRun | None]:
    """Return the initializer that a user chose, and the earlier run if the models come from one.

    Raises:
        ConfigError: if the choice is neither the name of an initializer nor a run folder, a result or models.
    """
    if choice is None or (isinstance(choice, str) and choice == "random" and "init" in method.refuses):
        return None, None  # a method with its own initialisation does not need this option
    if isinstance(choice, Initializer):
        return choice, None
    if isinstance(choice, Result):
        return _from_result(choice, GivenModels.name)
    if isinstance(choice, str):
        return _from_text(choice)
    if isinstance(choice, Mapping):
        return from_plain(Initializer, choice, "init"), None
    if isinstance(choice, Sequence):
        return GivenModels(tuple(choice)), None
    raise ConfigError(f"init must be a name, a run folder, a result or a list of models, got {type(choice).__name__}")


def _from_text(text: str) -> tuple[Initializer, EarlierRun | None]:
    name = text.partition(":")[0]
    if knows(Initializer, name):
        return from_text(Initializer, text), None
    if text == GivenModels.name:
        return GivenModels(()), None  # of a resumed run, whose models are in the checkpoint
    if not os.path.exists(text):  # noqa: PTH110 (Path.exists raises where the text cannot be a path)
        advice = str(unknown_name("init", name, Initializer.members)).partition(": ")[2]
        raise ConfigError(f"{shown(text)} is not a run folder, and no initializer has this name: {advice}")
    return _from_result(load(text), text)


def _from_result(result: Result, source: str) -> tuple[Initializer, EarlierRun]:
    return GivenModels(tuple(result.models), source), EarlierRun(result.assignments, result.schema)


def check_schema(earlier: EarlierRun, now: Schema) -> None:
    """Refuse models of other features or classes; warn if only the scaling differs.

    Raises:
        ConfigError: if the columns or the classes differ.
    """
    before = earlier.schema
    if before is None:
        return
    if (_meaning(before), before.classes) != (_meaning(now), now.classes):
        raise ConfigError(
            "init: the earlier run has other columns or class labels than this data, so its models have another "
            "meaning: read the table with from_table(..., schema=earlier.schema)"
        )
    if before.scales != now.scales:
        warnings.warn(
            "init: the table of the earlier run was scaled with other means and deviations, so its models fit worse "
            "and drift is overstated: read the table with from_table(..., schema=earlier.schema)",
            stacklevel=2,
        )


def _meaning(schema: Schema) -> list[dict[str, object]]:
    """Return what the features mean: the columns without the means and values of the table that they were fitted to."""
    columns = [plain_column(column) for column in schema.columns]
    return [{name: value for name, value in each.items() if name not in ("fill", "values")} for each in columns]


def clients_with_drift(
    data: ClientDirectory,
    federation: Federation,
    learner: Learner,
    clusters: Clusters,
    before: Mapping[ClientId, int],
) -> dict[str, Any]:
    """Return the clients whose earlier group no longer fits, before any training, ready for JSON.

    A group does not fit if another one has a probability of at least `SURE` given the client's samples.

    Args:
        data: The clients.
        federation: The same clients, ready to be asked.
        learner: The model family.
        clusters: The models of the earlier run.
        before: Cluster of each client in the earlier run.
    """
    clients = data.clients
    found: dict[str, Any] = {
        "before": dict(before),
        "new": [client for client in clients if client not in before],
        "left": sorted(set(before) - set(clients)),
        "alarms": [],
    }
    own = torch.tensor([before.get(client, -1) for client in clients])
    if clusters.K == 1 or clusters.restarts > 1 or not bool((own >= 0).any()):
        return found
    certainty = measure_certainty(ask_evidence(federation, clusters, own, BEFORE), clusters, learner.classes is None)
    if certainty is None:
        return found
    for at, shares in zip(certainty.evidence.positions, certainty.probabilities, strict=True):
        better, was = int(shares.argmax()), int(own[at])
        if better != was and shares[better] >= SURE:
            alarm = {"id": clients[at], "was": was, "better": better, "certainty": float(shares[better])}
            found["alarms"].append(alarm)
    if found["alarms"]:
        named = ", ".join(alarm["id"] for alarm in found["alarms"][:5]) + ", ..." * (len(found["alarms"]) > 5)
        warnings.warn(
            f"the group of {len(found['alarms'])} of {int((own >= 0).sum())} clients no longer fits ({named}): they "
            "may change their cluster",
            stacklevel=5,
        )
    return found
