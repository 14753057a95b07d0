"""What a server may ask of a node at most, so that no request exhausts its memory or its time."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from coterie.core.plain import to_plain
from coterie.errors import ConfigError
from coterie.flower.untrusted import is_count, shown
from coterie.flower.wire import Request

SEEDS = ("seed",)
"""Settings that may be any whole number."""
STEPS = ("steps", "epochs")
MOST_LEARNER = 500
"""Characters of the text that names a learner."""


class RefusedError(ConfigError):
    """A request that this node does not serve. The text follows from the request and the node's settings alone."""


@dataclass(frozen=True)
class Limits:
    """The largest request that a node serves."""

    steps: int = 100_000
    """Local steps or epochs of one request."""
    clusters: int = 100_000
    """K."""
    restarts: int = 1_000
    """Independent starts that are trained side by side."""
    values: int = 10**9
    """Numbers in the arrays of a request, in one layer of its model, or in the weights that its clients keep."""
    setting: int = 10**6
    """Any other whole number among the settings of a task."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not is_count(getattr(self, field.name), 1, 2**62):
                raise ConfigError(f"{field.name} must be a whole number from 1 on, got {getattr(self, field.name)!r}")

    def check(self, request: Request) -> None:
        """Raise RefusedError for a request that is too large; nothing is computed and no sample is looked at."""
        clusters = request.broadcast.clusters
        _within("clusters", clusters.K, self.clusters, low=0)
        _within("restarts", clusters.restarts, self.restarts)
        kept = clusters.K * clusters.restarts * len(request.clients)
        for name, value in _whole_numbers(to_plain(request.task)):
            if name == "gaussians":
                kept *= max(1, value)
            if name not in SEEDS:
                _within(name, value, self.steps if name in STEPS else self.setting, low=-self.setting)
        b = request.broadcast
        arrays = (clusters.params, clusters.shared, clusters.overall or {}, b.each, b.common)
        _within("the number of values sent", sum(a.numel() for part in arrays for a in part.values()), self.values, 0)
        _within("the number of weights", kept, self.values, 0)
        terms = request.terms
        if not isinstance(terms.learner, str) or len(terms.learner) > MOST_LEARNER:
            raise RefusedError(f"the learner must be a text of at most {MOST_LEARNER} characters")
        # every layer joins one width to the next
        widths = [math.prod(terms.features), *map(int, re.findall(r"\d{1,18}", terms.learner)), terms.classes or 1]
        for one, other in itertools.pairwise(widths):
            _within("the size of a layer", one * other, self.values, 0)


def _within(name: str, value: object, most: int, low: int = 1) -> None:
    if not is_count(value, low, most):
        raise RefusedError(f"this node serves {name} up to {most}, but the request has {shown(value)}")


def _whole_numbers(settings: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number in the settings of a task, with the name that it has there."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _whole_numbers(value, str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _whole_numbers(value, name)
    elif isinstance(settings, int) and not isinstance(settings, bool):
        yield name, settings
