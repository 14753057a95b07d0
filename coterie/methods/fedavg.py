"""FedAvg: one model, averaged over all clients by their numbers of samples. (McMahan et al. 2017)

paper   here
w_t     clusters.params, K = 1      eta  lr      E  local_epochs      B  batch_size      C  participation
"""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import Options
from coterie.tiers.assignment import SingleCluster
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def fedavg(options: Options) -> Method:
    """w <- sum_i (n_i / n) w_i, with w_i the client's model after its local steps."""
    return Method("fedavg", Conditional(), SingleCluster(), Fixed(1), **parts(options))


ENTRY = Entry(
    name="fedavg",
    summary="one global model for everybody",
    paper="McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from "
    "Decentralized Data, 2017",
    compose=fedavg,
    refuses=frozenset({"clusters", "averaging", "shared", "restarts"}),
    defaults=lambda given: {"client_weight": "samples", "averaging": "members"},
    no_twin="it is the twin of the others",
    reveals={"cluster": "always 0"},
    groups="one",
)
