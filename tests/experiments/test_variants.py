"""Typed methods in comparisons and sweeps: labels, files and worker processes."""

import tomllib
from dataclasses import dataclass

import numpy as np
import pytest

import coterie
from coterie.errors import ConfigError
from coterie.experiments.compare import jobs_of, plan_comparison
from coterie.experiments.variants import Variant, variants_of
from coterie.methods import IFCA, ODCL, FedAvg, FullBatch, Method, MiniBatch, Tiered
from coterie.methods.settings import RUN_OPTIONS
from coterie.options import plain_options
from coterie.report.reading import read_runs
from coterie.tiers import Assigned, SplitByNorm, UpdateCosine
from coterie.training.runs.files import toml_bytes
from tests.methods.test_ifca import population

TYPED = [
    IFCA(clusters=4, local=MiniBatch(batch_size=5, epochs=2, lr=0.3)),
    IFCA(init=ODCL(clustering="spectral")),
    FedAvg(local=FullBatch(steps=3)),
    Tiered(assignment=Assigned(), procedure=(SplitByNorm(eps1=1.0, eps2=0.0),), distance=UpdateCosine()),
]


@pytest.mark.parametrize("method", [*TYPED, *(kind() for kind in Method.members.values())], ids=lambda m: m.name)
def test_a_typed_method_survives_the_round_trip_through_a_file(method):
    stored = tomllib.loads(toml_bytes(Variant.of(method, "a").to_plain()).decode())
    again = Variant.from_plain("a", {"a": stored}).choice()
    assert type(again) is type(method)
    assert plain_options(again.to_options()) == plain_options(method.to_options())
    assert again.tiers() == method.tiers()


def test_labels_are_names_by_default():
    assert [v.label for v in variants_of(["fedavg", IFCA()])] == ["fedavg", "ifca"]
    assert [v.label for v in variants_of({"few": IFCA(clusters=2), "many": "ifca"})] == ["few", "many"]
    assert Variant.of("fedavg").is_plain
    assert not Variant.of(FedAvg()).is_plain


@dataclass(frozen=True, kw_only=True)
class Unregistered(FedAvg):
    """A method that is not registered under its own name."""


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([IFCA(clusters=2), IFCA(clusters=4)], "method 'ifca' is listed twice: list every method once, or use labels"),
        (["ifca", IFCA()], "listed twice"),
        (["ifka"], "did you mean 'ifca'"),
        ([3], "method must be a name or a value such as"),
        ([Unregistered()], "Unregistered is not registered"),
        ({"../up": IFCA()}, "because it names a folder"),
        ({"..": IFCA()}, "because it names a folder"),
        ({"": IFCA()}, "because it names a folder"),
        ({3: IFCA()}, "because it names a folder"),
    ],
)
def test_methods_that_cannot_be_stored_are_refused(methods, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        coterie.compare(population(), methods, seeds=1, out=tmp_path / "c", learner="linear", rounds=1)
    with pytest.raises(ConfigError, match=message):
        coterie.compare("mixed-regression", methods, seeds=1, out=tmp_path / "c", rounds=1)
    assert not (tmp_path / "c").exists()


def test_variants_of_one_method_are_compared_on_a_scenario(tmp_path, monkeypatch):
    methods = {"ifca-2": IFCA(clusters=2), "ifca-3": IFCA(clusters=3), "fedavg": "fedavg", "mean": FedAvg()}
    options = {"clients": 12, "dimension": 3, "rounds": 3}
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # one worker
    folder = coterie.compare("mixed-regression", methods, seeds=[0, 1], out=tmp_path / "c", **options).folder
    assert {path.name for path in (folder / "jobs").iterdir()} == {f"{m}-seed{s}" for m in methods for s in (0, 1)}
    runs = read_runs(folder)
    assert {(run.name, run.method, run.config.get("clusters")) for run in runs if run.seed == 1} == {
        ("ifca-2", "ifca", 2),
        ("ifca-3", "ifca", 3),
        ("fedavg", "fedavg", None),
        ("mean", "fedavg", None),
    }
    data = coterie.scenario("mixed-regression", seed=1, clients=12, dimension=3)
    alone = coterie.fit(data, IFCA(clusters=3), rounds=3, seed=1)
    filed = coterie.load(folder / "jobs" / "ifca-3-seed1")
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(alone.models, filed.models, strict=True))
    recommended = coterie.load(folder / "jobs" / "fedavg-seed0").config["lr"]
    typed = coterie.load(
        folder / "jobs" / "mean-seed0"
    )  # recommendations of the scenario do not apply to typed methods
    assert (recommended, typed.config["lr"]) == (0.05, typed.metrics["learning_rate"]["lr"])


