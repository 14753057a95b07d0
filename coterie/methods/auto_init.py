"""The default initializer of methods whose result depends strongly on their first models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.registry import register
from coterie.learners.base import Learner
from coterie.methods.base import TieredMethod
from coterie.methods.initializers import Drawn, RandomInit
from coterie.methods.odcl import ODCL
from coterie.methods.run import Initializer
from coterie.options import AUTO

MOST_NUMBERS = 100_000_000
"""Largest size of all clients' models together, in numbers, for which the server holds all of them at once."""


@register("auto")
@dataclass(frozen=True, kw_only=True)
class AutoInit(Drawn):
    """The clustered solutions of the clients (`ODCL`) where they can be had, otherwise random models.

    Models are random if a number of restarts is given, if there is one cluster or trial runs choose their number, if
    clusters share a body, if the run is private (every client's own solution would be sent without noise), or if the
    clients' models together have more than 10^8 parameters.
    """

    any_count: ClassVar[bool] = True
    finds_count: ClassVar[bool] = True

    def decided(self, learner: Learner, clients: int, own_solutions: bool) -> Initializer:
        if self.restarts != AUTO or not own_solutions:
            return RandomInit(restarts=self.restarts)
        width = sum(p[0].numel() for p in learner.start([0], learner.dtype).values())
        return ODCL() if clients * width <= MOST_NUMBERS else RandomInit()


@dataclass(frozen=True, kw_only=True)
class StartsFromSolutions(TieredMethod):
    """Base of methods that start from clustered solutions of the clients unless something else is asked for."""

    init: Initializer = AutoInit()

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `restarts=auto`: a number of restarts that a scenario recommends is for random models."""
        return {"restarts": AUTO}
