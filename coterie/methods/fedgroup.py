"""FedGroup: clients are grouped once by their first updates, then each group trains its model. (Duan et al. 2021)

paper                     here
w_0, pretraining          the common initial model; pretrain_steps local steps of every client
Delta w_i                 row `model`: client i's model after pretraining from w_0
n = min(alpha m, N)       founders, 20 for each group: the clients whose updates define the groups
m groups                  clusters; by default as many as tests on halves of the founders' samples show
EDC                       measure=edc: cosines of Delta w_i with the K leading directions of all, then k-means
MADC                      measure=madc: mean difference of two clients' cosines with every third, complete linkage
client cold start         other clients join the group whose mean update has the largest cosine with their own
eta_G                     left out: no step between the groups, as for eta_G = 0 (see `flexcfl.py`)

The paper takes the number of groups as given. By default, founders also pretrain on each half of their samples: a tree
of the updates of one half is cut from its root down, as long as the clients' updates from the other halves are nearer
to the mean update of their own branch than to that of both branches (`tiers/tree_test.py`). The groups themselves are
then made as in the paper.

A group's first model is the mean of its founders' pretrained models. All clients pretrain before the first round, also
those that the paper asks only when it first meets them. The groups do not change. A newcomer joins by the lowest loss,
whereas the paper lets it pretrain first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.client.solvers import LocalSteps
from coterie.client.tasks.local_solve import LocalSolve
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.messages import Broadcast
from coterie.core.registry import register
from coterie.errors import TrainingError
from coterie.methods.counting import check_distinct, count_solved
from coterie.methods.exchanges import NO_CLUSTER, Cost, ask_all, group_means, join_by_loss
from coterie.methods.initializers import clusters_of, one_model
from coterie.methods.one_shot import InsideClusters
from coterie.methods.pacfl import FOUNDERS_EACH, founders
from coterie.methods.run import BEFORE, FirstModels, Initializer, Run
from coterie.options import AUTO, Auto, option
from coterie.server.clustering.agglomerate import agglomerate
from coterie.server.clustering.kmeans import kmeans
from coterie.tiers.distance import CosineGaps, decomposed_cosines
from coterie.tiers.landmarks import MAX_COMPARED


@register("fedgroup")
@dataclass(frozen=True, kw_only=True)
class FedGroup(InsideClusters, Initializer):
    """Clients are grouped once by their updates of one common model, then each group trains its model.

    Delta w_i <- pretrain from w_0; groups <- k-means on EDC; w_g <- w_0 + mean of Delta w_i; then FedAvg in each group.

    Example:
        >>> import coterie
        >>> from coterie.methods import FedGroup
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, FedGroup(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    clusters: int | Auto = option(
        AUTO, "number of clusters (K); auto: the number that tests on halves of the founders' samples show", low=1
    )
    pretrain_steps: int = option(50, "number of local steps of every client before it is grouped", low=1)
    measure: Literal["edc", "madc"] = option(
        "edc",
        "how updates are compared: edc, k-means on the cosines with K leading directions; madc, complete linkage on "
        "the mean difference of the cosines with all other clients",
    )
    founders: int | None = option(
        None,
        "number of clients that define the groups (n); the others join the nearest group; by default 20 K, or 1000 "
        "with clusters=auto",
        low=1,
    )

    summary: ClassVar[str] = "clients are grouped once by their first updates, then each group trains its model"
    citation: ClassVar[str] = (
        "Duan, Liu, Ji, Wu, Liang, Chen, Tan, Ren: FedGroup: Efficient Federated Learning via Decomposed "
        "Similarity-Based Clustering, 2021"
    )
    no_twin: ClassVar[str] = "its single cluster starts from the mean of the pretrained models, unlike any other method"
    finds_count: ClassVar[bool] = True
    models_trained: ClassVar[bool] = True
    reveals_rows: ClassVar[Mapping[str, str]] = {
        "model": "its model after pretraining from the common model",
        "model_first": "of founders: its model after pretraining on a random half of its samples, if tests find the "
        "number of clusters",
        "model_second": "of founders: its model after pretraining on the other half",
        "losses": "its loss under the model of each cluster, if its own pretraining diverged",
    }

    @property
    def initializer(self) -> Initializer:
        return self

    def first_models(self, run: Run) -> FirstModels:
        """Let all clients pretrain from one model, cluster the founders' updates, and assign the others to them."""
        cost, start, federation = Cost(), one_model(run), run.federation
        task = LocalSolve(LocalSteps(run.tiers.local.without_prox(self.pretrain_steps)), run.seed)
        rate = run.tiers.local.rate(0, run.rounds)
        broadcast = Broadcast(BEFORE, Clusters(start, K=1), scalars={"lr": rate})
        answered, rows, diverged = ask_all(federation, task, broadcast, cost)
        if not len(answered):
            raise _no_update(len(diverged))
        updates = rows["model"].double() - flat(start).double().cpu()
        given = run.tiers.K
        count = self.founders or (MAX_COMPARED if given is None else FOUNDERS_EACH * given)
        places = founders(federation, answered, count, run.seed)
        counted = count_solved(run, task, broadcast, answered[places], cost) if given is None else None
        K, chosen = clusters_of(run) if counted is None else counted.K, torch.from_numpy(places)
        found = self._clustered(updates[chosen], K, run.seed)
        by_samples = run.tiers.averaging.client_weight == "samples"
        mass = torch.from_numpy(federation.sizes[answered]) if by_samples else torch.ones(len(answered))
        means = group_means(updates[chosen], found, mass[chosen], K)
        own = nearest_by_cosine(updates, means)
        own[chosen] = found
        labels = torch.full((len(federation.clients),), NO_CLUSTER)
        labels[torch.from_numpy(answered)] = own
        models = _moved(start, means)
        if len(diverged):
            labels = join_by_loss(federation, Clusters(models, K), labels, diverged, cost)
        counts = {"answered": len(answered), "founders": len(chosen), "diverged": len(diverged)}
        tests = [test.statistic.plain() for test in counted.tests] if counted else []
        facts = {"by": self.measure, "clusters": K, **counts, "tests": tests, **asdict(cost)}
        return FirstModels(models, K, labels, {"grouping": facts})

    def _clustered(self, updates: Tensor, K: int, seed: int) -> Tensor:
        """Return the groups (n,) of updates (n, P)."""
        if self.measure == "madc":
            distances = CosineGaps().server_pairwise({"own_change": updates})
            return torch.from_numpy(agglomerate(distances, "complete", K=K).labels)
        directions = decomposed_cosines(updates, K).numpy()
        check_distinct(directions, K, "directions of the first updates")
        return torch.from_numpy(kmeans(directions, K, seed).labels)


def nearest_by_cosine(updates: Tensor, means: Tensor) -> Tensor:
    """Return the group whose mean update (K, P) has the largest cosine with each of the updates (n, P)."""
    return (updates @ torch.nn.functional.normalize(means, dim=1).T).argmax(dim=1)


def _moved(start: Params, updates: Tensor) -> Params:
    """Return models {name: (K, ...)}: the initial model {name: (1, ...)} moved by each of the updates (K, P)."""
    changes = unflat(updates, start)
    return {name: (p.double() + changes[name].to(p.device)).to(p.dtype) for name, p in start.items()}


def _no_update(diverged: int) -> TrainingError:
    if diverged:
        return TrainingError(f"pretraining diverged for all {diverged} clients that answered: use a smaller lr")
    return TrainingError("no client answered the request to pretrain, so nothing was changed: check the clients")
