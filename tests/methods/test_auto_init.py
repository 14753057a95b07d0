"""The default initializer of mixtures and of fesem: clustered solutions of the clients, or random models."""

from __future__ import annotations

import pytest

import coterie
from coterie.methods import ODCL, FedEM, FeSEM, RandomInit, auto_init
from coterie.methods.run import Initializer
from coterie.testing.checks import small_federation
from coterie.training.planning import prepare


def chosen(method: str, learner: str = "logistic", **options: object) -> Initializer:
    data = small_federation("logistic" if learner != "linear" else learner)
    return prepare(data, method, learner, {"clusters": 2, "rounds": 2} | options).method.initializer


@pytest.mark.parametrize("method", ["fedem", "fedrc", "fedgmm", "fesem"])
def test_the_clients_own_solutions_are_clustered_by_default(method):
    assert chosen(method) == ODCL()


@pytest.mark.parametrize(
    ("options", "restarts"),
    [({"restarts": 3}, 3), ({"restarts": 1}, 1), ({"clusters": 1}, 1), ({"clusters": "auto"}, 1)],
    ids=str,
)
def test_models_are_random_where_solutions_are_not_wanted(options, restarts):
    assert chosen("fedem", **options) == RandomInit(restarts=restarts)


def test_models_are_random_where_clusters_share_a_body():
    assert chosen("fedem", "mlp", shared="body") == RandomInit(restarts=1)


def test_models_are_random_where_the_server_could_not_hold_all_solutions(monkeypatch):
    # 9 clients with 3 x 16 weights and 3 biases each: 9 * 51 = 459 numbers
    monkeypatch.setattr(auto_init, "MOST_NUMBERS", 458)
    assert chosen("fedem") == RandomInit(restarts=1)
    monkeypatch.setattr(auto_init, "MOST_NUMBERS", 459)
    assert chosen("fedem") == ODCL()


def test_fesem_counts_its_clusters_by_default():
    result = coterie.fit(small_federation("linear"), FeSEM(), rounds=2)
    assert result.config["init"] == "odcl"
    assert result.metrics["clusters"] >= 1


def test_restarts_that_a_scenario_recommends_are_for_random_models():
    data = coterie.scenario("mixed-regression", clients=12)
    assert data.recommended["restarts"] > 1
    for method in ("fedem", FedEM(clusters=2)):
        assert prepare(data, method, None, {}).method.initializer == ODCL()
    assert prepare(data, "ifca", None, {}).method.initializer == RandomInit(restarts=data.recommended["restarts"])
