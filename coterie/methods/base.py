"""What a registered method tells about itself, and the parts that its file composes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.learners.descent import LocalWork
from coterie.options import COMMON, Option, Options
from coterie.server.aggregate import Averaging
from coterie.server.combine import is_robust, read_combine
from coterie.tiers.method import Method
from coterie.training.starts import RANDOM, STARTS, read_start

SEEN = (
    "the change of the models it trained and its training loss; only sums over clients are used, so secure aggregation "
    "could hide them"
)
"""What a method lets the server see of a client's training, besides the rows it declares."""
SEEN_ROW_BY_ROW = (
    "its training loss, and its change of what all clusters share, which are only added up; what it made of a "
    "cluster's model is a row of its own (below), which secure aggregation could not hide"
)
"""The same of methods that need each client's own work."""
EACH_CHANGE = {"change": "how it changed its cluster's model"}
"""The row that a robust mean needs."""

Placing = Literal["least-loss", "tree", "mixture", "density"]
"""How somebody who did not train finds its models, see `coterie/evaluate/placing.py`."""


CHOICE_OPTIONS = (
    Option("max_clusters", int, "clusters=auto: the largest number that is tried", 6, low=1),
    Option(
        "choose_seeds", int, "clusters=auto: trial runs of each number, each with samples of its own held out", 3, low=1
    ),
    Option("choose_rounds", int, "clusters=auto: rounds of a trial run; unset: half of rounds", None, low=1),
)
"""Of methods that train any number of clusters from a random start, so that trial runs can find it (`choosing.py`)."""


@dataclass(frozen=True)
class Entry:
    """A published method, as users see it."""

    name: str
    summary: str
    paper: str
    compose: Callable[[Options], Method]
    refuses: frozenset[str] = frozenset()
    """Common options that mean nothing to this method."""
    options: tuple[Option, ...] = ()
    """Options of its own."""
    defaults: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda given: {}
    """Its own defaults for common options, given what the user said."""
    prefers: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda given: {}
    """Defaults that go before what the data suggests, because without them it would be another method."""
    learners: tuple[str, ...] | None = None
    """The model families it is for; None: all."""
    twin: str | None = None
    """The method it equals with K=1; None with the reason in `no_twin`."""
    no_twin: str = ""
    """Why there is none; or with which options it does not equal the one there is."""
    reveals: Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, str]] = field(default_factory=dict)
    """Rows of its replies and what each tells the server about a single client; by its own options, if they decide."""
    sees: str = SEEN
    """What the server sees of a client's training where it is only added up."""
    groups: str = "found"
    """Where the clusters come from: found, one, truth, self."""
    newcomers: Placing | Callable[[Mapping[str, Any]], Placing] = "least-loss"
    """By a few labelled samples to one model, or to weights for all of them; or by features alone."""

    def revealed(self, start: str | None = None, own: Mapping[str, Any] | None = None) -> Mapping[str, str]:
        """Rows of the replies of a run that begins with `start`, or as the method does by itself; `own` are its
        options, without which all rows are named that its own ones could bring."""
        begins = read_start(start or str(self.prefers({}).get("start", RANDOM)))
        return {**({} if begins is None else STARTS[begins[0]].reveals), **self._rows(own or {})}

    def _rows(self, given: Mapping[str, Any]) -> Mapping[str, str]:
        """Those of the rounds, with these options."""
        rows = self.reveals(given) if callable(self.reveals) else self.reveals
        return {**rows, **EACH_CHANGE} if is_robust(given.get("combine")) else rows

    def seen(self, own: Mapping[str, Any] | None = None) -> str:
        """What the server sees of a client's training in a run with these options, besides the rows."""
        return SEEN_ROW_BY_ROW if {"change", "model"} & self._rows(own or {}).keys() else self.sees

    def placing(self, own: Mapping[str, Any]) -> Placing:
        """How newcomers find their models in a run with these options of its own."""
        return self.newcomers(own) if callable(self.newcomers) else self.newcomers

    def equals(self) -> str:
        """What it equals with one cluster, in words."""
        if self.twin is None:
            return f"No twin with one cluster: {self.no_twin}."
        return f"Equals {self.twin} with one cluster{f', {self.no_twin}' if self.no_twin else ''}."

    @property
    def trains(self) -> bool:
        """Whether rounds of training follow the start."""
        return "rounds" not in self.refuses

    @property
    def tries(self) -> bool:
        """Whether trial runs can choose the number of clusters."""
        return set(CHOICE_OPTIONS) <= set(self.options)

    @property
    def accepts(self) -> tuple[Option, ...]:
        """Every option this method takes, common ones first."""
        return tuple(o for o in COMMON if o.name not in self.refuses) + self.options


def parts(options: Options) -> dict[str, Any]:
    """The parts that are not tiers, from the options: keyword arguments of `Method`."""
    responsibility = options.averaging == "responsibility"
    return {
        "work": LocalWork(options.local_steps, options.local_epochs, options.batch_size, augment=options.augment),
        "averaging": Averaging(
            over="all" if options.averaging == "all" else "members",
            client_weight="samples" if responsibility or options.client_weight == "samples" else "uniform",
            combine=read_combine(options.combine),
        ),
        "exchange": options.exchange,
        "lr": options.lr,
        "lr_decay": options.lr_decay,
        "server_lr": options.server_lr,
        "participation": options.participation,
        "restarts": options.restarts,
        "shared": tuple(options.shared.split(",")) if options.shared else (),
    }
