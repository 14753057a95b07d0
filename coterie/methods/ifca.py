"""IFCA: every client joins the cluster whose model fits it best, then improves it. (Ghosh et al. 2020)

paper         here
theta_j^(t)   clusters.params, one row for each of K clusters       k    clusters
F_i           the client's mean loss                                 M_t  participation
gamma         lr                                                     tau  local_steps
option I      exchange=gradient, averaging=all, divide_by=federation: theta_j - (gamma/m) sum of members' gradients
option II     exchange=model, averaging=members, client_weight=uniform: the plain mean of the members' models
section 4.3   shared: a common body; stable_after: once identities are stable only the own model is sent
section 5     resample: each round uses fresh samples, some for the cluster, others for the gradient
section 6     restarts: several random starts, the least training loss wins; race (ours): decided after a few rounds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coterie.methods.base import CHOICE_OPTIONS, Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.method import Method, Race
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def ifca(options: Options) -> Method:
    """j_i = argmin_j F_i(theta_j); local steps on theta_{j_i}; average over those who chose the same j."""
    common = parts(options)
    averaging = replace(common.pop("averaging"), divide_by=options.own["divide_by"])
    return Method(
        "ifca",
        objective=Conditional(),
        weights=LowestLoss(),
        procedure=Fixed(options.clusters),
        averaging=averaging,
        stable_after=options.own.get("stable_after"),
        resample=options.rounds if options.own["resample"] else None,
        race=Race(options.own["race"], options.own["race_share"]) if options.own.get("race") else None,
        **common,
    )


def _defaults(given: Mapping[str, object]) -> Mapping[str, object]:
    gradient = given.get("exchange") == "gradient"
    return {
        "clusters": 2,
        "client_weight": "uniform",
        "averaging": "all" if gradient else "members",
        "divide_by": "federation" if gradient else "answered",
    }


ENTRY = Entry(
    name="ifca",
    summary="clients join the cluster whose model fits them best",
    paper="Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020",
    compose=ifca,
    options=(
        Option("race", int, "rounds after which only the best of several restarts goes on; 0: all go on", 0, low=0),
        Option("race_share", float, "share of clients asked in each round of a race", 0.25, above=0, high=1),
        Option(
            "divide_by",
            str,
            "with averaging=all: the mass of those who answered, or of the whole federation",
            None,
            ("answered", "federation"),
        ),
        Option(
            "stable_after",
            int,
            "send only its own model to a client that kept its cluster for so many visits; all "
            "models again every so many rounds (off unless given: freezing early hurts)",
            None,
            low=2,
        ),
        Option(
            "resample",
            bool,
            "cut each client's samples into 2 x rounds subsets; every round takes two fresh ones, one to choose the "
            "cluster by and one to train on, as the paper's analysis assumes",
            False,
        ),
        *CHOICE_OPTIONS,
    ),
    defaults=_defaults,
    twin="fedavg",
    reveals={"cluster": "which cluster the client chose"},
)
