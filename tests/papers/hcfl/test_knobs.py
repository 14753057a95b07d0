"""Settings of HCFL+: one change a cell, the reference next to each figure, verdicts that can fail."""

import pytest

from papers.hcfl.knobs import BACKBONES, KNOBS, cells, claims, tables
from papers.hcfl.reference import PLUS_FEDEM, PLUS_FEDRC
from papers.hcfl.settings import of_the_paper


def figures(val: float = 80, test: float = 60, clusters: int = 4) -> dict:
    return {"val": val, "test": test, "val last": val, "test last": test, "ari": 0, "clusters": clusters}


GOOD = {
    "HCFL+(FedRC), as it is": {0: figures(80, 60, 4)},
    "HCFL+(FedEM), as it is": {0: figures(80, 60, 4)},
    "HCFL+(FedRC), rho 0.1": {0: figures(clusters=5)},
    "HCFL+(FedRC), rho 0.05": {0: figures(val=81)},
    "HCFL+(FedEM), rho 0.1": {0: figures(clusters=5)},
    "HCFL+(FedEM), mu 0.4": {0: figures(test=56)},
    "HCFL+(FedRC), mu 0.9": {0: figures(test=56)},
    "HCFL+(FedRC), heads and body together": {0: figures(test=61)},
    "HCFL+(FedRC), hard weights after a split": {0: figures(clusters=5)},
    "HCFL+(FedEM), hard weights after a split": {0: figures(test=61)},
}


def verdicts(found) -> list:
    return [claim.holds for claim in claims(found, False)]


def test_verdicts_by_hand():
    assert verdicts(GOOD) == [True] * 8
    assert verdicts({}) == [None] * 8


@pytest.mark.parametrize(("at", "cell"), list(enumerate(list(GOOD)[2:])))
def test_every_claim_fails_where_a_setting_changes_nothing(at, cell):
    found = {**GOOD, cell: {0: figures(80, 60, 4)}}
    assert verdicts(found) == [index != at for index in range(8)]


def test_a_cell_differs_from_the_reference_row_in_its_own_setting_only():
    made = cells(2, False)
    assert len({(cell.name, cell.seed) for cell in made}) == len(made) == 2 * (11 + 8)
    for cell in made:
        row = PLUS_FEDRC if "FedRC" in cell.name else PLUS_FEDEM
        knob = next(knob for knob in KNOBS if knob.cell(row) == cell.name)
        expected = of_the_paper("hcfl+", {"rounds": 60, "evaluate_every": 15, **row.options, **knob.changed(row)})
        assert cell.options == expected
        assert (cell.scenario, cell.method) == ("diverse-shift-a", "hcfl+")


def test_a_row_has_the_reference_next_to_each_figure():
    found = {"HCFL+(FedRC), mu 0": {0: figures(70, 71, 2), 1: figures(72, 73, 3)}}
    first, second = tables(found, False)
    row = next(row for row in first.rows if row[0] == "mu 0")
    assert row == ["mu 0", "76.4", "71.0 ± 1.4 (2)", "72.2", "72.0 ± 1.4 (2)", "3-5", "2-3"]
    assert (len(first.rows), len(second.rows)) == (11, 8)
    assert [table.title.split(",")[0] for table in (first, second)] == [row.title for row in BACKBONES]
