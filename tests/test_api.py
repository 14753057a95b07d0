"""Public names of the package and their use in Python."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
import coterie.data
from coterie.errors import ConfigError, DivergenceWarning, InputError, RunError
from coterie.plugins.loading import GROUP
from coterie.training.runs.files import file_sha256
from coterie.training.runs.manifest import Manifest
from tests.methods.test_ifca import population


def test_the_public_names_are_these_and_no_others():
    assert set(coterie.__all__) == {
        "Comparison",
        "ConfigError",
        "CoterieError",
        "FederatedDataset",
        "InputError",
        "Result",
        "RunError",
        "StorageError",
        "TrainingError",
        "callbacks",
        "clustering",
        "compare",
        "data",
        "diagnose",
        "errors",
        "evaluate",
        "fit",
        "from_arrays",
        "from_hf",
        "from_parquet_dir",
        "from_rows",
        "from_table",
        "from_torch",
        "learners",
        "load",
        "load_plugin",
        "measure",
        "methods",
        "register",
        "reproduce",
        "resume",
        "scenario",
        "sklearn",
        "sweep",
        "testing",
        "tiers",
        "to_parquet_dir",
        "write_report",
    }
    for name in coterie.__all__:
        assert getattr(coterie, name).__doc__


@pytest.mark.parametrize("package", [coterie, coterie.data])
def test_lazily_imported_names_are_those_of_type_checkers(package):
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) == set(package.__all__) <= set(dir(package))
    for name, module in seen.items():
        home = import_module(module)
        assert getattr(package, name) is (import_module(f"{module}.{name}") if home is package else getattr(home, name))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "examples").glob("*.py"))
DOTTED = re.compile(r"(?<![\w/.-])coterie(?:\.[A-Za-z_]\w*)+(?!\w*[/-])")
IMPORT = re.compile(r"^\s*from (coterie[\w.]*) import ([\w, ]+)", re.MULTILINE)


def documented_names():
    """Return all names in the documents that start with `coterie.` or are imported, with their document."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for name in DOTTED.findall(text):
            yield path.name, name
        for module, names in IMPORT.findall(text):
            for name in names.split(","):
                yield path.name, f"{module}.{name.split(' as ')[0].strip()}"


