"""A race of restarts: several random restarts train for a few rounds on some clients, and the best continues alone.

A random initialisation can be stuck for good, and the training losses of stuck restarts and of others are far apart
after a few rounds. So the best restart is kept then, with everything it has learned, and the others cost nothing more.
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
    """Train with a race first, if the method has one; rounds of the race count like all others.

    The arguments are those of `rounds`.
    """
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
