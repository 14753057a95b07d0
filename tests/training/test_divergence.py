"""One verdict on divergence, and what follows from it."""

import io
import json
import math
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli import show
from coterie.core.numbers import finite_numbers
from coterie.errors import DivergenceWarning, TrainingError
from coterie.report.comparison import Spread, compare
from coterie.report.figures.svg import Scale, even_ticks, log_ticks
from coterie.report.page import write_report
from coterie.report.reading import read_run, run_from_parts
from coterie.training.divergence import FAR, MARGIN, WIDE_MARGIN, Outcome, overflow_refused, reference, why_diverged

SOUND = Outcome(models_finite=True, updates_finite=True, loss=1.0, trained=1.0, unfit=(), evaluated=1.0, reference=1.0)


def population(column=1.0, groups=2, clients=6):
    """Clients with a line each, of which one column has another unit."""
    random = np.random.default_rng(0)
    found = {}
    for i in range(clients):
        x = random.standard_normal((30, 3))
        slopes = np.array([1.0, 2.0, -1.0]) * (1 if i % groups else -1)
        found[f"c{i}"] = (x * [column, 1, 1], x @ slopes + 0.1 * random.standard_normal(30))
    return coterie.from_arrays(found)


def data_of(result):
    return run_from_parts(result.config, result.records, result.summary())


def diverged(*arguments, **options):
    """A run that must end with the warning."""
    with pytest.warns(DivergenceWarning, match="the training diverged, do not use its models"):
        return coterie.fit(*arguments, **options)


# ---- the rule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"loss": MARGIN}, None),
        ({"loss": 1.01 * MARGIN}, "the training loss is 3.03, that of models without training is 1"),
        ({"loss": math.inf}, "the training loss is not finite"),
        ({"loss": math.nan}, "the training loss is not finite"),
        ({"loss": math.inf, "unfit": ("a",)}, "the training loss of 1 client (a) is not finite"),
        ({"unfit": ("a", "b", "c", "d")}, "the training loss of 4 clients (a, b, c, ...) is not finite"),
        ({"updates_finite": False}, "no client had a finite update"),
        ({"models_finite": False}, "the parameters are not finite"),
        ({"evaluated": WIDE_MARGIN}, None),
        ({"evaluated": 101.0}, "the loss of the models that clients predict with is 101"),
        ({"evaluated": math.nan}, "the loss of the models that clients predict with is nan"),
        ({"trained": WIDE_MARGIN}, None),
        ({"trained": math.inf}, "the loss of the models that clients last trained is inf"),
        ({"loss": None, "trained": None, "evaluated": None}, None),
        ({"loss": 1e9, "evaluated": 1e9, "reference": None}, None),
        ({"loss": 50.0, "noised": True}, None),
        ({"loss": 101.0, "noised": True}, "the training loss is 101"),
    ],
)
def test_outcomes_that_count_as_diverged(changed, says):
    found = why_diverged(Outcome(**{**vars(SOUND), **changed}))
    assert found is None if says is None else found.startswith(says)


@pytest.mark.parametrize(
    ("classes", "zero", "first", "untrained", "expected"),
    [
        (None, 2.0, 5.0, True, 5.0),
        (None, 2.0, 1.0, True, 2.0),
        (None, 2.0, 5.0, False, 2.0),
        (None, 2.0, 1e9, True, 2.0 * FAR),
        (None, 0.0, 5.0, False, 5.0),
        (None, 0.0, 0.0, True, None),
        (None, None, 5.0, False, 5.0),
        (None, 2.0, None, True, 2.0),
        (None, None, None, True, None),
        (None, math.inf, 3.0, False, 3.0),
        (10, None, 1.0, True, math.log(10)),
        (10, None, 7.0, True, 7.0),
        (10, None, 7.0, False, math.log(10)),
        (1, None, None, True, math.log(2)),
    ],
)
def test_the_loss_of_a_model_without_training(classes, zero, first, untrained, expected):
    assert reference(classes, zero, first, untrained) == expected