def test_a_comparison_of_typed_methods_is_rebuilt_from_its_folder(tmp_path):
    methods = {"a": TYPED[0], "b": "ifca", "fedavg": "fedavg"}
    plan_comparison("mixed-regression", methods, [0], {"rounds": 2, "clients": 12}, tmp_path / "c")
    jobs = {job.variant.label: job for job in jobs_of(tmp_path / "c")}
    assert jobs["a"].variant.choice().tiers() == TYPED[0].tiers()
    assert jobs["b"].variant.choice() == "ifca"
    assert jobs["fedavg"].variant.choice() == "fedavg"
    assert all(job.rounds() == 2 for job in jobs.values())


def test_options_override_the_fields_of_typed_methods(tmp_path):
    options = {"learner": "linear", "rounds": 2, "clusters": 3}
    methods = [IFCA(clusters=2), FedAvg()]
    folder = coterie.compare(population(), methods, seeds=1, out=tmp_path / "c", **options).folder
    assert coterie.load(folder / "jobs" / "ifca-seed0").config["clusters"] == 3


def test_rounds_of_a_job_follow_options_scenario_and_default(tmp_path):
    for number, (scenario, options, rounds) in enumerate(
        [("mixed-regression", {"rounds": 7}, 7), ("mixed-regression", {}, 100)]
    ):
        plan_comparison(scenario, ["fedavg", "odcl"], [0], {"clients": 12} | options, tmp_path / str(number))
        assert {job.variant.label: job.rounds() for job in jobs_of(tmp_path / str(number))} == {
            "fedavg": rounds,
            "odcl": 0,
        }
    assert next(option for option in RUN_OPTIONS if option.name == "rounds").default == "auto"


def test_a_typed_method_is_swept_and_keeps_its_other_fields(tmp_path):
    method = IFCA(clusters=2, local=FullBatch(steps=7))
    over = {"optimizer": ["sgd", "adam:beta1=0.8"], "lr": [0.01, 0.1]}
    found = coterie.sweep(population(), method, over=over, rounds=3, learner="linear", out=tmp_path / "s")
    assert {(cell.options["optimizer"], cell.options["lr"]) for cell in found.cells} == {
        (a, b) for a in over["optimizer"] for b in over["lr"]
    }
    for job in (tmp_path / "s" / "jobs").iterdir():
        config = coterie.load(job).config
        assert (config["local_steps"], config["clusters"]) == (7, 2)
    again = coterie.sweep(population(), method, over=over, rounds=3, learner="linear", out=tmp_path / "s")
    assert [cell.score for cell in again.cells] == [cell.score for cell in found.cells]


def test_a_typed_method_is_swept_on_a_scenario_in_a_worker_process(tmp_path, monkeypatch):
    options = {"clients": 12, "dimension": 3, "rounds": 2, "out": tmp_path / "s"}
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # one worker
    found = coterie.sweep("mixed-regression", IFCA(), over={"clusters": [2, 3]}, **options)
    assert {cell.options["clusters"] for cell in found.cells} == {2, 3}
    assert not any(cell.failed for cell in found.cells)
