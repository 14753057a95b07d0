"""Every method on data and learning rates at the limits of floating-point numbers.

A run ends with a CoterieError in one sentence, or with a result that can be stored, loaded and reported. All numbers of
the result are finite, and it has no certainty if training diverged.
"""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.methods import Method
from coterie.methods.groups import TrueGroups
from tests.fuzz.cases import cases, refusal

LRS = (None, None, 1e-300, 0.1, 1e3, 1e30, 1e308)
FEATURES = (1.0, 1.0, 1e-300, 60.0, 1e10, 1e150, 1e300)
TARGETS = (1.0, 1.0, 1e-300, 1e6, 1e150, 1e300)
SHAPES = ("plain", "plain", "constant", "one sample", "identical", "one client", "mixed", "column", "same target")
DTYPES = (None, "float32", "float64")
ROUNDS = (1, 2, 3, 6)
KINDS = ("numbers", "classes")
ONLY = {"hcfl": "classes", "hcfl-split": "classes", "hcfl+": "classes", "fedrc": "classes"}
ONLY |= dict.fromkeys(("moment-descent", "two-phase", "linear-heads", "linear-heads-found"), "numbers")
"""Methods that support one kind of target only."""
LEARNER = dict.fromkeys(("linear-heads", "linear-heads-found"), "representation:width=1")
LEARNER |= dict.fromkeys(("moment-descent", "two-phase"), "linear")
"""Methods that support one learner only."""
COUNT = 120


def clients(random, kind, shape, feature, target):
    """Return a few clients with a few samples each, some of which are extreme."""
    m, n, d = (1 if shape == "one client" else 5), (1 if shape == "one sample" else 7), 2
    found = {}
    x = random.standard_normal((n, d))
    for i in range(m):
        x = x if shape == "identical" else random.standard_normal((n, d))
        scaled = x * (feature if shape != "mixed" or i == 0 else 1.0)
        if shape == "column":
            scaled = np.column_stack([x[:, 0] * feature, x[:, 1]])
        if shape == "constant":
            scaled = np.full_like(x, feature)
        slope = 1.0 if i % 2 else -1.0
        y = slope * x[:, 0] + 0.1 * random.standard_normal(n)
        labels = np.digitize(y, (-0.5, 0.5)) if kind == "classes" else y * target
        labels[0] = 2 if kind == "classes" else labels[0]  # three classes, whatever was drawn
        found[f"c{i}"] = (scaled, np.full_like(labels, 2) if shape == "same target" else labels)
    return found


def drawn(random, method):
    """Return the data, the learner and the options of a case."""
    kind, shape = ONLY.get(method, str(random.choice(KINDS))), str(random.choice(SHAPES))
    feature, target = float(random.choice(FEATURES)), float(random.choice(TARGETS))
    lr, dtype = LRS[random.integers(len(LRS))], DTYPES[random.integers(len(DTYPES))]
    options = {"rounds": int(random.choice(ROUNDS)), "seed": int(random.integers(100))}
    options |= {} if lr is None else {"lr": lr}
    options |= {} if dtype is None else {"dtype": dtype}
    options |= {"batch_size": 3} if random.random() < 0.2 else {}
    options |= {"validation": 0.3} if random.random() < 0.2 else {}
    usual = "linear" if kind == "numbers" else "logistic"
    other = "mlp:hidden=3" if random.random() < 0.2 else usual
    learner = LEARNER.get(method, other)
    return (kind, shape, feature, target), learner, options


def run(random, method, drawn_data, learner, options):
    """Fit with the options that the method has."""
    kind, shape, feature, target = drawn_data
    taken = {option.name for option in Method.members[method].options()}
    options = {name: value for name, value in options.items() if name in taken}
    data = clients(random, kind, shape, feature, target)
    options |= {"clusters": min(2, len(data))} if "clusters" in taken else {}
    truth = {client: i % 2 for i, client in enumerate(data)} if len(data) > 1 else None
    needs_truth = isinstance(Method.members[method].groups, TrueGroups) or method == "cluster-oracle"
    population = coterie.from_arrays(data, truth=truth) if needs_truth and truth else coterie.from_arrays(data)
    return coterie.fit(population, method, learner=learner, **options)


