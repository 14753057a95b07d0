"""Clients behind a Flower Grid, which a run takes instead of data: `fit(clients_of(grid, nodes=3), "ifca")`.

The server knows ids, sizes and shapes, but no samples. The folder of a run stores what a resumed run needs:

::

    RUN/federation.json    name of the run, node of each client, form of the data
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
from coterie.data.table import step_size, usual_learner
from coterie.engines.remote import RemoteClients
from coterie.errors import ConfigError, RunError
from coterie.flower.admission import Admission, AllowList, Entries
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.engine import CHANGE_FACTOR, FlowerFederation
from coterie.flower.exchange import Exchange
from coterie.flower.schema import DataSchema, RequiredSchema, SchemaSource
from coterie.flower.terms import Terms
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES
from coterie.methods.settings import RunSettings
from coterie.tiers.composition import Tiers
from coterie.training.runs.files import read_checked_json, write_checked_json

FILE = "federation.json"
NOT_PRIVATE = (
    "the schema of the tables was fitted to summaries of the nodes, to which no noise is added, so that the run is not "
    "private: give the server a schema beforehand (option schema), such as that of a public table"
)


@dataclass(frozen=True)
class FlowerClients(RemoteClients):
    """Clients of a registry, in the form that a run takes."""

    exchange: Exchange
    registry: ClientRegistry
    run: str
    """Name of the run, under which clients store their states; a resumed run has the same name."""
    quorum: float = 0.0
    """See `FlowerFederation`."""
    most_change: float | None = None
    """See `FlowerFederation`."""
    change_factor: float | None = CHANGE_FACTOR
    """See `FlowerFederation`."""
    scored: bool = True
    """Whether clients evaluate models on their test samples."""

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
        """Return a digest of ids and shapes; the server does not know the samples."""
        known = json.dumps([self.clients, self.profile.features, self.profile.classes])
        return hashlib.sha256(known.encode()).hexdigest()

    def training_only(self) -> FlowerClients:
        return replace(self, run=f"{self.run}/trial", scored=False, truth=None)

    def connect(self, settings: RunSettings, tiers: Tiers) -> FlowerFederation:
        if settings.privacy is not None and self.registry.column_notes:
            raise ConfigError(NOT_PRIVATE)
        # there are many trial runs, and clients keep separate states for each
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
    """Return the terms of a run.

    Args:
        run: Name of the run, under which clients store their states.
        profile: Shape of a sample and number of classes.
        settings: Final settings of the run.
        tiers: Composition of the method.
        tests: Whether clients evaluate models on their test samples, if they have any.
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
    schema: SchemaSource = None,
    summaries: bool = True,
    most_clients: int = MOST_CLIENTS,
    most_samples: int = MOST_SAMPLES,
    again: str | Path | None = None,
) -> FlowerClients:
    """Ask the nodes behind a grid for their clients and close the list of clients.

    Args:
        grid: Grid that Flower passes to a server app.
        nodes: Number of nodes to wait for, at most `wait` seconds.
        wait: Longest time to wait for the nodes, in seconds.
        deadline: Longest duration of an exchange, in seconds; clients that have not answered by then are missing.
        quorum: Smallest share of the asked clients that must answer; with fewer answers a round changes nothing.
        most_change: Largest norm of a change of a model; answers with a larger one are refused. None: no limit.
        change_factor: Largest ratio of the norm of a change of a model to the median over the nodes, if at least three
            nodes have answered; answers with a larger one are refused. None: no limit.
        expected: Ids of clients that may join later; no other client can join after the start of the run.
        allowed: Clients that each node may register, by its public key or node id: a TOML file (see
            `coterie.flower.admission`) or a mapping. By default a node may register every client that no other node
            has registered.
        schema: Expected form of the data: shape, classes, names, scaling, or some of these, as a JSON file, a JSON text
            or a mapping. Nodes that differ are refused. By default all nodes must agree. Nodes with tables encode them
            by the schema of a table (`Result.schema`).
        summaries: Whether nodes may send summaries of their tables, to which a schema is fitted if none is given. A
            private run needs False, since no noise is added to them.
        most_clients: Largest number of clients of one node.
        most_samples: Largest number of samples of one client.
        again: Folder of a run to resume with `coterie.resume(folder, clients)`. All clients of that run are waited for,
            and each keeps its node.

    Returns:
        The clients, which `coterie.fit` and `coterie.resume` take instead of data.

    Raises:
        ConfigError: if an argument is not allowed, or a file of `allowed` or `schema` cannot be read.
        InputError: if the nodes do not agree on the form of their data, and `schema` does not decide.
        TrainingError: if fewer nodes than `nodes` register clients in time.

    Example:
        >>> import coterie
        >>> from coterie.flower.clients import clients_of
        >>> from coterie.flower.in_process import InProcessGrid  # a server app receives its grid from Flower
        >>> from coterie.flower.node import make_client_app
        >>> data = coterie.scenario("mixed-regression", clients=6)
        >>> grid = InProcessGrid({1: make_client_app(lambda context: data)})
        >>> result = coterie.fit(clients_of(grid, nodes=1), "ifca", clusters=2, learner="linear", rounds=1)
        >>> len(result.models)
        2
    """
    admission = admission_of(allowed, schema, most_clients, most_samples)
    exchange = Exchange(grid, deadline)
    if again is None:
        registry, run = ClientRegistry(expected, admission=admission, summaries=summaries), uuid4().hex
    else:
        registry, run = _registry_of_run(Path(again), admission)
    registry.collect(exchange, nodes, wait)
    known = {} if registry.table is None else _table_facts(registry.table, registry)
    return FlowerClients("flower", exchange, registry, run, quorum, most_change, change_factor, **known)


def _table_facts(table: Schema, registry: ClientRegistry) -> dict[str, Any]:
    """Return the facts about clients with tables that `from_table` returns about local data."""
    recommended: dict[str, object] = {"learner": usual_learner(table)}
    lengths = registry.lengths
    if lengths is not None:
        length = lengths.overall if table.classes else lengths.largest
        recommended["lr"] = step_size(table, np.array([length]), np.array([1]))
    return {"schema": table, "column_notes": registry.column_notes, "recommended": recommended}


def admission_of(
    allowed: str | Path | Entries | None,
    schema: SchemaSource,
    most_clients: int = MOST_CLIENTS,
    most_samples: int = MOST_SAMPLES,
) -> Admission:
    """Return the rules for nodes from the arguments of `clients_of`; files are read and checked."""
    entries = None if allowed is None else AllowList.read(allowed)
    return Admission(entries, RequiredSchema.read(schema), most_clients, most_samples)


def _registry_of_run(folder: Path, admission: Admission) -> tuple[ClientRegistry, str]:
    """Return the registry and the name of a run that is resumed."""
    try:
        facts = read_checked_json(folder / FILE)
        schema = DataSchema.read(facts["schema"])
        table = None if facts.get("table") is None else Schema.of_plain(facts["table"])
        registry = ClientRegistry(facts["clients"], facts["bound"], schema, admission, table)
        registry.column_notes = tuple(ColumnNote(**note) for note in facts.get("columns", ()))
        return registry, str(facts["run"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{folder / FILE} cannot be read ({error}): the folder is damaged or not a run with remote clients; name "
            "another folder"
        ) from None
