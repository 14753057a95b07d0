"""Label shift: the classes that a client holds. All draws are without replacement from one set of samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coterie.data.sizes import equal_parts
from coterie.errors import ConfigError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Shares = Callable[[Ints, np.random.Generator], Floats]
"""Function of the remaining number of samples of each class, (C,), that returns a client's class shares, (C,)."""


def dirichlet_prior(alpha: float) -> Shares:
    """Return q ~ Dir(alpha p), where p are the class shares of the remaining samples.

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
    With alpha = 1 and ten even classes every class has concentration 0.1, so a client holds few classes.
    """
    return lambda left, random: _dirichlet(alpha * left / left.sum(), random)


def dirichlet_symmetric(alpha: float) -> Shares:
    """Return q ~ Dir(alpha, ..., alpha) over the remaining classes; alpha = 1 is uniform on the simplex."""
    return lambda left, random: _dirichlet(np.where(left > 0, alpha, 0.0), random)


def no_label_shift(left: Ints, random: np.random.Generator) -> Floats:
    """Return the class shares of the remaining samples."""
    return np.asarray(left / left.sum())


def _dirichlet(concentration: Floats, random: np.random.Generator) -> Floats:
    """Return a Dirichlet draw; entries whose concentration is 0 are 0."""
    shares = np.zeros(len(concentration))
    some = concentration > 0
    shares[some] = random.dirichlet(concentration[some])
    return shares


def deal(labels: Ints, clients: int, each: int, shares: Shares, random: np.random.Generator) -> Ints:
    """Return the samples of each client, (clients, each), one client after the other.

    A client's classes are drawn from its shares. A class that is exhausted gets share 0 and the rest is scaled up;
    where no sample is left of any class with a share, the client takes the remaining samples in proportion.
    """
    if clients * each > len(labels):
        raise ConfigError(
            f"{clients} clients with {each} samples each need {clients * each}, but there are {len(labels)}: "
            "use fewer clients or samples"
        )
    left = np.bincount(labels)
    counts = np.empty((clients, len(left)), np.int64)
    for client in range(clients):
        counts[client] = draw_counts(each, shares(left, random), left, random)
        left = left - counts[client]
    return take(labels, counts, random)


def take(labels: Ints, counts: Ints, random: np.random.Generator) -> Ints:
    """Return random samples for each client, (m, each), counts[i, c] of class c for client i; all rows have one sum."""
    owners: list[Ints] = []
    taken: list[Ints] = []
    for c, of_class in enumerate(counts.T):
        taken.append(random.permutation(np.flatnonzero(labels == c))[: of_class.sum()])
        owners.append(np.repeat(np.arange(len(counts)), of_class))
    order = np.argsort(np.concatenate(owners), kind="stable")
    rows: Ints = random.permuted(np.concatenate(taken)[order].reshape(len(counts), -1), axis=1)
    return rows


def draw_counts(each: int, shares: Floats, left: Ints, random: np.random.Generator) -> Ints:
    """Return the number of samples of each class, (C,): `each` in all, none above the number that is `left`.

    As if classes were drawn one by one: samples beyond the remaining ones are drawn again without that class.
    """
    counts = np.zeros_like(left)
    while (missing := each - int(counts.sum())) > 0:
        open_shares = np.where(counts < left, shares, 0.0)
        if open_shares.sum() == 0:
            open_shares = (left - counts).astype(np.float64)
        drawn = random.multinomial(missing, open_shares / open_shares.sum())
        counts = np.minimum(counts + drawn, left)
    return counts


def classes_per_client(classes: int, each: int, clients: int, random: np.random.Generator) -> Ints:
    """Return the classes of every client, (clients, each), sorted; every class is used about equally often.

    each = 2 of an even number: the classes are cut into disjoint random pairs, and client i has pair i mod (classes/2).
    Else a client gets the classes that were used least before, ties at random: uses never differ by more than one.
    """
    if each > classes:
        raise ConfigError(f"classes_each must be at most {classes}, the classes there are; got {each}")
    if each == 2 and classes % 2 == 0:
        pairs = random.permutation(classes).reshape(-1, 2)
        return np.sort(pairs[np.arange(clients) % len(pairs)], axis=1)
    used = np.zeros(classes, np.int64)
    chosen = np.empty((clients, each), np.int64)
    for client in range(clients):
        chosen[client] = np.sort(np.lexsort((random.random(classes), used))[:each])
        used[chosen[client]] += 1
    return chosen


def most_of_classes(labels: Ints, chosen: Ints) -> int:
    """Return the number of samples that every client can have with equally many of its classes `chosen` (m, k)."""
    there = np.bincount(labels)
    wanted = np.bincount(chosen.ravel(), minlength=len(there))
    of_class = int((there[wanted > 0] // wanted[wanted > 0]).min())
    return of_class * int(chosen.shape[1])


def deal_classes(labels: Ints, chosen: Ints, each: int, random: np.random.Generator) -> Ints:
    """Return the samples of each client, (m, each): about equally many of each of its classes `chosen` (m, k)."""
    there = np.bincount(labels)
    counts = np.zeros((len(chosen), len(there)), np.int64)
    parts = equal_parts(each, chosen.shape[1], "classes")
    for client, own in enumerate(chosen):
        counts[client, own] = random.permutation(parts)
    if (counts.sum(axis=0) > there).any():
        raise ConfigError(
            f"{len(chosen)} clients with {each} samples of {chosen.shape[1]} classes are too many, there are "
            f"{most_of_classes(labels, chosen)} for each: use fewer clients or samples"
        )
    return take(labels, counts, random)
