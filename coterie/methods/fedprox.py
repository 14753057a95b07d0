"""FedProx: FedAvg whose clients are held near the model they received. (Li et al. 2020)

paper   here
w^t     clusters.params, K = 1      mu  mu      h_k(w; w^t) = F_k(w) + (mu/2) ||w - w^t||^2
"""

from __future__ import annotations

from dataclasses import replace

from coterie.methods.base import Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import SingleCluster
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def fedprox(options: Options) -> Method:
    """FedAvg with the proximal term in every local step."""
    common = parts(options)
    work = replace(common.pop("work"), prox=options.own["mu"])
    return Method("fedprox", Conditional(), SingleCluster(), Fixed(1), work=work, **common)


ENTRY = Entry(
    name="fedprox",
    summary="one global model, local steps held near it",
    paper="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, 2020",
    compose=fedprox,
    refuses=frozenset({"clusters", "averaging", "shared", "restarts", "exchange"}),
    options=(Option("mu", float, "strength of the pull to the received model (mu)", 0.1, low=0),),
    defaults=lambda given: {"client_weight": "samples", "averaging": "members"},
    no_twin="its proximal term has no counterpart in FedAvg; with mu=0 they are equal, which a test checks",
    reveals={"cluster": "always 0"},
    groups="one",
)
