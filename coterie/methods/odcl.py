"""ODCL: clients solve their own problems; the server clusters the solutions and averages them in each cluster, once.

(Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022, algorithm 1)

paper                 here
theta-hat_i           a client's own solution: solver (exact: algorithm 1; sgd: theorem 2, remark 16)
C, eta                clustering and its settings (`coterie/server/clustering`); K for all but convex clustering
theta-bar_k           the mean over the cluster: client_weight=uniform as in the paper, or samples
lambda, (12), (13)    lam, or convex_grid and convex_rule for the path of appendix C; lam=oracle13 needs the truth
T, R, mu_f            sgd_steps, sgd_radius, sgd_mu
assumption 2          solutions are bounded: ridge, for clients with hardly more samples than coefficients (ours)

`IFCA(init=ODCL(clustering="spectral"))` starts another method from the result. The paper's baselines are in
`one_shot_baselines.py`. ALL-for-ALL is left out because it must know which clients belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.client.solvers import ExactMinimum, LocalSolver, LocalSteps, StochasticGradient
from coterie.client.tasks.local_solve import LocalSolve
from coterie.core.clusters import Clusters, Params, row_bytes, unflat
from coterie.core.messages import Broadcast
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import AutoTraining, FullBatch, LocalTraining, MiniBatch
from coterie.learners.logistic import Logistic
from coterie.learners.minimum import GeneralisedLinear
from coterie.learners.projected import ProjectedSgd
from coterie.methods.base import Method
from coterie.methods.counting import check_distinct, count_solved
from coterie.methods.exchanges import NO_CLUSTER, Cost, ask_all, group_means, join_by_loss
from coterie.methods.initializers import one_model
from coterie.methods.run import BEFORE, FirstModels, Initializer, Run
from coterie.methods.settings import WITHOUT_ROUNDS
from coterie.methods.small_groups import small_groups
from coterie.options import AUTO, Auto, check_fields, option
from coterie.server.averaging import Averaging
from coterie.server.clustering.choose import ClusterSettings, cluster_points
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers
from coterie.tiers.landmarks import MAX_COMPARED, lowest_keys

SOLVE_STEPS = 50
"""Smallest number of gradient steps if clients solve their problems by steps and their number is not set."""
CITATION = (
    "Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous "
    "Environments, 2022"
)


@dataclass(frozen=True, kw_only=True)
class Solving:
    """Settings of how clients solve their own problems."""

    solver: Literal["exact", "sgd", "steps"] | None = option(
        None,
        "how a client solves its own problem: exact (linear, and logistic with l2), sgd (projected, inexact), or steps "
        "(local_steps or local_epochs from one common model); by default exact if possible, else steps",
    )
    solve_steps: int | None = option(
        None,
        "solver=steps: number of gradient steps; by default 50, or local_steps if that is larger, because the result "
        "of few steps carries little information about a client",
        low=1,
        needs="solver=steps|auto",
    )
    ridge: float = option(
        0.1,
        "solver=exact, learner linear: ridge penalty of a client with no more samples than coefficients, as a share of "
        "each feature's sum of squares; it falls with the fourth power of coefficients over samples and vanishes from "
        "about three samples per coefficient; 0: the minimum-norm solution of least squares",
        low=0,
    )
    sgd_steps: int = option(10_000, "solver=sgd: number of steps, one sample each (T)", low=1, needs="solver=sgd")
    sgd_radius: float | None = option(
        None,
        "solver=sgd: radius of the ball onto which iterates are projected (R); required",
        above=0,
        needs="solver=sgd",
    )
    sgd_mu: float | None = option(
        None,
        "solver=sgd: strong convexity (mu) of the step size 1/(mu t); by default a client's smallest eigenvalue, or l2",
        above=0,
        needs="solver=sgd",
    )
    sgd_output: Literal["last", "average"] = option(
        "last", "solver=sgd: the last iterate, or the mean of all iterates t with weights t", needs="solver=sgd"
    )

    def takes_steps(self, learner: Learner) -> bool:
        """Return whether clients solve their problems by gradient steps with the run's learning rate."""
        return self._solver_for(learner) == "steps"

    def _solver_for(self, learner: Learner) -> str:
        return self.solver or ("exact" if _has_minimum(learner) else "steps")

    def local_solver(self, run: Run) -> LocalSolver:
        """Return the solver; it may depend on the learner and on the method's local training."""
        name = self._solver_for(run.learner)
        if name == "exact":
            return ExactMinimum(self.ridge)
        if name == "steps":
            local = run.tiers.local
            own = local.steps if isinstance(local, FullBatch | MiniBatch) else None
            return LocalSteps(local.without_prox(self.solve_steps or max(SOLVE_STEPS, own or 0)))
        if self.sgd_radius is None:
            raise ConfigError(
                "solver=sgd projects iterates onto a ball around zero that must contain the solutions: set its radius, "
                "sgd_radius"
            )
        return StochasticGradient(ProjectedSgd(self.sgd_radius, self.sgd_steps, self.sgd_mu, self.sgd_output))

    def task(self, run: Run) -> tuple[LocalSolve, Broadcast]:
        """Return the task of solving their problems, and the broadcast with a common model if clients take steps."""
        solver = self.local_solver(run)
        steps = isinstance(solver, LocalSteps)
        clusters = Clusters(one_model(run) if steps else {}, K=1)
        scalars = {"lr": run.tiers.local.rate(0, run.rounds)} if steps else {}
        return LocalSolve(solver, run.seed), Broadcast(BEFORE, clusters, scalars=scalars)


