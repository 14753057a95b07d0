"""Every registered method over a grid gives the result of the simulation, also after a kill and a resume."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.methods import Method, find_method
from coterie.testing.checks import Case, learners_of
from coterie.training.fitting import carry_out, continue_plan, initialize_run
from coterie.training.planning import Plan
from coterie.training.result import Result
from coterie.training.runs.folder import RunFolder
from tests.flower.make import TWO, clients_behind_a_grid, federation_of, with_federation

POOLED = "cluster-oracle"
"""Method that pools the data, which is impossible with remote clients."""
FEW = {"two-phase": {"init": "random"}, "moment-descent": {"moments": "two-points", "iterations": 2, "anchors": 4}}
"""Options that save exchanges; both methods start with moment descent."""
CASES = [Case(method, learners_of(method)[0], FEW.get(method, {})) for method in Method.members if method != POOLED]
CUT = {"warmup": 1, "eps1": 10.0, "eps2": 0.0, "least": 3}
CASES += [
    Case("ifca", "module"),  # a user-defined learner
    Case("ifca", "linear", {"restarts": 2}),
    Case("ifca", "linear", {"refit": True}),  # one more exchange after the last round
    Case("ifca", "linear", {"combine": "median"}),  # every client's change is a row
    Case("ifca", "linear", {"stable_after": 2, "rounds": 4, "validation": 0.3}),  # some clients are sent one model only
    Case("hcfl", "logistic", CUT | {"backbone": "fedem"}),  # K changes while clients keep weights
    Case("cfl", "linear", {"test_every": 1, "false_splits": 0.5}),  # two more exchanges in every round
    Case("hcfl+", "mlp", {"test_every": 1, "false_splits": 0.5}),
    Case(  # the shared body becomes one for each cluster
        "tiered",
        "mlp",
        {"clusters": 2, "shared": "body", "assignment": "em-mixture", "distance": "prototypes"}
        | {"procedure": "own-bodies-by-test:every=2,rate=1000000"},
    ),
]

pytestmark = pytest.mark.filterwarnings("ignore:moment descent", "ignore:one-shot", "ignore:.*it may split by chance")


class KilledError(Exception):
    """Error that simulates a kill."""


def kill(record: Mapping[str, Any]) -> None:
    if record["round"] == 2:
        raise KilledError


def same(one: Result, other: Result) -> None:
    for a, b in zip(one.models, other.models, strict=True):
        for name in a:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-9, atol=1e-9 * np.abs(a[name]).max())
    assert one.assignments == other.assignments
    for ours, theirs in zip(one.records, other.records, strict=True):
        for figure in ("answered", "missing", "rejected", "bytes_up", "bytes_down"):
            assert ours[figure] == theirs[figure], figure
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
    for figure in ("bytes_up", "bytes_down"):
        assert one.metrics[figure] == other.metrics[figure], figure
    score = "rmse" if "rmse" in one.metrics else "accuracy"
    assert one.metrics[score] == pytest.approx(other.metrics[score], rel=1e-9)


def label(case: Case) -> str:
    return "-".join([case.method, case.learner, *case.options])


def quick(case: Case, rounds: int = 3) -> Case:
    """Return the case with few rounds and scores at the end only."""
    takes = {option.name for option in find_method(case.method).options()}
    few = {name: value for name, value in {"evaluate_every": 9, "rounds": rounds}.items() if name in takes}
    return replace(case, options={**few, **case.options})


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_killed_and_resumed_run_equals_a_simulated_one(case, tmp_path):
    case = quick(case)
    takes = "checkpoint_every" not in find_method(case.method).refuses
    more = {"checkpoint_every": 2} if takes else {}
    plan = case.plan(**more)

    def remote() -> Plan:
        """Return the same plan for a server without data."""
        return case.plan(clients_behind_a_grid(plan, tmp_path / "states", nodes=TWO), **more)

    try:
        ended = carry_out(remote(), tmp_path / "run", [kill])  # methods without rounds are not killed
    except KilledError:
        ended = continue_plan(remote(), RunFolder.open(tmp_path / "run"))
    same(case.run(plan), ended)


@pytest.mark.parametrize("case", [c for c in CASES if "participation" not in find_method(c.method).refuses], ids=label)
def test_partial_participation_equals_a_simulation(case, tmp_path):
    case = quick(case, rounds=2)
    plan = case.plan(participation=0.6)
    remote = case.plan(clients_behind_a_grid(plan, tmp_path, nodes=TWO), participation=0.6)
    same(case.run(plan), case.run(remote))


def test_pooling_the_data_is_refused():
    plan = Case(POOLED, "linear").plan()
    with pytest.raises(ConfigError, match="which only a simulation can do: use another"):
        initialize_run(with_federation(plan, federation_of(plan)))


@pytest.mark.parametrize("method", ["fedem", "fedsoft"])
def test_a_server_that_falls_back_to_an_older_checkpoint_finds_the_states_of_its_round(method, tmp_path):
    case = Case(method, "linear", {"evaluate_every": 9, "rounds": 6, "participation": 0.6, "checkpoint_every": 1})
    plan = case.plan()
    out, states = tmp_path / "run", tmp_path / "states"

    def kill_late(record: Mapping[str, Any]) -> None:
        if record["round"] == 4:
            raise KilledError

    with pytest.raises(KilledError):
        carry_out(with_federation(plan, federation_of(plan, states, nodes=TWO)), out, [kill_late])
    for newest in sorted(out.glob("checkpoints/round-*"))[-4:]:  # two checkpoints, of two files each
        newest.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        ended = continue_plan(with_federation(plan, federation_of(plan, states, nodes=TWO)), RunFolder.open(out))
    same(case.run(plan), ended)
    assert "notes" not in {key for record in ended.records for key in record}


def test_states_that_no_checkpoint_needs_are_deleted(tmp_path):
    case = Case("fedem", "linear", {"evaluate_every": 9, "rounds": 6, "checkpoint_every": 1})
    plan = case.plan()
    carry_out(with_federation(plan, federation_of(plan, tmp_path / "states", nodes=TWO)), tmp_path / "run")
    # the last messages were sent while the checkpoints after 3, 4 and 5 rounds existed
    assert rounds_kept(tmp_path / "states") == {"000003", "000004", "000005"}


def rounds_kept(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*/*/*")}
