"""The rows of the scoreboard: every method with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Knows(Enum):
    """How a method gets its number of clusters."""

    ONE = "one model, or one for each client"
    FINDS = "finds K"
    GIVEN = "K given"
    TRUTH = "knows the groups"


@dataclass(frozen=True)
class Entry:
    """A method, with as few options as possible."""

    name: str
    knows: Knows
    method: str = ""
    """Name of the method, if it is another one than that of the row."""
    options: Mapping[str, Any] = field(default_factory=dict)
    learner: str | None = None
    """Model family, if the method needs another one."""
    families: frozenset[str] | None = None
    """Families of scenarios in which it is run; None for all."""
    small: bool = False
    """Whether it belongs to the small version."""

    def runs_in(self, family: str) -> bool:
        """Whether it is run in scenarios of this family."""
        return self.families is None or family in self.families

    def run_options(self, groups: int | None) -> Mapping[str, Any]:
        """Return the options of a run; K is the true number of groups, but 2 if all clients are alike."""
        reported = {"clusters": max(2, groups)} if self.knows is Knows.GIVEN and groups is not None else {}
        return {**self.options, **reported}


LINEAR = frozenset({"linear"})
DRAWN = frozenset({"linear", "logistic"})
"""Families whose runs are cheap enough for trial runs of several K."""

ENTRIES = {
    entry.name: entry
    for entry in (
        Entry("oracle", Knows.TRUTH, small=True),
        Entry("cluster-oracle", Knows.TRUTH),
        Entry("oracle-averaging", Knows.TRUTH),
        Entry("linear-heads", Knows.TRUTH, learner="representation", families=LINEAR),
        Entry("fedavg", Knows.ONE, small=True),
        Entry("fedprox", Knows.ONE),
        Entry("naive-averaging", Knows.ONE),
        Entry("local", Knows.ONE, small=True),
        Entry("local-erm", Knows.ONE),
        Entry("fedamp", Knows.ONE),
        Entry("auto", Knows.FINDS, small=True),
        Entry("cfl", Knows.FINDS, small=True),
        Entry("icfl", Knows.FINDS),
        Entry("hcfl", Knows.FINDS),
        Entry("hcfl-split", Knows.FINDS),
        Entry("hcfl+", Knows.FINDS, small=True),
        Entry("stocfl", Knows.FINDS, small=True),
        Entry("pacfl", Knows.FINDS, small=True),
        Entry("fedgroup", Knows.FINDS),
        Entry("flexcfl", Knows.FINDS),
        Entry("odcl", Knows.FINDS),
        Entry("ifca-auto", Knows.FINDS, "ifca", {"clusters": "auto"}, families=DRAWN),
        Entry("ifca", Knows.GIVEN, small=True),
        Entry("ifca-momentum", Knows.GIVEN),
        Entry("fedem", Knows.GIVEN, small=True),
        Entry("fedrc", Knows.GIVEN),
        Entry("fedgmm", Knows.GIVEN),
        Entry("fedsoft", Knows.GIVEN),
        Entry("fesem", Knows.GIVEN),
        Entry("one-shot", Knows.GIVEN),
        Entry("moment-descent", Knows.GIVEN),
        Entry("two-phase", Knows.GIVEN),
        Entry("linear-heads-found", Knows.GIVEN, learner="representation", families=LINEAR),
    )
}
LEFT_OUT = frozenset({"tiered"})
"""Registered methods without an entry: a combination of tiers has no default parts."""
