"""HCFL's tables: cells that can be run, runs shared between tables, figures and verdicts by hand."""

import pytest
import torch

from coterie.data import scenario
from coterie.data.loaders import store
from coterie.experiments.reproduce import RESULTS, find_reproduction
from coterie.experiments.reproducing import folder_of, open_cells
from coterie.experiments.results import Measured, append, read
from coterie.training.planning import prepare
from coterie.training.records import ClientResult, Metrics
from coterie.training.result import Result
from papers import REPRODUCTIONS
from papers.hcfl.images import (
    CIFAR,
    FAMILY,
    FEDAVG,
    FEDEM,
    FEDRC,
    PLUS_FEDEM,
    SPREAD,
    TWO_CLASSES,
    at_best_rounds,
    best_of_all,
    cell,
    class_counts,
    falling,
    metered,
    more,
)
from papers.hcfl.reference import seed_deviation
from tests.data.loaders.make import images

TABLES = [one for one in REPRODUCTIONS.values() if one.family == FAMILY]
ROUNDS_OF_FEDRC = [1, 1, 2, 3]


def test_a_run_that_several_tables_show_is_one_run(tmp_path):
    made = {}
    for table in TABLES:
        names = [one.name for one in table.cells(1, False)]
        assert len(set(names)) == len(names)
        for one in table.cells(2, False):
            assert made.setdefault((one.name, one.seed), one) == one
    assert len({folder_of(tmp_path, one) for one in made.values()}) == len(made)
    assert len(TABLES) == 13


def test_every_method_accepts_the_options_of_its_row():
    data = scenario("diverse-shift", clients=6, samples=4, test_samples=2, pca=8)
    kinds = {}
    for one in (one for table in TABLES for one in table.cells(1, False)):
        words = {name: value for name, value in one.options.items() if isinstance(value, str)}
        kinds[one.method, str(words)] = one  # of rows that differ in a number only, one
    for one in kinds.values():
        assert prepare(data, one.method, None, {**one.options, "seed": 0}).rounds == 60


def test_tables_and_verdicts_show_what_is_there():
    for table in TABLES:
        assert all(claim.holds is None for claim in table.claims({}, False))
        cells = table.cells(1, False)
        found = {one.name: {0: figures(90 - at, 50 - at)} for at, one in enumerate(cells)}
        assert all(claim.holds is not None for claim in table.claims(found, False))
        for made in (*table.tables({}, False), *table.tables(found, False)):
            assert {len(row) for row in made.rows} == {len(made.header)}
    row = next(
        row for row in find_reproduction("hcfl-table4").tables(found_noise(), False)[0].rows if row[0] == "FedEM"
    )
    assert row[:5] == ["FedEM", "64.40", "61.5 ± 0.7 (2)", "57.55", "not run"]


def figures(val: float, test: float) -> dict:
    return {
        "val": val,
        "test": test,
        "val last": val,
        "test last": test,
        "test at best val": test - 1,
        "val at best test": val - 1,
        "clusters": 3,
        "most clusters": 4,
        "clusters by round": ROUNDS_OF_FEDRC,
        "seconds": 1.5,
        "megabytes": 2.5,
        "memory": 30,
        "classes": [[4, 0]] * 10,
    }


def found_noise() -> dict:
    return {"CIFAR-10, pair noise 0.1, FedEM": {0: figures(1, 61), 1: figures(1, 62)}}


def test_verdicts_by_hand():
    found = {row.cell(CIFAR): {0: figures(0, test)} for row, test in ((FEDAVG, 40), (FEDEM, 50), (FEDRC, 60))}
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).holds
    assert more(found, CIFAR, "test", FEDAVG, FEDEM).holds is False
    assert best_of_all(found, CIFAR, "test", FEDRC, (FEDAVG, FEDEM), "both").holds
    assert best_of_all(found, CIFAR, "test", FEDEM, (FEDAVG, FEDRC), "both").holds is False
    assert best_of_all(found, CIFAR, "test", FEDEM, (FEDAVG, PLUS_FEDEM[0]), "both").holds is None
    assert falling(found, CIFAR, "test", (FEDRC, FEDEM, FEDAVG), "").holds
    assert falling(found, CIFAR, "test", (FEDRC, FEDAVG, FEDEM), "").holds is False
    assert falling(found, CIFAR, "val", (FEDRC, FEDEM), "").holds is False  # it stays as it is
    found[FEDEM.cell(CIFAR)][1] = figures(0, 10)  # FedAvg has not been run with this seed
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).holds
    found[FEDAVG.cell(CIFAR)][1] = figures(0, 30)  # 35 in the mean, and FedEM 30
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).holds is False


