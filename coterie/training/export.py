"""Models of a finished run for use without Coterie: safetensors, ONNX, and scikit-learn estimators.

ONNX models and scikit-learn estimators of a run of a table take the features before they are standardised, in the order
of `schema.feature_names`: columns of numbers as they are, and zeros and ones for the levels of a category.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from coterie.core.arrays import first_line
from coterie.core.schema import Schema
from coterie.errors import ConfigError, InputError
from coterie.learners.linear import Linear
from coterie.learners.logistic import Logistic
from coterie.training.result import Result

NO_CLASS = -1
"""Class of a sample with missing or infinite values in an ONNX model."""
BATCH = 3
"""Number of samples in the example that the ONNX exporter traces; the model accepts any number."""


def safetensors_bytes(result: Result, cluster: int | None = None) -> bytes:
    """Return the parameters of a cluster's model in the safetensors format.

    The names are those of `result.module(cluster).state_dict()`. The metadata of the file holds `learner`, `features`
    (the shape of a sample) and `schema` (columns, scaling and class labels) as JSON.

    Args:
        result: A finished run.
        cluster: Number of the cluster; optional if there is only one model.

    Returns:
        Content of the file.

    Raises:
        InputError: if there is no such cluster.
    """
    tensors = {name: value.contiguous().cpu() for name, value in result.state_dict(cluster).items()}
    return bytes(save(tensors, metadata=_facts(result)))


def onnx_bytes(result: Result, cluster: int | None = None) -> bytes:
    """Return a cluster's model as an ONNX model, with the standardisation of a table inside.

    Its input `x` has any number of samples: float64 for a table, the floating type of the model otherwise. Its outputs
    are `class` (position among the classes; -1 for samples with missing values) and `probabilities` (n, C), or
    `prediction` (n,). Its metadata holds `learner`, `features` and `schema` as JSON, and for a table `feature_names`.

    Args:
        result: A finished run.
        cluster: Number of the cluster; optional if there is only one model.

    Returns:
        Content of the file.

    Raises:
        ConfigError: if the extra `export` is not installed.
        InputError: if there is no such cluster, or ONNX does not support an operation of the module.
    """
    deployed = DeployedModel(result, cluster).eval()
    example = torch.zeros((BATCH, *result.profile.features), dtype=deployed.takes)
    names = ["prediction"] if deployed.classes is None else ["class", "probabilities"]
    try:
        import_module("onnx")
        import_module("onnxscript")
    except ImportError:
        raise ConfigError("ONNX export needs onnx and onnxscript: pip install 'coterie[export]'") from None
    try:
        with _quiet():
            program = torch.onnx.export(
                deployed,
                (example,),
                dynamo=True,
                input_names=["x"],
                output_names=names,
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                verbose=False,
            )
    except Exception as error:  # whatever the exporter raises about a user's module
        raise InputError(f"the model cannot be written as ONNX ({first_line(error)}): use safetensors") from error
    assert program is not None, "the exporter returns a program unless it is given a file"
    model = program.model_proto
    for key, value in _facts(result).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    return bytes(model.SerializeToString())


def scikit_learn_model(result: Result, cluster: int | None = None) -> Any | None:
    """Return a cluster's model as a scikit-learn pipeline that needs no Coterie; None if it is not linear or logistic.

    Args:
        result: A finished run.
        cluster: Number of the cluster; optional if there is only one model.

    Returns:
        A fitted `sklearn.pipeline.Pipeline` with `predict`, and `predict_proba` for classes.

    Raises:
        InputError: if there is no such cluster.
    """
    learner, model = result.learner, result.state_dict(cluster)
    if not isinstance(learner, Linear | Logistic):
        return None
    from sklearn.pipeline import Pipeline

    arrays = {name: value.double().cpu().numpy() for name, value in model.items()}
    steps: list[tuple[str, Any]] = _scaler(result.schema, learner.width)
    if isinstance(learner, Linear):
        steps += _monomials(learner)
        steps.append(("model", _linear(arrays)))
    else:
        steps.append(("model", _logistic(arrays, result.schema, learner)))
    names = result.schema.feature_names
    if names:
        steps[0][1].feature_names_in_ = np.array(names, dtype=object)
    return Pipeline(steps)


def joblib_bytes(estimator: object) -> bytes:
    """Return an estimator as a joblib file; the only function that writes pickles, and none reads them.

    Raises:
        InputError: if the estimator holds something that cannot be pickled, such as a module of a local function.
    """
    import joblib

    file = io.BytesIO()
    try:
        joblib.dump(estimator, file)
    except Exception as error:  # whatever a user's own objects raise
        raise InputError(f"the model cannot be written by joblib ({first_line(error)}): use safetensors") from error
    return file.getvalue()


class DeployedModel(nn.Module):
    """A cluster's model with the standardisation of a table inside, ready for export."""

    mean: Tensor
    factor: Tensor

    def __init__(self, result: Result, cluster: int | None) -> None:
        super().__init__()
        self.network = result.module(cluster)
        self.dtype = next(iter(result.parameters[0].values())).dtype
        self.takes = torch.float64 if result.schema.scales else self.dtype
        self.classes = result.learner.classes
        if self.classes is not None and result.schema.classes:
            self.classes = len(result.schema.classes)  # a module may have more outputs than there are classes
        self.scales = bool(result.schema.scales)
        pairs = result.schema.scales
        self.register_buffer("mean", torch.tensor([mean for mean, _ in pairs], dtype=torch.float64))
        factors = [0.0 if deviation == 0 else 1 / deviation for _, deviation in pairs]
        self.register_buffer("factor", torch.tensor(factors, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return predictions (n,), or the position of the class (n,), -1 without one, and the probabilities (n, C)."""
        features = ((x - self.mean) * self.factor).to(self.dtype) if self.scales else x
        out: Tensor = self.network(features)
        if self.classes is None:
            return out.flatten()
        probabilities = torch.softmax(out.double(), dim=-1)[:, : self.classes]
        known = probabilities.isfinite().all(dim=-1)  # a missing value would be predicted as the first class
        return torch.where(known, probabilities.argmax(dim=-1), NO_CLASS), probabilities


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress messages and warnings of the ONNX exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _facts(result: Result) -> dict[str, str]:
    facts = {
        "learner": result.learner.spec,
        "features": json.dumps(list(result.profile.features)),
        "schema": json.dumps(result.schema.plain()),
    }
    names = result.schema.feature_names
    return facts | ({"feature_names": json.dumps(list(names))} if names else {})


def _scaler(schema: Schema, width: int) -> list[tuple[str, Any]]:
    """Return the step that standardises the features of a table; no step for arrays."""
    if not schema.scales:
        return []
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    deviations = np.array([deviation for _, deviation in schema.scales])
    scaler.mean_ = np.array([mean for mean, _ in schema.scales])
    scaler.scale_ = np.where(deviations == 0, np.inf, deviations)  # a constant feature becomes 0
    scaler.var_ = deviations**2
    scaler.n_features_in_ = width
    scaler.n_samples_seen_ = 1
    return [("standardise", scaler)]


def _monomials(learner: Linear) -> list[tuple[str, Any]]:
    """Return the step that computes monomials; no step for degree 1."""
    if learner.degree == 1:
        return []
    from sklearn.preprocessing import PolynomialFeatures

    return [("monomials", PolynomialFeatures(learner.degree, include_bias=False).fit(np.zeros((1, learner.width))))]


def _linear(arrays: dict[str, Any]) -> Any:
    from sklearn.linear_model import LinearRegression

    model = LinearRegression(fit_intercept="bias" in arrays)
    model.coef_ = arrays["weight"]
    model.intercept_ = float(arrays.get("bias", 0.0))
    model.n_features_in_ = len(arrays["weight"])
    return model


def _logistic(arrays: dict[str, Any], schema: Schema, learner: Logistic) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(fit_intercept="bias" in arrays)
    model.coef_ = np.atleast_2d(arrays["weight"])
    model.intercept_ = np.atleast_1d(arrays.get("bias", np.zeros(len(model.coef_))))
    model.classes_ = schema.class_labels(np.arange(learner.classes or 2))
    if model.classes_.dtype.kind == "O":
        model.classes_ = model.classes_.astype(str)
    model.n_features_in_ = learner.width
    model.n_iter_ = np.array([0])
    return model
