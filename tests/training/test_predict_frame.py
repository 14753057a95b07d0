"""Rows of many clients in one call, and the clients of a run as a frame."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import ColumnWarning, ConfigError, InputError


def rows(site, slope, count, seed, labelled=True):
    x = np.random.default_rng(seed).normal(3, 2, count)
    y = slope * (x - 3) + 10 if labelled else np.full(count, np.nan)
    return pd.DataFrame({"patient": [f"{site}-{i}" for i in range(count)], "site": site, "x": x, "y": y})


@pytest.fixture(scope="module")
def result():
    """Return rows in which even sites have the slope 2, odd ones -2."""
    table = pd.concat([rows(f"s{i}", 2 - 4 * (i % 2), 12, i) for i in range(6)])
    data = coterie.from_table(table, client="site", target="y", features="x")
    return coterie.fit(data, "ifca", clusters=2, rounds=100, restarts=3)


def test_known_clients_predict_by_their_cluster_and_new_ones_by_their_labelled_rows(result):
    new = pd.concat([rows("n", -2, 5, 8), rows("n", -2, 3, 9, labelled=False)])
    frame = pd.concat([rows("s1", -2, 2, 7, labelled=False), new, rows("s2", 2, 2, 6, labelled=False)])
    found = result.predict_frame(frame, client="site", id="patient")
    assert list(found.columns) == ["patient", "client", "cluster", "certainty", "placed_by", "prediction"]
    assert found["patient"].tolist() == frame["patient"].tolist()
    slopes = np.array([-2] * 10 + [2] * 2)
    np.testing.assert_allclose(found["prediction"], slopes * (frame["x"] - 3) + 10, atol=0.05)
    one, other = result.assignments["s1"], result.assignments["s2"]
    assert found["cluster"].tolist() == [one] * 10 + [other] * 2
    assert found["placed_by"].tolist() == ["training"] * 2 + ["labelled rows"] * 8 + ["training"] * 2
    assert (found["certainty"] > 0.9).all()


def test_the_order_of_rows_does_not_matter(result):
    frame = pd.concat([rows("s1", -2, 4, 7, labelled=False), rows("s2", 2, 4, 6, labelled=False)])
    mixed = frame.sample(frac=1, random_state=0)
    found = result.predict_frame(frame, client="site", id="patient").set_index("patient")
    pd.testing.assert_frame_equal(
        result.predict_frame(mixed, client="site", id="patient").set_index("patient"), found.loc[mixed["patient"]]
    )


def test_new_clients_without_labels_are_refused_by_name(result):
    frame = pd.concat([rows(name, 2, 2, 1, labelled=False) for name in ("s1", "new", "newer")])
    with pytest.raises(InputError, match=r"2 clients were not in the training .* \('new', 'newer'\): add a few"):
        result.predict_frame(frame, client="site")
    with pytest.raises(InputError, match=r"1 client was not in the training"):
        result.predict_frame(frame[frame["site"] != "new"].drop(columns="y"), client="site")


def test_one_model_serves_new_clients_without_labels():
    table = pd.concat([rows(f"s{i}", 2, 12, i) for i in range(3)])
    data = coterie.from_table(table, client="site", target="y", features="x")
    one = coterie.fit(data, "fedavg", rounds=20)
    found = one.predict_frame(rows("new", 2, 2, 5, labelled=False), client="site")
    assert found["placed_by"].tolist() == ["one model"] * 2
    assert found["cluster"].tolist() == [0, 0]


def test_classes_have_a_column_of_probabilities_each():
    table = pd.concat([rows(f"s{i}", 2 - 4 * (i % 2), 12, i) for i in range(4)])
    table["y"] = np.where(table["y"] > 10, "high", "low")
    data = coterie.from_table(table, client="site", target="y", features="x")
    result = coterie.fit(data, "ifca", clusters=2, rounds=20)
    found = result.predict_frame(table.drop(columns="y"), client="site")
    assert list(found.columns)[-3:] == ["prediction", "probability high", "probability low"]
    np.testing.assert_allclose(found["probability high"] + found["probability low"], 1)
    expected = np.where(found["probability high"] > found["probability low"], "high", "low")
    assert found["prediction"].tolist() == expected.tolist()
    own = (table["site"] == "s1").to_numpy()
    direct = result.predict_proba(table[own], client="s1")
    np.testing.assert_allclose(found.loc[own, ["probability high", "probability low"]], direct)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client": "sit"}, "unknown client column 'sit': did you mean 'site'"),
        ({"client": "site", "id": "patent"}, "unknown id column 'patent': did you mean 'patient'"),
    ],
)
def test_columns_that_do_not_exist_are_refused(result, given, message):
    with pytest.raises(ConfigError, match=message):
        result.predict_frame(rows("s1", 2, 2, 0), **given)


def test_missing_clients_and_taken_names_are_refused(result):
    frame = rows("s1", 2, 2, 0)
    with pytest.raises(InputError, match="column 'site' has 1 missing value,"):
        result.predict_frame(frame.assign(site=["s1", None]), client="site")
    with pytest.raises(InputError, match="already have a column 'cluster'"):
        result.predict_frame(frame.assign(cluster=1), client="site", id="cluster")
    arrays = coterie.fit(coterie.from_arrays([(np.eye(2), [0.0, 1.0])] * 2), "fedavg", rounds=1)
    with pytest.raises(InputError, match="the run was not made from a table"):
        arrays.predict_frame(frame, client="site")


def test_the_clients_of_a_run_as_a_data_frame(result):
    frame = result.to_frame()
    assert list(frame.columns)[:6] == ["id", "cluster", "certainty", "samples", "score", "loss"]
    assert dict(zip(frame["id"], frame["cluster"], strict=True)) == result.assignments
    assert frame["samples"].tolist() == [9] * 6  # three of twelve rows are held out


def test_clients_that_trained_and_have_changed_get_a_warning():
    random = np.random.default_rng(0)
    site, x = np.repeat(["a", "b", "c", "d"], 40), random.normal(size=160)
    table = {"site": site, "x": x, "y": np.where(np.repeat([0, 0, 1, 1], 40), 3, -3) * x + random.normal(0, 0.5, 160)}
    found = coterie.fit(coterie.from_table(table, client="site", target="y"), "ifca", clusters=2, rounds=30)
    found.predict_frame(table, client="site")  # tests turn a warning into an error
    moved = table | {"y": np.where(site == "a", -1, 1) * table["y"]}
    with pytest.warns(ColumnWarning, match="1 client that trained does not fit its cluster any more .'a'."):
        found.predict_frame(moved, client="site")
    with pytest.warns(ColumnWarning, match="4 clients that trained do not fit their cluster any more"):
        found.predict_frame(table | {"y": 1000 * table["y"]}, client="site")