def test_numbers_that_are_not_finite_become_none_wherever_they_are():
    value = {"a": [1.0, math.nan, {"b": np.float64(math.inf)}], "c": np.array([1.0, -math.inf]), "d": (True, None, "x")}
    assert finite_numbers(value) == {"a": [1.0, None, {"b": None}], "c": [1.0, None], "d": [True, None, "x"]}


def test_arithmetic_errors_become_one_sentence_and_others_pass():
    for call in (lambda: 1 / 0, lambda: 10.0**400, lambda: torch.linalg.svd(torch.full((2, 2), torch.nan))):
        with pytest.raises(TrainingError, match="standardise the columns"), overflow_refused():
            call()
    with pytest.raises(KeyError), overflow_refused():
        {}["no"]


# ---- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg", "ifca", "fedem", "fesem", "fedsoft", "cfl", "stocfl", "pacfl"])
@pytest.mark.parametrize("rounds", [1, 3, 30])
def test_one_large_column_diverges_and_is_reported_in_any_round(method, rounds):
    assert diverged(population(column=60.0), method, lr=0.1, rounds=rounds).metrics["diverged"]


def test_a_suitable_step_size_does_not_diverge():
    result = coterie.fit(population(column=60.0), "ifca", clusters=2, lr="auto", rounds=10)
    assert not result.metrics["diverged"]
    assert "why_diverged" not in result.metrics
    assert result.metrics["sure"] > 0
    assert result.coefficients()["clusters"]


@pytest.mark.parametrize("learner", ["logistic", "mlp:hidden=4"])
@pytest.mark.parametrize("same", [False, True])
def test_learning_a_single_class_is_not_a_divergence(learner, same):
    random = np.random.default_rng(0)
    clients = {}
    for i in range(4):
        x = random.standard_normal((20, 2))
        clients[f"c{i}"] = (x, np.full(20, 1) if same else np.digitize(x[:, 0], (-0.5, 0.5)))
    result = coterie.fit(coterie.from_arrays(clients), "fedavg", learner=learner, rounds=3, lr=0.5)
    assert not result.metrics["diverged"]


@pytest.mark.parametrize("target", [0.0, 5.0])
def test_targets_without_variance_are_not_a_divergence(target):
    random = np.random.default_rng(0)
    data = coterie.from_arrays({f"c{i}": (random.standard_normal((9, 2)), np.full(9, target)) for i in range(4)})
    for learner in ("linear", "linear:bias=true"):
        assert not coterie.fit(data, "ifca", clusters=2, learner=learner, rounds=4, lr=0.1).metrics["diverged"]


