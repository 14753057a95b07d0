"""Clients in a folder of Parquet files."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import coterie
from coterie.data.parquet import index_of
from coterie.errors import InputError


@pytest.fixture
def stored(tmp_path):
    data = coterie.scenario("mixed-regression", clients=7, samples="3-9")
    return data, coterie.to_parquet_dir(data, tmp_path / "stored", files=3)


def read(folder, **more):
    return coterie.from_parquet_dir(folder, **{"client": "client", "target": "target", **more})


def write(folder, **columns):
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "0.parquet", row_group_size=2)
    return folder


def test_written_clients_are_read_again_as_they_were(stored):
    data, folder = stored
    found = read(folder)
    assert found.clients == data.clients
    assert np.array_equal(found.sizes, data.sizes)
    whole = found.in_memory()
    assert torch.equal(whole.train.x, data.train.alone().x)
    assert torch.equal(whole.train.y, data.train.alone().y)


def test_some_clients_are_read_without_the_others(tmp_path):
    ids = np.repeat(["b", "a", "d", "c"], [1, 4, 2, 3])
    folder = write(tmp_path / "few", client=ids, y=np.arange(10), u=np.arange(10.0), v=np.arange(10) * 2)
    found = read(folder, target="y")
    assert found.clients == ("b", "a", "d", "c")
    assert found.profile.classes == 10
    part = found.source.load_some(np.array([1, 2]))
    assert part.clients == ("a", "d")
    assert part.train.x.tolist() == [[i, 2 * i] for i in range(1, 7)]
    assert (part.train.starts.tolist(), part.train.stops.tolist()) == ([0, 4], [4, 6])


def test_a_run_on_stored_clients_equals_the_run_on_the_same_arrays(stored):
    data, folder = stored
    options = {"clusters": 2, "rounds": 2, "lr": 0.1, "init": "random", "learner": "linear"}
    plain = coterie.FederatedDataset("plain", data.train)
    there, here = (coterie.fit(each, "ifca", **options) for each in (read(folder), plain))
    for a, b in zip(there.models, here.models, strict=True):
        np.testing.assert_array_equal(a["weight"], b["weight"])


def test_changed_files_are_noticed(stored):
    data, folder = stored
    found = read(folder)
    coterie.to_parquet_dir(data.take(range(6)), folder.parent / "other", files=1)
    (folder.parent / "other" / "00000.parquet").replace(folder / "00002.parquet")
    with pytest.raises(InputError, match=r"not adjacent|are not those of the run"):
        found.in_memory()


def test_mistakes_are_said(stored, tmp_path):
    _, folder = stored
    mixed = write(tmp_path / "mixed", client=["a", "b", "a"], target=[1.0, 2.0, 3.0], x=[1.0, 2.0, 3.0])
    texts = write(tmp_path / "texts", client=["a", "b"], target=[1.0, 2.0], x=["u", "v"])
    holes = write(tmp_path / "holes", client=["a", "b"], target=[1.0, 2.0], x=[1.0, None])
    below = write(tmp_path / "below", client=["a", "b"], target=[-1, 2], x=[1.0, 2.0])
    missing_client = write(tmp_path / "missing", client=["a", None], target=[1, 2], x=[1.0, 2.0])
    for call, words in (
        (lambda: read(tmp_path), r"has no files \*.parquet"),
        (lambda: read(folder, target="z"), "has no column 'z'"),
        (lambda: read(mixed), "such as 'a', are not adjacent: sort them by 'client'"),
        (lambda: read(texts), "column 'x' holds no numbers"),
        (lambda: read(texts, target="x", features=["target"]), "target 'x' holds string, not numbers"),
        (lambda: read(holes).in_memory(), "column 'x' has missing or infinite values"),
        (lambda: read(below), "label -1 is negative"),
        (lambda: read(missing_client), "every row needs a client"),
        (lambda: coterie.to_parquet_dir(coterie.scenario("few-classes"), folder), "contains files|flatten them"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_the_index_is_read_again_when_a_file_changes(tmp_path):
    folder = write(tmp_path / "one", client=["a", "b"], target=[1.0, 2.0], x=[1.0, 2.0])
    before = index_of(str(folder), "client")
    write(folder, client=["a", "a", "b"], target=[1.0, 2.0, 3.0], x=[1.0, 2.0, 3.0])
    assert index_of(str(folder), "client").sizes.tolist() == [2, 1]
    assert before.sizes.tolist() == [1, 1]


def with_tests(folder, sizes=(3, 0, 2, 4, 1, 2), order=None):
    """Write clients and their test samples to two folders; some clients may have none."""
    data = coterie.scenario("mixed-regression", clients=6, seed=2)
    x, y = data.test.x.numpy(), data.test.y.numpy()
    ids = [client for client, size in zip(data.clients, sizes, strict=True) if size]
    held_out = coterie.from_rows(x[: sum(sizes)], y[: sum(sizes)], [size for size in sizes if size], ids=ids)
    held_out = held_out if order is None else held_out.take(order)
    return coterie.to_parquet_dir(data, folder / "train"), coterie.to_parquet_dir(held_out, folder / "test", files=2)


def test_test_samples_come_from_another_folder(tmp_path):
    train, test = with_tests(tmp_path)
    stored = coterie.from_parquet_dir(train, test=test, client="client", target="target")
    assert stored.tested.tolist() == [True, False, True, True, True, True]
    loaded, some = stored.in_memory(), stored.source.load_some(np.array([1, 2]))
    assert loaded.test.sizes.tolist() == [3, 0, 2, 4, 1, 2]
    whole = coterie.scenario("mixed-regression", clients=6, seed=2).test
    np.testing.assert_array_equal(loaded.test.x.numpy(), whole.x.numpy()[:12])
    np.testing.assert_array_equal(some.test.y.numpy(), whole.y.numpy()[3:5])
    assert some.test.sizes.tolist() == [0, 2]
    assert stored.source.load_some(np.array([1])).test.sizes.tolist() == [0]
    alone = stored.training_only()
    assert alone.tested is None
    assert alone.in_memory().test is None
    assert alone.fingerprint() != stored.fingerprint()


def test_mistakes_in_the_folder_of_test_samples(tmp_path):
    train, test = with_tests(tmp_path, order=[1, 0, 2])
    with pytest.raises(InputError, match="not in the order of the training samples"):
        coterie.from_parquet_dir(train, test=test, client="client", target="target")
    other = coterie.to_parquet_dir(coterie.scenario("mixed-regression", clients=7), tmp_path / "other")
    with pytest.raises(InputError, match="client 'client-6' has no training samples"):
        coterie.from_parquet_dir(train, test=other, client="client", target="target")
    narrow = coterie.to_parquet_dir(coterie.scenario("mixed-regression", clients=6, dimension=4), tmp_path / "narrow")
    with pytest.raises(InputError, match="column 'x4' is missing, or not of type double"):
        coterie.from_parquet_dir(train, test=narrow, client="client", target="target")