def every_number_is_finite(value):
    """Return whether nested values have no infinity and no NaN, which None replaces."""
    if isinstance(value, Mapping):
        return all(map(every_number_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(every_number_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def check(label, result, folder: Path, twice=True):
    """Check the properties of every result; `twice`: whether the report of the loaded result is compared, too."""
    stored = result.with_diagnostics()
    assert every_number_is_finite(stored.summary()), f"{label}: a number of the result is not finite"
    assert every_number_is_finite(result.records), f"{label}: a number of a record is not finite"
    summary = json.loads(json.dumps(stored.summary(), allow_nan=False))
    result.save(folder)
    again = coterie.load(folder)
    assert again.metrics == summary["metrics"], f"{label}: the figures changed on the disk"
    assert again.clients == summary["clients"], f"{label}: the clients changed on the disk"
    for one, other in zip(result.models, again.models, strict=True):
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one), f"{label}: other models"
    page = coterie.write_report(result, folder / "report.html").read_text()
    assert not twice or page == coterie.write_report(again, folder / "again.html").read_text(), (
        f"{label}: another report"
    )
    for word in ("nan", "inf", "NaN", "Infinity"):
        assert f">{word}<" not in page, f"{label}: the report shows {word}"
        assert f'"{word}"' not in page, f"{label}: a figure is drawn at {word}"
    broken = not all(np.isfinite(value).all() for model in result.models for value in model.values())
    assert result.metrics["diverged"] or not broken, f"{label}: models that are not finite are called sound"
    if result.metrics["diverged"]:
        assert "sure" not in result.metrics, f"{label}: certain of lost models"
        assert "regression" not in stored.metrics, f"{label}: intervals of lost models"
        assert not any({"certainty", "posterior", "losses"} & row.keys() for row in stored.clients), (
            f"{label}: certainty"
        )
        assert "belong to their cluster" not in page, f"{label}: the report is certain of lost models"
        assert "<h1>The training diverged" in page, f"{label}: the headline does not say that the training diverged"


def test_extreme_values_give_an_error_in_one_sentence_or_a_valid_result(tmp_path):
    names = [name for name in Method.members if name != "tiered"]
    drawn_cases = cases("extremes", COUNT, few=2 * len(names))
    ended = {"refused": 0, "sound": 0, "diverged": 0}
    for (label, random), method in zip(drawn_cases, itertools.cycle(names), strict=False):
        drawn_data, learner, options = drawn(random, method)
        label = f"{label}: {method} {learner} {drawn_data} {options}"
        result, error = refusal(label, lambda: run(random, method, drawn_data, learner, options))  # noqa: B023
        if result is None:
            ended["refused"] += 1
            continue
        ended["diverged" if result.metrics["diverged"] else "sound"] += 1
        number = sum(ended.values())
        _, error = refusal(label, lambda: check(label, result, tmp_path / f"{number}", number % 5 == 0))  # noqa: B023
        assert error is None, f"{label}: the result cannot be written: {error}"
    assert min(ended.values()) > sum(ended.values()) / 12, f"the cases are one-sided: {ended}"


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 8, 12, 30])
@pytest.mark.parametrize("lr", [1e3, 1e30])
def test_a_diverging_run_ends_in_the_same_way_in_every_round(rounds, lr, tmp_path):
    random = np.random.default_rng(0)
    data = coterie.from_arrays(clients(random, "numbers", "plain", 1.0, 1.0))
    with pytest.warns(coterie.errors.DivergenceWarning, match="the training diverged, .*; lower lr"):
        result = coterie.fit(data, "ifca", learner="linear", clusters=2, lr=lr, rounds=rounds, out=tmp_path / "run")
    assert result.metrics["diverged"]
    check(f"lr={lr}, {rounds} rounds", coterie.load(tmp_path / "run"), tmp_path / "copy")
