"""Grunfeld's firms: from an installed package, with the figures that econometrics books print."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from coterie import InputError, scenario


def test_eleven_firms_with_twenty_years_each():
    found = scenario("grunfeld", holdout=0)
    assert len(found.clients) == 11
    assert found.clients[0] == "General Motors"
    assert set(found.train.sizes.tolist()) == {20}
    assert found.feature_names == ("value", "capital")
    assert float(found.train.y[0]) == pytest.approx(317.6)  # General Motors, 1935
    assert scenario("grunfeld").test.sizes.tolist() == [5] * 11


def test_least_squares_of_the_ten_firms_of_the_books():
    """Ten firms without American Steel: invest = -42.71 + 0.1156 value + 0.2307 capital (Greene; Baltagi)."""
    found = scenario("grunfeld", holdout=0)
    firms = [i for i, name in enumerate(found.clients) if name != "American Steel"]
    rows = np.concatenate([np.arange(found.train.starts[i], found.train.stops[i]) for i in firms])
    x, y = found.train.x.numpy()[rows], found.train.y.numpy()[rows]
    fitted = np.column_stack([np.ones(200), x]) @ np.linalg.lstsq(np.column_stack([np.ones(200), x]), y, rcond=None)[0]
    assert float(((y - fitted) ** 2).sum()) == pytest.approx(1755850.5, rel=1e-4)


def test_without_statsmodels_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets.grunfeld", None)
    with pytest.raises(InputError, match=r"pip install 'coterie\[stats\]'"):
        scenario("grunfeld")
