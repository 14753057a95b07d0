"""FEMNIST: writers are clients, ink is 1, the groups are unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie import ConfigError, InputError, fit, scenario
from coterie.data import loaders as datasets
from coterie.data.loaders import store
from tests.data.loaders.make import written

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "femnist_200.npz"
SMALL = written([2, 0, 1, 0, 2, 2], [1, 0, 2, 0], ["ann", "bob", "cy"])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "kept"))
    return tmp_path / "kept"


def rows(shard, client: int) -> tuple[np.ndarray, list[int]]:
    part = slice(int(shard.starts[client]), int(shard.stops[client]))
    return shard.x[part].numpy(), shard.y[part].tolist()


def test_each_writer_is_a_client_with_its_own_images_in_their_order():
    store.save(SMALL, "test")
    found = scenario("femnist")
    assert found.clients == ("ann", "bob", "cy")
    assert found.train.sizes.tolist() == [2, 1, 3]
    assert found.test.sizes.tolist() == [2, 1, 1]
    for client, (train, test) in enumerate([([1, 3], [1, 3]), ([2], [0]), ([0, 4, 5], [2])]):
        x, y = rows(found.train, client)
        assert np.array_equal(x, (255 - SMALL.x_train[train]) / np.float32(255))
        assert y == SMALL.y_train[train].tolist()
        assert rows(found.test, client)[1] == SMALL.y_test[test].tolist()
    assert found.truth is None
    assert found.options == {}


def test_ink_is_one_and_paper_zero():
    white = SMALL.x_train.copy()
    white[0] = 255
    white[0, 3, 4] = 0
    store.save(datasets.Images("femnist", white, SMALL.y_train, SMALL.x_test, SMALL.y_test, SMALL.writers), "test")
    x = rows(scenario("femnist").train, 2)[0][0]
    assert (x[3, 4], float(x.sum())) == (1.0, 1.0)


def test_writers_takes_the_first_so_many():
    store.save(SMALL, "test")
    found = scenario("femnist", writers=2)
    assert found.clients == ("ann", "bob")
    assert found.train.x.shape == (3, 28, 28)
    assert found.options == {"writers": 2}
    with pytest.raises(ConfigError, match="writers=4 but femnist has 3 here: choose at most 3"):
        scenario("femnist", writers=4)


def test_missing_data_names_the_command(folder):
    with pytest.raises(InputError, match=f"femnist is not in {folder}: get it with 'coterie data import femnist PATH'"):
        scenario("femnist")


def test_a_run_takes_what_is_recommended():
    store.save(SMALL, "test")
    result = fit(scenario("femnist"), rounds=1)
    assert result.config["shared"] == "conv1,conv2,fc1"
    assert (result.config["clusters"], result.config["local_epochs"], result.config["augment"]) == (3, 1, "none")


def test_an_npz_with_small_whole_numbers_can_be_imported(tmp_path):
    arrays = SMALL.arrays
    arrays |= {"w_train": SMALL.writers.train.astype(np.uint16), "w_test": SMALL.writers.test.astype(np.uint16)}
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    datasets.import_copy("femnist", tmp_path / "own.npz")
    assert scenario("femnist").clients == ("ann", "bob", "cy")


@pytest.mark.skipif(not REAL.is_file(), reason="the file with 200 real writers is not next to this repository")
def test_two_hundred_real_writers():
    datasets.import_copy("femnist", REAL)
    found = scenario("femnist")
    assert len(found.clients) == 200
    assert (len(found.train.y), len(found.test.y)) == (39774, 4428)
    assert (found.train.sizes.min(), found.train.sizes.max()) == (95, 398)
    assert found.profile.classes == 62
    assert float(found.train.x.mean()) == pytest.approx(0.036, abs=0.01)  # paper's mean is .964