def _has_minimum(learner: Learner) -> bool:
    """Return whether every client's problem has a solution, apart from classes that it lacks."""
    return isinstance(learner, Linear) or (isinstance(learner, Logistic) and learner.l2 > 0)


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Settings of how the server clusters the clients' solutions."""

    clustering: Literal["kmeans++", "spectral", "convex", "gradient"] = option(
        "kmeans++", "algorithm by which the server clusters the clients' solutions"
    )
    gradient_step: float = option(
        1.0,
        "clustering=gradient: step size alpha times the number of clients, below 2",
        above=0,
        needs="clustering=gradient",
    )
    spectral_parts: int = option(
        3,
        "clustering=spectral: number of the algorithm's parts to run, up to all three",
        low=1,
        high=3,
        needs="clustering=spectral",
    )
    lam: float | Literal["oracle13"] | None = option(
        None,
        "clustering=convex: a fixed lambda, or oracle13: computed from the true groups; by default chosen on the path",
        above=0,
        needs="clustering=convex",
    )
    convex_grid: Literal["log", "equidistant"] = option(
        "log", "clustering=convex: spacing of the lambdas of the path", needs="clustering=convex"
    )
    convex_rule: Literal["b", "a-then-b"] = option(
        "b", "clustering=convex: rule that chooses the lambda of the path", needs="clustering=convex"
    )
    convex_weights: Literal["uniform", "knn"] = option(
        "uniform",
        "clustering=convex: weights of the pairs of clients whose solutions are pulled together",
        needs="clustering=convex",
    )

    count_groups: Literal["silhouette", "held-out"] | None = option(
        None,
        "clusters=auto: silhouette, the number with the best silhouette, or one if a single Gaussian cloud would be "
        "cut as well; or held-out, the number that tests on solutions of halves of the clients' samples show; by "
        "default held-out if clients take steps, silhouette if they solve exactly; not for convex clustering",
    )

    def counts_by_halves(self, solver: LocalSolver) -> bool:
        """Return whether solutions of halves of the clients' samples decide how many clusters there are."""
        if self.clustering == "convex":
            return False
        return (self.count_groups or ("held-out" if isinstance(solver, LocalSteps) else "silhouette")) == "held-out"

    def cluster_settings(self, K: int | None) -> ClusterSettings:
        """Return the settings of the server's clustering, into K clusters or as many as it finds."""
        given = {each.name: getattr(self, each.name) for each in fields(Clustering) if each.name != "count_groups"}
        return ClusterSettings(clusters=K, **given)


