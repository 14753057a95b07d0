"""The folder of data sets: where it is, that files are whole or absent, that damage is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.data import loaders as datasets
from coterie.data.loaders import store
from coterie.data.loaders.images import KEYS, checked
from coterie.errors import ConfigError, InputError
from tests.data.loaders.make import equal, images, written


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", "~/mine")
    assert store.data_folder() == Path.home() / "mine"
    monkeypatch.delenv("COTERIE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.data_folder() == tmp_path / "coterie"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.data_folder() == Path.home() / ".cache" / "coterie"


def test_what_is_saved_is_loaded_and_nothing_else_is_left(folder):
    data = images("mnist", 12, 4)
    store.save(data, "here")
    assert equal(datasets.load("mnist"), data)
    assert {path.name for path in folder.iterdir()} == {"mnist.npz", "mnist.json"}
    facts = json.loads((folder / "mnist.json").read_text())
    assert (facts["origin"], facts["train_images"], facts["test_images"]) == ("here", 12, 4)
    assert facts["sha256"] == datasets.verify("mnist")


def test_writers_are_kept():
    data = written([0, 1, 1], [1, 0], ["a", "b"])
    store.save(data, "here")
    assert equal(datasets.load("femnist"), data)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_missing_data_names_the_command(name, folder):
    message = f"{name} is not in {folder}: get it with 'coterie data get {name}', or 'coterie data import {name} PATH'"
    with pytest.raises(InputError, match=message):
        datasets.load(name)


def test_missing_data_without_a_package_names_the_import():
    with pytest.raises(InputError, match="get it with 'coterie data import femnist PATH'"):
        datasets.load("femnist")
    with pytest.raises(ConfigError, match="unknown data set 'minst': did you mean 'mnist'"):
        datasets.load("minst")


def test_arrays_without_their_facts_count_as_absent(folder):
    store.save(images("mnist", 12, 4), "here")
    (folder / "mnist.json").unlink()
    with pytest.raises(InputError, match="coterie data get mnist"):
        datasets.load("mnist")


def test_a_save_that_fails_half_way_leaves_nothing(folder, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.raises(InputError, match=r"cannot be written .No space left on device"):
        store.save(images("mnist", 12, 4), "here")
    assert list(folder.iterdir()) == []


def test_verify_finds_a_changed_byte_and_load_a_cut_file(folder):
    store.save(images("mnist", 12, 4), "here")
    path = folder / "mnist.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(InputError, match="it is damaged, bring mnist again"):
        datasets.verify("mnist")
    path.write_bytes(whole[:5000])
    with pytest.raises(InputError, match="no whole npz file"):
        datasets.load("mnist")
    (folder / "mnist.json").write_text("{}")
    with pytest.raises(InputError, match=r"mnist\.json cannot be read"):
        datasets.verify("mnist")


def test_digest_depends_on_content_only(tmp_path):
    data = images("mnist", 12, 4)
    assert data.digest() == replace(data, name="other").digest()
    changed = data.x_train.copy()
    changed[3, 4, 5] ^= 1
    assert data.digest() != replace(data, x_train=changed).digest()


def test_colours_last_are_moved_to_the_front():
    data = images("cifar10", 2, 1, (3, 32, 32))
    last = replace(data, x_train=np.moveaxis(data.x_train, 1, -1), x_test=np.moveaxis(data.x_test, 1, -1))
    assert equal(checked(last, (3, 32, 32), 10, "f"), data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 8, 8), np.uint8)}, r"train images must have shape \(28, 28\), got \(8, 8\)"),
        ({"x_train": np.zeros((4, 28, 28))}, "must hold whole numbers 0 to 255, got type float64"),
        ({"x_train": np.full((4, 28, 28), 300)}, "must lie in 0 to 255, got 300 to 300"),
        ({"y_train": np.array([1, 2, 3], np.uint8)}, r"4 images but labels of shape \(3,\)"),
        ({"y_test": np.array([10, 0], np.uint8)}, "test labels must be 0 to 9, got 10"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "test has no images"),
    ],
)
def test_data_that_cannot_be_this_set_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        checked(replace(images("mnist", 4, 2), **changes), (28, 28), 10, "f")


@pytest.mark.parametrize(
    ("train", "test", "ids", "message"),
    [
        ([0, 0], [0, 1], "ab", "writer 'b' has no train images"),
        ([0, 1], [1, 1], "ab", "writer 'a' has no test images"),
        ([0, 2], [0, 1], "ab", "w_train must be 0 to 1"),
        ([0, 1], [0, 1], "aa", "two writers have the same id"),
    ],
)
def test_writers_that_make_no_sense_are_refused(train, test, ids, message):
    with pytest.raises(InputError, match=message):
        checked(written(train, test, ids), (28, 28), 62, "f")


def test_npz_files_of_objects_single_arrays_and_missing_keys_are_refused(tmp_path):
    plain = images("mnist", 2, 1).arrays
    np.savez(tmp_path / "objects.npz", **(plain | {"x_train": np.array([{}, "a"], dtype=object)}))
    with pytest.raises(InputError, match=r"no whole npz file of plain arrays .*allow_pickle=False"):
        store.read_npz(tmp_path / "objects.npz", KEYS)
    np.save(tmp_path / "one.npy", plain["x_train"])
    with pytest.raises(InputError, match="holds a single array"):
        store.read_npz(tmp_path / "one.npy", KEYS)
    np.savez(tmp_path / "three.npz", **{key: plain[key] for key in ("x_train", "y_train", "x_test")})
    with pytest.raises(InputError, match="has no y_test: expected x_train, y_train, x_test, y_test"):
        store.read_npz(tmp_path / "three.npz", KEYS)
    np.savez(tmp_path / "floats.npz", **(plain | {"w_train": np.zeros(2), "w_test": np.zeros(1), "writer_ids": ["a"]}))
    with pytest.raises(InputError, match="w_train must be whole numbers"):
        datasets.import_copy("femnist", tmp_path / "floats.npz")