def test_exact_initial_models_on_data_without_noise_are_not_a_divergence():
    random = np.random.default_rng(0)
    xs = {f"c{i}": random.standard_normal((20, 3)) for i in range(6)}
    data = coterie.from_arrays({c: (x, x @ ([1, 2, 3] if c < "c3" else [-1, 0, 1])) for c, x in xs.items()})
    for method, options in (("odcl", {}), ("one-shot", {"rounds": 5}), ("two-phase", {"rounds": 5})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", DivergenceWarning)
            assert not coterie.fit(data, method, clusters=2, **options).metrics["diverged"]


def test_an_interrupted_diverged_run_ends_like_an_uninterrupted_one(tmp_path):
    settings = {"clusters": 2, "lr": 1000.0, "rounds": 30, "checkpoint_every": 2}
    whole = diverged(population(), "ifca", out=tmp_path / "whole", **settings)

    def dies(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(population(), "ifca", out=tmp_path / "killed", callbacks=[dies], **settings)
    with pytest.warns(DivergenceWarning):
        again = coterie.resume(tmp_path / "killed", population())
    assert again.metrics["why_diverged"] == whole.metrics["why_diverged"]
    assert [record["loss"] for record in again.records] == [record["loss"] for record in whole.records]
    assert coterie.load(tmp_path / "killed").metrics == again.metrics


def test_the_best_models_before_a_divergence_have_not_diverged():
    """With patience on validation samples the models with the lowest validation loss are kept, whatever came later."""
    settings = {"lr": 0.06, "local_steps": 1, "rounds": 100, "validation": 0.2, "patience": 99}
    data, start = population(column=6.0, groups=1), [{"weight": np.zeros(3)}]
    result = coterie.fit(data, "fedavg", init=start, **settings)
    assert result.records[-1]["stopped"] == "exploded"
    assert result.metrics["best_rounds"] < 100
    assert not result.metrics["diverged"]


# ---- terminal, report, comparisons ---------------------------------------------------------------------------------


def printed(call, *arguments):
    out = io.StringIO()
    call(Console(file=out, width=200), *arguments)
    return out.getvalue()


def test_terminal_and_report_start_with_the_divergence(tmp_path):
    result = diverged(population(column=60.0), "ifca", clusters=2, lr=0.1, rounds=5)
    said = result.metrics["why_diverged"]
    assert said.endswith('; lower lr (now 0.1), leave it out (lr="auto" finds it) or standardise the columns')
    text = printed(show.result, result)
    assert text.startswith(f"DIVERGED {said}")
    assert "sure of" not in text
    page = coterie.write_report(result, tmp_path / "page.html").read_text()
    assert page.index("<h1>The training diverged, do not use its models: ") < page.index("<ul")
    assert "sure of" not in page
    assert 'id="map"' not in page


def test_a_diverged_method_is_never_the_main_one_and_never_a_baseline(tmp_path):
    data, common = population(), {"rounds": 15}
    lost = [diverged(data, name, lr=1e3, **common) for name in ("fedavg", "fesem")]
    kept = [coterie.fit(data, name, lr=0.1, **common) for name in ("local", "ifca")]
    runs = [data_of(result) for result in (*lost, *kept)]
    found = compare(runs)
    assert found.main.name == "ifca"
    assert [base.name for base in found.baselines] == ["local"]
    text = printed(show.comparison, runs)
    assert "fedavg (diverged)" in text
    assert "ifca (diverged)" not in text
    page = write_report(runs, tmp_path / "page.html").read_text()
    assert "fedavg is not compared with. The training diverged" in page
    assert page.count('<span class="lost">diverged</span>') == 2
    assert compare(runs[:2]).main.diverged, "if all have diverged, the page is about one of them"


def test_a_sweep_marks_a_diverged_cell_as_failed_and_recommends_another():
    found = coterie.sweep(population(), "fedavg", over={"lr": [1e3, 0.1]}, rounds=4)
    assert found.best == {"lr": 0.1}
    assert found.cells[1].failed.startswith("seed 0: the training diverged")
    json.dumps(finite_numbers(found.summary()), allow_nan=False)


def test_compare_warns_about_each_run_and_can_be_read_again(tmp_path):
    with pytest.warns(DivergenceWarning) as seen:
        coterie.compare(population(), ["fedavg", "local"], seeds=1, out=tmp_path / "all", lr=1e3, rounds=3)
    assert len(seen) == 2
    assert all(read_run(tmp_path / "all" / "jobs" / f"{name}-seed0").diverged for name in ("fedavg", "local"))


# ---- figures at the ends of the floats -----------------------------------------------------------------------------

VALUES = (0.0, 5e-324, 1e-300, 1e-9, 1.0, 1e9, 1e300, 1.7e308)


@pytest.mark.parametrize("low", [*(-v for v in VALUES), *VALUES])
@pytest.mark.parametrize("high", VALUES)
def test_axes_hold_any_finite_number(low, high):
    if low > high:
        return
    scale = Scale(low, high, 0.0, 100.0)
    for place in map(scale, (low, high, low / 2 + high / 2)):
        assert -1e-6 <= place <= 100 + 1e-6
    ticks = even_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(map(math.isfinite, ticks))
    if low > 0:
        ticks = log_ticks(low, high)
        assert len(ticks) <= 16
        assert all(0 < tick < math.inf for tick in ticks)
        assert -1e-6 <= Scale(low, high, 0.0, 100.0, log=True)(high) <= 100 + 1e-6


@pytest.mark.parametrize("values", [(1e308, 1.7e308), (-1.7e308, 1.7e308, 1.7e308), (5e-324, 5e-324), (1.0,)])
def test_means_over_seeds_are_finite(values):
    found = Spread(values)
    assert min(values) <= found.mean <= max(values)
    assert found.sd is None or math.isfinite(found.sd)
