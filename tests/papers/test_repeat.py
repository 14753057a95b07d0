"""A sample of finished cells is spread over the reproductions, and differences between figures are found."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from coterie.errors import RunError
from coterie.experiments.reproduce import RESULTS
from coterie.experiments.results import Finished, read_lines
from papers import REPRODUCTIONS, grouped_regression, hcfl, ifca, odcl, su_xu_yang
from papers.differences import largest_difference, relative_difference
from papers.repeat import sample, show

PAPERS = (ifca, su_xu_yang, odcl, hcfl)


def test_the_sample_is_spread_over_all_papers_and_costs_little(monkeypatch):
    monkeypatch.setattr("papers.repeat.is_here", lambda name: True)
    lines = read_lines(RESULTS)
    seconds = {(line.reproduction, line.cell, line.seed): line.seconds for line in lines}
    chosen = sample(REPRODUCTIONS, lines, 30, 15.0)
    keys = [(repeat.kept_as, repeat.cell.name, repeat.cell.seed) for repeat in chosen]
    assert len(set(keys)) == len(keys) == 30
    assert all(seconds[key] <= 15 for key in keys)
    for paper in PAPERS:
        assert sum(kept_as in {r.kept_as for r in paper.REPRODUCTIONS} for kept_as, _, _ in keys) >= 2
    quick = {line.reproduction for line in lines if line.seconds <= 15}
    assert {kept_as for kept_as, _, _ in keys} == quick - {"ifca-table1"}  # its quick cells were resumed runs


def test_reproductions_whose_data_is_not_here_are_left_out(monkeypatch):
    monkeypatch.setattr("papers.repeat.is_here", lambda name: False)
    lines = read_lines(RESULTS)
    chosen = {repeat.kept_as for repeat in sample(REPRODUCTIONS, lines, 1000, 15.0)}
    quick = {line.reproduction for line in lines if line.seconds <= 15}
    without_data = {each.kept_as for each in REPRODUCTIONS.values() if not each.needs}
    assert chosen == without_data & quick
    assert {"su-theory", "odcl-figure2", "deviations"} <= chosen


def test_the_last_line_of_a_cell_counts():
    [cell, *_] = grouped_regression.REPRODUCTION.cells(1, False)
    lines = [
        Finished("grouped-regression", cell.name, 0, {"rmse": 1.0}, 1.0),
        Finished("grouped-regression", cell.name, 0, {"rmse": 2.0}, 2.0),
    ]
    only = {"one": replace(grouped_regression.REPRODUCTION, needs=())}
    [repeat] = sample(only, lines, 5, 15.0)
    assert repeat.stored == {"rmse": 2.0}
    assert sample(only, lines, 5, 1.5) == []


def test_a_cell_that_was_resumed_is_left_out():
    """Its stored time is that of its last part: 0.1 s where the others took 10 s for the same work."""
    cells = grouped_regression.REPRODUCTION.cells(1, False)
    first, *others = [cell.name for cell in cells if cell.work == cells[-1].work]
    lines = [Finished("grouped-regression", first, 0, {}, 0.1)]
    lines += [Finished("grouped-regression", name, 0, {}, 10.0) for name in others]
    only = {"one": replace(grouped_regression.REPRODUCTION, needs=())}
    assert {repeat.cell.name for repeat in sample(only, lines, 1000, 15.0)} == set(others)


def test_relative_difference_by_hand():
    assert relative_difference(2.0, 2.0) == 0
    assert relative_difference(4.0, 5.0) == 0.2  # 1 of 5
    assert relative_difference(math.nan, math.nan) == 0
    assert relative_difference(math.nan, 1.0) == math.inf
    assert relative_difference(None, None) == 0
    assert relative_difference(None, 1.0) == math.inf
    assert relative_difference("a", "b") == math.inf


def test_the_figure_that_differs_most_is_found():
    stored = {"rmse": 1.0, "by round": [1.0, 2.0], "seconds": 3.0, "sizes": {"a": 1}}
    same = largest_difference(stored, {**stored, "seconds": 9.0, "new": 1})
    assert same.same
    nearly = largest_difference(stored, {**stored, "rmse": 1 + 5e-7})
    assert nearly.same
    other = largest_difference(stored, {**stored, "by round": [1.0, 2.5], "rmse": 1.1})
    assert (other.figure, other.stored, other.now, other.relative) == ("by round/1", 2.0, 2.5, 0.2)
    assert not other.same
    shorter = largest_difference(stored, {**stored, "by round": [1.0]})
    assert (shorter.figure, shorter.now) == ("by round/1", "missing")
    assert not largest_difference(stored, {"rmse": 1.0}).same


@pytest.mark.parametrize("last", [largest_difference({"a": 1}, {"a": 2}), RunError("no data")])
def test_the_table_says_which_cells_differ(last, capsys):
    same = largest_difference({"a": 1.0}, {"a": 1.0})
    assert show(Console(width=180), {"one": same})
    assert not show(Console(width=180), {"one": same, "two": last})
    out = capsys.readouterr().out
    assert "1 of 2 cells have the same figures" in out
    assert "NO" in out or "not run: no data" in out
