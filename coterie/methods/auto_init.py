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
"""Largest total number of parameters of all clients' models for which the server holds all of them at once."""


@register("auto")
@dataclass(frozen=True, kw_only=True)
class AutoInit(Drawn):
    """Starts from clustered solutions of the clients (`ODCL`) if possible, otherwise from random models.

    Models are random if a number of restarts is given, if there is one cluster or trial runs choose the number of
    clusters, if clusters share a body, if the run is private (every client's own solution would be sent without noise),
    or if the clients' models together have more than 10^8 parameters.

    Example:
        >>> from coterie.methods import AutoInit, FeSEM
        >>> FeSEM(clusters=3).init == AutoInit()
        True
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
    """Base class of methods that by default start from clustered solutions of the clients."""

    init: Initializer = AutoInit()

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `restarts=auto`, because recommended numbers of restarts apply to random models only."""
        return {"restarts": AUTO}
