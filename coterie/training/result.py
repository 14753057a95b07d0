"""The result of a run: the groups, their models, the certainty of each client's assignment, and the costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.arrays import NUMBERS, as_array, tensor_of
from coterie.core.clusters import Params, unflat
from coterie.core.dataset import Profile, torch_dtype
from coterie.core.numbers import finite_numbers
from coterie.core.plain import Plain, from_plain
from coterie.core.schema import Schema
from coterie.core.shard import ClientId
from coterie.data.columns import shown
from coterie.data.encode import encode, encode_target
from coterie.errors import InputError, RunError
from coterie.evaluate.placing import Density, Tree, mixed, sample_losses, weigh
from coterie.learners import LearnerChoice, make_learner
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.methods.base import Method
from coterie.methods.run import Initializer
from coterie.options import from_options
from coterie.tiers.objective import Objective
from coterie.training.diagnostics import Diagnostics
from coterie.training.records import ClientResult, Metrics, RoundRecord
from coterie.training.runs.files import read_tensors
from coterie.training.runs.folder import RunFolder

Samples = npt.ArrayLike | object
"""An array (n, ...), or for a run of a table its rows: a DataFrame, an Arrow table, a dict of columns or a path."""
Labels = npt.ArrayLike
"""Labels or target values (n,), as they were in the training data."""
Support = tuple[Samples, Labels] | object
"""Labelled samples: a pair (x, y), or for a run of a table one table with the target column."""

SPLITS = "splits/"
"""In `Result.beside`: what names of the tree of splits begin with."""
REGRESSION, POSTERIOR = "regression", "posterior"
"""Names of the stored diagnostics: in the metrics, and in the figures of each client."""


@dataclass(frozen=True)
class Result:
    """The outcome of `fit`, `resume` or `load`."""

    config: Mapping[str, Any]
    """All options of the run, as settled."""
    profile: Profile
    learner: Learner
    parameters: Sequence[Params]
    """One dict of named tensors for each cluster."""
    records: list[RoundRecord]
    """The figures of each round."""
    metrics: Metrics
    """The final figures."""
    clients: list[ClientResult]
    """The final figures of each client that answered."""
    fingerprint: str = ""
    """Digest of the training data."""
    beside: Params = field(default_factory=dict)
    """What predicts besides the models: the Gaussians of a joint density (`means`, `variances`), the models that
    clients keep for themselves (`personal`, a row for each of `clients`), or the splits that newcomers descend."""
    objective: Plain = None
    """The objective of mixtures, as plain values."""
    schema: Schema = field(default_factory=Schema)
    """How raw values become features and classes: `predict`, `weigh`, `assign` and `losses` apply it."""
    diagnostics: Diagnostics | None = field(default=None, repr=False, compare=False)
    """Source of `coefficients` and `posterior` while the run is in memory; a run folder stores their values instead."""

    @property
    def assignments(self) -> dict[ClientId, int]:
        """The cluster of each client that answered."""
        return {client.id: client.cluster for client in self.clients}

    def coefficients(self) -> dict[str, Any]:
        """Return the coefficients of linear models with confidence intervals, and the guides of the theory.

        They are computed when they are first asked for, from sums that the clients return. A run that is written to a
        folder (`fit(..., out=...)`, `save`, `coterie run`) computes and stores them at its end, since the data may be
        gone later; `load` reads them from there.

        Returns:
            `names` of the coefficients, `level` of the intervals, one row for each of `clusters` (`estimate`,
            `standard_errors`, `low`, `high`, `samples`, `clients`, ...), `sigma`, `separation`, `skewness`, `gamma`,
            `kappa` and `floor`.

        Raises:
            InputError: if the run has none: the models are not linear or not shared, the training diverged or was
                private, or the data is too large.
        """
        found: dict[str, Any] | None = self.metrics.get(REGRESSION)
        if found is None and self.diagnostics is not None:
            found = self.diagnostics.coefficients
        if found is None:
            raise InputError(
                "this run has no intervals of coefficients: they are computed for linear models that clients share, if "
                "the training did not diverge, was not private and the data is not too large"
            )
        return found

    def posterior(self) -> npt.NDArray[np.float64]:
        """Return the probability of each cluster for each client, (m, K), in the order of `clients`.

        Noise is taken to be Gaussian. Like `coefficients`, it is computed when it is asked for and stored in a run
        folder.

        Raises:
            InputError: if the run has none: the models are not linear, clients do not choose among several clusters, or
                the training diverged.
        """
        found = None if self.diagnostics is None else self.diagnostics.posterior
        if self.clients and all(POSTERIOR in client for client in self.clients):
            found = np.array([client[POSTERIOR] for client in self.clients])
        if found is None:
            raise InputError(
                "this run has no posterior probabilities: they are computed for linear models among which clients "
                "choose, if the training did not diverge"
            )
        return found

    def with_diagnostics(self) -> Result:
        """Return the result as a run folder stores it: `coefficients` and `posterior` are computed and part of it."""
        if self.diagnostics is None:
            return self
        metrics, clients = self.metrics, self.clients
        if (coefficients := self.diagnostics.coefficients) is not None:
            metrics = metrics | {REGRESSION: coefficients}
        if (posterior := self.diagnostics.posterior) is not None:
            shares = finite_numbers(posterior.tolist())
            clients = [client | {POSTERIOR: each} for client, each in zip(clients, shares, strict=True)]
        return replace(self, metrics=metrics, clients=clients, diagnostics=None)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """How much of each client belongs to each cluster, (m, K); rows sum to one, in the order of `clients`."""
        if all("weights" in row for row in self.clients):
            return np.array([row["weights"] for row in self.clients])
        chosen = np.array([row.cluster for row in self.clients])
        return np.asarray(np.eye(len(self.parameters))[chosen])

    @property
    def models(self) -> list[dict[str, npt.NDArray[Any]]]:
        """K dicts of named arrays."""
        return [{name: p.detach().cpu().numpy() for name, p in model.items()} for model in self.parameters]

    def predict(
        self,
        x: Samples,
        *,
        client: ClientId | None = None,
        cluster: int | None = None,
        support: Support | None = None,
    ) -> npt.NDArray[Any]:
        """Return the predictions (n,) for samples x (n, ...): class labels as they were in the data, or numbers.

        x: an array; for a run of a table its raw rows, as a DataFrame, an Arrow table, a dict of columns or a path. The
            run's own encoding and scaling are applied to them.
        client: a client that trained; its cluster's model predicts, its own mixture of all models, or its own model.
        cluster: the model of this cluster predicts.
        support: a few labelled samples (x, y) of a new client, which gets the models that `weigh` finds for it. For
            a run of a table they may be one table with the target column.
        None of these: a new client of which only these samples are known, where one model serves everybody or the
            clusters know what their samples look like (fedgmm).
        """
        if sum(given is not None for given in (client, cluster, support)) > 1:
            raise InputError(
                "client, cluster and support exclude each other: give the one that says whose samples these are"
            )
        if client is not None and "personal" in self.beside:
            return self._said(self._own_model(str(client)), x, torch.ones(1, dtype=torch.float64))
        if cluster is None and self._knows_features:
            return self._by_features(x, str(client) if client is not None else None, support)
        if client is not None:
            return self.predict_mixed(x, self._weights_of(str(client)))
        if cluster is not None:
            return self.predict_mixed(x, self._alone(cluster))
        return self.predict_mixed(x, self._alone(self._only()) if support is None else self.weigh(*self._pair(support)))

    def predict_mixed(self, x: Samples, weights: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predictions for samples x (n, ...) by all models together, each counting by `weights` (K,)."""
        share = np.asarray(weights, dtype=np.float64)
        if share.shape != (len(self.parameters),) or not (share >= 0).all() or not np.isclose(share.sum(), 1):
            raise InputError(f"weights must be {len(self.parameters)} numbers from 0 on that sum to 1, got {weights!r}")
        return self._said(self.parameters, x, torch.from_numpy(share))

    def _said(self, models: Sequence[Params], x: Samples, share: torch.Tensor) -> npt.NDArray[Any]:
        said = mixed(self.learner, models, share, self._samples(x))
        if not bool(said.isfinite().all()):
            row = int((~said.isfinite()).flatten(1 if said.dim() > 1 else 0).nonzero()[0][0])
            raise InputError(
                f"the prediction for sample {row} is not a finite number: its values are too large, or the model has "
                "diverged"
            )
        if self.learner.classes is None:
            return np.asarray(said.numpy())
        known = len(self.schema.classes) or said.shape[-1]  # a module may have more outputs than there are classes
        return self.schema.class_labels(np.asarray(said[..., :known].argmax(dim=-1).numpy()))

    def _own_model(self, client: ClientId) -> list[Params]:
        row = self.clients.index(self._row_of(client))
        like = {name: p[None] for name, p in self.parameters[0].items()}
        return [{name: p[0] for name, p in unflat(self.beside["personal"][row : row + 1], like).items()}]

    @property
    def _knows_features(self) -> bool:
        return "means" in self.beside

    def _density(self) -> Density:
        common = {name: value[None] for name, value in self.beside.items()}
        usual = np.array([row.get("components", row["weights"]) for row in self.clients]).mean(axis=0)
        return Density(from_plain(Objective, self.objective), common, torch.from_numpy(usual))

    def _by_features(self, x: Samples, client: ClientId | None, support: Support | None) -> npt.NDArray[Any]:
        """By a joint density: every sample has shares of its own."""
        density, samples = self._density(), self._samples(x)
        if client is not None:
            row = self._row_of(client)
            own = torch.tensor(row.get("components", row["weights"]), dtype=torch.float64)
        else:
            own = self._components(density, *((x,) if support is None else self._pair(support)))
        return self._said(self.parameters, x, density.shares(self.learner, samples, own, len(self.parameters)))

    def _components(self, density: Density, x: Samples, y: Labels | None = None) -> torch.Tensor:
        """(P,) of somebody new with these samples, labelled or not."""
        samples = self._samples(x)
        if y is None:
            cost = torch.zeros(len(self.parameters), len(samples), dtype=torch.float64)
        else:
            losses = self._sample_losses(x, y)
            cost = deviance(self.learner, losses, losses.new_full((1,), self._usual_loss))
        return density.weigh(self.learner, samples, cost)

    def losses(self, x: Samples, y: Labels | None = None) -> npt.NDArray[np.float64]:
        """Return the mean loss of each cluster's model on these samples, (K,).

        y: the labels (n,) as in the training data; for a run of a table they may be a column of x instead.
        """
        return np.asarray(self._sample_losses(*self._labelled(x, y)).mean(dim=1).numpy())

    def assign(self, x: Samples, y: Labels | None = None) -> int:
        """Return the cluster of a new client with labelled samples: the one whose model has the least loss."""
        return int(np.argmin(self.losses(x, y)))

    def weigh(self, x: Samples, y: Labels | None = None) -> npt.NDArray[np.float64]:
        """What each cluster counts for a new client with a few labelled samples, (K,); sums to one.

        With hard clusters all goes to the model of least loss, or to where the tree of splits leads (cfl with
        newcomers=tree). With mixtures it is what EM finds while the models stay as they are; for `fedrc` all classes
        should be about as frequent in y, or the weights follow the labels. Without y where the clusters know what their
        samples look like (fedgmm). For a run of a table the labels may be a column of x.
        """
        y = self.labels_in(x) if y is None and self.schema.is_table else y
        placing = self._shared().placing
        if self._knows_features:
            density = self._density()
            own = self._components(density, x, y)
            return np.asarray(density.objective.client_by_cluster(own, len(self.parameters)).numpy())
        if y is None:
            return self._alone(self._only())
        if placing == "tree":
            samples = self._samples(x)
            labels = self._targets(y, len(samples))
            return np.asarray(self._tree().weigh(self.learner, self.parameters, samples, labels).numpy())
        losses = self._sample_losses(x, y)
        return np.asarray(weigh(self.learner, losses, placing, self._usual_loss).numpy())

    def _tree(self) -> Tree:
        local = self.method.tiers().local
        splits = {name.removeprefix(SPLITS): rows for name, rows in self.beside.items() if name.startswith(SPLITS)}
        return Tree(splits, local, float(self.config["lr"]))

    def _weights_of(self, client: ClientId) -> npt.NDArray[np.float64]:
        """(K,) of a client that trained."""
        row = self._row_of(client)
        return np.array(row["weights"]) if "weights" in row else self._alone(row.cluster)

    def _row_of(self, client: ClientId) -> ClientResult:
        """The figures of a client that trained."""
        row = next((row for row in self.clients if row.id == client), None)
        if row is None:
            near = get_close_matches(client, [row.id for row in self.clients], n=3, cutoff=0.5)
            known = f" (near names: {', '.join(near)})" if near else ""
            raise InputError(
                f"client {client!r} was not in the training{known}: for somebody new give a few labelled samples as "
                "support"
            )
        return row

    def _alone(self, cluster: int) -> npt.NDArray[np.float64]:
        """(K,) all for one."""
        if cluster not in range(len(self.parameters)):
            raise InputError(f"cluster must be 0 to {len(self.parameters) - 1}, got {cluster}")
        return np.asarray(np.eye(1, len(self.parameters), int(cluster))[0])

    @cached_property
    def method(self) -> Method:
        """The method of the run, with the settings that it was run with."""
        return method_of(self.config)

    def _shared(self) -> Method:
        """The method, if its models serve others than those who trained them."""
        method = self.method
        if method.groups.personal:
            raise InputError(
                f"{method.name} gives every client a model of its own, so a new client has none: name a client or a "
                "cluster, or train with a method that shares models"
            )
        return method

    def _only(self) -> int:
        """The one cluster that serves everybody."""
        method = self._shared().name
        if len(self.parameters) > 1:
            raise InputError(
                f"{method} needs a few labelled samples to place a new client: give them as support, or name a client "
                "or a cluster"
            )
        return 0

    @property
    def _usual_loss(self) -> float:
        """The mean training loss that mixtures go by after the last round; infinite before there is one."""
        if not self.records:
            return math.inf
        record = self.records[self.metrics.get("best_rounds", len(self.records)) - 1]
        loss = record["start_losses"][self.metrics["start"]] if "start_losses" in record else record.loss
        return math.inf if loss is None else float(loss)

    def _sample_losses(self, x: Samples, y: Labels) -> torch.Tensor:
        """The loss of each cluster's model on each sample, (K, n)."""
        samples = self._samples(x)
        return sample_losses(self.learner, self.parameters, samples, self._targets(y, len(samples)))

    def _samples(self, x: Samples) -> torch.Tensor:
        some = next(iter(self.parameters[0].values()))
        values = encode(self.schema, self._table(x)) if self.schema.is_table else _numbers(x, "samples")
        if tuple(values.shape[1:]) != self.profile.features or values.shape[0] == 0:
            raise InputError(
                f"samples must have shape (n, {', '.join(map(str, self.profile.features))}), got {tuple(values.shape)}"
            )
        samples = tensor_of(values).to(dtype=some.dtype, device=some.device)
        if not bool(samples.isfinite().all()):
            raise InputError(f"samples hold values that are too large for {str(some.dtype).removeprefix('torch.')}")
        return samples

    def _table(self, x: Samples) -> object:
        """Return x if it can be a table; a run of a table cannot tell what the columns of an array are."""
        if isinstance(x, str | Path | Mapping) or hasattr(x, "columns") or hasattr(x, "column_names"):
            return x
        names = ", ".join(shown(column.name) for column in self.schema.columns)
        raise InputError(
            f"the run was made from a table, got {type(x).__name__}: give the raw rows as a DataFrame, an Arrow table, "
            f"a dict of columns or a path, with the columns {names}"
        )

    def labels_in(self, x: Samples) -> npt.NDArray[Any] | None:
        """Return the labels in the target column of a table; None if it has no such column."""
        numbers = encode_target(self.schema, self._table(x))
        return numbers if numbers is None or not self.schema.classes else self.schema.class_labels(numbers.astype(int))

    def _labelled(self, x: Samples, y: Labels | None) -> tuple[Samples, Labels]:
        found = self.labels_in(x) if y is None and self.schema.is_table else y
        if found is None:
            what = f"column {self.schema.target!r}" if self.schema.is_table else "labels y"
            raise InputError(f"the samples have no {what}: a new client is placed by labelled samples")
        return x, found

    def _pair(self, support: Support) -> tuple[Samples, Labels]:
        if isinstance(support, tuple | list) and len(support) == 2:
            return support[0], support[1]
        if self.schema.is_table:
            return self._labelled(self._table(support), None)
        raise InputError(f"support must be a pair (x, y) of samples and their labels, got {type(support).__name__}")

    def _targets(self, y: Labels, samples: int) -> torch.Tensor:
        values, classes = as_array(y, "labels"), self.learner.classes
        if values.shape != (samples,):
            raise InputError(f"{samples} samples but labels of shape {values.shape}: give one label a sample")
        if classes is not None and self.schema.classes:
            return torch.from_numpy(self.schema.class_numbers(values.tolist(), "labels"))
        values = _numbers(values, "labels")
        if classes is None:
            return tensor_of(values).to(next(iter(self.parameters[0].values())).dtype)
        odd = values[(values < 0) | (values >= classes) | (values != np.floor(values))]
        if len(odd):
            raise InputError(
                f"labels must be whole numbers from 0 to {classes - 1}, got {odd[0]}: number them as in training"
            )
        return torch.from_numpy(values.astype(np.int64))

    def save(self, folder: str | Path) -> Path:
        """Write a run folder that `coterie.load` and `coterie report` can read."""
        with RunFolder.claim(Path(folder), self.config, self.fingerprint) as run:
            for record in self.records:
                run.append(record)
            run.finish(self.parameters, self.with_diagnostics().summary(), self.beside)
            return run.path

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain values, as result.json holds them."""
        return {
            "metrics": self.metrics.to_json(),
            "clients": [client.to_json() for client in self.clients],
            "features": list(self.profile.features),
            "classes": self.profile.classes,
            "schema": self.schema.plain(),
            **({} if self.objective is None else {"objective": self.objective}),
        }

    def __repr__(self) -> str:
        figures = ", ".join(
            f"{name}={self.metrics[name]:.4g}"
            for name in ("accuracy", "rmse", "ari", "loss")
            if self.metrics.get(name) is not None
        )
        return (
            f"Result({self.config['method']}, {len(self.parameters)} clusters, {len(self.clients)} clients, {figures})"
        )


def _numbers(values: Samples, what: str) -> npt.NDArray[Any]:
    array = as_array(values, what)
    if array.dtype.kind not in NUMBERS:
        raise InputError(f"{what} must be numbers, got type {array.dtype}")
    if not np.isfinite(array).all():
        raise InputError(f"{what} hold NaN or infinite values: impute or drop them")
    # torch has no unsigned, half-precision or extended types for all operations
    return array if array.dtype in (np.float32, np.float64, np.int64) else array.astype(np.float64)


def _schema(run: RunFolder) -> Schema:
    """Return the schema of a finished run."""
    if "schema" in run.result:
        try:
            return Schema.of_plain(run.result["schema"])
        except InputError as error:
            raise RunError(f"{run.path / 'result.json'} is damaged ({error}): run it again") from None
    if run.config["scenario"] in ("table", "own-table"):
        raise RunError(
            f"{run.path} was written by an earlier version, which did not keep the columns of its table: run it again"
        )
    return Schema()


def method_of(config: Mapping[str, Any]) -> Method:
    """Return the method that a config.toml describes.

    Raises:
        RunError: if the method is not known here: it comes from a plugin, or was removed.
    """
    name = config["method"]
    if name not in Method.members:
        raise RunError(
            f"the run was made with method {shown(name)}, which is not known here: load the plugin that defines it, or "
            "use the version of Coterie that wrote the run"
        )
    kind: type[Method] = Method.members[name]
    known = {key: value for key, value in config.items() if key in kind.own_names()}
    init = known.get("init")
    if (init["name"] if isinstance(init, Mapping) else init) not in Initializer.members:
        known.pop("init", None)  # models that were given, or come from a run folder
    built: Method = from_options(kind, known)
    return built


def load(folder: str | Path, *, learner: LearnerChoice | None = None) -> Result:
    """Read a finished run folder. A learner of the user's own has to be passed again."""
    run = RunFolder.open(Path(folder))
    config, result = run.config, run.result
    profile = Profile(tuple(result["features"]), result["classes"])
    dtype = torch_dtype(config["dtype"])
    return Result(
        config=config,
        profile=profile,
        learner=make_learner(config["learner"] if learner is None else learner, profile, read_tensors),
        parameters=[{name: p.to(dtype) for name, p in model.items()} for model in run.models()],
        records=run.records(),
        metrics=Metrics.from_json(result["metrics"]),
        clients=[ClientResult.from_json(client) for client in result["clients"]],
        fingerprint=run.fingerprint,
        beside=run.beside(),
        objective=result.get("objective"),
        schema=_schema(run),
    )
