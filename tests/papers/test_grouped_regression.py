"""Real grouped data next to a statistician's models: cells, tables, and verdicts that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import scenario
from coterie.evaluate.mixed_model import pooled_rmse
from coterie.experiments.reproduce import find_reproduction, reproduce
from papers.grouped_regression import CLUSTERED, DATA, FITS, Fit, cells

NAME = "grouped-regression"


def found(pooled: float, clustered: float, other: float = 9.0) -> dict[str, dict[int, dict[str, float]]]:
    """Everything on grunfeld with one seed: K=2 as told, the larger K worse."""
    by_row = {"pooled least squares": pooled, "least squares alone": other, "mixed model": other}
    by_row |= {f"ifca K={k}": clustered + k - 2 for k in (2, 3, 4)}
    extra = {"worst_tenth": 1.0, "clusters": 2, "fall": 0.0}
    return {f"grunfeld {row}": {0: {"rmse": value, **extra}} for row, value in by_row.items()}


def verdicts(results) -> dict[str, bool | None]:
    return {claim.text: claim.holds for claim in find_reproduction(NAME).claims(results, False)}


def test_every_data_set_has_every_model_in_every_seed():
    made = cells(2, False)
    rows = len(FITS) + 2 + 3 * len(CLUSTERED)
    assert len(made) == 2 * len(DATA) * rows
    assert len({(cell.name, cell.seed) for cell in made}) == len(made)


def test_a_claim_holds_fails_or_was_not_run():
    text = "grunfeld: ifca (its best K) has a smaller held-out error than pooled least squares"
    assert verdicts(found(pooled=5.0, clustered=4.0))[text] is True
    assert verdicts(found(pooled=5.0, clustered=6.0))[text] is False
    assert verdicts({})[text] is None
    mixed = "grunfeld: the mixed model has a smaller held-out error than pooled least squares"
    assert verdicts(found(pooled=5.0, clustered=4.0))[mixed] is False


def test_only_seeds_that_both_have_are_compared():
    results = found(pooled=5.0, clustered=4.0)
    results["grunfeld pooled least squares"] |= {1: {"rmse": 0.0, "worst_tenth": 0.0}}
    claims = find_reproduction(NAME).claims(results, False)
    claim = next(c for c in claims if c.text.startswith("grunfeld: ifca") and c.text.endswith("pooled least squares"))
    assert claim.holds is True
    assert claim.evidence == "ifca K=2: -1.00 on average, smaller in 1 of 1 seeds"


def test_a_cell_of_least_squares_is_the_mean_over_firms(tmp_path):
    errors = pooled_rmse(scenario("grunfeld", seed=3))
    figures = Fit("grunfeld", "pooled least squares", 3).measure(tmp_path)
    assert figures == {"rmse": pytest.approx(errors.mean()), "worst_tenth": pytest.approx(errors.max())}
    assert len(errors) == 11, "so that the worst tenth is one firm"
    assert np.isfinite(errors).all()


def test_a_quick_run_fills_the_table_of_the_firms():
    findings = reproduce(NAME, quick=True, only="grunfeld", jobs=1)
    assert findings.failed == []
    firms = findings.tables[1]
    assert firms.title == "grunfeld"
    assert all(row[1] != "not run" for row in firms.rows)
    assert all(row[1] == "not run" for row in findings.tables[0].rows)
