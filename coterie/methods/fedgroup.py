"""FedGroup: clients are grouped once by their first updates, then each group trains its model. (Duan et al. 2021)

paper                     here
w_0, pretraining          the common start; pretrain_steps local steps of every client
Delta w_i                 row `model`: what client i made of w_0
n = min(alpha m, N)       founders, 20 for each group: the clients whose updates make the groups
m groups                  clusters
EDC                       measure=edc: cosines of Delta w_i with the K leading directions of all, then k-means
MADC                      measure=madc: mean difference of two clients' cosines with every third, complete linkage
client cold start         whoever is no founder joins the group whose mean update has the largest cosine with its own
eta_G                     left out: no step between the groups, as for eta_G = 0

A group's first model is the mean of what its founders made of w_0. All clients pretrain before the first round, also
those that the paper asks when it first meets them. The groups stay; a newcomer joins by least loss, where the paper
lets it pretrain first.
"""

from __future__ import annotations

from coterie.methods.base import Entry
from coterie.methods.one_shot import IN_CLUSTERS, THEN_OPTIONS, inside_clusters
from coterie.options import Options
from coterie.tiers.method import Method
from coterie.training.starts import DECOMPOSED_COSINE, UPDATE_OPTIONS


def fedgroup(options: Options) -> Method:
    """Inside clusters of like updates."""
    return inside_clusters("fedgroup", options)


ENTRY = Entry(
    name="fedgroup",
    summary="clients are grouped once by how they change one model, then each group trains its model",
    paper="Duan, Liu, Ji, Wu, Liang, Chen, Tan, Ren: FedGroup: Efficient Federated Learning via Decomposed "
    "Similarity-Based Clustering, 2021",
    compose=fedgroup,
    refuses=frozenset({"start", "restarts"}),
    options=(*THEN_OPTIONS, *UPDATE_OPTIONS),
    defaults=lambda given: {"clusters": 2, "client_weight": "samples", "averaging": "members"},
    prefers=lambda given: {"start": DECOMPOSED_COSINE, "restarts": 1},
    no_twin="its single cluster starts from the mean of the pretrained models, where no other method does",
    reveals=IN_CLUSTERS,
)
