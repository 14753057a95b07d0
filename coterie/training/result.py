"""The result of a run: groups, models, certainty of each client's assignment, and costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coterie.core.arrays import NUMBERS, as_array, tensor_of
from coterie.core.clusters import Params, unflat
from coterie.core.dataset import Profile, torch_dtype
from coterie.core.plain import Plain, from_plain
from coterie.core.readings import same_name
from coterie.core.schema import ColumnNote, Schema, level_text
from coterie.core.shard import ClientId
from coterie.data.columns import is_table, open_columns, shown
from coterie.data.encode import encode, encode_target
from coterie.diagnosis.values import Diagnosis
from coterie.errors import ColumnWarning, InputError, RunError
from coterie.evaluate.baselines import Baselines
from coterie.evaluate.certainty import Calibration
from coterie.evaluate.groups import Groups
from coterie.evaluate.misfit import UsualLoss
from coterie.evaluate.placing import Density, Tree, mixed, sample_losses, weigh
from coterie.files import read_tensors
from coterie.learners import LearnerChoice, make_learner
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.methods.base import Method
from coterie.methods.run import Initializer
from coterie.options import from_options
from coterie.tiers.objective import Objective
from coterie.training.diagnostics import Diagnostics
from coterie.training.notebook import NotebookView
from coterie.training.predicting import EncodedSamples, client_columns, data_frame, predict_rows
from coterie.training.records import ClientResult, Metrics, RoundRecord
from coterie.training.runs.folder import RunFolder
from coterie.training.subject import sentence, subject_of, title

Samples = npt.ArrayLike | object
"""An array (n, ...), or, for a run of a table, its rows: a DataFrame, an Arrow table, a dict of columns or a path."""
Labels = npt.ArrayLike
"""Labels or target values (n,), as in the training data."""
Support = tuple[Samples, Labels] | object
"""Labelled samples: a pair (x, y), or, for a run of a table, a table with the target column."""

SPLITS = "splits/"
"""Prefix of the names of the tree of splits in `Result.extra_arrays`."""
REGRESSION, BASELINES, GROUPS, POSTERIOR = "regression", "baselines", "groups", "posterior"
"""Names of stored diagnostics: the first three in the metrics, the last in the figures of each client."""

NO_CERTAINTY = (
    "this run has no probabilities of clusters: they are computed if the method looks for groups, the training did not "
    "diverge, clients may be asked for losses, and there are held-out samples or many training samples per parameter"
)


@dataclass(frozen=True)
class Result:
    """The result of `fit`, `resume` or `load`.

    Example:
        >>> import coterie
        >>> from coterie.methods import IFCA
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, IFCA(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models), len(result.records), result.weights.shape
        (4, 2, (8, 4))
        >>> len(result.assignments)
        8
    """

    config: Mapping[str, Any]
    """All options of the run, including values that were found automatically."""
    profile: Profile
    """Shape of a sample, and number of classes."""
    learner: Learner
    """Model family."""
    parameters: Sequence[Params]
    """One dict of named tensors for each cluster."""
    records: list[RoundRecord]
    """Figures of each round."""
    metrics: Metrics
    """Final figures."""
    clients: list[ClientResult]
    """Final figures of each client that answered."""
    fingerprint: str = ""
    """Digest of the training data."""
    extra_arrays: Params = field(default_factory=dict)
    """Arrays that predictions need besides the models: the Gaussians of a joint density (`means`, `variances`), the
    personal models of clients (`personal`, one row for each of `clients`), or the tree of splits."""
    objective: Plain = None
    """Objective of mixtures, as plain values."""
    schema: Schema = field(default_factory=Schema)
    """Encoding of raw values as features and classes, which `predict`, `weigh`, `assign` and `losses` apply."""
    diagnosis: Diagnosis | None = field(default=None, repr=False)
    """The diagnosis that chose the method, with method="auto"."""
    column_notes: tuple[ColumnNote, ...] = ()
    """Use of each column of the run's table; empty for other data."""
    diagnostics: Diagnostics | None = field(default=None, repr=False, compare=False)
    """Source of diagnostics while the run is in memory; a run folder stores their values instead."""

    @property
    def assignments(self) -> dict[ClientId, int]:
        """Cluster of each client that answered, by its id."""
        return {client.id: client.cluster for client in self.clients}

    def coefficients(self) -> dict[str, Any]:
        """Return the coefficients of linear or logistic models with confidence intervals.

        For a run of a table they are in the units of its columns. Those of a classification are log-odds relative to
        the class in `reference`; with several classes, each name begins with its class.

        They are computed on first use, from sums that the clients return. A run that is written to a folder
        (`fit(..., out=...)`, `save`, `coterie run`) computes and stores them at its end, because the data may be
        unavailable later; `load` reads the stored values.

        Returns:
            `names` of the coefficients, `level` of the intervals, `references` (reference level of each categorical
            column), and one entry for each of `clusters` (`estimate`, `standard_errors`, `low`, `high`, `samples`,
            `clients`, ...). `loss` is the mean training loss of these estimates, and `behind` is by how much that of
            the run's own models exceeds it. A regression also has the theoretical guides `sigma`, `separation`,
            `skewness`, `gamma`, `kappa` and `floor`; a classification has `reference` and `classes`.

        Raises:
            InputError: if there are none: the models are neither linear nor logistic or not shared, the training
                diverged or was private, or the data is too large.
        """
        found: dict[str, Any] | None = self.metrics.get(REGRESSION)
        if found is None and self.diagnostics is not None:
            found = self.diagnostics.coefficients
        if found is None:
            raise InputError(
                "this run has no intervals of coefficients: they are computed for linear and logistic models that "
                "clients share, if the training did not diverge, was not private and the data is not too large"
            )
        return found

    def baselines(self) -> Baselines:
        """Compare the held-out error with one pooled model, site intercepts, local models and a mixed model.

        Like `coefficients`, the comparison is computed on first use and stored in a run folder. With clients on other
        machines it takes about thirty exchanges, and a run folder does not store it.

        Returns:
            The errors of all models, and the decision whether clusters are worthwhile.

        Raises:
            InputError: if there is none: the models are neither linear nor logistic, there are no held-out samples, the
                training diverged or was private, or the data is too large.
        """
        stored = self.metrics.get(BASELINES)
        if stored is not None:
            return Baselines.from_json(stored)
        found = None if self.diagnostics is None else self.diagnostics.baselines
        if found is None:
            raise InputError(
                "this run has no comparison with other models: it is computed for linear and logistic models with "
                "held-out samples, if the training did not diverge, was not private and the data is not too large"
            )
        return found

    def groups(self) -> Groups:
        """Return the profile of each group: its size, its labels and the mean of each feature in original units.

        Like `coefficients`, the profiles are computed on first use and stored in a run folder.

        Returns:
            The profiles of all groups.

        Raises:
            InputError: if there are none: the run is not of a table, clients share no models, or the training diverged
                or was private.
        """
        stored = self.metrics.get(GROUPS)
        if stored is not None:
            return Groups.from_json(stored)
        found = None if self.diagnostics is None else self.diagnostics.groups
        if found is None:
            raise InputError(
                "this run has no profiles of groups: they are computed for runs of a table whose clients share models, "
                "if the training did not diverge and was not private"
            )
        return found

    def posterior(self) -> npt.NDArray[np.float64]:
        """Return the probability of each cluster for each client.

        The probability of a client's own cluster is its `certainty`.

        Returns:
            Probabilities (m, K), with rows in the order of `clients`.

        Raises:
            InputError: if there are none; see `certainty`.
        """
        if not self.clients or not all(POSTERIOR in client for client in self.clients):
            raise InputError(NO_CERTAINTY)
        return np.array([client[POSTERIOR] for client in self.clients])

    def certainty(self, x: Samples, y: Labels | None = None) -> npt.NDArray[np.float64]:
        """Return the probability of each cluster for a new client, given its labelled samples and the models.

        The probabilities are calibrated like those of the clients that trained: of new clients from the same groups for
        which a cluster has a probability of 95 %, about 95 % belong to it.

        Args:
            x: Samples of the new client, as in `predict`.
            y: Their labels (n,), as in the training data; for a run of a table they may be a column of x instead.

        Returns:
            Probabilities (K,).

        Raises:
            InputError: if there are none: the method does not look for groups, the training diverged, clients may not
                be asked for losses (local privacy), or there were too few samples to calibrate them.
        """
        if not self.has_certainty:
            raise InputError(NO_CERTAINTY)
        losses = self._placing_losses(*self._labelled(x, y)).sum(dim=1).numpy()
        return Calibration.from_json(self.metrics["calibration"]).of_sums(losses)

    @property
    def has_certainty(self) -> bool:
        """Whether probabilities of clusters have been calibrated."""
        return "calibration" in self.metrics

    def with_diagnostics(self) -> Result:
        """Return the result as a run folder stores it, with all diagnostics that are otherwise computed on demand.

        With clients on other machines, where an exchange takes seconds, diagnostics with many exchanges are left out.
        """
        if self.diagnostics is None:
            return self
        metrics = self.metrics
        coefficients = self.diagnostics.coefficients if self.diagnostics.affords_coefficients else None
        if coefficients is not None:
            metrics = metrics | {REGRESSION: coefficients}
        baselines = None if self.diagnostics.remote else self.diagnostics.baselines  # takes about thirty exchanges
        if baselines is not None:
            metrics = metrics | {BASELINES: baselines.to_json()}
        if (groups := self.diagnostics.groups) is not None:
            metrics = metrics | {GROUPS: groups.to_json()}
        return replace(self, metrics=metrics, diagnostics=None)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """Weight of each cluster for each client, (m, K); rows sum to one and are in the order of `clients`."""
        if all("weights" in row for row in self.clients):
            return np.array([row["weights"] for row in self.clients])
        chosen = np.array([row.cluster for row in self.clients])
        return np.asarray(np.eye(len(self.parameters))[chosen])

    @property
    def models(self) -> list[dict[str, npt.NDArray[Any]]]:
        """Models of the clusters, as K dicts of named arrays."""
        return [{name: p.detach().cpu().numpy() for name, p in model.items()} for model in self.parameters]

    def module(self, cluster: int | None = None) -> nn.Module:
        """Return the model of a cluster as a PyTorch module in evaluation mode; changing it does not change the result.

        The input of the module are features: for a run of a table those that `encode` returns (standardised, in the
        order of `schema.feature_names`), otherwise the samples, in the floating type of the module's parameters. Its
        output are logits (n, C) for classes 0, 1, ... (`schema.classes` contains their labels), or predictions (n,); a
        module of the user returns what it always does.

        Args:
            cluster: Number of the cluster; optional if there is only one model.

        Returns:
            The module.

        Raises:
            InputError: if there is no such cluster, or there are several and none is named.
        """
        return self.learner.network(self.parameters[self._cluster(cluster)])

    def state_dict(self, cluster: int | None = None) -> dict[str, torch.Tensor]:
        """Return a copy of the parameters of a cluster's model, by their names in `module(cluster)`.

        Args:
            cluster: Number of the cluster; optional if there is only one model.

        Returns:
            Named tensors, including buffers of the module.

        Raises:
            InputError: if there is no such cluster, or there are several and none is named.
        """
        return {name: value.clone() for name, value in self.module(cluster).state_dict().items()}

    def encode(self, x: Samples) -> npt.NDArray[Any]:
        """Return the features of samples: the raw rows of a table are encoded and standardised.

        Args:
            x: Samples, as in `predict`.

        Returns:
            The features (n, ...), in the floating type of the models.

        Raises:
            InputError: if the samples do not fit the data of the run.
        """
        return np.asarray(self._samples(x).cpu().numpy())

    def _cluster(self, cluster: int | None) -> int:
        """Return the number of a cluster that exists."""
        if cluster is None and len(self.parameters) > 1:
            raise InputError(
                f"the run has {len(self.parameters)} models: name a cluster, from 0 to {len(self.parameters) - 1}"
            )
        number = 0 if cluster is None else cluster
        if isinstance(number, bool) or number not in range(len(self.parameters)):
            raise InputError(f"cluster must be 0 to {len(self.parameters) - 1}, got {number}")
        return int(number)

    def predict(
        self,
        x: Samples,
        *,
        client: ClientId | None = None,
        cluster: int | None = None,
        support: Support | None = None,
    ) -> npt.NDArray[Any]:
        """Return the predictions for samples: class labels as in the training data, or numbers.

        At most one of `client`, `cluster` and `support` may be given. Without them, the samples are those of an unknown
        client, which can be served if there is only one model, or if the clusters model the inputs (fedgmm).

        Args:
            x: Samples (n, ...) as an array; for a run of a table its raw rows, as a DataFrame, an Arrow table, a dict
                of columns or a path. The encoding and scaling of the run are applied to them.
            client: Id of a client that trained. Its cluster's model predicts, or its mixture of all models, or its
                personal model.
            cluster: Number of the cluster whose model predicts.
            support: A few labelled samples (x, y) of a new client, which gets the models that `weigh` finds for it. For
                a run of a table they may be one table with the target column.

        Returns:
            The predictions (n,).

        Raises:
            InputError: if the samples do not fit the data of the run, or no model can be found for them.

        Example:
            >>> import coterie
            >>> data = coterie.scenario("rotated-digits", clients=8)
            >>> result = coterie.fit(data, "fedavg", learner="logistic", rounds=1)
            >>> result.predict(data.train.x[:5]).shape
            (5,)
        """
        return self._labelled_as(self._mixture(x, client, cluster, support))

    def predict_proba(
        self,
        x: Samples,
        *,
        client: ClientId | None = None,
        cluster: int | None = None,
        support: Support | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each class for samples; arguments as in `predict`.

        Returns:
            The probabilities (n, C), with classes in the order of `schema.classes`, or 0, 1, ... without other labels.

        Raises:
            InputError: if the run is a regression, or the samples do not fit.
        """
        if self.learner.classes is None:
            raise InputError("the run is a regression, which has no probabilities of classes: use predict")
        return np.asarray(self._mixture(x, client, cluster, support).numpy())

    def predict_frame(self, frame: object, *, client: str, id: str | None = None) -> Any:
        """Return predictions for the rows of many clients as a pandas DataFrame, in the same order.

        A client that trained gets the model of its cluster, or its own mixture or personal model. A new client is
        assigned by those of its rows that have a value in the target column, as in `predict(..., support=...)`.

        Args:
            frame: Raw rows of a table: a DataFrame, an Arrow table, a dict of columns or a path. The target column may
                be absent or have missing values.
            client: Name of the column that identifies the client of each row.
            id: Name of a column that identifies the rows, which is kept.

        Returns:
            Columns `id` (under its own name), `client`, `cluster`, `certainty` (probability that the client belongs to
            this cluster, if available and one fits), `placed_by` ("training", "labelled rows", "labelled rows that fit
            no cluster" or "one model"), `prediction`, and "probability CLASS" for each class.

        Raises:
            InputError: if the run was not made from a table, the rows do not fit, or a new client has no labelled rows
                and no single model serves all clients; the message names these clients.
        """
        return predict_rows(self, frame, client, id).to_frame()

    def to_frame(self) -> Any:
        """Return the clients as a pandas DataFrame: id, cluster, certainty, samples, score, loss and other figures.

        Raises:
            InputError: if pandas is not installed.
        """
        return data_frame(client_columns(self.clients))

    @property
    def serves_new_clients(self) -> bool:
        """Whether a new client without labelled samples can be served, by a single model or by its inputs."""
        return not self.method.groups.personal and (len(self.parameters) == 1 or self._knows_features)

    def predict_mixed(self, x: Samples, weights: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the predictions of all models together for samples.

        Args:
            x: Samples (n, ...), as in `predict`.
            weights: Weight of each model, (K,); not negative, with sum 1.

        Returns:
            The predictions (n,), as in `predict`.

        Raises:
            InputError: if the samples do not fit, or the weights are not K numbers with sum 1.
        """
        return self._labelled_as(self._mixed(x, weights))

    def predict_proba_mixed(self, x: Samples, weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the probability of each class by all models together; arguments as in `predict_mixed`.

        Returns:
            The probabilities (n, C).

        Raises:
            InputError: if the run is a regression, the samples do not fit, or the weights are not K numbers with sum 1.
        """
        if self.learner.classes is None:
            raise InputError("the run is a regression, which has no probabilities of classes: use predict_mixed")
        return np.asarray(self._mixed(x, weights).numpy())

    def _mixture(
        self, x: Samples, client: ClientId | None, cluster: int | None, support: Support | None
    ) -> torch.Tensor:
        """Return numbers (n,) or probabilities (n, C) by the models of the given client, cluster or support."""
        if sum(given is not None for given in (client, cluster, support)) > 1:
            raise InputError(
                "client, cluster and support exclude each other: give only the one to which the samples belong"
            )
        self._warn_of_other_clients(x if client is not None else support, client)
        if client is not None and "personal" in self.extra_arrays:
            return self._outputs(self._own_model(str(client)), x, torch.ones(1, dtype=torch.float64))
        if cluster is None and self._knows_features:
            return self._by_features(x, str(client) if client is not None else None, support)
        if client is not None:
            return self._mixed(x, self._weights_of(str(client)))
        if cluster is not None:
            return self._mixed(x, self._alone(cluster))
        return self._mixed(x, self._alone(self._only()) if support is None else self.weigh(*self._pair(support)))

    def _warn_of_other_clients(self, rows: object, client: ClientId | None) -> None:
        """Warn if a table for one client contains other clients in the client column of the run."""
        name = next((note.column for note in self.column_notes if note.action == "client"), None)
        if name is None or not is_table(rows):
            return
        columns = open_columns(rows, {name}, [name])
        if name not in columns.names:
            return
        named = {level_text(value) for value in columns.values(name).tolist() if value is not None}
        others = sorted(named - {level_text(client)})
        if client is not None and others:
            warnings.warn(
                f"column {name!r} contains other clients than {client!r}, such as {others[0]!r}, but all rows are "
                f"predicted as rows of {client!r}: predict_frame(rows, client={name!r}) predicts each row for its own "
                "client",
                ColumnWarning,
                stacklevel=4,
            )
        elif client is None and len(named) > 1:
            warnings.warn(
                f"the labelled samples belong to {len(named)} clients in column {name!r}, but are treated as those of "
                f"one client: predict_frame(rows, client={name!r}) assigns each client by its own rows",
                ColumnWarning,
                stacklevel=4,
            )

    def _mixed(self, x: Samples, weights: npt.ArrayLike) -> torch.Tensor:
        share = np.asarray(weights, dtype=np.float64)
        if share.shape != (len(self.parameters),) or not (share >= 0).all() or not np.isclose(share.sum(), 1):
            raise InputError(f"weights must be {len(self.parameters)} non-negative numbers with sum 1, got {weights!r}")
        return self._outputs(self.parameters, x, torch.from_numpy(share))

    def _outputs(self, models: Sequence[Params], x: Samples, share: torch.Tensor) -> torch.Tensor:
        """Return numbers (n,) or probabilities (n, C) by models with weights `share`; raise an error if not finite."""
        found = mixed(self.learner, models, share, self._samples(x))
        if not bool(found.isfinite().all()):
            row = int((~found.isfinite()).flatten(1 if found.dim() > 1 else 0).nonzero()[0][0])
            raise InputError(
                f"the prediction for sample {row} is not a finite number: its values are too large, or the model has "
                "diverged"
            )
        if self.learner.classes is None:
            return found
        known = len(self.schema.classes) or found.shape[-1]  # a module may have more outputs than there are classes
        return found[..., :known]

    def _labelled_as(self, found: torch.Tensor) -> npt.NDArray[Any]:
        """Return numbers unchanged, and for probabilities (n, C) the labels of the most probable classes."""
        if self.learner.classes is None:
            return np.asarray(found.numpy())
        return self.schema.class_labels(np.asarray(found.argmax(dim=-1).numpy()))

    def _own_model(self, client: ClientId) -> list[Params]:
        row = self.clients.index(self._row_of(client))
        like = {name: p[None] for name, p in self.parameters[0].items()}
        return [{name: p[0] for name, p in unflat(self.extra_arrays["personal"][row : row + 1], like).items()}]

    @property
    def _knows_features(self) -> bool:
        return "means" in self.extra_arrays

    def _density(self) -> Density:
        common = {name: value[None] for name, value in self.extra_arrays.items()}
        usual = np.array([row.get("components", row["weights"]) for row in self.clients]).mean(axis=0)
        return Density(from_plain(Objective, self.objective), common, torch.from_numpy(usual))

    def _by_features(self, x: Samples, client: ClientId | None, support: Support | None) -> torch.Tensor:
        """Return the outputs by a joint density, with separate weights for every sample."""
        density, samples = self._density(), self._samples(x)
        if client is not None:
            row = self._row_of(client)
            own = torch.tensor(row.get("components", row["weights"]), dtype=torch.float64)
        else:
            own = self._components(density, *((x,) if support is None else self._pair(support)))
        return self._outputs(self.parameters, x, density.shares(self.learner, samples, own, len(self.parameters)))

    def _components(self, density: Density, x: Samples, y: Labels | None = None) -> torch.Tensor:
        """Return the component weights (P,) of a new client with these samples, with or without labels."""
        samples = self._samples(x)
        if y is None:
            cost = torch.zeros(len(self.parameters), len(samples), dtype=torch.float64)
        else:
            losses = self._sample_losses(x, y)
            cost = deviance(self.learner, losses, losses.new_full((1,), self._usual_loss))
        return density.weigh(self.learner, samples, cost)

    def losses(self, x: Samples, y: Labels | None = None) -> npt.NDArray[np.float64]:
        """Return the mean loss of each cluster's model on samples.

        Args:
            x: Samples, as in `predict`.
            y: Their labels (n,), as in the training data; for a run of a table they may be a column of x instead.

        Returns:
            Mean losses (K,).

        Raises:
            InputError: if the samples or labels do not fit the data of the run.
        """
        return np.asarray(self._sample_losses(*self._labelled(x, y)).mean(dim=1).numpy())

    def assign(self, x: Samples, y: Labels | None = None) -> int:
        """Return the cluster whose model has the lowest loss on the labelled samples of a new client.

        Args:
            x: Samples of the new client, as in `predict`.
            y: Their labels (n,), as in the training data; for a run of a table they may be a column of x instead.

        Returns:
            Number of the cluster.

        Raises:
            InputError: if the samples or labels do not fit the data of the run.
        """
        return int(self._placing_losses(*self._labelled(x, y)).mean(dim=1).argmin())

    def weigh(self, x: Samples, y: Labels | None = None) -> npt.NDArray[np.float64]:
        """Return the weight of each cluster for a new client with a few labelled samples.

        With hard clusters, the model of lowest loss gets the whole weight, or the leaf of the tree of splits (cfl with
        newcomers=tree). With mixtures, EM finds the weights for fixed models; for `fedrc` all classes should be about
        equally frequent in y, because otherwise the weights follow the labels. If the clusters model the inputs
        (fedgmm), no labels are needed.

        Args:
            x: Samples of the new client, as in `predict`.
            y: Their labels (n,), as in the training data; for a run of a table they may be a column of x instead.

        Returns:
            Weights (K,) with sum 1.

        Raises:
            InputError: if the samples or labels do not fit the data of the run, or labels are needed but missing.
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
        losses = self._placing_losses(x, y)
        return np.asarray(weigh(self.learner, losses, placing, self._usual_loss).numpy())

    def _tree(self) -> Tree:
        local = self.method.tiers().local
        splits = {
            name.removeprefix(SPLITS): rows for name, rows in self.extra_arrays.items() if name.startswith(SPLITS)
        }
        return Tree(splits, local, float(self.config["lr"]))

    def _weights_of(self, client: ClientId) -> npt.NDArray[np.float64]:
        """Return the weights (K,) of a client that trained."""
        row = self._row_of(client)
        return np.array(row["weights"]) if "weights" in row else self._alone(row.cluster)

    def _row_of(self, client: ClientId) -> ClientResult:
        """Return the figures of a client that trained."""
        row = next((row for row in self.clients if row.id == client), None)
        if row is None:
            ids = [row.id for row in self.clients]
            same = [name for name in ids if same_name(name) == same_name(client)]
            near = same or get_close_matches(client, ids, n=3, cutoff=0.5)
            known = f" (near names: {', '.join(near)})" if near else ""
            raise InputError(
                f"client {client!r} was not in the training data{known}: for a new client give a few labelled samples "
                "as support"
            )
        return row

    def _alone(self, cluster: int) -> npt.NDArray[np.float64]:
        """Return weights (K,) that are all on one cluster."""
        return np.asarray(np.eye(1, len(self.parameters), self._cluster(cluster))[0])

    @cached_property
    def method(self) -> Method:
        """Method of the run, with its settings."""
        return method_of(self.config)

    def _shared(self) -> Method:
        """Return the method if new clients can use its models."""
        method = self.method
        if method.groups.personal:
            raise InputError(
                f"{method.name} gives every client a personal model, so a new client has none: name a client or a "
                "cluster, or train with a method that shares models"
            )
        return method

    def _only(self) -> int:
        """Return the number of the only cluster."""
        method = self._shared().name
        if len(self.parameters) > 1:
            raise InputError(
                f"{method} needs a few labelled samples to assign a new client: give them as support, or name a "
                "client or a cluster"
            )
        return 0

    @property
    def _usual_loss(self) -> float:
        """Mean training loss after the last round, which mixtures use; infinite before the first round."""
        if not self.records:
            return math.inf
        record = self.records[self.metrics.get("best_rounds", len(self.records)) - 1]
        loss = record["restart_losses"][self.metrics["restart"]] if "restart_losses" in record else record.loss
        return math.inf if loss is None else float(loss)

    def _sample_losses(self, x: Samples, y: Labels) -> torch.Tensor:
        """Return the loss of each cluster's model on each sample, (K, n)."""
        samples = self._samples(x)
        return sample_losses(self.learner, self.parameters, samples, self._targets(y, len(samples)))

    def _placing_losses(self, x: Samples, y: Labels) -> torch.Tensor:
        """Return the loss of each cluster's model on each sample, (K, n); warn if the rows of a table fit no model."""
        found = self._sample_losses(x, y)
        misfit = self.usual_loss.misfit(found.numpy()) if self.schema.is_table else ""
        if misfit:
            warnings.warn(misfit, ColumnWarning, stacklevel=3)
        return found

    def loss_of(self, client: ClientId, x: Samples, y: Labels) -> float:
        """Return the mean loss on labelled samples of a client that trained, under its own models and their weights."""
        weights, samples = self._weights_of(client), self._samples(x)
        used = np.flatnonzero(weights)
        models = [self.parameters[int(k)] for k in used]
        found = sample_losses(self.learner, models, samples, self._targets(y, len(samples)))
        return float(weights[used] @ found.mean(dim=1).numpy())

    @property
    def usual_loss(self) -> UsualLoss:
        """Loss of the models on the clients that trained, with which that of new clients is compared."""
        return UsualLoss.of(
            [client.loss for client in self.clients], [client.n for client in self.clients], self.learner.classes
        )

    def _samples(self, x: Samples) -> torch.Tensor:
        some = next(iter(self.parameters[0].values()))
        if isinstance(x, EncodedSamples):
            return x.values
        values = encode(self.schema, self._table(x)) if self.schema.is_table else _numbers(x, "samples")
        if tuple(values.shape[1:]) != self.profile.features or values.shape[0] == 0:
            raise InputError(
                f"samples must have shape (n, {', '.join(map(str, self.profile.features))}), got {tuple(values.shape)}"
            )
        samples = tensor_of(values).to(dtype=some.dtype, device=some.device)
        if not bool(samples.isfinite().all()):
            raise InputError(
                f"samples contain values too large for {str(some.dtype).removeprefix('torch.')}: rescale them"
            )
        return samples

    def _table(self, x: Samples) -> object:
        """Return x after checking that it is a table; columns of an array could not be identified."""
        if is_table(x):
            return x
        names = ", ".join(shown(column.name) for column in self.schema.columns)
        raise InputError(
            f"the run was made from a table, got {type(x).__name__}: give the raw rows as a DataFrame, an Arrow table, "
            f"a dict of columns or a path, with the columns {names}"
        )

    def labels_in(self, x: Samples) -> npt.NDArray[Any] | None:
        """Return the labels in the target column of a table.

        Args:
            x: Rows of a table.

        Returns:
            The labels (n,), or None if the table has no target column.
        """
        numbers = encode_target(self.schema, self._table(x))
        return numbers if numbers is None or not self.schema.classes else self.schema.class_labels(numbers.astype(int))

    def _labelled(self, x: Samples, y: Labels | None) -> tuple[Samples, Labels]:
        found = self.labels_in(x) if y is None and self.schema.is_table else y
        if found is None:
            what = f"column {self.schema.target!r}" if self.schema.is_table else "labels y"
            raise InputError(f"the samples have no {what}: new clients are assigned by labelled samples")
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
            raise InputError(f"{samples} samples but labels of shape {values.shape}: give one label per sample")
        if classes is not None and self.schema.classes:
            return torch.from_numpy(self.schema.class_numbers(values.tolist(), "labels"))
        values = _numbers(values, "labels")
        if classes is None:
            return tensor_of(values).to(next(iter(self.parameters[0].values())).dtype)
        invalid = values[(values < 0) | (values >= classes) | (values != np.floor(values))]
        if len(invalid):
            raise InputError(
                f"labels must be whole numbers from 0 to {classes - 1}, got {invalid[0]}: number them as in training"
            )
        return torch.from_numpy(values.astype(np.int64))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or pickle, without training data and with a named learner as its name."""
        state = {each.name: getattr(self.with_diagnostics(), each.name) for each in fields(self)}
        if self.learner.spec.partition(":")[0] != "module":
            state["learner"] = self.learner.spec
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        learner = state["learner"]
        built = make_learner(learner, state["profile"], read_tensors) if isinstance(learner, str) else learner
        self.__dict__.update(state | {"learner": built})

    def save(self, folder: str | Path) -> Path:
        """Write a run folder that `coterie.load` and `coterie report` can read.

        Args:
            folder: The folder, which must not exist yet or be empty.

        Returns:
            Path of the folder.

        Raises:
            RunError: if the folder contains something.
            StorageError: if it cannot be written.
        """
        with RunFolder.claim(Path(folder), self.config, self.fingerprint, diagnosis=self.diagnosis) as run:
            for record in self.records:
                run.append(record)
            run.finish(self.parameters, self.with_diagnostics().summary(), self.extra_arrays)
            return run.path

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain values, as stored in result.json."""
        return {
            "metrics": self.metrics.to_json(),
            "clients": [client.to_json() for client in self.clients],
            "features": list(self.profile.features),
            "classes": self.profile.classes,
            "schema": self.schema.plain(),
            "columns": [note._asdict() for note in self.column_notes],
            **({} if self.objective is None else {"objective": self.objective}),
        }

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the subject, the decision and a table of the groups."""
        found = self.with_diagnostics()
        summary = found.summary()
        baselines, groups = found.metrics.get(BASELINES), found.metrics.get(GROUPS)
        return NotebookView(
            f"{self.config['method']} on {title(self.config)}",
            sentence(self.config, subject_of(summary), self.clients),
            self.metrics,
            self.clients,
            None if baselines is None else Baselines.from_json(baselines),
            None if groups is None else Groups.from_json(groups),
            found.metrics.get(REGRESSION),
        ).html()

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
        raise InputError(f"{what} contain NaN or infinite values: impute or drop them")
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
            f"{run.path} was written by an earlier version, which did not store the columns of its table: run it again"
        )
    return Schema()


def _column_notes(run: RunFolder) -> tuple[ColumnNote, ...]:
    """Return the notes on the columns of a run of a table; earlier versions wrote none."""
    plain = run.result.get("columns", [])
    try:
        notes = tuple(ColumnNote(**note) for note in plain)
    except TypeError:
        raise RunError(f"{run.path / 'result.json'} is damaged (columns): run it again") from None
    if not all(isinstance(text, str) for note in notes for text in note):
        raise RunError(f"{run.path / 'result.json'} is damaged (columns): run it again")
    return notes


def method_of(config: Mapping[str, Any]) -> Method:
    """Return the method that a config.toml describes.

    Raises:
        RunError: if the method is unknown here because it comes from a plugin or was removed.
    """
    name = config["method"]
    if name not in Method.members:
        raise RunError(
            f"the run was made with method {shown(name)}, which is unknown here: load the plugin that defines it, or "
            "use the version of Coterie that wrote the run"
        )
    kind: type[Method] = Method.members[name]
    known = {key: value for key, value in config.items() if key in kind.own_names()}
    init = known.get("init")
    if (init["name"] if isinstance(init, Mapping) else init) not in Initializer.members:
        known.pop("init", None)  # models that the user gave, or that come from a run folder
    built: Method = from_options(kind, known)
    return built


def load(folder: str | Path, *, learner: LearnerChoice | None = None) -> Result:
    """Load the result of a finished run.

    Args:
        folder: The run folder.
        learner: The learner again, if it was a function of the user.

    Returns:
        The result.

    Raises:
        RunError: if the folder is not that of a finished run, or is damaged.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, "fedavg", learner="logistic", rounds=1)
        >>> loaded = coterie.load(result.save(tempfile.mkdtemp() + "/run"))
        >>> loaded.assignments == result.assignments
        True
    """
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
        extra_arrays=run.extra_arrays(),
        objective=result.get("objective"),
        schema=_schema(run),
        diagnosis=run.diagnosis,
        column_notes=_column_notes(run),
    )
