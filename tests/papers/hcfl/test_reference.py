"""Diverse shifts: figures by hand, verdicts that can fail, one cell from end to end."""

import pytest
import torch

from coterie.data import scenario
from coterie.data.loaders import store
from coterie.experiments.reproduce import find_reproduction
from coterie.training.result import Result
from papers.hcfl.reference import EVERY, FEDEM, ROWS, SCENARIOS, SWAPPED, cells, claims, tables, take
from tests.data.loaders.make import images

NAME = "hcfl-reference"


def figures(val: float = 0, test: float = 0, ari: float = 0, clusters: int = 3) -> dict:
    return {"val": val, "test": test, "val last": val, "test last": test, "ari": ari, "clusters": clusters}


GOOD = {
    "A oracle": {0: figures(test=74), 1: figures(test=75.5)},  # 74.75 in the mean
    "A FedAvg": {0: figures(test=57.5)},
    "A IFCA": {0: figures(val=75, test=58)},
    "A FedEM": {0: figures(test=60), 1: figures(test=66)},
    "A FedRC": {0: figures(test=59), 1: figures(test=68)},  # above in the mean, not with every seed
    "B IFCA": {0: figures(test=79.5, ari=100), 1: figures(test=79.5, ari=100)},
    "B oracle": {0: figures(test=80)},
    "B FedRC, averaging by responsibility": {0: figures(ari=85), 1: figures(ari=95)},
    "A HCFL+(FedRC)": {0: figures(test=67.6, clusters=3), 1: figures(test=67.6, clusters=5)},
    "A HCFL+(FedEM)": {0: figures(val=83, clusters=5), 1: figures(val=84, clusters=15)},
    "B CFL": {0: figures(test=79)},
    "B HCFL+(FedRC)": {0: figures(test=76.5, clusters=3), 1: figures(test=76.5, clusters=6)},
    "C FedAvg": {0: figures(test=30)},
    "C HCFL+(FedRC)": {0: figures(test=65)},
}
BARS = 20


def verdicts(found) -> list:
    return [claim.holds for claim in claims(found, False)]


def test_verdicts_by_hand():
    assert verdicts(GOOD) == [True] * BARS
    assert verdicts({}) == [None] * BARS


@pytest.mark.parametrize(
    ("cell", "worse", "failing"),
    [
        ("A oracle", figures(test=74.4), [0]),
        ("A FedAvg", figures(test=60.6), [1, 9]),
        ("A IFCA", figures(val=74, test=59), [2, 3]),
        ("A FedEM", figures(test=63.5), [4]),
        ("B IFCA", figures(test=78.9, ari=94), [5, 6]),
        ("B oracle", figures(test=78.4), [6]),
        ("B FedRC, averaging by responsibility", figures(ari=89), [7]),
        ("A HCFL+(FedRC)", figures(test=67.4, clusters=6), [8, 10, 11]),
        ("A HCFL+(FedRC)", figures(test=64.4, clusters=2), [8, 9, 10, 11]),
        ("A HCFL+(FedEM)", figures(val=82.9, clusters=16), [12, 13, 14]),
        ("B CFL", figures(test=78.9), [15]),
        ("B HCFL+(FedRC)", figures(test=76.4, clusters=7), [16, 17, 18]),
        ("C HCFL+(FedRC)", figures(test=64.9), [19]),
    ],
)
def test_every_bar_can_be_missed(cell, worse, failing):
    assert verdicts({**GOOD, cell: {0: worse}}) == [index not in failing for index in range(BARS)]


def test_one_seed_with_a_wrong_group_is_enough_to_miss_all_groups_right():
    found = {**GOOD, "B IFCA": {0: figures(test=80, ari=100), 1: figures(test=80, ari=94)}}
    assert verdicts(found)[5] is False


def test_one_seed_with_too_many_clusters_shows_though_the_mean_is_right():
    found = {**GOOD, "A HCFL+(FedRC)": {seed: figures(test=68, clusters=count) for seed, count in enumerate((3, 3, 6))}}
    assert verdicts(found)[10:12] == [True, False]


def test_figures_are_those_of_the_best_and_of_the_last_round_in_percent():
    known = {"accuracy": 0.5, "newcomers": 0.25, "ari": 0.125, "clusters": 2, "best_accuracy": 0.75}
    cell = cells(1, False)[0]
    expected = {"val": 75.0, "test": 25.0, "val last": 50.0, "test last": 25.0, "ari": 12.5, "clusters": 2}
    assert take(cell, None, Result({}, None, None, [], [], known, [])) == expected
    best = Result({}, None, None, [], [], {**known, "best_newcomers": 0.375}, [])
    assert take(cell, None, best) == {**expected, "test": 37.5}
    # of several starts another one led in the rounds that were recorded
    other = Result({}, None, None, [], [], {**known, "best_newcomers": 0.125, "best_accuracy": 0.25}, [])
    assert take(cell, None, other) == {**expected, "val": 50.0}


def test_a_row_has_the_reference_next_to_each_figure():
    found = {FEDEM.cell("B"): {0: figures(70, 71, 50, 2), 1: figures(72, 73, 60, 3)}}
    first, second, third, _ = tables(found, False)
    row = next(row for row in second.rows if row[0] == "FedEM")
    val, test, ari = "71.0 ± 1.4 (2)", "72.0 ± 1.4 (2)", "55.0 ± 7.1 (2)"
    assert row == ["FedEM", "74.6 (2.6)", val, val, "73.2 (4.2)", test, test, "77 (26)", ari, "3", "2-3"]
    assert {len(row) for table in (first, second, third) for row in table.rows} == {len(first.header)}
    assert (len(first.rows), len(third.rows)) == (len(ROWS), len(SWAPPED))


def test_every_cell_is_there_once_for_each_recipe_and_seed():
    made = cells(2, False)
    assert len({(cell.name, cell.seed) for cell in made}) == len(made) == 2 * (2 * len(ROWS) + len(SWAPPED))
    assert {cell.options["evaluate_every"] for cell in made} == {EVERY}
    assert {cell.work for cell in made if cell.method != "local"} == {60}
    assert {cell.work for cell in made if cell.method == "local"} == {30}


def test_recipe_c_is_recipe_a_with_more_labels_swapped(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    store.save(images("fashion-mnist", 48 * 220, 100), "test")
    a, c = (scenario(name, seed=3, **options) for name, options in (SCENARIOS["A"], SCENARIOS["C"]))
    assert torch.equal(a.train.x, c.train.x)
    assert not torch.equal(a.train.y, c.train.y)
    assert torch.equal(*(data.train.y[data.train.starts[0] : data.train.stops[0]] for data in (a, c)))
    assert a.recommended == c.recommended


@pytest.mark.parametrize("method", ["local", "fedrc", "hcfl+"])
def test_a_cell_from_end_to_end(tmp_path, monkeypatch, method):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    store.save(images("fashion-mnist", 48 * 220, 100), "test")
    cell = next(cell for cell in find_reproduction(NAME).cells(1, True) if cell.method == method)
    found = cell.measure(tmp_path / "run")
    assert set(found) == set(figures())
    assert 0 <= found["test last"] <= found["test"] <= 100
    assert found["clusters"] == (48 if method == "local" else found["clusters"])
