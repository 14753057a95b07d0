"""Clients behind a Flower Grid, as what a run is given instead of data: `fit(clients_of(grid, nodes=3), "ifca")`.

The server knows ids, sizes and shapes, and no sample. What a resumed run has to know of them is in its folder:

::

    RUN/federation.json    the run's own name, who lives at which node, shapes
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from flwr.serverapp import Grid

from coterie.core.dataset import Profile
from coterie.core.schema import ColumnNote, Schema
from coterie.core.shard import ClientId, Positions
from coterie.data.table import step_size
from coterie.engines.remote import RemoteClients
from coterie.errors import ConfigError, RunError
from coterie.flower.admission import Admission, AllowList, Entries
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.engine import CHANGE_FACTOR, FlowerFederation
from coterie.flower.exchange import Exchange
from coterie.flower.schema import DataSchema, Demanded, Expected
from coterie.flower.terms import Terms
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES
from coterie.methods.settings import RunSettings
from coterie.tiers.composition import Tiers
from coterie.training.runs.files import read_checked_json, write_checked_json

FILE = "federation.json"
NOT_PRIVATE = (
    "the schema of the tables was fitted to summaries of the nodes, to which no noise is added, so that the run is not "
    "private: give the server the schema beforehand (schema), such as that of a public table"
)


@dataclass(frozen=True)
class FlowerClients(RemoteClients):
    """The clients of a registry, as a run is given them."""

    exchange: Exchange
    registry: ClientRegistry
    run: str
    """The run's own name, by which clients keep their states; a resumed run has the same."""
    quorum: float = 0.0
    """See `FlowerFederation`, as the next two."""
    most_change: float | None = None
    change_factor: float | None = CHANGE_FACTOR
    scored: bool = True
    """Whether test samples count."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.registry.clients

    @property
    def profile(self) -> Profile:
        return self.registry.profile

    @property
    def sizes(self) -> Positions:
        return self.registry.sizes

    @property
    def tested(self) -> npt.NDArray[np.bool_] | None:
        tested = self.registry.tests > 0
        return tested if self.scored and bool(tested.any()) else None

    def fingerprint(self) -> str:
        """A digest of ids and shapes: of the samples nothing is known."""
        known = json.dumps([self.clients, self.profile.features, self.profile.classes])
        return hashlib.sha256(known.encode()).hexdigest()

    def training_only(self) -> FlowerClients:
        return replace(self, run=f"{self.run}/trial", scored=False, truth=None)

    def connect(self, settings: RunSettings, tiers: Tiers) -> FlowerFederation:
        if settings.privacy is not None and self.registry.column_notes:
            raise ConfigError(NOT_PRIVATE)
        # there are many trial runs, and clients keep their states separately for each
        run = self.run if self.scored else f"{self.run}/{tiers.K}/{settings.seed}"
        terms = replace(terms_of(run, self.profile, settings, tiers, self.scored), table=self.registry.table)
        return FlowerFederation(self.exchange, self.registry, terms, self.quorum, self.most_change, self.change_factor)

    def save(self, folder: Path) -> None:
        facts = {
            "run": self.run,
            "bound": self.registry.bound,
            "clients": self.clients,
            "schema": self.registry.schema.plain(),
            "table": None if self.registry.table is None else self.registry.table.plain(),
            "columns": [note._asdict() for note in self.registry.column_notes],
        }
        write_checked_json(folder / FILE, facts)


def terms_of(run: str, profile: Profile, settings: RunSettings, tiers: Tiers, tests: bool = True) -> Terms:
    """Return the terms of a run whose settings are settled.

    Args:
        run: Name of the run, by which clients keep their states.
        profile: Kind of the data.
        settings: Settings of the run.
        tiers: Composition of the method.
        tests: Whether clients use their test samples, where they have some.
    """
    return Terms(
        run=run,
        learner=str(settings.learner),
        features=profile.features,
        classes=profile.classes,
        dtype=str(settings.dtype),
        validation=settings.validation,
        seed=settings.seed,
        keeps=tiers.assignment.keeps,
        tests=tests,
    )


def clients_of(
    grid: Grid,
    *,
    nodes: int = 1,
    wait: float = 600.0,
    deadline: float = 600.0,
    quorum: float = 0.0,
    most_change: float | None = None,
    change_factor: float | None = CHANGE_FACTOR,
    expected: Iterable[ClientId] = (),
    allowed: str | Path | Entries | None = None,
    schema: Expected = None,
    summaries: bool = True,
    most_clients: int = MOST_CLIENTS,
    most_samples: int = MOST_SAMPLES,
    again: str | Path | None = None,
) -> FlowerClients:
    """Ask the nodes behind a grid which clients live there; with that the list of clients is closed.

    Args:
        grid: The grid that Flower hands to a server app.
        nodes: Number of nodes to wait for, at most `wait` seconds.
        wait: Seconds to wait for them.
        deadline: Seconds that an exchange may take; clients without an answer by then are missing in it.
        quorum: Share of the asked clients below which a round counts as if nobody had answered.
        most_change: Answers whose change of a model is longer are refused.
        change_factor: Answers whose change of a model is more than so many times as long as the median over the nodes
            are refused, where three nodes or more have answered; None: any length.
        expected: Ids of clients that may come later; others cannot once the run has begun.
        allowed: Clients that each node may bring, by its public key or node id: a TOML file (`admission.py` shows one)
            or a mapping. By default every node may bring clients that no other node has brought.
        schema: Form of the data that is expected: shape, classes, names, scaling, or some of these; a JSON file, a
            JSON text or a mapping. Nodes that differ are refused. By default all nodes must agree. The schema of a
            table (`Result.schema`) is one that nodes encode their tables by.
        summaries: Whether nodes may send summaries of their tables, to which a schema is fitted if none is given. A
            private run needs False, since no noise is added to them.
        most_clients: Largest number of clients of one node.
        most_samples: Largest number of samples of one client.
        again: Folder of a run to resume, `coterie.resume(folder, clients)`: its clients are waited for, and live
            where they lived.

    Raises:
        InputError: The nodes do not agree on the form of their data, and `schema` does not say which is right.
        TrainingError: Fewer nodes than `nodes` came in time.
    """
    admission = admission_of(allowed, schema, most_clients, most_samples)
    exchange = Exchange(grid, deadline)
    if again is None:
        registry, run = ClientRegistry(expected, admission=admission, summaries=summaries), uuid4().hex
    else:
        registry, run = _known(Path(again), admission)
    registry.collect(exchange, nodes, wait)
    known = {} if registry.table is None else _facts_of(registry.table, registry)
    return FlowerClients("flower", exchange, registry, run, quorum, most_change, change_factor, **known)


def _facts_of(table: Schema, registry: ClientRegistry) -> dict[str, Any]:
    """What is known of clients whose data is a table, as `from_table` tells it."""
    recommended: dict[str, object] = {"learner": "logistic" if table.classes else "linear:bias=true"}
    lengths = registry.lengths
    if lengths is not None:
        length = lengths.overall if table.classes else lengths.largest
        recommended["lr"] = step_size(table, np.array([length]), np.array([1]))
    return {"schema": table, "column_notes": registry.column_notes, "recommended": recommended}


def admission_of(
    allowed: str | Path | Entries | None,
    schema: Expected,
    most_clients: int = MOST_CLIENTS,
    most_samples: int = MOST_SAMPLES,
) -> Admission:
    """Return the rules for nodes, as `clients_of` takes them; files are read and checked."""
    entries = None if allowed is None else AllowList.read(allowed)
    return Admission(entries, Demanded.read(schema), most_clients, most_samples)


def _known(folder: Path, admission: Admission) -> tuple[ClientRegistry, str]:
    """Return the registry of an earlier part of a run, and the run's own name."""
    try:
        facts = read_checked_json(folder / FILE)
        schema = DataSchema.read(facts["schema"])
        table = None if facts.get("table") is None else Schema.of_plain(facts["table"])
        registry = ClientRegistry(facts["clients"], facts["bound"], schema, admission, table)
        registry.column_notes = tuple(ColumnNote(**note) for note in facts.get("columns", ()))
        return registry, str(facts["run"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{folder / FILE} cannot be read ({error}): the folder is no run with clients elsewhere, or damaged"
        ) from None
