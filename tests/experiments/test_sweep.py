"""A sweep tries all combinations and ranks them by validation samples, without test data."""

import json
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.core.validation import validation_split
from coterie.errors import ConfigError, RunError
from tests.methods.test_ifca import population

OVER = {"lr": [0.001, 0.1, 0.3], "local_steps": [1, 5]}
SETTINGS = {"learner": "linear", "clusters": 2, "rounds": 6, "restarts": 2}


def with_test(data, scale=1.0):
    """Return the clients with test data whose target is scaled."""
    return replace(data, test=replace(data.train, y=scale * data.train.y))


def test_every_combination_is_scored_on_samples_held_out_from_training():
    """The expected scores come from a validation split and one `fit` for each combination."""
    data = population(noise=0.3)
    found = coterie.sweep(data, "ifca", over=OVER, seeds=[2, 5], validation=0.3, **SETTINGS)
    expected = {}
    for lr in OVER["lr"]:
        for steps in OVER["local_steps"]:
            runs = [
                coterie.fit(validation_split(data, 0.3, seed), "ifca", lr=lr, local_steps=steps, seed=seed, **SETTINGS)
                for seed in (2, 5)
            ]
            expected[lr, steps] = [run.metrics["rmse"] for run in runs]
    scores = {tuple(cell.options.values()): list(cell.score.values) for cell in found.cells}
    assert scores == expected
    means = [np.mean(expected[tuple(cell.options.values())]) for cell in found.cells]
    assert means == sorted(means), "the best first"
    assert found.best == dict(zip(OVER, min(expected, key=lambda pair: np.mean(expected[pair])), strict=True))
    assert found.score_name == "rmse"


def test_test_data_does_not_affect_a_sweep():
    data = population(noise=0.3)
    plain = coterie.sweep(data, "ifca", over=OVER, **SETTINGS)
    for scale in (1.0, -7.0):
        other = coterie.sweep(with_test(data, scale), "ifca", over=OVER, **SETTINGS)
        assert [cell.options for cell in other.cells] == [cell.options for cell in plain.cells]
        assert [cell.score for cell in other.cells] == [cell.score for cell in plain.cells]


def test_runs_of_a_sweep_have_no_figures_of_the_test_data(tmp_path):
    coterie.sweep(with_test(population()), "fedavg", over={"lr": [0.1]}, rounds=2, learner="linear", out=tmp_path / "s")
    (job,) = (tmp_path / "s" / "jobs").iterdir()
    assert coterie.load(job).metrics["evaluated_on"] == "validation samples"
    assert all("rmse" not in record for record in coterie.load(job).records)


def test_accuracies_are_ranked_from_the_highest_and_ties_go_to_the_lower_loss():
    random = np.random.default_rng(0)
    clients = {f"c{i}": ((x := random.standard_normal((20, 2))), (x[:, 0] > 0).astype(int)) for i in range(4)}
    found = coterie.sweep(
        coterie.from_arrays(clients), "fedavg", over={"lr": [0.01, 0.1, 1.0, 2.0]}, rounds=10, learner="logistic"
    )
    assert found.score_name == "accuracy"
    keys = [(-cell.score.mean, cell.loss.mean) for cell in found.cells]
    assert keys == sorted(keys)


def test_a_failed_combination_is_last_with_the_reason():
    found = coterie.sweep(population(), "fedavg", over={"lr": [1e20, 0.1]}, rounds=50, learner="linear")
    assert found.best == {"lr": 0.1}
    assert found.cells[-1].score is None
    assert "the training diverged" in found.cells[-1].failed
    with pytest.raises(RunError, match="all combinations failed; the first failure: seed 0: the training diverged"):
        coterie.sweep(population(), "fedavg", over={"lr": [1e20, 1e21]}, rounds=50, learner="linear")


@pytest.mark.parametrize(
    ("over", "notes"),
    [
        (
            {"lr": [0.001, 0.002]},
            ["the best lr, 0.002, is the largest value that was tried: larger ones may be better"],
        ),
        ({"lr": [0.1, 1e6]}, ["the best lr, 0.1, is the smallest value that was tried: smaller ones may be better"]),
        ({"lr": [0.0001, 0.1, 1e6]}, []),
        ({"lr": [0.1]}, []),  # nothing was varied
        ({"local_steps": [1, 2], "lr": [0.75]}, []),  # one step is the minimum
        ({"participation": [0.125, 1.0], "lr": [0.001]}, []),  # full participation is the maximum
    ],
)
def test_a_note_points_out_a_best_value_at_the_edge(over, notes):
    found = coterie.sweep(population(), "local", over=over, rounds=5, learner="linear")
    assert list(found.notes) == notes


