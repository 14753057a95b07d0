"""Drawn clients with a linear or logistic relation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.scoreboard.drawing import Client, Drawn, Values, federation, table

FEATURES = 8
TESTED = 40
"""Held-out samples of each client."""


@dataclass(frozen=True)
class Regression:
    """Clients in groups whose coefficients differ."""

    classes: bool = False
    """Whether the target is one of two classes (logistic) and not a number (linear)."""
    groups: int = 3
    spread: float = 1.0
    """Standard deviation of a coefficient between groups; that of the noise is 1."""
    clients: int = 50
    samples: int = 60
    unequal: bool = False
    """Whether clients have 4 to 400 samples."""
    heavy: bool = False
    """Whether features and noise have the tails of Student's t with 3 degrees of freedom."""

    def __call__(self, seed: int) -> Drawn:
        """Return the clients of a seed."""
        random = np.random.default_rng([seed, 2])
        common = 0.7 * random.standard_normal(FEATURES)
        slopes = common + self.spread * random.standard_normal((self.groups, FEATURES))
        group = random.permutation(np.arange(self.clients) % self.groups)
        return federation([self._client(slopes[own], int(own), random) for own in group])

    def _client(self, slopes: Values, group: int, random: np.random.Generator) -> Client:
        train = round(100 ** random.random() * 4) if self.unequal else self.samples
        x = self._noise((train + TESTED, FEATURES), random)
        mean = x @ slopes
        if self.classes:
            y = (random.random(len(x)) < 1 / (1 + np.exp(-2 * mean))).astype(np.int64)
        else:
            y = mean + self._noise(len(x), random)
        return Client(x, y, train, group)

    def _noise(self, shape: int | tuple[int, int], random: np.random.Generator) -> Values:
        return random.standard_t(3, shape) / np.sqrt(3) if self.heavy else random.standard_normal(shape)


SITES, ROWS = 40, 50


def mixed_table(seed: int) -> Drawn:
    """Return sites with a raw table: unlike units, categories, a column with gaps, three groups of prices."""
    random = np.random.default_rng([seed, 5])
    group = random.permutation(np.arange(SITES) % 3)
    own = np.repeat(group, ROWS)
    age = random.normal(50, 15, len(own)).round()
    income = np.exp(random.normal(10, 0.5, len(own)))
    kind = random.choice(["north", "south", "abroad"], len(own), p=[0.5, 0.3, 0.2])
    hours = random.gamma(2.0, 3.0, len(own))
    slopes = random.normal(0, 1, (3, 3))
    price = 100 + 10 * (
        slopes[own, 0] * (age - 50) / 15
        + slopes[own, 1] * (np.log(income) - 10) / 0.5
        + slopes[own, 2] * (kind == "north")
        + 0.5 * hours / 4
        + random.standard_normal(len(own))
    )
    hours[random.random(len(own)) < 0.1] = np.nan
    site = np.repeat([f"site {i:02d}" for i in range(SITES)], ROWS)
    columns = {"site": site, "age": age, "income": income, "kind": kind, "hours": hours, "price": price}
    return table(columns, "site", "price", group.tolist(), seed)
