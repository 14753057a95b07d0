"""A race of starts: several random starts for a few rounds on some of the clients; the best goes on alone.

A random start can be stuck for good, and the two kinds are far apart by training loss after a few rounds already. So
the start that leads then is kept, with what it has learned, and the others cost nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.state import ServerState, best_restart
from coterie.privacy.noise import SECRET, Noise
from coterie.server.loop import Round, rounds
from coterie.tiers.method import Method


def rounds_with_race(
    method: Method,
    federation: Federation,
    state: ServerState,
    total: int,
    seed: int,
    groups: Tensor | None,
    noise: Noise = SECRET,
) -> Iterator[Round]:
    """The rounds of the race, if one is due, then all others; race rounds count as rounds like any other."""
    race = method.race
    if race is not None and state.clusters.restarts > 1:
        racing = replace(method, participation=race.share)
        for done in rounds(racing, federation, state, min(race.rounds, total), seed, groups, noise):
            state = done.state
            yield done
            if done.diverged:
                return
        if state.round < total:
            state = state.keep_restart(best_restart(state.loss))
    yield from rounds(method, federation, state, total, seed, groups, noise)
