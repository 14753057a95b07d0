"""A hostile node is refused with a reason, and the run ends as if the node did not exist."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.flower.clients import clients_of
from coterie.flower.in_process import InProcessGrid
from coterie.flower.node import make_client_app
from coterie.testing.checks import small_federation
from tests.flower.attacks import ATTACKS, attacking

NODES: Mapping[int, Sequence[int]] = {11: (0, 3, 6), 5: (1, 2, 4, 5)}
HOSTILE, ITS_CLIENTS = 3, (7, 8)
OPTIONS: Mapping[str, Any] = {
    "clusters": 2, "rounds": 1, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3, "init": "random"
}  # fmt: skip
DATA = {learner: small_federation(learner) for learner in ("linear", "logistic")}


def run(
    attack: str | None, method: str = "ifca", learner: str = "logistic", options: Mapping[str, Any] = OPTIONS
) -> coterie.Result:
    """Return a run with two honest nodes and, if there is an attack, a hostile one."""
    data, places = DATA[learner], dict(NODES) | ({} if attack is None else {HOSTILE: ITS_CLIENTS})
    parts = {node: data.take(at) for node, at in places.items()}
    apps = {node: make_client_app(lambda context, part=part: part) for node, part in parts.items() if node != HOSTILE}
    if attack is not None:
        apps[HOSTILE] = make_client_app(lambda context: parts[HOSTILE], mods=[attacking(attack)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clients = clients_of(InProcessGrid(apps), nodes=len(NODES), wait=60, deadline=60)
        return coterie.fit(clients, method, **options)


def reasons(result: coterie.Result) -> list[str]:
    return [note["reason"] for record in result.records for note in record.get("notes", ()) if note["node"] == "3"]


def assert_unaffected(attacked: coterie.Result, honest: coterie.Result) -> None:
    for ours, theirs in zip(attacked.models, honest.models, strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12, atol=1e-12)
    mine = {client: attacked.assignments[client] for client in honest.assignments}
    assert mine == honest.assignments
    for ours, theirs in zip(attacked.records, honest.records, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        assert ours["bytes_up"] == theirs["bytes_up"]
    found = reasons(attacked)
    assert found
    assert all(reason.endswith(": refused") and reason.isprintable() and len(reason) < 600 for reason in found), found


@pytest.fixture(scope="module")
def honest() -> coterie.Result:
    return run(None)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_node_is_refused_and_the_run_continues(attack, honest):
    assert_unaffected(run(attack), honest)


OTHERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "restarts": ("ifca", "logistic", {**OPTIONS, "restarts": 2}),
    "median": ("ifca", "logistic", {**OPTIONS, "combine": "median"}),
    "one-shot": ("odcl", "linear", {"clusters": 2, "dtype": "float64"}),
    "uniform": ("fedavg", "logistic", {"rounds": 2, "local_steps": 2, "lr": 0.05, "client_weight": "uniform"}),
}


@cache
def honest_run(case: str) -> coterie.Result:
    return run(None, *OTHERS[case])


@pytest.mark.parametrize("attack", ["NaN everywhere", "infinity everywhere", "1e308 everywhere", "npz", "nothing"])
@pytest.mark.parametrize("case", OTHERS)
def test_a_hostile_node_changes_nothing_in_runs_of_other_methods(case, attack):
    attacked = run(attack, *OTHERS[case])
    for ours, theirs in zip(attacked.models, honest_run(case).models, strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6 if case == "uniform" else 1e-9, atol=1e-12)
