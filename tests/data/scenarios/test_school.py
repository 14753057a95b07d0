"""London schools: every school is a client, the published columns have names, nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie import InputError, fit, scenario
from coterie.data import loaders as datasets
from coterie.data.loaders import store
from coterie.data.loaders.rows import Rows
from coterie.data.scenarios.school import FEATURES
from coterie.evaluate.mixed_model import alone_rmse, pooled_rmse

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "school.npz"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "kept"))
    return tmp_path / "kept"


def small() -> Rows:
    random = np.random.default_rng(0)
    x = np.column_stack([random.standard_normal((40, 27)), np.ones(40)])
    return Rows("school", x, x[:, 3] + x[:, 4] + 20, np.repeat([0, 1, 2], [20, 12, 8]))


def test_the_published_columns_have_names_and_the_constant_is_left_out():
    store.save(small(), "test")
    found = scenario("school", holdout=0)
    assert found.clients == ("school-001", "school-002", "school-003")
    assert found.feature_names == FEATURES
    assert len(FEATURES) == 27
    x = small().x[:, :27]
    np.testing.assert_allclose(found.train.x.numpy(), (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-9)
    assert found.train.y.tolist() == small().y.tolist()
    assert found.options == {"holdout": 0.0}


def test_seeds_hold_out_other_pupils_of_the_same_schools():
    store.save(small(), "test")
    one, two = scenario("school"), scenario("school", seed=1)
    assert one.test.sizes.tolist() == two.test.sizes.tolist() == [5, 3, 2]
    assert one.test.y.tolist() != two.test.y.tolist()


def test_missing_data_names_the_command(folder):
    with pytest.raises(InputError, match=f"school is not in {folder}: get it with 'coterie data import school PATH'"):
        scenario("school")


@pytest.mark.skipif(not REAL.is_file(), reason="the file with the real schools is not next to this repository")
def test_the_real_schools():
    assert datasets.import_copy("school", REAL)[1] is True, "as published"
    found = scenario("school")
    assert len(found.clients) == 139
    assert len(found.train.y) + len(found.test.y) == 15362
    pooled, alone = pooled_rmse(found).mean(), alone_rmse(found).mean()
    assert 9.5 < pooled < 10.5
    assert pooled < alone
    result = fit(found, "fedavg", rounds=100, evaluate_every=100)
    assert result.metrics["rmse"] == pytest.approx(pooled, rel=0.01), "the recommended step converges"
