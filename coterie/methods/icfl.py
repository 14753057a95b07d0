"""ICFL as in HCFL: one model for all, cut in two where updates do not point one way, and again. (Yan et al. 2023)

paper                      here
Delta theta_i              row `change`: what client i changed of its cluster's model
A_ij, alpha_G              cosine of two updates of a cluster; largest eigenvalue of A / n
alpha*(t)                  1 - (e/eps_1)^(t/eps_2), eps_2 = ln(1 - alpha_0) / (1 - ln eps_1); t = rounds done before
alpha_0, eps_1             alpha0, eps1

After a cut the model of a part is the mean of what its members made of the cluster's. Nothing is merged or removed.
This follows the implementation by HCFL's authors, but for two points: everybody begins in one cluster instead of a pool
from which clients are placed by their models, and the cut is by rows of eigenvectors (theirs takes the other axis).

alpha*(t) rises to 1, so the number of clusters runs towards the number of clients unless `max_clusters` caps it; in
Table 1 of HCFL (Guo, Tang, Lin 2025) it ends at 98 to 100 with 100 clients.
"""

from __future__ import annotations

import math

from coterie.errors import ConfigError
from coterie.methods.base import Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Adaptive, SplitBySpectrum


def icfl(options: Options) -> Method:
    """theta_c <- mean over members; cut c in two where alpha_G < alpha*(t)."""
    own = options.own
    if not own["alpha0"] < 1:
        raise ConfigError(f"icfl: alpha0 must be below 1, got {own['alpha0']:g}: at 1 the threshold would never rise")
    step = SplitBySpectrum(own["alpha0"], own["eps1"], own["warmup"], own["least"], own["max_clusters"])
    return Method(
        "icfl",
        Conditional(),
        Assigned(),
        Adaptive(1, (step,)),
        distance=UpdateCosine(),
        groups=Groups("one"),
        **parts(options),
    )


ENTRY = Entry(
    name="icfl",
    summary="one model for all, cut in two where updates point apart; the threshold rises, so cap the number",
    paper="Yan, Tong, Wang: Clustered Federated Learning in Heterogeneous Environment, 2023, as in Guo, Tang, Lin: "
    "Enhancing Clustered Federated Learning, 2025",
    compose=icfl,
    refuses=frozenset({"combine", "exchange", "shared", "restarts", "clusters"}),
    options=(
        Option("alpha0", float, "how slowly the threshold on alpha rises, between 0 and 1 (alpha_0)", 0.85, above=0),
        Option("eps1", float, "base of the threshold, above e (eps_1)", 4.0, above=math.e),
        Option("warmup", int, "rounds before the first cut", 0, low=0),
        Option("least", int, "no cluster with fewer members is cut", 2, low=2),
        Option("max_clusters", int, "no more clusters than this; without it nearly every client ends alone", low=1),
    ),
    defaults=lambda given: {"clusters": 1, "client_weight": "samples", "averaging": "members"},
    twin="fedavg",
    reveals={"cluster": "which cluster it is in", "change": "how it changed its cluster's model"},
)