def test_differences_that_chance_may_cause_are_undecided():
    """A difference may be chance up to 2 * 2.7 = 5.4 points with one seed, 5.4 / sqrt(2) = 3.8 with two."""
    found = {row.cell(CIFAR): {0: figures(0, test)} for row, test in ((FEDAVG, 40), (FEDEM, 45), (FEDRC, 51))}
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).verdict == "undecided"
    assert more(found, CIFAR, "test", FEDAVG, FEDEM).verdict == "undecided"
    assert more(found, CIFAR, "test", FEDRC, FEDEM).verdict == "holds"  # 6 points
    assert best_of_all(found, CIFAR, "test", FEDEM, (FEDAVG,), "FedAvg").verdict == "undecided"
    assert falling(found, CIFAR, "test", (FEDRC, FEDEM, FEDAVG), "").verdict == "undecided"  # the last step is small
    assert falling(found, CIFAR, "test", (FEDAVG, FEDEM, FEDRC), "").verdict == "does not hold"  # it rises by 6
    assert falling(found, CIFAR, "clusters", (FEDRC, FEDEM), "").verdict == "does not hold"  # 3 and 3
    for row, test in ((FEDAVG, 40), (FEDEM, 45)):
        found[row.cell(CIFAR)][1] = figures(0, test)
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).verdict == "holds"
    for row, test in ((FEDAVG, 40), (FEDEM, 30)):  # differences 5, 5 and -10: 0 in the mean
        found[row.cell(CIFAR)][2] = figures(0, test)
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).holds is False
    for row, test in ((FEDAVG, 40), (FEDEM, 43)):  # 5, 5, 3: 4.33, above 5.4 / sqrt(3) = 3.1
        found[row.cell(CIFAR)][2] = figures(0, test)
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).verdict == "holds"
    found[FEDEM.cell(CIFAR)] = found[FEDAVG.cell(CIFAR)]
    assert more(found, CIFAR, "test", FEDEM, FEDAVG).verdict == "does not hold"  # the same run


def test_the_spread_over_seeds_is_the_one_of_the_stored_reference():
    found = read(RESULTS, "hcfl-reference")
    assert seed_deviation(found) == pytest.approx(SPREAD, abs=0.05)
    # two methods with differences 1, 2, 3, 4, 5 in one recipe and figure: variance 2.5
    runs = {seed: {"val": 0.0} for seed in range(5)}, {seed: {"val": seed + 1.0} for seed in range(5)}
    assert seed_deviation({"A oracle": runs[0], "A IFCA": runs[1]}) == pytest.approx(2.5**0.5)


def test_each_accuracy_in_the_best_round_of_the_other():
    pairs = [(0.5, 0.4), (0.8, 0.2), (0.6, 0.7)]
    records = [{"round": 0}, *({"round": at, "accuracy": a, "newcomers": b} for at, (a, b) in enumerate(pairs))]
    assert at_best_rounds(records) == {"test at best val": 20.0, "val at best test": 60.0}


def test_samples_of_a_class_in_a_cluster():
    data = scenario("few-classes", clients=5, samples=4, test_samples=2)
    clients = [ClientResult(id=name, cluster=k) for name, k in zip(data.clients, (7, 7, 2, 2, 2), strict=True)]
    counts = class_counts(data, Result({}, None, None, [], [], Metrics(), clients))
    assert torch.tensor(counts).sum(dim=0).tolist() == [12, 8]  # clusters 2 and 7
    for c, row in enumerate(counts):
        assert row == [int((data.train.y[8:] == c).sum()), int((data.train.y[:8] == c).sum())]


def test_a_cell_from_end_to_end_serves_all_tables_that_show_it(tmp_path, monkeypatch):
    row = PLUS_FEDEM[1]
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    store.save(images("cifar10", 1200, 100, (3, 32, 32)), "test")
    one = cell(TWO_CLASSES, row, 0, True)
    found = metered(tmp_path / "run", one)  # what its process would do
    assert set(found) == set(figures(0, 0))
    assert len(found["clusters by round"]) == 4
    append(tmp_path / "found.jsonl", FAMILY, one, Measured(found, 1.0), "v1")
    for name in ("hcfl-table11", "hcfl-table12", "hcfl-table13"):
        table = find_reproduction(name)
        left = open_cells(table, read(tmp_path / "found.jsonl", table.kept_as), 1, True, None)
        assert len(left) == len(table.cells(1, True)) - 1
