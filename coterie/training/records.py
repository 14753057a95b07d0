"""Typed records of a run: one for each round, one for each client, and the final figures.

Figures of every run are attributes. Optional figures, which `measures.py` lists, are in `measures`. Both can also be
read as from a dict: `record["loss"]`, `record.get("ari")`, `"ari" in record`, `record.items()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self

from coterie.errors import RunError

Plain = Any
"""A value that JSON supports."""
EMPTY: tuple[Plain, ...] = (None, [], (), "")
"""Values that count as empty for `omitted_if_empty`."""
EARLIER_NAMES = {
    "beginning_seconds": "initialization_seconds",
    "liar": "attacker",
    "liars": "attackers",
    "start": "restart",
    "start_losses": "restart_losses",
}
"""Present names of the figures that earlier versions wrote under other names."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Figures(Mapping[str, Plain]):
    """Base class of all records: required figures as attributes, optional ones in `measures`.

    Records are mappings and equal if all their figures are equal.
    """

    measures: Mapping[str, Plain] = field(default_factory=dict)
    """Optional figures by name."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are left out of the mapping while they are None or empty."""

    @classmethod
    def from_json(cls, plain: Mapping[str, Plain]) -> Self:
        """Return the record from the output of `to_json`.

        Args:
            plain: Figures by name. Unknown names are stored in `measures`; figures that earlier versions did not write
                get their default values, and those that they called differently their present names.

        Raises:
            RunError: if a figure without a default value is missing.
        """
        names = attributes_of(cls)
        plain = {EARLIER_NAMES.get(name, name): value for name, value in plain.items()}
        for name, default in names.items():
            if default is MISSING and name not in plain:
                raise RunError(
                    f"a {cls.__name__} needs {name!r}, but it has only {', '.join(map(repr, plain)) or '{}'}"
                )
        own = {name: plain[name] for name in names if name in plain}
        return cls(**own, measures={name: value for name, value in plain.items() if name not in names})

    def to_json(self) -> dict[str, Plain]:
        """Return all figures by name, as values that JSON supports."""
        return dict(self)

    def __or__(self, others: Mapping[str, Plain]) -> Self:
        """Return the record with these figures added or replaced, as `|` does for dicts."""
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
    """Figures of one round. With several restarts they are those of the restart with the lowest loss.

    Example:
        >>> from coterie.training.records import RoundRecord
        >>> record = RoundRecord(round=0, loss=0.5)
        >>> record.loss == record["loss"]
        True
    """

    round: int
    """Number of the round, from 0."""
    seconds: float = 0.0
    """Duration of the round in seconds, without evaluation."""
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
    """Clients whose update was rejected."""
    bytes_up: int = 0
    """Bytes that the clients sent."""
    bytes_down: int = 0
    """Bytes that the clients received."""
    path: str = ""
    """Implementations of local training that were used, joined by `+`."""
    stopped: str | None = None
    """Reason why the run ended after this round, if it was not the last one."""
    notes: list[Mapping[str, Plain]] = field(default_factory=list)
    """Problems with clients: `node`, `clients` and `reason` of each."""
    events: list[Mapping[str, Plain]] = field(default_factory=list)
    """Changes of the number of clusters."""
    tests: list[Mapping[str, Plain]] = field(default_factory=list)
    """Figures that decide about clusters: `cluster`, `statistic`, `value`, `threshold` and `text` of each."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset({"stopped", "notes", "events", "tests"})


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientResult(Figures):
    """Final figures of one client.

    Optional figures: `truth` (true group), `attacker` (True for a simulated attacker), `losses` (mean loss under the
    model of each cluster), `posterior` (probability of each cluster), `samples_needed` (number of samples with which an
    uncertain client could probably be assigned), `finetuned` (score after fine-tuning), `weights` and `components`
    (weights of its mixture).
    """

    id: str
    """Id of the client."""
    n: int = 0
    """Number of training samples."""
    cluster: int
    """Final cluster."""
    score: float | None = None
    """Accuracy or root mean squared error of its model; None if it was not evaluated."""
    loss: float | None = None
    """Mean loss on the same samples as `score`."""
    certainty: float | None = None
    """Probability that the client belongs to its cluster, given the models; None if no groups were looked for."""

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
    """Duration of the training in seconds, without evaluation."""
    stopped: str | None = None
    """Reason why the run ended before its last round."""

    omitted_if_empty: ClassVar[frozenset[str]] = frozenset({"why_diverged", "stopped"})
