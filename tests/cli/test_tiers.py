"""The list of tier members, and compositions of them on the command line."""

import io
import tomllib

import pytest
from rich.console import Console

from coterie.cli.about import TIERS, default_method, users_of_members
from coterie.cli.progress import run_progress
from coterie.methods import Method
from coterie.testing.checks import LEARNERS, learners_of, small_federation
from coterie.training.planning import prepare
from coterie.training.records import RoundRecord


def test_every_member_is_listed_with_its_settings_and_methods(coterie):
    code, out, _ = coterie("tiers")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines() if line.strip()}
    for family, _ in TIERS.values():
        assert set(family.members) <= names
    about = out[out.index("\nem-mixture ") :]
    assert about.index("settings: mu=0.0") < about.index("methods: fedem") < about.index("\nsingle-cluster ")
    assert "settings: rho=required, hard=false" in out


def test_methods_are_listed_with_the_members_that_they_use():
    users = users_of_members()
    assert users["distance", "update-cosine"][:1] == ["cfl"]
    assert "fedrc" in users["objective", "ratio"]
    assert "ifca" in users["assignment", "lowest-loss"]
    assert "ifca" not in {name for (tier, _), used in users.items() if tier == "procedure" for name in used}
    assert {name for used in users.values() for name in used} == set(Method.members) - {"tiered"}


@pytest.mark.parametrize("method", Method.members)
def test_the_default_method_is_the_one_that_a_run_has(method):
    # the default composition of hcfl+ has a step for bodies, which logistic models do not have
    preferred = "mlp" if method == "hcfl+" else "logistic"
    learner = preferred if preferred in learners_of(method) else learners_of(method)[0]
    learner = "linear" if Method.members[method]().initializer.name == "moment-descent" else learner
    planned = prepare(small_federation(learner), method, LEARNERS[learner], {}).tiers
    listed = default_method(Method.members[method]).tiers()
    assert (listed.assignment, listed.distance) == (planned.assignment, planned.distance)
    assert listed.objective.server_with_seed(0) == planned.objective
    assert listed.procedure.steps == planned.procedure.steps


def test_a_composition_is_run_from_the_command_line_and_from_its_config(coterie, tmp_path):
    procedure = "split-by-norm:eps1=10,eps2=0,warmup=1"
    mix = ["--assignment", "assigned", "--procedure", procedure, "--distance", "update-cosine", "--max-clusters", "3"]
    code, out, _ = coterie(
        "run", "rotated-digits", "--method", "tiered", *mix, "--clients", 8, "--rounds", 3, "--out", "one"
    )
    assert code == 0
    assert "from 1 to 3 clusters by 2 splits, the last after round 3" in out
    config = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert config["procedure"] == [{"name": "split-by-norm", "eps1": 10.0, "eps2": 0.0, "warmup": 1}]
    assert coterie("run", "--config", "one/config.toml", "--out", "two")[0] == 0
    models = [(tmp_path / run / "models.safetensors").read_bytes() for run in ("one", "two")]
    assert models[0] == models[1]


def test_an_invalid_composition_is_one_line_and_writes_nothing(coterie, tmp_path):
    code, _, err = coterie("run", "rotated-digits", "--method", "tiered", "--procedure", "split-by-gap:rho=0.3")
    assert code == 2
    assert "split-by-gap splits clusters by a distance, but none is set" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_changes_of_clusters_are_printed_at_once_on_a_terminal(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    event = {"kind": "split", "reason": "because", "before": 1, "parents": [[0], [0]]}
    with run_progress(console, 3, "cfl") as bar:
        bar.show(RoundRecord(round=1, loss=0.5, events=[event]))
    assert ("round 2: split, 1 to 2 clusters (because)" in console.file.getvalue()) == terminal
