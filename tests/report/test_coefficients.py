"""Coefficients on the page and in the terminal, from figures written by hand."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import coterie
from coterie.cli import show
from coterie.report.coefficients import MOST, comparable, section, table_rows
from coterie.report.figures.forest import forest
from coterie.report.formats import ABSENT, MINUS
from coterie.report.page import write_report
from tests.report.test_page import HOSTILE, Elements


def row(cluster, estimate, half, **more):
    ends = [(None, None) if h is None else (e - h, e + h) for e, h in zip(estimate, half, strict=True)]
    found = {
        "cluster": cluster,
        "clients": 30,
        "samples": 600,
        "sigma": 0.5,
        "rank": len(estimate),
        "collinear": None in half,
        "unit": "clients",
        "freedom": 29,
        "why": "",
        "coefficients": list(estimate),
        "estimate": list(estimate),
        "standard_errors": [None if h is None else h / 2 for h in half],
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }
    return found | more


def regression(names, *clusters, **more):
    figures = {"sigma": 0.5, "separation": 2.0, "skewness": 0.25, "gamma": 0.5, "kappa": 4 / 3}
    floor = {"clustering": 0.1, "deviation": 0.2, "nu": 0.3, "error": 0.9}
    return {"names": names, "level": 0.95, "clusters": list(clusters), **figures, "floor": floor, **more}


EMPTY = row(2, [None, None], [None, None], clients=0, samples=0, why="no client belongs to it")
TWO = regression(["dose", "intercept"], row(0, [1.0, -2.0], [0.25, 1.0]), row(1, [-0.5, None], [0.5, None]), EMPTY)


def page(tmp_path, make_run, found, **more):
    run = make_run(score="rmse", metrics={"regression": found}, **more)
    return write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")


def test_rows_have_the_decimals_their_interval_deserves():
    # 0.75 to 1.25 is 0.5 wide: two decimals; -3 to -1 is 2 wide: one; nothing is known of the last
    assert table_rows(TWO) == [
        ("dose", [("1.00", "0.75 to 1.25"), (f"{MINUS}0.5", f"{MINUS}1.0 to 0.0")]),
        ("intercept", [(f"{MINUS}2.0", f"{MINUS}3.0 to {MINUS}1.0"), (ABSENT, ABSENT)]),
    ]


@pytest.mark.parametrize("half", [0.0, 1e-9, 1e9])
def test_rows_of_extreme_width(half):
    (cells,) = [cells for _, cells in table_rows(regression(["x"], row(0, [1.0], [half])))]
    estimate, interval = cells[0]
    assert estimate.startswith("1")
    assert " to " in interval


def test_the_section_stands_before_the_clients(tmp_path, make_run):
    text = page(tmp_path, make_run, TWO)
    found = Elements(text)
    assert not found.unbalanced
    assert not found.open
    sections = [attributes["id"] for tag, attributes in found.found if tag == "section"]
    assert sections[sections.index("coefficients") + 1] == "clients"
    part = text[text.index('id="coefficients"') : text.index('id="clients"')]
    assert part.count("<circle") == 3  # one estimate is not known, and no client is in cluster 2
    assert len(re.findall(r'class="span c\d"', part)) == 3
    assert "30 clients, 600 samples, noise 0.5" in part
    assert "In clusters 0 and 1, clients count as independent of each other" in part
    assert "In cluster 1, features are collinear" in part
    assert "cluster 2" not in part
    assert "cross-products of its features" in text


def test_no_section_without_figures(tmp_path, make_run):
    text = write_report([make_run()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="coefficients"' not in text
    assert "cross-products" not in text


def test_too_many_coefficients_are_not_drawn(tmp_path, make_run):
    p = MOST + 1
    found = regression([f"x{j}" for j in range(p)], row(0, [1.0] * p, [0.5] * p))
    text = page(tmp_path, make_run, found)
    part = text[text.index('id="coefficients"') : text.index('id="clients"')]
    assert "<svg" not in part
    assert "<table" not in part
    assert "31 coefficients, too many to draw" in part


def test_units_reasons_and_guides(make_run):
    few = row(0, [1.0], [0.5], unit="samples", clients=1)
    none = row(
        1, [1.0], [None], unit="", sigma=None, collinear=False, why="it has no more samples (1) than coefficients"
    )
    found = regression(["x"], few, none, gamma=None, kappa=None, floor=None)
    shown = section(make_run(metrics={"regression": found}))
    assert shown is not None
    assert shown["notes"] == [
        "In cluster 0, every sample counts as independent, for want of more clients than coefficients.",
        "Cluster 1 has no intervals: it has no more samples (1) than coefficients.",
    ]
    assert [name for name, _, _ in shown["guides"]] == ["noise", "separation", "skewness"]


def test_a_floor_above_one_says_nothing(make_run):
    found = regression(["x"], row(0, [1.0], [0.5]), floor={"nu": 1.3, "error": None})
    shown = section(make_run(metrics={"regression": found}))
    assert shown is not None
    guides = {name: (value, meaning) for name, value, meaning in shown["guides"]}
    assert guides["nu"][0] == "1.30"
    assert guides["nu"][1].endswith("from 1 on it says nothing")
    assert "error" not in guides


def test_nothing_known_is_not_drawn():
    assert forest(["x"], [row(0, [None], [None])], "label") is None


def test_hostile_names_stay_text(tmp_path, make_run):
    text = page(tmp_path, make_run, regression([HOSTILE], row(0, [1.0], [0.5])))
    found = Elements(text)
    assert not found.unbalanced
    assert "img" not in [tag for tag, _ in found.found]


def printed(found, make_run):
    run = make_run(score="rmse", metrics={"regression": found})
    result = coterie.Result(run.config, None, None, [{}, {}], run.records, run.metrics, run.clients)
    console = Console(file=io.StringIO(), width=120)
    show.result(console, result)
    return console.file.getvalue()


def test_the_terminal_shows_few_coefficients(make_run):
    text = printed(regression(["[red]", "b"], row(0, [1.0, -2.0], [0.25, 1.0])), make_run)
    assert "Coefficients, with 95 % intervals" in text
    assert re.search(r"\[red\] +1\.00 \(0\.75, 1\.25\)", text)
    assert re.search(rf"b +{MINUS}2\.0 \({MINUS}3\.0, {MINUS}1\.0\)", text)


def test_the_terminal_leaves_many_coefficients_to_the_report(make_run):
    p = show.MOST_COEFFICIENTS + 1
    assert "Coefficients" not in printed(regression(["x"] * p, row(0, [1.0] * p, [0.5] * p)), make_run)
    assert "Coefficients" not in printed(None, make_run)


def test_the_figure_compares_effects_of_one_standard_deviation():
    """An intercept at a feature of zero would stretch the axis so that nothing else can be seen."""
    found = {"units": "original", "names": ["age", "intercept"]}
    groups = {"features": ["age"], "deviations": [12.0]}
    names, rows = comparable(found, [row(0, [0.1, -9.0], [0.02, 1.0])], groups)
    assert names == ["age"]
    assert [rows[0][key] for key in ("estimate", "low", "high")] == [
        pytest.approx([1.2]),
        pytest.approx([0.96]),
        pytest.approx([1.44]),
    ]
    assert comparable(found | {"units": "standardised"}, [], groups) is None
    assert comparable(found, [], {}) is None
