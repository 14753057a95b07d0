"""`method="auto"`: the diagnosis chooses the method once, and the run stores the reason."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.diagnosis.values import Diagnosis
from coterie.errors import ConfigError, RunError
from coterie.training import planning
from tests.diagnosis.made import alike, grouped


@pytest.fixture
def data():
    return coterie.scenario("mixed-regression", clients=9, dimension=2, groups=3)


@pytest.fixture
def diagnoses(monkeypatch):
    """Make `diagnose` return a given value; the list counts its calls."""
    calls = []

    def returns(value):
        def diagnose(data, *, seed=0, network=True):
            calls.append(seed)
            return value

        monkeypatch.setattr(planning, "diagnose", diagnose)
        return calls

    return returns


def test_the_recommendation_is_followed_and_stored(data, diagnoses, tmp_path):
    calls = diagnoses(grouped())
    result = coterie.fit(data, "auto", rounds=2, seed=4, out=tmp_path / "run")
    assert calls == [4]
    assert result.config["method"] == "ifca"
    assert result.config["clusters"] == 3
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["method"] == "ifca"
    assert Diagnosis.from_json((tmp_path / "run" / "diagnosis.json").read_text()) == grouped() == result.diagnosis
    assert coterie.load(tmp_path / "run").diagnosis == grouped()
    assert result.metrics["diagnosed"]["reason"] == grouped().recommendation.reason
    page = coterie.write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "chosen by a diagnosis of the clients: The relation differs between 3 groups" in page


@pytest.mark.parametrize(("learner", "network"), [(None, True), ("mlp", True), ("linear", False)])
def test_methods_that_need_a_network_are_recommended_for_networks_only(data, monkeypatch, learner, network):
    asked = []

    def diagnose(data, *, seed=0, network=True):
        asked.append(network)
        return alike()

    monkeypatch.setattr(planning, "diagnose", diagnose)
    coterie.fit(data, "auto", learner=learner, rounds=1)
    assert asked == [network]


def test_a_given_number_of_clusters_excludes_methods_that_find_it(data, monkeypatch):
    asked = []

    def recorded(*_, network: bool, **__):
        asked.append(network)
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "diagnose", recorded)
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "auto", clusters=2)
    assert asked == [False]


def test_a_run_in_memory_can_be_saved_with_its_diagnosis(data, diagnoses, tmp_path):
    diagnoses(grouped())
    coterie.fit(data, "auto", rounds=1).save(tmp_path / "run")
    assert coterie.load(tmp_path / "run").diagnosis == grouped()


def test_the_costs_include_the_diagnosis(data, diagnoses):
    diagnoses(grouped())
    options = {"clusters": 3, "restarts": 2, "rounds": 2}
    auto, named = coterie.fit(data, "auto", rounds=2), coterie.fit(data, "ifca", **options)
    cost = grouped().cost
    assert auto.metrics.bytes_up == named.metrics.bytes_up + cost.bytes_up
    assert auto.metrics.bytes_down == named.metrics.bytes_down + cost.bytes_down
    assert auto.metrics["exchanges"] == 2 + cost.exchanges
    for one, other in zip(auto.models, named.models, strict=True):
        np.testing.assert_array_equal(one["weight"], other["weight"])


def test_given_options_override_recommended_ones(data, diagnoses):
    diagnoses(grouped())
    result = coterie.fit(data, "auto", rounds=1, clusters=2)
    assert (result.config["clusters"], result.config["restarts"]) == (2, 2)


def test_do_not_cluster_trains_one_model(data, diagnoses):
    diagnoses(alike())
    result = coterie.fit(data, "auto", rounds=1)
    assert result.config["method"] == "fedavg"
    assert len(result.parameters) == 1
    assert result.metrics["diagnosed"]["do_not_cluster"]


def test_an_option_that_the_recommended_method_does_not_have_is_refused(data, diagnoses):
    diagnoses(alike())
    with pytest.raises(ConfigError, match="recommends method fedavg, which has no option clusters: leave clusters out"):
        coterie.fit(data, "auto", clusters=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cluster": 3}, "did you mean 'clusters'"), ({"privacy": "central"}, "does not support differential privacy")],
)
def test_mistakes_are_found_before_clients_are_asked(data, diagnoses, options, message):
    calls = diagnoses(grouped())
    with pytest.raises(ConfigError, match=message):
        coterie.fit(data, "auto", **options)
    assert calls == []


def test_a_resumed_run_does_not_diagnose_again(data, diagnoses, tmp_path):
    calls = diagnoses(grouped())
    whole = coterie.fit(data, "auto", rounds=3)

    def fail(record):
        if record.round == 1:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        coterie.fit(data, "auto", rounds=3, out=tmp_path / "run", callbacks=[fail])
    assert len(calls) == 2
    result = coterie.resume(tmp_path / "run")
    assert len(calls) == 2
    assert result.diagnosis == grouped()
    assert result.metrics["diagnosed"] == whole.metrics["diagnosed"]
    assert result.metrics.bytes_up == whole.metrics.bytes_up
    for one, other in zip(result.models, whole.models, strict=True):
        np.testing.assert_array_equal(one["weight"], other["weight"])


def test_a_run_that_was_killed_before_its_first_checkpoint_keeps_its_diagnosis(data, diagnoses, tmp_path, monkeypatch):
    calls = diagnoses(grouped())

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("coterie.training.fitting.initialize", kill)
        with pytest.raises(KeyboardInterrupt):
            coterie.fit(data, "auto", rounds=1, out=tmp_path / "run")
    result = coterie.resume(tmp_path / "run")
    assert len(calls) == 1
    assert result.diagnosis == grouped()
    assert "diagnosed" in result.metrics


def test_a_damaged_diagnosis_is_noticed(data, diagnoses, tmp_path):
    diagnoses(grouped())
    coterie.fit(data, "auto", rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "diagnosis.json"
    path.write_text(replace(grouped(), seed=7).to_json())
    with pytest.raises(RunError, match=r"diagnosis\.json is damaged"):
        coterie.load(tmp_path / "run")


def test_a_comparison_needs_names(data, tmp_path):
    with pytest.raises(ConfigError, match="method=auto works only for a single run"):
        coterie.compare(data, ["auto", "fedavg"], seeds=1, out=tmp_path / "comparison")
