"""Typed records of a run: one for each round, one for each client, and the final figures.

Figures that every run has are attributes. Optional ones, of which `measures.py` has the table, are in `measures`. Both
can also be read as from a dict: `record["loss"]`, `record.get("ari")`, `"ari" in record`, `record.items()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self

from coterie.errors import RunError

Plain = Any
"""A value that JSON can hold."""
EMPTY: tuple[Plain, ...] = (None, [], (), "")
"""Values of attributes that are no entries."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Figures(Mapping[str, Plain]):
    """Base of all records: required figures as attributes, optional ones in `measures`; equal if all figures are."""

    measures: Mapping[str, Plain] = field(default_factory=dict)
    """Optional figures by name."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are no entries while they are None or empty."""

    @classmethod
    def from_json(cls, plain: Mapping[str, Plain]) -> Self:
        """Return the record that `to_json` was called on.

        Args:
            plain: Figures by name. Names that are unknown are kept in `measures`; figures that earlier versions did not
                write have their default values.

        Raises:
            RunError: if a figure is missing that has no default value.
        """
        names = attributes_of(cls)
        for name, default in names.items():
            if default is MISSING and name not in plain:
                raise RunError(
                    f"a {cls.__name__} needs {name!r}, but it has only {', '.join(map(repr, plain)) or '{}'}"
                )
        own = {name: plain[name] for name in names if name in plain}
        return cls(**own, measures={name: value for name, value in plain.items() if name not in names})

    def to_json(self) -> dict[str, Plain]:
        """Return all figures by name, as values that JSON can hold."""
        return dict(self)

    def __or__(self, others: Mapping[str, Plain]) -> Self:
        """Return the same record with these figures added or replaced, as `|` does for dicts."""
        return self.from_json({**self, **others})

    def __getitem__(self, name: str) -> Plain:
        if name in self.measures:
            return self.measures[name]
        if not self._is_entry(name):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        yield from filter(self._is_entry, attributes_of(type(self)))
        yield from self.measures

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _is_entry(self, name: str) -> bool:
        return name in attributes_of(type(self)) and (
            name not in self.omitted_if_empty or getattr(self, name) not in EMPTY
        )


@cache
def attributes_of(kind: type[Figures]) -> Mapping[str, object]:
    """Return the names of a record's required figures, with their default values or `MISSING`."""
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory
        for each in fields(kind)
        if each.name != "measures"
    }


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord(Figures):
    """Figures of one round. With several restarts they are those of the restart with the least loss."""

    round: int
    """Number of the round, from 0."""
    seconds: float = 0.0
    """Time that the round took, without evaluation."""
    loss: float | None = None
    """Training loss; None if it is not finite."""
    clusters: int = 0
    """Number of clusters that have a client."""
    moved: int = 0
    """Number of clients that changed their cluster."""
    answered: int = 0
    """Number of clients that answered."""
    missing: list[str] = field(default_factory=list)
    """Clients that were asked and did not answer."""
    rejected: list[str] = field(default_factory=list)
    """Clients whose update was refused."""
    bytes_up: int = 0
    """Bytes that the clients sent."""
    bytes_down: int = 0
    """Bytes that the clients received."""
    path: str = ""
    """Implementations of local training that were used, joined by `+`."""
    stopped: str | None = None
    """Reason why the run ended after this round, before its last one."""
    notes: list[Mapping[str, Plain]] = field(default_factory=list)
    """Problems with clients: `node`, `clients` and `reason` of each."""
    events: list[Mapping[str, Plain]] = field(default_factory=list)
    """Changes of the number of clusters."""
    tests: list[Mapping[str, Plain]] = field(default_factory=list)
    """What decides whether clusters change: `cluster`, `statistic`, `value`, `threshold` and `text` of each figure."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset({"stopped", "notes", "events", "tests"})


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientResult(Figures):
    """Final figures of one client.

    Optional ones: `truth` (its true group), `liar` (True for a simulated attacker), `losses` (mean loss under the model
    of each cluster), `posterior` (probability of each cluster), `samples_needed` (number of samples with which a client
    that cannot be placed with certainty probably could), `finetuned` (score after fine-tuning), `weights` and
    `components` (its mixture).
    """

    id: str
    n: int = 0
    """Number of training samples."""
    cluster: int
    score: float | None = None
    """Accuracy or root mean squared error of its model; None if it was not evaluated."""
    loss: float | None = None
    """Mean loss on the same samples as `score`."""
    certainty: float | None = None
    """Probability that it is in its cluster's group, given the models found; None if groups were not looked for."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset({"certainty"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Metrics(Figures):
    """Final figures of a run."""

    diverged: bool = False
    """Whether the training diverged, so that its models should not be used."""
    why_diverged: str | None = None
    """Reason of the divergence."""
    loss: float | None = None
    """Mean training loss of the final models."""
    clusters: int = 0
    """Number of clusters that have a client."""
    clients: int = 0
    """Number of clients that answered."""
    evaluated_on: str = ""
    """Samples that the scores were measured on: `held-out data`, `validation samples` or `training data`."""
    rounds: int = 0
    """Number of rounds of training."""
    bytes_up: int = 0
    """Bytes that all clients sent, including before the first round."""
    bytes_down: int = 0
    """Bytes that all clients received, including before the first round."""
    seconds: float = 0.0
    """Time of the training, without evaluation."""
    stopped: str | None = None
    """Reason why the run ended before its last round."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset({"why_diverged", "stopped"})
