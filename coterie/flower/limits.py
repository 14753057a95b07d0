"""Limits on the requests that a node serves, so that no request exhausts its memory or takes too long."""

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
"""Settings that are limited by `Limits.steps`."""
MOST_LEARNER = 500
"""Largest number of characters of the text that names a learner."""


class RefusedError(ConfigError):
    """Error for a request that this node does not serve.

    The text depends only on the request and the settings of the node, and never on data.
    """


@dataclass(frozen=True)
class Limits:
    """Largest request that a node serves.

    Args:
        steps: Largest number of local steps or epochs in one request.
        clusters: Largest number of clusters (K).
        restarts: Largest number of restarts that are trained at once.
        values: Largest number of values in the arrays of a request, in one layer of its model, and in the weights that
            its clients keep.
        setting: Largest value of any other whole number among the settings of a task.

    Raises:
        ConfigError: if a limit is not a whole number of at least 1.

    Example:
        >>> from coterie.flower.limits import Limits
        >>> Limits(steps=1000).steps
        1000
    """

    steps: int = 100_000
    clusters: int = 100_000
    restarts: int = 1_000
    values: int = 10**9
    setting: int = 10**6

    def __post_init__(self) -> None:
        for field in fields(self):
            if not is_count(getattr(self, field.name), 1, 2**62):
                raise ConfigError(
                    f"{field.name} must be a whole number of at least 1, got {getattr(self, field.name)!r}"
                )

    def check(self, request: Request) -> None:
        """Raise RefusedError for a request that is too large, without computing anything or reading a sample."""
        clusters = request.broadcast.clusters
        _check_range("clusters", clusters.K, self.clusters, low=0)
        _check_range("restarts", clusters.restarts, self.restarts)
        kept = clusters.K * clusters.restarts * len(request.clients)
        for name, value in _whole_numbers(to_plain(request.task)):
            if name == "gaussians":
                kept *= max(1, value)
            if name not in SEEDS:
                _check_range(name, value, self.steps if name in STEPS else self.setting, low=-self.setting)
        b = request.broadcast
        arrays = (clusters.params, clusters.shared, clusters.overall or {}, b.each, b.common)
        _check_range(
            "the number of values sent", sum(a.numel() for part in arrays for a in part.values()), self.values, 0
        )
        _check_range("the number of weights", kept, self.values, 0)
        terms = request.terms
        if not isinstance(terms.learner, str) or len(terms.learner) > MOST_LEARNER:
            raise RefusedError(f"the learner must be a text of at most {MOST_LEARNER} characters")
        # the weights of a layer connect one width with the next
        widths = [math.prod(terms.features), *map(int, re.findall(r"\d{1,18}", terms.learner)), terms.classes or 1]
        for one, other in itertools.pairwise(widths):
            _check_range("the size of a layer", one * other, self.values, 0)


def _check_range(name: str, value: object, most: int, low: int = 1) -> None:
    if not is_count(value, low, most):
        raise RefusedError(f"this node accepts at most {most} for {name}, but the request has {shown(value)}")


def _whole_numbers(settings: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield every whole number in the settings of a task, with its name."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _whole_numbers(value, str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _whole_numbers(value, name)
    elif isinstance(settings, int) and not isinstance(settings, bool):
        yield name, settings
