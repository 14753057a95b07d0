"""The clusters of single samples: against a plain loop, and where they show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.evaluate.samples import by_client, sample_agreement
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.testing.checks import small_federation
from coterie.training.runs.folder import RunFolder
from tests.core.make import make_shard
from tests.methods.test_fedem_fedrc import softmax

K = 2


def with_truth(kind: str) -> FederatedDataset:
    data = small_federation(kind)
    return replace(data, sample_truth=np.random.default_rng(0).integers(0, K, len(data.train.y)))


def matched(truth: np.ndarray, found: np.ndarray) -> float:
    """The share in the right cluster when the two clusters are numbered in the better way."""
    return max((truth == found).mean(), (truth == 1 - found).mean())


OPTIONS = {"clusters": K, "rounds": 6, "lr": 0.3, "local_steps": 3}


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("method", ["fedem", "fedrc"])
def test_a_sample_is_in_the_cluster_of_its_largest_responsibility(method: str, restarts: int, tmp_path):
    data = with_truth("logistic")
    result = coterie.fit(data, method, learner="logistic", restarts=restarts, out=tmp_path / "run", **OPTIONS)
    x, y = data.train.x.numpy().reshape(len(data.train.x), -1), data.train.y.numpy()
    shares = np.ones((K, data.profile.classes))
    if method == "fedrc":
        restart, state = result.metrics.get("restart", 0), RunFolder.open(tmp_path / "run").last_state(print)[0]
        counts = state.tables["labels"].numpy().sum(axis=0)[restart]  # (K, C)
        shares = counts / counts.sum(axis=1, keepdims=True)
    found = np.zeros(len(y), dtype=int)
    for i, (a, b) in enumerate(zip(data.train.starts, data.train.stops, strict=True)):
        for j in range(a, b):
            p = np.array([softmax(x[j][None] @ m["weight"].T + m["bias"])[0, y[j]] for m in result.models])
            found[j] = int(np.argmax(result.weights[i] * p / shares[:, y[j]]))
    assert 0 < found.mean() < 1, "all in one cluster would test nothing"
    assert result.metrics["sample_ari"] == pytest.approx(adjusted_rand_score(data.sample_truth, found), abs=1e-9)
    assert result.metrics["sample_identity"] == pytest.approx(matched(data.sample_truth, found), abs=1e-9)


def test_the_samples_of_a_hard_method_are_where_their_client_is():
    data = with_truth("logistic")
    result = coterie.fit(data, "ifca", learner="logistic", **OPTIONS)
    found = np.concatenate([[row["cluster"]] * row["n"] for row in result.clients])
    assert result.metrics["sample_ari"] == pytest.approx(adjusted_rand_score(data.sample_truth, found), abs=1e-9)
    assert result.metrics["sample_identity"] == pytest.approx(matched(data.sample_truth, found), abs=1e-9)


def test_by_hand_and_without_clients_that_did_not_answer():
    shard = make_shard([(np.zeros((n, 1)), np.zeros(n)) for n in (2, 3, 1)])
    data = FederatedDataset("made", shard, sample_truth=np.array([0, 1, 0, 0, 0, 1]))
    positions = np.array([0, 2])
    found = by_client(shard, positions, np.array([1, 0]))
    assert found.tolist() == [1, 1, 0]
    # their truths are 0, 1, 1: under the best matching (1 is 0, 0 is 1) the first and the last are right
    assert sample_agreement(data, positions, found)["sample_identity"] == pytest.approx(2 / 3)


def test_numbers_have_responsibilities_too():
    random = np.random.default_rng(0)
    clients, truth = {}, []
    for i in range(10):
        x, mine = random.standard_normal((60, 2)), random.integers(0, 2, 60) if i % 2 else np.zeros(60, dtype=int)
        clients[i] = (x, (1 - 2 * mine) * x.sum(axis=1) + 0.05 * random.standard_normal(60))
        truth.append(mine)
    data = replace(coterie.from_arrays(clients), sample_truth=np.concatenate(truth))
    result = coterie.fit(data, "fedem", learner="linear", clusters=2, rounds=80, lr=0.2, local_steps=5, seed=1)
    assert result.metrics["sample_identity"] > 0.95
    assert coterie.fit(data, "fedavg", learner="linear", rounds=2).metrics["sample_ari"] == 0


def test_the_figures_show_only_where_samples_have_a_truth(tmp_path):
    mixed = coterie.scenario("mixed-clients", clients=6)
    for name, data in (("mixed", mixed), ("not", replace(mixed, sample_truth=None))):
        coterie.compare(data, ["fedem", "fedavg"], seeds=1, rounds=2, out=tmp_path / name)
    page = write_report(read_runs(tmp_path / "mixed"), tmp_path / "mixed.html").read_text()
    assert "sample ARI" in page
    assert "right samples" in page
    assert "sample ARI" not in write_report(read_runs(tmp_path / "not"), tmp_path / "not.html").read_text()
    assert "sample_ari" not in coterie.load(tmp_path / "not" / "jobs" / "fedem-seed0").metrics


def test_samples_held_out_for_validation_count_as_well():
    data = with_truth("logistic")
    result = coterie.fit(data, "ifca", learner="logistic", clusters=K, rounds=2, validation=0.3)
    sizes = data.train.sizes
    found = np.concatenate([[row["cluster"]] * n for row, n in zip(result.clients, sizes, strict=True)])
    assert result.metrics["sample_identity"] == pytest.approx(matched(data.sample_truth, found), abs=1e-9)
