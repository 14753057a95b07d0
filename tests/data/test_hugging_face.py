"""Clients from Hugging Face data sets and Flower partitions.

`Stored` has the part of the documented interface of `datasets.Dataset` that is used, so that these tests need no such
library; where the library is installed the same tests run with it, too.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import coterie
from coterie.errors import ConfigError, InputError


@dataclass
class Value:
    dtype: str


@dataclass
class ClassLabel:
    names: list[str]


@dataclass
class Image:
    mode: str = "L"


@dataclass
class Array2D:
    shape: tuple[int, int]


class Stored:
    """Columns with types; `with_format` decides what `[:]` returns."""

    def __init__(self, columns, features, form=None):
        self.columns, self.features, self.form = columns, features, form

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def with_format(self, form):
        return Stored(self.columns, self.features, form)

    def __getitem__(self, rows):
        if self.form == "arrow":
            return pa.table({name: list(values) for name, values in self.columns.items()})
        return {name: np.asarray(values) for name, values in self.columns.items()}


def stored(columns, **features):
    return Stored(columns, features)


def real(columns, **features):
    import datasets

    def kind(feature):
        if isinstance(feature, Array2D):
            return datasets.Array2D(feature.shape, "float32")
        if isinstance(feature, ClassLabel):
            return datasets.ClassLabel(names=feature.names)
        return datasets.Value(feature.dtype)

    types = {name: kind(feature) for name, feature in features.items()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(types))


@pytest.fixture(params=["stored", "real"])
def make(request):
    if request.param == "real" and importlib.util.find_spec("datasets") is None:
        pytest.skip("datasets is not installed")
    return {"stored": stored, "real": real}[request.param]


def patients(make, sites="ababababab"):
    rows = len(sites)
    return make(
        {"site": list(sites), "age": [20.0 + 3 * i for i in range(rows)], "label": [i % 2 for i in range(rows)]},
        site=Value("string"),
        age=Value("float64"),
        label=ClassLabel(["well", "ill"]),
    )


def test_columns_of_single_values_are_read_as_a_table_and_classes_keep_their_names(make):
    data = coterie.from_hf(patients(make), client="site", target="label", features="age", holdout=0)
    assert data.clients == ("a", "b")
    assert data.schema.classes == ("ill", "well")
    # site a has rows 0, 2, ..., which are all of class 0: "well" is class 1 in sorted order
    assert data.train.y.tolist() == [1] * 5 + [0] * 5
    # ages 20, 23, ..., 47: mean 33.5, standard deviation 3 sqrt((100 - 1) / 12)
    assert data.train.x[0, 0].item() == pytest.approx((20 - 33.5) / (3 * np.sqrt(99 / 12)))


def test_the_split_test_is_held_out_and_clients_are_in_one_order(make):
    splits = {"train": patients(make), "test": patients(make, "bbb"), "validation": patients(make)}
    data = coterie.from_hf(splits, client="site", target="label", features=["age"])
    assert data.train.sizes.tolist() == [5, 5]
    assert data.test.sizes.tolist() == [0, 3]
    with pytest.raises(InputError, match="client 'z' is only in the split 'test'"):
        coterie.from_hf(splits | {"test": patients(make, "bz")}, client="site", target="label", features="age")


def pictures(make, target=None):
    return make(
        {"who": list("xxyy"), "pixels": np.arange(24.0).reshape(4, 2, 3).tolist(), "y": target or [0, 2, 0, 2]},
        who=Value("string"),
        pixels=Array2D((2, 3)),
        y=Value("string" if target else "int64"),
    )


def test_one_column_of_arrays_is_used_as_it_is(make):
    data = coterie.from_hf(pictures(make), client="who", target="y", features="pixels", holdout=0.5)
    assert data.profile.features == (2, 3)
    assert data.train.sizes.tolist() == data.test.sizes.tolist() == [1, 1]
    named = coterie.from_hf(pictures(make, list("abab")), client="who", target="y", features="pixels", holdout=0)
    assert named.schema.classes == ("a", "b")
    assert named.train.y.tolist() == [0, 1, 0, 1]
    assert named.train.x[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_missing_class_of_arrays_is_refused(make):
    with pytest.raises(InputError, match="column 'y' has missing values"):
        coterie.from_hf(pictures(make, ["a", None, "b", "a"]), client="who", target="y", features="pixels", holdout=0)


def test_pixels_of_images_are_divided_by_255():
    pixels = np.full((2, 2, 2), 255, dtype=np.uint8)
    data = stored({"who": ["x", "y"], "image": pixels, "y": [0, 1]}, who=Value(""), image=Image(), y=Value("int64"))
    found = coterie.from_hf(data, client="who", target="y", features="image", holdout=0)
    assert found.train.x.max().item() == 1.0


def test_partitions_are_clients(make):
    parts = {"n": patients(make), 7: patients(make)}
    assert coterie.from_hf(parts, target="label", features="age").clients == ("n", "7")
    flower = SimpleNamespace(
        partitioners={"train": SimpleNamespace(num_partitions=2)},
        load_partition=lambda index, split: list(parts.values())[index],
    )
    data = coterie.from_hf(flower, target="label", features="age")
    assert data.clients == ("0", "1")
    with pytest.raises(ConfigError, match="are the clients: leave client='site' out"):
        coterie.from_hf(flower, client="site", target="label")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"target": "y"}, ConfigError, "one Dataset needs client=COLUMN"),
        ({"target": "z", "client": "who"}, ConfigError, "unknown column 'z'"),
        ({"target": "y", "client": "wo"}, ConfigError, "did you mean 'who'"),
        ({"target": "y", "client": "who"}, ConfigError, "holds arrays, so that it is not clear what to predict from"),
        ({"target": "y", "client": "who", "features": "pixels,who"}, ConfigError, "must be the only feature"),
        ({"target": "y", "client": "who", "features": "pixel"}, ConfigError, "did you mean 'pixels'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(make, given, error, message):
    with pytest.raises(error, match=message):
        coterie.from_hf(pictures(make), **given)


@pytest.mark.parametrize("source", [3, {}, {"train": 3}, np.zeros((2, 2))])
def test_anything_else_is_refused(source):
    with pytest.raises(InputError, match="expected a"):
        coterie.from_hf(source, client="a", target="b")


def test_predictions_take_the_rows_as_the_training_took_them(make):
    """Classes are columns of names in both, and columns of arrays are not read."""
    ages = [float(i % 7) for i in range(40)]
    columns = {
        "site": (list("ab") * 20, Value("string")),
        "ward": ([i // 2 % 2 for i in range(40)], ClassLabel(["north", "south"])),
        "age": (ages, Value("float64")),
        "out": ([float(i % 7) + 5 * (i // 2 % 2) for i in range(40)], Value("float64")),
        "scan": (np.zeros((40, 2, 3)).tolist(), Array2D((2, 3))),
    }

    def visits(*names):
        return make({name: columns[name][0] for name in names}, **{name: columns[name][1] for name in names})

    data = coterie.from_hf(visits("site", "ward", "age", "out"), client="site", target="out", holdout=0)
    result = coterie.fit(data, "fedavg", rounds=30)
    expected = result.predict({"ward": ["north", "north", "south", "south"] * 10, "age": ages}, client="a")
    np.testing.assert_allclose(result.predict(visits("ward", "age"), client="a"), expected)
    np.testing.assert_allclose(result.predict(visits("scan", "ward", "age"), client="a"), expected)