REVEALS = {
    "model": "its own model, trained on its data alone",
    "losses": "its loss under the model of each cluster, if it has no solution",
}


@register("odcl")
@dataclass(frozen=True, kw_only=True)
class ODCL(Clustering, Solving, Method, Initializer):
    """Clients' own solutions are clustered and averaged in a single exchange, without rounds.

    theta-hat_i = argmin F_i; clusters <- clustering of the theta-hat_i; theta_k <- mean of theta-hat_i in cluster k.

    As the `init` of another method it makes that method's first models; the number of clusters, the local training and
    the averaging are then those of the other method.

    Example:
        >>> import coterie
        >>> from coterie.methods import ODCL
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, ODCL(clusters=4), learner="logistic:l2=0.01")
        >>> len(result.models)
        4
    """

    clusters: int | Auto = option(AUTO, "number of clusters (K); auto: as many as the clustering finds", low=1)
    local: LocalTraining = AutoTraining()
    averaging: Averaging = Averaging()

    summary: ClassVar[str] = "one exchange: clients' own solutions are clustered and averaged"
    citation: ClassVar[str] = CITATION
    trains: ClassVar[bool] = False
    twin: ClassVar[str | None] = "naive-averaging"
    finds_count: ClassVar[bool] = True
    models_trained: ClassVar[bool] = True
    reveals_rows: ClassVar[Mapping[str, str]] = {
        **REVEALS,
        "model_first": "the same for a random half of its samples, if tests find the number of clusters",
        "model_second": "the same for the other half",
    }
    refuses: ClassVar[frozenset[str]] = (
        WITHOUT_ROUNDS
        | {"averaging", "divide_by", "combine", "lr_decay"}
        | {
            "optimizer",
            "schedule",
        }
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return clusters=auto for convex clustering, which finds the number itself, whatever a scenario recommends."""
        return {"clusters": AUTO} if given.get("clustering") == "convex" else {}

    @property
    def initializer(self) -> Initializer:
        return self

    def tiers(self) -> Tiers:
        averaging = self.averaging.filled(Averaging(over="members", client_weight="uniform"))
        return Tiers(assignment=Assigned(), K=self.count, local=self.local, averaging=averaging)

    def first_models(self, run: Run) -> FirstModels:
        return solve_and_cluster(run, self, self)


def solve_and_cluster(run: Run, solving: Solving, clustering: Clustering | None) -> FirstModels:
    """Return the means of the clients' own solutions in each cluster.

    Clients without a solution join the cluster whose model fits them best; those that never answer have no cluster.

    Args:
        run: The run; if it knows the groups of the clients, these replace a clustering.
        solving: How clients solve their problems.
        clustering: How the solutions are clustered; None for methods that know the groups.

    Raises:
        TrainingError: if no client has a solution.
    """
    cost, like = Cost(), one_model(run)
    federation, task = run.federation, solving.task(run)
    answered, replies, rejected = ask_all(federation, *task, cost)
    if not len(answered):
        raise _no_solution(len(rejected))
    rows, at = replies["model"], torch.from_numpy(answered)
    labels = torch.full((len(federation.clients),), NO_CLUSTER)
    known, found = run.known_groups, dict[str, Any]()
    if known is None:
        assert clustering is not None, "a method without a clustering knows its groups"
        truth = None if run.data.truth is None else run.data.truth[answered]
        by_halves = run.tiers.K is None and clustering.counts_by_halves(task[0].solver)
        counted = count_solved(run, *task, _compared(run, answered), cost) if by_halves else None
        K = counted.K if counted else run.tiers.K
        if K is not None and len(answered) < K:
            raise _few_solutions(len(answered), len(rejected), K)
        check_distinct(rows.double().numpy(), K, "own solutions")
        partition = cluster_points(rows.double().numpy(), clustering.cluster_settings(K), run.seed, truth)
        found, labels[at] = dict(partition.facts), torch.from_numpy(partition.labels)
        if counted:
            tests = [test.statistic.plain() for test in counted.tests]
            found["counted"] = {"K": counted.K, "rule": "held-out", "tests": tests}
        if (path := (found["convex"] or {}).get("path")) is not None:
            path["clients"] = [federation.clients[i] for i in answered]
    else:
        labels[at] = known[at]
    K = int(labels.max() if known is None else known.max()) + 1
    by_samples = run.tiers.averaging.client_weight == "samples"
    mass = torch.from_numpy(federation.sizes[answered]) if by_samples else torch.ones(len(answered))
    means = unflat(group_means(rows, labels[at], mass, K), like)
    models = {name: p.to(like[name].device, like[name].dtype) for name, p in means.items()}
    if len(rejected) and known is None:
        labels = join_by_loss(federation, Clusters(models, K), labels, rejected, cost)
    found |= {"solver": task[0].solver.name, "solved": len(answered), "without_solution": len(rejected)}
    found |= asdict(cost) | {"clusters": K}
    notes = tuple(
        f"one-shot: {note}"
        for note in (*found.get("warnings", ()), *_about_sizes(run, like, known), *_about_groups(run, labels))
        if run.tiers.assignment.assigned  # otherwise the clients choose again in every round
    )
    return FirstModels(models, K, labels, {"one_shot": _with_costs(run, found, models, labels)}, notes)


def _compared(run: Run, answered: Positions) -> Positions:
    """Return the clients whose halves are compared with each other, at most `MAX_COMPARED`."""
    return answered[lowest_keys(run.federation.hashes[answered], MAX_COMPARED)]


def _with_costs(run: Run, found: dict[str, Any], models: Params, labels: Tensor) -> dict[str, Any]:
    """Return the findings with the bytes of the whole exchange; if no rounds follow, each client is sent its model."""
    if not run.exchanges:
        return found | {"bytes_up": 0, "bytes_down": 0}
    if run.rounds == 0:
        sent = int((labels >= 0).sum()) * (row_bytes(models) + 8)
        return found | {"bytes_down": found["bytes_down"] + sent}
    return found


def _about_sizes(run: Run, like: Params, known: Tensor | None) -> Iterator[str]:
    """Yield a warning if clients have fewer samples than coefficients."""
    width, sizes = row_bytes(like) // next(iter(like.values())).element_size(), run.federation.sizes
    few = int((sizes < width).sum())
    if few and known is None and isinstance(run.learner, GeneralisedLinear):
        yield (
            f"{few} of {len(sizes)} clients have fewer samples than the model has coefficients ({width}): their own "
            "solutions, and so the clusters, are unreliable; use more samples per client or fewer features"
        )


def _about_groups(run: Run, labels: Tensor) -> Iterator[str]:
    """Yield a warning about clusters of one or two clients if the clustering decides how many clusters there are."""
    if run.known_groups is None and run.tiers.K is None:
        yield from small_groups(
            labels.numpy(), "client", "leave out clients with few samples and see whether it remains"
        )


def _few_solutions(solved: int, rejected: int, K: int) -> TrainingError:
    return TrainingError(
        f"only {solved} of the {solved + rejected} clients that answered have a solution, but clusters={K}: the loss "
        "of the others has no minimum (logistic regression on separable labels, or with a class missing), or "
        "it diverged; use learner=logistic:l2=0.01, solver=steps with a smaller lr, or fewer clusters"
    )


def _no_solution(rejected: int) -> TrainingError:
    if rejected:
        return TrainingError(
            f"none of the {rejected} clients that answered has a solution: their loss has no minimum "
            "(logistic regression on labels that a plane separates, or with a class missing), or it diverged; use "
            "learner=logistic:l2=0.01 (with bias=false if classes are missing), or solver=steps with a smaller lr"
        )
    return TrainingError(
        "no client answered the request to solve its problem, so nothing was changed: check the clients"
    )
