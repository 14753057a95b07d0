"""PACFL: clients whose samples lie in like subspaces are grouped once, then each group trains its model.

(Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin 2023)

paper                  here
U_p of client i        row `subspace`: the first p left singular vectors of its d x n matrix of samples (directions)
A_ij, (2) and (3)      degrees: the least principal angle, or the sum (angle), from the singular values of U_i^T U_j
beta                   beta: clusters are united while the nearest are at most that far apart; or clusters is given
HC                     agglomeration by average or complete linkage (linkage)
federated averaging    then: the rounds of a method for one model, in every cluster apart, all from one start

Everything but the rounds happens before the first of them (`server/grouping_once.py`, `client/summary.py`). Groups are
told apart by p(x) alone: where the same inputs are labelled in another way (pure concept shift) it is blind. Only
per_class with angle=sum, which compares class with class, sees that. Angles grow where clients have few samples, and
beta must grow with them. Samples are taken as they are, so their mean is most of the first direction. The groups stay;
a newcomer joins by least loss, where the paper compares its subspace with those that the server has stored.
"""

from __future__ import annotations

from coterie.methods.base import Entry
from coterie.methods.one_shot import IN_CLUSTERS, THEN_OPTIONS, inside_clusters
from coterie.options import AUTO, Options
from coterie.tiers.method import Method
from coterie.training.starts import ANGLE_OPTIONS, PRINCIPAL_ANGLES


def pacfl(options: Options) -> Method:
    """Inside clusters of like subspaces."""
    return inside_clusters("pacfl", options)


ENTRY = Entry(
    name="pacfl",
    summary="clients are grouped once by the directions of their samples, then each group trains its model",
    paper="Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in "
    "Clustered Federated Learning via Principal Angles between Client Data Subspaces, 2023",
    compose=pacfl,
    refuses=frozenset({"start", "restarts"}),
    options=(*THEN_OPTIONS, *ANGLE_OPTIONS),
    defaults=lambda given: {"client_weight": "samples", "averaging": "members"},
    prefers=lambda given: {"start": PRINCIPAL_ANGLES, "restarts": 1, "clusters": AUTO},
    twin="fedavg",
    reveals=IN_CLUSTERS,
)
