"""One-shot clustering, then training inside the clusters. (Ghosh, Hong, Yin, Ramchandran 2019, algorithm 1)

paper                     here
w-hat_i, local ERM        a client's own solution (solver)
clustering of the w-hat   clustering, the same as for odcl
federated optimisation    then: the rounds of a method for one model, in every cluster apart
"""

from __future__ import annotations

from dataclasses import replace

from coterie.methods import fedavg, fedprox
from coterie.methods.base import Entry
from coterie.methods.odcl import prefers
from coterie.options import Option, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.method import Groups, Method
from coterie.tiers.procedure import Fixed
from coterie.training.starts import ODCL_OPTIONS

THEN = {module.ENTRY.name: module.ENTRY for module in (fedavg, fedprox)}
"""The methods that train one model."""


THEN_OPTIONS = (
    Option("then", str, "which method trains inside the clusters", "fedavg", tuple(THEN)),
    *(option for entry in THEN.values() for option in entry.options),
)
IN_CLUSTERS = {"cluster": "which cluster the server put it into"}
"""What the rounds reveal."""


def inside_clusters(name: str, options: Options) -> Method:
    """The rounds of another method, with the clusters that the start found."""
    base: Method = THEN[options.own["then"]].compose(options)
    return replace(base, name=name, weights=Assigned(), procedure=Fixed(options.clusters), groups=Groups("start"))


def one_shot(options: Options) -> Method:
    """Inside clusters of the clients' own solutions."""
    return inside_clusters("one-shot", options)


ENTRY = Entry(
    name="one-shot",
    summary="clients' own solutions are clustered once, then each cluster trains its model",
    paper="Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment, 2019",
    compose=one_shot,
    refuses=frozenset({"start", "restarts"}),
    options=(*THEN_OPTIONS, *ODCL_OPTIONS),
    defaults=lambda given: {"clusters": 2, "client_weight": "samples", "averaging": "members"},
    prefers=prefers,
    no_twin="its single cluster starts from the mean of the clients' own solutions, where no other method does",
    reveals=IN_CLUSTERS,
)
