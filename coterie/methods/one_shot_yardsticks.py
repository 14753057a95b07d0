"""Baselines of one-shot methods: local ERM, naive averaging, oracle averaging, cluster oracle.

All use the clients' own solutions, or those of pooled data, and exchange nothing after that. (Armacki et al. 2022,
section 5)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.client.group import ClientGroup
from coterie.core.blocks import cut
from coterie.core.clusters import Params, unflat
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.learners.linear import Linear
from coterie.learners.local_training import AutoTraining, LocalTraining
from coterie.learners.minimum import minimise
from coterie.methods.base import Method
from coterie.methods.groups import FoundGroups, OneModelEach, SingleGroup, TrueGroups
from coterie.methods.initializers import clusters_of, one_model, with_noise
from coterie.methods.odcl import CITATION, ODCL, REVEALS, Solving, solve_and_cluster
from coterie.methods.run import FirstModels, Initializer, Run
from coterie.options import check_fields, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned, AssignmentRule, SingleCluster
from coterie.tiers.composition import Tiers

REFUSED = ODCL.refuses | {"clusters"}


@dataclass(frozen=True, kw_only=True)
class _Yardstick(Solving, Method, Initializer):
    """Base class of the four baselines: solutions without rounds after them."""

    local: LocalTraining = AutoTraining()
    averaging: Averaging = Averaging()

    citation: ClassVar[str] = CITATION
    trains: ClassVar[bool] = False
    models_trained: ClassVar[bool] = True
    reveals_rows: ClassVar[dict[str, str]] = REVEALS
    refuses: ClassVar[frozenset[str]] = REFUSED
    assignment: ClassVar[AssignmentRule] = Assigned()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def initializer(self) -> Initializer:
        return self

    def tiers(self) -> Tiers:
        averaging = self.averaging.filled(Averaging(over="members", client_weight="uniform"))
        return Tiers(assignment=self.assignment, local=self.local, averaging=averaging)

    def first_models(self, run: Run) -> FirstModels:
        return solve_and_cluster(run, self, None)


@register("local-erm")
@dataclass(frozen=True, kw_only=True)
class LocalERM(_Yardstick):
    """Every client solves its own problem and keeps the solution.

    theta_i = argmin F_i.
    """

    summary: ClassVar[str] = "every client solves its own problem and keeps the solution"
    groups: ClassVar[FoundGroups] = OneModelEach()
    exchanges: ClassVar[bool] = False
    no_twin: ClassVar[str] = "K is the number of clients by definition"
    refuses: ClassVar[frozenset[str]] = REFUSED | {"client_weight", "finetune"}


@register("naive-averaging")
@dataclass(frozen=True, kw_only=True)
class NaiveAveraging(_Yardstick):
    """All clients get the mean of their own solutions.

    theta <- mean of argmin F_i over all clients.
    """

    summary: ClassVar[str] = "the mean of all clients' own solutions, in one exchange"
    groups: ClassVar[FoundGroups] = SingleGroup()
    no_twin: ClassVar[str] = "it has one cluster by definition"
    assignment: ClassVar[AssignmentRule] = SingleCluster()


@register("oracle-averaging")
@dataclass(frozen=True, kw_only=True)
class OracleAveraging(_Yardstick):
    """The true groups are known; each gets the mean of its members' own solutions.

    theta_k <- mean of argmin F_i over the clients of true group k.
    """

    summary: ClassVar[str] = "the true groups are known: the mean of the own solutions in each, in one exchange"
    groups: ClassVar[FoundGroups] = TrueGroups()
    twin: ClassVar[str | None] = "naive-averaging"


@register("cluster-oracle")
@dataclass(frozen=True, kw_only=True)
class ClusterOracle(_Yardstick):
    """The solution of the pooled data of each true group, which no federation could compute.

    theta_k = argmin of the loss over all samples of true group k.

    All pooled samples have the same weight, so a client counts by its number of samples. In problem (3) of the paper
    all clients have the same weight: pool=clients.

    As an initializer it serves experiments: models trained on the pooled data of each true group, plus noise.
    """

    ridge: float = option(0.0, "as for odcl; pooled data needs no ridge penalty", low=0)
    pool: Literal["samples", "clients"] = option(
        "samples",
        "whether all samples of a group have the same weight, or all clients (problem (3) of the paper; linear models)",
    )
    noise: float = option(0.0, "standard deviation of noise on every parameter of the solutions", low=0)
    restarts: int = option(1, "number of draws of the noise that are trained side by side", low=1)

    summary: ClassVar[str] = "the true groups are known and their data is pooled: one solution for each"
    groups: ClassVar[FoundGroups] = TrueGroups()
    random: ClassVar[bool] = True
    models_trained: ClassVar[bool] = False
    no_twin: ClassVar[str] = "it pools data: no method that leaves the data with the clients equals it"
    refuses: ClassVar[frozenset[str]] = REFUSED | {"client_weight", "restarts", "noise"}
    reveals_rows: ClassVar[dict[str, str]] = {}

    def first_models(self, run: Run) -> FirstModels:
        if run.data.truth is None:
            raise ConfigError("cluster-oracle needs the true groups: pass truth= to from_arrays, or use another init")
        K, groups = clusters_of(run), int(run.data.truth.max()) + 1
        if groups != K:
            raise ConfigError(
                f"cluster-oracle has {groups} true groups, but clusters={K}: leave clusters out or set it to {groups}"
            )
        pooled = run.federation.pooled(run.data.truth)
        if pooled is None:
            raise ConfigError(
                "cluster-oracle pools the clients' data, which only a simulation can do: use another method or init"
            )
        assert isinstance(pooled, ClientGroup), "engines in this process return one"
        like = one_model(run)
        if self.pool == "clients":
            models = self._clients_alike(run, pooled, run.data.truth)
            models = {name: p.to(like[name]) for name, p in models.items()}
            return FirstModels(with_noise(run, models, self.noise), K, torch.from_numpy(run.data.truth))
        task, broadcast = self.task(run)
        reply = task.run(pooled, broadcast)
        if len(reply.clients) < K:
            raise TrainingError(
                f"the pooled data of {K - len(reply.clients)} groups has no solution: set l2 of the learner"
            )
        models = {name: p.to(like[name]) for name, p in unflat(reply.rows["model"], like).items()}
        return FirstModels(with_noise(run, models, self.noise), K, torch.from_numpy(run.data.truth))

    @staticmethod
    def _clients_alike(run: Run, pooled: ClientGroup, truth: Positions) -> Params:
        """Return the argmin of the mean over a group's clients of their mean losses, {name: (K, ...)}.

        For squared errors, samples are multiplied by the root of N / (m n_i), for N samples of m clients in the group.
        """
        if not isinstance(run.learner, Linear):
            raise ConfigError(f"pool=clients is for learner linear, not {run.learner.spec}: use pool=samples")
        sizes, groups = run.federation.sizes, len(pooled.train)
        counts = np.bincount(truth, minlength=groups)
        found = []
        for k in range(groups):
            (block,) = cut(pooled.train.take(np.array([k])), pooled.train.hashes[[k]], model_bytes=0)
            own = sizes[truth == k]
            weight = torch.from_numpy(np.repeat(np.sqrt(own.sum() / (counts[k] * own)), own))
            problem = run.learner.glm(block)
            phi, y = (problem.phi.double() * weight[None, :, None], problem.y.double() * weight[None])
            found.append(run.learner.from_coefficients(minimise(replace(problem, phi=phi, y=y)).theta))
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}
