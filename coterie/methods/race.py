"""Race of several random initialisations in the first rounds, for methods whose result depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from coterie.core.state import ServerState
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.methods.base import TieredMethod
from coterie.methods.run import Run
from coterie.options import AUTO, Auto, option

STARTS = 5
"""Number of random initialisations with restarts=auto."""
ROUNDS = 5
"""Number of rounds of the race with race=auto."""
SHORTEST = 4 * ROUNDS
"""Smallest number of rounds with several initialisations under restarts=auto; a race would take too much of fewer."""
SHARE, EACH = 0.25, 10
"""Share of the clients in a race with race_share=auto, and the smallest number of clients per cluster."""


@dataclass(frozen=True, kw_only=True)
class Raced(TieredMethod):
    """Base class of methods in which several random initialisations race and only the best one continues.

    A subclass passes what `raced` returns to each round.
    """

    race: int | Auto = option(
        AUTO,
        "number of rounds after which only the best of several restarts continues; 0: all continue; auto: "
        f"{ROUNDS} if restarts is auto too, and 0 otherwise",
        low=0,
    )
    race_share: float | Auto = option(
        AUTO,
        f"share of clients asked in each round of a race; auto: {SHARE:g}, or more if needed for {EACH} clients per "
        "cluster",
        above=0,
        high=1,
        needs="race",
    )

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `race=auto` if the user chooses the initial models: a recommended race may then have no effect."""
        chosen = {"restarts", "init"} & given.keys()
        return {**super().preferred(given), **({"race": AUTO} if chosen else {})}

    def with_decided_init(self, learner: Learner, clients: int, rounds: int | None) -> Self:
        """Race several initialisations if there are several clusters and enough rounds for a race."""
        usual = self.init.restarts == AUTO
        enough = rounds is None or rounds >= SHORTEST
        several = usual and enough and self.init.random and self.count != 1 and not self.shared
        race = (ROUNDS if several else 0) if self.race == AUTO else self.race
        share: float | Auto = self.race_share
        if share == AUTO and race > 0:
            share = min(1.0, max(SHARE, EACH * (self.count or 1) / clients))
        decided = replace(self, race=race, race_share=share)._with_restarts(STARTS if several else 1)
        if not race or decided.init.restart_count > 1:
            return decided
        if not usual:
            raise ConfigError(
                f"race={race} has no effect: models start from a single initialisation; set restarts to 2 or more, or "
                "leave race out"
            )
        return replace(decided, race=0, race_share=AUTO)

    def raced(self, run: Run, state: ServerState) -> tuple[Run, ServerState]:
        """Return the run and the state for the next round.

        During a race, a share of the clients trains all restarts; after it, all clients train the best one.
        """
        if self.race_rounds == 0 or state.clusters.restarts == 1:
            return run, state
        if state.round >= self.race_rounds:
            return run, state.best_restart_only()
        assert self.race_share != AUTO, "decided when the run is planned"
        return replace(run, settings=replace(run.settings, participation=self.race_share)), state

    @property
    def race_rounds(self) -> int:
        """Number of rounds in which several restarts compete on a share of the clients."""
        return self.race if self.race != AUTO and self.init.restart_count > 1 else 0
