"""FeSEM: clients are clustered by the distance of their models' parameters. (Xie, Long, Shen, Zhou, Wang, Jiang 2021)

paper             here
W^(k)             clusters.params                 W_i  a client's model after its local steps from its cluster's
r_i^(k)           the cluster nearest to W_i, before this round's averaging; kept by the client
                  in the first round the one of least loss (the paper draws it at random)
W^(k) <- mean     averaging over members; client_weight=samples, or uniform as in the paper

After a few local steps a model is mostly nearest to the one it started from, so clusters rarely change after the first
round.
"""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import Options
from coterie.tiers.assignment import NearestParameters
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def fesem(options: Options) -> Method:
    """W_i <- local steps from W^(k_i); k_i <- argmin_k |W_i - W^(k)|; W^(k) <- mean of W_i with k_i = k."""
    return Method("fesem", Conditional(), NearestParameters(), Fixed(options.clusters), **parts(options))


ENTRY = Entry(
    name="fesem",
    summary="clients join the cluster whose parameters are nearest to their own model's",
    paper="Xie, Long, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning, 2021",
    compose=fesem,
    refuses=frozenset({"exchange", "shared"}),
    defaults=lambda given: {"clusters": 3, "client_weight": "samples", "averaging": "members"},
    twin="fedavg",
    reveals={"cluster": "which cluster it is in"},
)
