"""Coverage of the intervals in the report: differences of held-out error, and coefficients of logistic models.

    python benchmarks/worth.py

Differences: two fixed models on the held-out samples of drawn clients, whose errors have a part of each client's own
and heavy tails; the true difference is that of 200,000 clients. Coefficients: logistic models with five features whose
clients have separate intercepts; the truth is the fit to 3000 clients. Sizes are equal or log-uniform.
"""

from __future__ import annotations

import numpy as np
import torch

from coterie import from_arrays
from coterie.client.group import ClientGroup
from coterie.core.clusters import Clusters
from coterie.engines.simulated import Simulated
from coterie.evaluate.baselines import difference
from coterie.evaluate.regression import pooled_fits
from coterie.learners import make_learner

DRAWS, FITS = 1000, 200
SLOPES = np.array([1.0, -0.5, 0.25, 0.0, 0.5])


def sizes(random: np.random.Generator, clients: int, equal: bool) -> np.ndarray:
    return np.full(clients, 20) if equal else np.exp(random.uniform(0, np.log(200), clients)).astype(np.int64)


def squares(random: np.random.Generator, clients: int, equal: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of squared errors of two models for each client, and its number of held-out samples."""
    n = sizes(random, clients, equal)
    owner = np.repeat(np.arange(clients), n)
    noise = random.standard_t(4, len(owner))
    x = random.standard_normal(len(owner))
    own = random.normal(0, 0.5, (2, clients))
    sums = [np.bincount(owner, (noise + (own[a, owner] + 0.3 * a) * x) ** 2, clients) for a in (0, 1)]
    return sums[1], sums[0], n.astype(float)


def difference_coverage(clients: int, equal: bool) -> float:
    random = np.random.default_rng(1)
    other, mine, held = squares(random, 200_000, equal)
    true = difference("", other, mine, held, classification=False).value
    found = [difference("", *squares(random, clients, equal), classification=False) for _ in range(DRAWS)]
    return float(np.mean([each.low <= true <= each.high for each in found if each.low is not None and each.high]))


def drawn(random: np.random.Generator, clients: int, equal: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    data = []
    for n in sizes(random, clients, equal):
        x = random.standard_normal((n, 5)) + random.normal(0, 0.5, 5)
        output = x @ SLOPES - 0.5 + random.normal(0, 0.7)
        data.append((x, (random.random(n) < 1 / (1 + np.exp(-output))).astype(np.int64)))
    return data


def fitted(data: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shard = from_arrays(data).train
    learner = make_learner("logistic", from_arrays(data).profile)
    start = Clusters(learner.start([0], torch.float64), 1)
    _, (fit,) = pooled_fits(
        Simulated(ClientGroup(learner, shard)), learner, start, torch.zeros(len(data), dtype=torch.int64)
    )
    return fit.estimate, fit.low, fit.high


def coefficient_coverage(clients: int, equal: bool) -> float:
    random = np.random.default_rng(2)
    true = fitted(drawn(random, 3000, equal))[0]
    inside = []
    for _ in range(FITS):
        _, low, high = fitted(drawn(random, clients, equal))
        inside.append((low <= true) & (true <= high))
    return float(np.mean(inside))


def main() -> None:
    print("share of 95 % intervals that hold the truth")
    print(f"{'clients':>8} {'sizes':>12} {'differences':>12} {'coefficients':>13}")
    for clients in (30, 100, 240):
        for equal in (True, False):
            shares = difference_coverage(clients, equal), coefficient_coverage(clients, equal)
            kind = "equal" if equal else "log-uniform"
            print(f"{clients:>8} {kind:>12} {shares[0]:>12.3f} {shares[1]:>13.3f}", flush=True)


if __name__ == "__main__":
    main()
