"""Models leave a run as PyTorch modules, safetensors, ONNX and scikit-learn pipelines, with equal predictions."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors

import coterie
from coterie.errors import InputError
from coterie.training.export import joblib_bytes, onnx_bytes, safetensors_bytes, scikit_learn_model

RANDOM = np.random.default_rng(0)
ROWS = 96
TABLE: dict[str, list] = {
    "site": ["a", "b", "c", "d"] * (ROWS // 4),
    "age": RANDOM.normal(50, 9, ROWS).tolist(),
    "dose": RANDOM.normal(0, 1e-3, ROWS).tolist(),
    "sex": RANDOM.choice(["m", "f"], ROWS).tolist(),
}
TABLE["cost"] = [a * 0.1 + 900 * d for a, d in zip(TABLE["age"], TABLE["dose"], strict=True)]
TABLE["grade"] = [str(np.digitize(c, [4.5, 5.5])) + "x" for c in TABLE["cost"]]
TABLE["high"] = [c > 5 for c in TABLE["cost"]]


# networks are exported after a few rounds; that they start far from these targets does not matter
pytestmark = pytest.mark.filterwarnings("ignore:target 'cost' has the mean:UserWarning")


def small_net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def raw_features(result):
    """Return the features before scaling, by hand: numbers unchanged, 1 for the given level."""
    columns = []
    for name in result.schema.feature_names:
        column, _, level = name.partition("=")
        columns.append([float(value == level) for value in TABLE[column]] if level else TABLE[column])
    return np.array(columns, dtype=float).T


def trained(target, learner, **options):
    names = ["age", "dose", "sex"]
    data = coterie.from_table(TABLE, client="site", target=target, features=names, holdout=0)
    return coterie.fit(data, "ifca", clusters=2, learner=learner, rounds=3, restarts=1, **options)


CASES = [
    ("cost", "linear:bias=true"),
    ("cost", "linear:degree=2"),
    ("cost", "representation:width=2"),
    ("cost", "mlp:hidden=5-4"),
    ("cost", small_net),
    ("grade", "logistic"),
    ("high", "logistic:bias=false"),
    ("high", "mlp"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}"[:24])
def result(request):
    return trained(*request.param)


def probabilities_or_numbers(result, cluster):
    classifies = result.learner.classes is not None
    return (result.predict_proba if classifies else result.predict)(TABLE, cluster=cluster)


def test_a_module_predicts_what_the_result_predicts(result):
    for cluster in (0, 1):
        module = result.module(cluster)
        assert not module.training
        with torch.no_grad():
            out = module(torch.from_numpy(result.encode(TABLE)))
        found = out.flatten() if result.learner.classes is None else torch.softmax(out.double(), dim=1)
        np.testing.assert_allclose(found, probabilities_or_numbers(result, cluster), rtol=0, atol=1e-6)


def test_a_module_is_a_copy_and_its_state_can_be_loaded_again(result):
    before = result.predict(TABLE, cluster=1)
    module = result.module(0)
    module.load_state_dict(result.state_dict(1))
    np.testing.assert_array_equal(result.predict(TABLE, cluster=1), before)
    x = torch.from_numpy(result.encode(TABLE))
    assert torch.equal(module(x), result.module(1)(x))
    assert set(result.state_dict(0)) == set(result.parameters[0])


def test_safetensors_hold_the_parameters_and_the_schema(result, tmp_path):
    content = safetensors_bytes(result, 1)
    found = load_tensors(content)
    assert all(torch.equal(found[name], value) for name, value in result.state_dict(1).items())
    (tmp_path / "m").write_bytes(content)
    with safe_open(tmp_path / "m", "pt") as file:
        assert json.loads(file.metadata()["schema"]) == result.schema.plain()
        assert file.metadata()["learner"] == result.learner.spec


def test_a_linear_model_is_a_scikit_learn_pipeline(result):
    found = scikit_learn_model(result, 1)
    if not result.learner.spec.startswith(("linear", "logistic")):
        assert found is None
        return
    again = joblib.load(io.BytesIO(joblib_bytes(found)))
    assert b"coterie" not in joblib_bytes(found), "it works without Coterie"
    assert list(again.feature_names_in_) == list(result.schema.feature_names)
    frame = pd.DataFrame(raw_features(result), columns=result.schema.feature_names)
    classifies = result.learner.classes is not None
    predicted = (again.predict_proba if classifies else again.predict)(frame)
    np.testing.assert_allclose(predicted, probabilities_or_numbers(result, 1), rtol=0, atol=1e-6)
    if classifies:
        labels = again.classes_[predicted.argmax(axis=1)]
        np.testing.assert_array_equal(labels, result.predict(TABLE, cluster=1).astype(labels.dtype))


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_an_onnx_model_accepts_raw_numbers():
    import onnxruntime

    result = trained("grade", "mlp")
    session = onnxruntime.InferenceSession(onnx_bytes(result, 1), providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["feature_names"]) == list(result.schema.feature_names)
    *_, found = session.run(None, {"x": raw_features(result)})
    np.testing.assert_allclose(found, probabilities_or_numbers(result, 1), rtol=0, atol=1e-6)
    assert len(session.run(None, {"x": raw_features(result)[:1]})[0]) == 1, "any number of samples"


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
@pytest.mark.parametrize("hole", [np.nan, np.inf])
@pytest.mark.parametrize(("target", "learner"), [("grade", "logistic"), ("high", "mlp")])
def test_an_onnx_model_has_no_class_for_a_sample_with_a_missing_value(target, learner, hole):
    """The first class would be a silent wrong answer."""
    import onnxruntime

    result = trained(target, learner)
    session = onnxruntime.InferenceSession(onnx_bytes(result, 1), providers=["CPUExecutionProvider"])
    samples = raw_features(result)[:4]
    expected = result.predict_proba(TABLE, cluster=1)[:4].argmax(axis=1)
    samples[2, 0], expected[2] = hole, -1
    assert session.run(None, {"x": samples})[0].tolist() == expected.tolist()


def test_a_result_can_be_pickled_without_its_data():
    result = trained("cost", "linear:bias=true")
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.predict(TABLE, cluster=1), result.predict(TABLE, cluster=1))
    assert again.diagnostics is None
    assert again.coefficients() == result.coefficients()
    with pytest.raises(InputError, match="cannot be written by joblib"):
        joblib_bytes(lambda: None)


def test_a_cluster_must_be_named_if_there_are_several():
    result = trained("cost", "linear:bias=true")
    with pytest.raises(InputError, match="the run has 2 models: name a cluster"):
        result.module()
    for odd in (2, -1, True):
        with pytest.raises(InputError, match="cluster must be 0 to 1"):
            result.state_dict(odd)
    one = coterie.fit(coterie.from_arrays([(np.eye(2), [0.0, 1.0])] * 2), "fedavg", rounds=1)
    assert set(one.state_dict()) == set(one.parameters[0])


def test_only_classes_have_probabilities():
    with pytest.raises(InputError, match="is a regression, which has no probabilities"):
        trained("cost", "linear").predict_proba(TABLE, cluster=0)
