"""The nightly run of all papers: estimates, order and batches."""

from dataclasses import dataclass, replace

import pytest

from coterie.experiments.estimates import OpenCell, in_words, open_cells_of
from coterie.experiments.results import Measured, append
from papers import REPRODUCTIONS
from papers.nightly import affordable, batches, in_order


@dataclass(frozen=True)
class Work:
    name: str
    seed: int
    work: int


def make(name, cells, **more):
    """A reproduction of these cells that needs no data."""
    return replace(REPRODUCTIONS["ifca-figure3"], name=name, cells=lambda seeds, quick: cells, **more)


def test_estimates_come_from_the_same_cell_or_else_from_the_work(tmp_path):
    """Cell a took 20 and 40 seconds: 30. Cell b has three times the work of a: 90. The resumed time does not count."""
    file = tmp_path / "results.jsonl"
    cells = [Work("a", 0, 2), Work("a", 1, 2), Work("a", 2, 2), Work("a", 3, 2), Work("b", 0, 6)]
    for cell, seconds, resumed in ((cells[0], 20.0, False), (cells[1], 40.0, False), (cells[2], 1.0, True)):
        append(file, "one", cell, Measured({}, seconds, resumed), "v1")
    found = open_cells_of([make("one", cells), make("two", cells, family="one"), make("new", cells[:1])], file)
    assert [(each.reproduction.name, each.cell.name, each.cell.seed, each.seconds) for each in found] == [
        ("one", "a", 3, 30.0),
        ("one", "b", 0, 90.0),
        ("new", "a", 0, None),
    ]
    [known] = open_cells_of([make("known", cells[:1], paces={"b": 1.0, "a": 4.0})], file)
    assert known.seconds == 8.0


def test_cheap_cells_come_first_and_neighbours_stay_together():
    cells = [OpenCell(make("a", []), Work(str(at), 0, 1), seconds) for at, seconds in enumerate([9, None, 1000, 7, 8])]
    assert [each.cell.name for each in in_order(cells)] == ["0", "3", "4", "2", "1"]


def test_batches_are_of_one_reproduction_and_limited_time():
    one, two = make("one", []), make("two", [])
    cells = [OpenCell(kind, Work("x", at, 1), 40) for at, kind in enumerate([one, one, one, two])]
    assert [[each.cell.seed for each in batch] for batch in batches(cells, 100)] == [[0, 1], [2], [3]]


def test_long_cells_and_those_without_data_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    cells = [OpenCell(make("a", []), Work(str(at), 0, 1), seconds) for at, seconds in enumerate([60, 7300, None])]
    cells.append(OpenCell(make("b", [], needs=("cifar10",)), Work("3", 0, 1), 60))
    assert [each.cell.name for each in affordable(cells, 2.0)] == ["0", "2"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(50, "50 seconds"), (600, "10 minutes"), (9000, "2 hours"), (4e5, "5 days")]
)
def test_durations_in_words(seconds, text):
    assert in_words(seconds) == text
