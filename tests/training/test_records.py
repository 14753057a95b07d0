"""Records as typed values, as mappings and as JSON; diagnostics that are computed on demand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coterie
from coterie.errors import InputError, RunError
from coterie.training import diagnostics
from coterie.training.records import ClientResult, Metrics, RoundRecord


@pytest.fixture(scope="module")
def data():
    return coterie.scenario("mixed-regression", clients=12, groups=2, dimension=3, samples="20", seed=0)


# ---- records ---------------------------------------------------------------------------------------------------------


def test_required_and_optional_figures_are_read_alike():
    record = RoundRecord(round=3, loss=0.5, measures={"ari": 1.0})
    assert (record.round, record["round"], record.get("loss")) == (3, 3, 0.5)
    assert (record["ari"], record.measures["ari"]) == (1.0, 1.0)
    assert "ari" in record
    assert "accuracy" not in record
    assert record.get("accuracy") is None
    with pytest.raises(KeyError, match="accuracy"):
        record["accuracy"]
    assert len(record) == len(dict(record)) == len(list(record.items()))


def test_empty_notes_are_not_entries():
    assert not {"stopped", "notes", "events"} & RoundRecord(round=0).keys()
    assert RoundRecord(round=0, stopped="patience")["stopped"] == "patience"
    assert "why_diverged" not in Metrics()


def test_records_survive_json():
    record = RoundRecord(round=1, loss=None, missing=["a"], notes=[{"reason": "late"}], measures={"sizes": [3, 4]})
    again = RoundRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record
    assert (again.missing, again.measures) == (["a"], {"sizes": [3, 4]})


def test_an_earlier_version_may_lack_figures_and_unknown_ones_are_kept():
    record = RoundRecord.from_json({"round": 0, "loss": 1.5, "forgotten": [1]})
    assert (record.loss, record.moved, record.missing) == (1.5, 0, [])
    assert record.to_json()["forgotten"] == [1]
    with pytest.raises(RunError, match="needs 'cluster'"):
        ClientResult.from_json({"id": "a"})


def test_figures_are_added_and_replaced_as_in_dicts():
    metrics = Metrics(loss=1.0, measures={"ari": 0.5})
    assert metrics | {"loss": 2.0, "nmi": 0.3} == dict(metrics) | {"loss": 2.0, "nmi": 0.3}
    assert (metrics.loss, "nmi" in metrics) == (1.0, False)
    assert isinstance(metrics | {}, Metrics)


def test_a_result_has_typed_records(data):
    result = coterie.fit(data, "ifca", clusters=2, rounds=2)
    assert [record.round for record in result.records] == [0, 1]
    assert all(isinstance(record, RoundRecord) for record in result.records)
    assert all(isinstance(client, ClientResult) for client in result.clients)
    assert result.metrics.rounds == 2
    assert result.metrics.bytes_up == sum(record.bytes_up for record in result.records)


# ---- diagnostics ----------------------------------------------------------------------------------------------------


@pytest.fixture
def computed(monkeypatch):
    """The calls of the computation of intervals."""
    calls, compute = [], diagnostics.regression_report

    def counted(*args, **more):
        calls.append(args)
        return compute(*args, **more)

    monkeypatch.setattr(diagnostics, "regression_report", counted)
    return calls


def test_a_run_in_memory_computes_intervals_when_asked_and_once(data, computed):
    result = coterie.fit(data, "ifca", clusters=2, rounds=2)
    assert not computed
    assert "regression" not in result.metrics
    first = result.coefficients()
    assert len(first["clusters"]) == 2
    assert result.coefficients() is first
    assert len(computed) == 1


@pytest.mark.filterwarnings("ignore:clusters=auto")
def test_trial_runs_compute_no_intervals(data, computed, tmp_path):
    coterie.fit(data, "ifca", clusters="auto", max_clusters=2, rounds=2, out=tmp_path / "run")
    assert len(computed) == 1, "the run itself, and none of the trials"


def test_a_run_folder_stores_the_diagnostics(data, tmp_path):
    memory = coterie.fit(data, "ifca", clusters=2, rounds=2)
    written = coterie.fit(data, "ifca", clusters=2, rounds=2, out=tmp_path / "run")
    saved = coterie.load(memory.save(tmp_path / "saved"))
    for result in (written, coterie.load(tmp_path / "run"), saved):
        assert result.metrics["regression"] == result.coefficients() == memory.coefficients()
        assert np.array_equal(result.posterior(), memory.posterior())
        assert [client["posterior"] for client in result.clients] == memory.posterior().tolist()
    assert memory.posterior().sum(axis=1) == pytest.approx(1)


def test_a_report_of_a_run_in_memory_has_the_intervals(data, tmp_path):
    page = coterie.write_report(coterie.fit(data, "ifca", clusters=2, rounds=2), tmp_path / "page.html").read_text()
    assert "95 %" in page
    assert "certainty" in page


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ifca", {"learner": "mlp:hidden=4"}),
        ("local", {}),
        ("ifca", {"lr": 1e30, "rounds": 30}),
        ("ifca", {"privacy": "central", "privacy_epsilon": 8.0}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_run_without_intervals_says_so(data, tmp_path, method, options):
    options = {"rounds": 2, **options}
    result = coterie.fit(data, method, **options)
    stored = coterie.load(result.save(tmp_path / "run"))
    for each in (result, stored):
        with pytest.raises(InputError, match="has no intervals of coefficients"):
            each.coefficients()
    assert "regression" not in stored.metrics


def test_one_model_for_all_has_intervals_and_no_posterior(data):
    result = coterie.fit(data, "fedavg", rounds=2)
    assert len(result.coefficients()["clusters"]) == 1
    with pytest.raises(InputError, match="has no probabilities of clusters"):
        result.posterior()