def test_every_documented_name_exists_after_import_coterie():
    named = dict.fromkeys(found for found in documented_names() if found[1] != GROUP)  # no name of Python
    script = f"""
import importlib, coterie
missing = []
for document, name in {list(named)!r}:
    value, *parts = coterie, *name.split(".")[1:]
    known = "coterie"
    for part in parts:
        known += "." + part
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(known)  # a module that documents tell to import
            except ImportError:
                missing.append(f"{{document}}: {{name}}")
                break
print("\\n".join(missing))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.split() == []
    assert len(named) > 30


@pytest.mark.parametrize(
    "module",
    ["callbacks", "clustering", "data", "errors", "evaluate", "learners", "methods", "sklearn", "testing", "tiers"],
)
def test_modules_are_attributes_of_the_package(module):
    assert getattr(coterie, module) is import_module(f"coterie.{module}")


@pytest.fixture(scope="module")
def result():
    return coterie.fit(population(), "ifca", learner="linear", clusters=2, rounds=6, restarts=2)


def test_a_result_has_groups_weights_models_and_records(result):
    assert set(result.assignments) == {f"c{i}" for i in range(8)}
    assert result.weights.shape == (8, 2)
    assert (result.weights.sum(axis=1) == 1).all()
    assert [set(model) for model in result.models] == [{"weight"}, {"weight"}]
    assert result.models[0]["weight"].shape == (4,)
    assert [record["round"] for record in result.records] == list(range(6))
    needed = {"round", "seconds", "loss", "clusters", "bytes_up", "bytes_down"}
    assert all(needed <= set(record) for record in result.records)
    records = [*result.records, *result.clients, result.metrics]
    assert json.loads(json.dumps([each.to_json() for each in records], allow_nan=False)) == records


def test_predictions_come_from_the_clients_own_model(result):
    x = np.random.default_rng(1).standard_normal((5, 4))
    weight = result.models[result.assignments["c3"]]["weight"]
    np.testing.assert_allclose(result.predict(x, client="c3"), x @ weight)
    np.testing.assert_allclose(result.predict(x, cluster=0), x @ result.models[0]["weight"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.predict(np.ones((2, 4))), "ifca needs a few labelled samples to assign a new client"),
        (lambda r: r.predict(np.ones((2, 4)), client="nobody"), "was not in the training data: for a new client"),
        (lambda r: r.predict(np.ones((2, 4)), cluster=2), "cluster must be 0 to 1, got 2"),
        (lambda r: r.predict(np.ones((2, 3)), cluster=0), r"shape \(n, 4\), got \(2, 3\)"),
        (lambda r: r.assign(np.ones((2, 4)), np.ones(3)), "2 samples but labels of shape"),
    ],
)
def test_wrong_uses_of_a_result_raise_errors_with_advice(result, call, message):
    with pytest.raises(InputError, match=message):
        call(result)


def test_save_and_load_give_the_same_result(result, tmp_path):
    folder = result.save(tmp_path / "saved")
    again = coterie.load(folder)
    assert again.assignments == result.assignments
    assert again.records == result.records
    assert again.metrics == result.with_diagnostics().metrics
    assert again.metrics["regression"] == result.coefficients()
    assert again.coefficients() == result.coefficients()
    assert np.array_equal(again.posterior(), result.posterior())
    for a, b in zip(again.models, result.models, strict=True):
        assert np.array_equal(a["weight"], b["weight"])
    x = np.ones((3, 4))
    assert np.array_equal(again.predict(x, client="c1"), result.predict(x, client="c1"))
    with pytest.raises(RunError, match="exists already"):
        result.save(tmp_path / "saved")


def test_a_report_is_written(result, tmp_path):
    page = coterie.write_report(result, tmp_path / "report.html").read_text()
    assert page.startswith("<!")
    assert "c3" in page


def small_net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))


def test_any_module_is_a_learner_and_equals_the_built_in_one_step_by_step():
    """Equal initial parameters with other names give the same models as `mlp`."""
    data = coterie.scenario("rotated-digits", clients=8)
    options = {"clusters": 2, "rounds": 2, "lr": 0.3, "local_steps": 3, "dtype": "float64", "restarts": 1}
    built_in = coterie.fit(data, "ifca", learner="mlp:hidden=12", **options | {"rounds": 1, "lr": 1e-300})
    names = {"1.weight": "layer0.weight", "1.bias": "layer0.bias", "3.weight": "layer1.weight", "3.bias": "layer1.bias"}
    start = [{mine: model[theirs] for mine, theirs in names.items()} for model in built_in.models]
    own = coterie.fit(data, "ifca", learner=small_net, init=start, **options)
    reference = coterie.fit(data, "ifca", learner="mlp:hidden=12", init=built_in, **options)
    for a, b in zip(own.models, reference.models, strict=True):
        for mine, theirs in names.items():
            np.testing.assert_allclose(a[mine], b[theirs], rtol=1e-9, atol=1e-12)


def test_a_user_defined_learner_must_be_passed_again_to_load(tmp_path):
    data = coterie.scenario("rotated-digits", clients=8)
    coterie.fit(data, "fedavg", learner=small_net, rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="pass this function again"):
        coterie.load(tmp_path / "run")
    assert len(coterie.load(tmp_path / "run", learner=small_net).models) == 1


def test_a_run_can_be_initialised_with_the_models_of_another_one(tmp_path):
    data = population()
    common = {"learner": "linear", "clusters": 2, "lr": 0.1, "seed": 3}
    whole = coterie.fit(data, "ifca", rounds=8, **common)
    half = coterie.fit(data, "ifca", rounds=4, out=tmp_path / "half", **common)
    for start in (half, str(tmp_path / "half"), half.models):
        rest = coterie.fit(data, "ifca", rounds=4, init=start, **common)
        for a, b in zip(whole.models, rest.models, strict=True):
            np.testing.assert_allclose(a["weight"], b["weight"], rtol=1e-12)


def test_given_initial_models_survive_an_interruption(tmp_path):
    data, start = population(), [{"weight": np.ones(4)}, {"weight": -np.ones(4)}]
    options = {"learner": "linear", "clusters": 2, "rounds": 4}

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "ifca", init=start, out=tmp_path / "cut", callbacks=[stop], **options)
    whole, cut = coterie.fit(data, "ifca", init=start, **options), coterie.resume(tmp_path / "cut", data)
    assert np.array_equal(whole.models[0]["weight"], cut.models[0]["weight"])


def test_resume_refuses_other_data_and_missing_arrays(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(population(), "ifca", learner="linear", out=tmp_path / "cut", callbacks=[stop])
    with pytest.raises(RunError, match="the data differs from that of the run"):
        coterie.resume(tmp_path / "cut", population(seed=1))
    with pytest.raises(RunError, match=r"use coterie.resume\(folder, data\)"):
        coterie.resume(tmp_path / "cut")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 9}, "clusters=9 but there are only 8 clients"),
        ({"clusters": 0}, "clusters must be a whole number at least 1, or auto, got 0"),
        ({"clusters": "two"}, "clusters must be a whole number at least 1, or auto, got 'two'"),
        ({"clusers": 2}, "unknown option 'clusers' of method ifca: did you mean 'clusters'"),
        ({"lr": 0.0}, "lr must be a number above 0, or auto, got 0.0"),
        ({"lr": float("nan")}, "lr must be a number above 0, or auto, got nan"),
        ({"participation": 1.5}, "participation must be a number above 0 and at most 1"),
        ({"averaging": "member"}, "unknown averaging 'member': did you mean 'members'"),
        ({"local_steps": 2, "local_epochs": 2}, "set only one of them"),
        ({"exchange": "gradient", "local_steps": 3}, "set local_steps=1"),
        ({"learner": "logistic"}, "logistic predicts classes but the targets are numbers"),
        ({"learner": "liner"}, "unknown learner 'liner': did you mean 'linear'"),
        ({"learner": "linear:degre=2"}, "unknown setting 'degre' of learner linear: did you mean 'degree'"),
        ({"learner": "linear:degree=two"}, "learner linear: degree must be a whole number, got 'two'"),
        ({"learner": "cnn"}, "cnn needs images"),
        ({"learner": 7}, "learner must be one of"),
        ({"method": "ifka"}, "unknown method 'ifka': did you mean 'ifca'"),
        ({"method": "fedavg", "clusters": 2}, "clusters has no meaning for method fedavg"),
        ({"shared": "layer9", "learner": "mlp"}, "shared='layer9' names no parameter"),
        ({"shared": "layer0,layer1", "learner": "mlp"}, "leave at least one layer to the clusters"),
        ({"stable_after": 1}, "stable_after must be a whole number at least 2"),
        ({"device": "abacus"}, "device 'abacus' cannot be used here"),
        ({"init": "nowhere"}, "'nowhere' is not a run folder"),
        ({"init": [{"weight": np.ones(4)}]}, "init has 1 models but clusters=2"),
        ({"init": [{"weight": np.ones(3)}] * 2}, "model 0 of init has arrays"),
        ({"init": [{"weight": np.ones(4)}] * 2, "restarts": 2}, "leave restarts at 1"),
    ],
)
def test_bad_options_are_refused_in_one_line_and_nothing_is_written(options, message, tmp_path):
    options = {"method": "ifca", "learner": "linear", "rounds": 1} | options
    with pytest.raises((ConfigError, RunError), match=message) as caught:
        coterie.fit(population(), out=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_diverging_run_is_reported(tmp_path):
    with pytest.warns(DivergenceWarning, match=r"the training diverged, do not .*; lower lr \(now 1e\+20\)"):
        coterie.fit(population(), "fedavg", learner="linear", lr=1e20, rounds=50, out=tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    assert result.metrics["diverged"]
    assert result.metrics["stopped"] == result.records[-1]["stopped"] == "diverged"
    assert len(result.records) < 50, "further rounds could only repeat the last one"


def test_one_diverging_client_is_left_out_and_named():
    """Values near the largest float overflow on one client only; training continues on the others."""
    random = np.random.default_rng(0)
    clients = {f"c{i}": (random.standard_normal((5, 2)), random.standard_normal(5)) for i in range(4)}
    clients["huge"] = (np.full((5, 2), 1e200), np.full(5, 1e200))
    with pytest.warns(DivergenceWarning, match=r"the training loss of 1 client \(huge\) is not finite"):
        result = coterie.fit(coterie.from_arrays(clients), "fedavg", learner="linear", rounds=3, lr=0.1)
    assert all(record["rejected"] == ["huge"] for record in result.records)
    assert all(record["answered"] == 4 for record in result.records)
    assert np.isfinite(result.models[0]["weight"]).all()


def test_a_client_with_infinite_losses_has_an_unknown_cluster(tmp_path):
    """Its loss overflows; the folder is complete, with None instead of infinity."""
    clients = {"sane": (np.ones((3, 1)), np.ones(3)), "huge": (np.full((3, 1), 1e200), np.full(3, 1e200))}
    data = coterie.from_arrays(clients)
    options = {"clusters": 2, "restarts": 2, "rounds": 2, "lr": 0.1}
    with pytest.warns(DivergenceWarning, match="not finite"):
        result = coterie.fit(data, "ifca", learner="linear", out=tmp_path / "run", **options)
    assert all(record["loss"] is not None for record in result.records), "the rejected client is left out of the loss"
    assert coterie.load(tmp_path / "run").clients[1]["loss"] is None
    assert (tmp_path / "run" / "result.json").is_file()


def same_net():
    net = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(net.weight)
    torch.nn.init.zeros_(net.bias)
    return net


def test_equal_initial_models_of_all_clusters_are_refused():
    with pytest.raises(ConfigError, match="clusters could never separate"):
        coterie.fit(population(), "ifca", learner=same_net, clusters=2)
    assert len(coterie.fit(population(), "fedavg", learner=same_net, rounds=1).models) == 1


def test_a_run_is_resumed_with_its_number_of_threads_and_changes_are_reported(tmp_path):
    seen, reported = [], []

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(population(), "ifca", learner="linear", rounds=2, out=tmp_path / "cut", callbacks=[stop])
    path = tmp_path / "cut" / "versions.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"threads": 3, "numpy": "0.1"}))
    manifest = Manifest.read(path.parent)
    Manifest({**manifest.files, path.name: file_sha256(path)}).write(path.parent)
    now = torch.get_num_threads()
    coterie.resume(
        tmp_path / "cut",
        population(),
        warn=reported.append,
        callbacks=[lambda record: seen.append(torch.get_num_threads())],
    )
    assert seen == [3, 3]
    assert torch.get_num_threads() == now
    assert len(reported) == 1
    assert "numpy 0.1 is now" in reported[0]