def test_an_interrupted_sweep_is_resumed(tmp_path, monkeypatch):
    data = population()
    whole = coterie.sweep(data, "ifca", over=OVER, out=tmp_path / "whole", **SETTINGS)
    calls = []

    def dies(*arguments, **options):
        calls.append(options["lr"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return coterie.fit(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("coterie.experiments.compare.fit", dies)
        with pytest.raises(KeyboardInterrupt):
            coterie.sweep(data, "ifca", over=OVER, out=tmp_path / "cut", **SETTINGS)
    done = sorted((tmp_path / "cut" / "jobs").glob("*/result.json"))
    before = [(path, path.stat().st_mtime_ns) for path in done]
    assert len(done) == 3
    found = coterie.sweep(data, "ifca", over=OVER, out=tmp_path / "cut", **SETTINGS)
    assert [(path, path.stat().st_mtime_ns) for path in done] == before, "finished runs are not repeated"
    assert [cell.score for cell in found.cells] == [cell.score for cell in whole.cells]
    written = json.loads((tmp_path / "cut" / "sweep.json").read_text())
    assert written["best"] == found.best
    with pytest.raises(RunError, match="has another sweep"):
        coterie.sweep(data, "ifca", over={"lr": [0.1]}, out=tmp_path / "cut", **SETTINGS)
    with pytest.raises(RunError, match="has another sweep"):
        coterie.sweep(population(seed=1), "ifca", over=OVER, out=tmp_path / "cut", **SETTINGS)


def test_the_printed_command_has_no_validation_unless_patience_needs_it():
    data = population()
    found = coterie.sweep(data, "fedavg", over={"lr": [0.001, 0.1]}, rounds=5, learner="linear")
    assert "lr=0.1" in found.command
    assert "validation" not in found.command
    found = coterie.sweep(data, "fedavg", over={"lr": [0.001, 0.1]}, rounds=5, learner="linear", patience=2)
    assert "validation=0.2, patience=2" in found.command


def test_values_may_be_numpy_numbers(tmp_path):
    found = coterie.sweep(
        population(), "fedavg", over={"lr": np.logspace(-3, -1, 3), "local_steps": np.array([1, 2])}, rounds=2,
        learner="linear", out=tmp_path / "sweep",
    )  # fmt: skip
    assert len(found.cells) == 6


@pytest.mark.parametrize(
    ("method", "over", "options", "message"),
    [
        ("ifca", {}, {}, "nothing to sweep"),
        ("ifca", {"lr": []}, {}, "lr has no values to try"),
        ("ifca", {"lr": 0.1}, {}, "lr must be swept over a list of values, got 0.1"),
        ("ifca", {"lr": [0.1, 0.1]}, {}, "lr lists 0.1 twice"),
        ("ifca", {"lr": [0.1, -1]}, {}, "lr must be a number above 0, or auto, got -1.0"),
        ("ifca", {"lrr": [0.1]}, {}, "unknown option 'lrr' of method ifca: did you mean 'lr'"),
        ("fedavg", {"clusters": [2, 3]}, {}, "clusters has no meaning for method fedavg"),
        ("ifca", {"lr": [0.1]}, {"lr": 0.2}, "lr is both set and swept"),
        ("ifca", {"seed": [0, 1]}, {}, "seed cannot be swept"),
        ("ifca", {"validation": [0.1]}, {}, "validation cannot be swept"),
        ("ifca", {"lr": [0.1]}, {"seeds": []}, "at least one seed"),
        ("ifca", {"clusters": [2, 9]}, {}, "clusters=9 but there are only 8 clients"),
        ("ifka", {"lr": [0.1]}, {}, "did you mean 'ifca'"),
    ],
)
def test_user_errors_are_raised_before_anything_is_written(tmp_path, method, over, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        coterie.sweep(population(), method, over=over, learner="linear", rounds=1, out=tmp_path / "s", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_a_sweep_over_a_named_scenario_refuses_options_of_its_data_and_unnamed_learners(tmp_path):
    with pytest.raises(ConfigError, match="noise changes the data of mixed-regression"):
        coterie.sweep("mixed-regression", over={"noise": ["0.1"]}, out=tmp_path / "s")
    with pytest.raises(ConfigError, match="did you mean 'mixed-regression'"):
        coterie.sweep("mixd-regression", over={"lr": [0.1]}, out=tmp_path / "s")
    with pytest.raises(ConfigError, match="needs a dataset"):
        coterie.sweep("mixed-regression", over={"lr": [0.1]}, learner=lambda: None, out=tmp_path / "s")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="exists already"):
        coterie.sweep("mixed-regression", over={"lr": [0.1]}, clients=6, out=tmp_path / "taken")


@pytest.mark.parametrize("several", [coterie.sweep, coterie.compare])
def test_the_option_seed_is_refused(tmp_path, several):
    more = {"over": OVER} if several is coterie.sweep else {"methods": ["ifca"]}
    with pytest.raises(ConfigError, match="give a list of seeds"):
        several(population(), out=tmp_path / "runs", seed=3, **more)
    assert not (tmp_path / "runs").exists()
