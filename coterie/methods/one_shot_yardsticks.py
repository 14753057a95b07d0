"""What the one-shot methods are measured against: local ERM, naive averaging, oracle averaging, cluster oracle.

All take the clients' own solutions, or those of pooled data, and exchange nothing after that. (Armacki et al. 2022,
section 5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.methods.base import Entry, parts
from coterie.methods.odcl import PAPER, SOLVING
from coterie.options import COMMON, Options
from coterie.tiers.assignment import Assigned, SingleCluster
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed
from coterie.training.starts import ODCL, SOLVER_OPTIONS

REFUSED = frozenset({option.name for option in COMMON} - SOLVING)


def local_erm(options: Options) -> Method:
    """Every client keeps its own solution."""
    return Method(
        "local-erm",
        Conditional(),
        Assigned(),
        Fixed(options.clusters),
        groups=Groups("self"),
        travels=False,
        **parts(options),
    )


def naive_averaging(options: Options) -> Method:
    """One model: the mean of all solutions."""
    return Method("naive-averaging", Conditional(), SingleCluster(), Fixed(1), **parts(options))


def oracle_averaging(options: Options) -> Method:
    """The mean of the solutions inside the true groups."""
    return _true_groups("oracle-averaging", options)


def cluster_oracle(options: Options) -> Method:
    """The solution of the pooled data of each true group, problem (3) of the paper; no federation could have it."""
    return _true_groups("cluster-oracle", options)


def _true_groups(name: str, options: Options) -> Method:
    return Method(name, Conditional(), Assigned(), Fixed(options.clusters), groups=Groups("truth"), **parts(options))


def _entry(name: str, summary: str, compose: Callable[[Options], Method], start: str = ODCL, **more: Any) -> Entry:
    """What all of them have in common: they begin with solutions, and no round follows."""
    return Entry(
        name=name,
        summary=summary,
        paper=PAPER,
        compose=compose,
        options=SOLVER_OPTIONS,
        defaults=lambda given: {"rounds": 0, "client_weight": "uniform", "averaging": "members"},
        prefers=lambda given: {"start": start, "restarts": 1},
        **{"refuses": REFUSED} | more,
    )


ENTRIES = (
    _entry(
        "local-erm",
        "every client solves its own problem and keeps the solution",
        local_erm,
        refuses=REFUSED | {"client_weight", "finetune"},
        no_twin="K is the number of clients by definition",
        reveals={"model": "its own model; nothing leaves the client in a deployment"},
        groups="self",
    ),
    _entry(
        "naive-averaging",
        "the mean of all clients' own solutions, one round",
        naive_averaging,
        no_twin="it has one cluster by definition",
        groups="one",
    ),
    _entry(
        "oracle-averaging",
        "the true groups are known: the mean of the own solutions in each, one round",
        oracle_averaging,
        twin="naive-averaging",
        groups="truth",
    ),
    _entry(
        "cluster-oracle",
        "the true groups are known and their data is in one place: one solution for each",
        cluster_oracle,
        start="cluster-oracle",
        refuses=REFUSED | {"client_weight"},
        no_twin="pooled data: no method that leaves it with the clients equals it",
        groups="truth",
    ),
)
