"""Several random starts that compete in the first rounds, for methods whose result depends on the start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from coterie.core.state import ServerState
from coterie.learners.base import Learner
from coterie.methods.base import TieredMethod
from coterie.methods.round import Step
from coterie.methods.run import Run
from coterie.options import AUTO, Auto, option

STARTS = 5
"""restarts=auto: number of random starts."""
ROUNDS = 5
"""race=auto: number of rounds of the race."""
SHORTEST = 4 * ROUNDS
"""restarts=auto: runs of fewer rounds have one start, since a race would take up too much of them."""
SHARE, EACH = 0.25, 10
"""race_share=auto: this share of the clients, but at least this many clients for each cluster."""


@dataclass(frozen=True, kw_only=True)
class Raced(TieredMethod):
    """Base of methods that race several random starts: some clients train all of them, and the best one goes on."""

    race: int | Auto = option(
        AUTO,
        "number of rounds after which only the best of several restarts continues; 0: all continue; auto: "
        f"{ROUNDS} if restarts is auto, too, and 0 otherwise",
        low=0,
    )
    race_share: float | Auto = option(
        AUTO,
        f"share of clients asked in each round of a race; auto: {SHARE:g}, or more, so that there are {EACH} clients "
        "for each cluster",
        above=0,
        high=1,
        needs="race",
    )

    def with_starts(self, learner: Learner, clients: int, rounds: int | None) -> Self:
        """Race several starts where there are clusters to be told apart and rounds enough for a race."""
        usual = self.init.restarts == AUTO
        enough = rounds is None or rounds >= SHORTEST
        several = usual and enough and self.init.random and self.count != 1 and not self.shared
        race = (ROUNDS if several else 0) if self.race == AUTO else self.race
        share: float | Auto = self.race_share
        if share == AUTO and race > 0:
            share = min(1.0, max(SHARE, EACH * (self.count or 1) / clients))
        decided = replace(self, race=race, race_share=share)
        return decided._started(STARTS if several else 1)

    def step(self, run: Run, state: ServerState) -> Step:
        """One round; during a race some clients train all restarts, after it everybody trains the best one."""
        if self.race_rounds and state.clusters.restarts > 1:
            if state.round < self.race_rounds:
                assert self.race_share != AUTO, "decided when the run is planned"
                run = replace(run, settings=replace(run.settings, participation=self.race_share))
            else:
                state = state.best_restart_only()
        return super().step(run, state)

    @property
    def race_rounds(self) -> int:
        """Rounds in which several restarts compete on a share of the clients."""
        return self.race if self.race != AUTO and self.init.starts > 1 else 0
