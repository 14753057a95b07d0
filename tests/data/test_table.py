"""A user's own table: which rows go where, what the features become, and how mistakes are answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie import ConfigError, InputError, from_table
from coterie.core.keys import Purpose, hash_ids, keys_for_clients, permutations
from coterie.data import columns as columns_module
from coterie.data.table import stable_step
from coterie.errors import ColumnWarning

TABLE = {
    "school": ["b", "a", "b", "c", "a", "b", "b", "c"],
    "x": [1.0, 2, 3, 4, 5, 6, 7, 8],
    "kind": ["red", "blue", "red", "green", "blue", "red", "red", "red"],
    "n": [3, 1, 4, 1, 5, 9, 2, 6],
    "score": [10.0, 20, 30, 40, 50, 60, 70, 80],
}
BOTH = {"client": "school", "target": "score"}


def csv_file(path: Path, table=TABLE, delimiter=",") -> Path:
    rows = [delimiter.join(table), *(delimiter.join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def parquet_file(path: Path, table=TABLE) -> Path:
    pq.write_table(pa.table(table), path)
    return path


def client(part, name: str) -> tuple[np.ndarray, list[float]]:
    at = part.ids.index(name)
    rows = slice(int(part.starts[at]), int(part.stops[at]))
    return part.x[rows].numpy(), part.y[rows].tolist()


# ---- sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: TABLE,
        lambda folder: pd.DataFrame(TABLE),
        lambda folder: pl.DataFrame(TABLE),
        lambda folder: pa.table(TABLE),
        lambda folder: csv_file(folder / "t.csv"),
        lambda folder: str(csv_file(folder / "semicolons.CSV", delimiter=";")),
        lambda folder: csv_file(folder / "tabs.csv", delimiter="\t"),
        lambda folder: parquet_file(folder / "t.parquet"),
        lambda folder: pd.DataFrame(TABLE).astype({"kind": "category", "n": "Int64"}),
        lambda folder: pl.DataFrame(TABLE).with_columns(pl.col("kind").cast(pl.Categorical)),
        lambda folder: pa.table(TABLE | {"kind": pa.array(TABLE["kind"]).dictionary_encode()}),
    ],
)
def test_every_source_gives_the_same_clients(make, tmp_path):
    found = from_table(make(tmp_path), **BOTH, features="x,kind,n", holdout=None, standardize=False)
    assert found.clients == ("b", "a", "c")
    assert found.feature_names == ("x", "kind=blue", "kind=green", "n"), "red, the most frequent, is the reference"
    assert found.train.x.dtype == torch.float64
    x, y = client(found.train, "a")
    assert x.tolist() == [[2, 1, 0, 1], [5, 1, 0, 5]]
    assert y == [20, 50]
    assert client(found.train, "c")[0].tolist() == [[4, 0, 1, 1], [8, 0, 0, 6]]
    assert found.test is None
    assert found.profile.classes is None


def test_the_library_works_where_no_table_package_is_installed(tmp_path):
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['pandas', 'polars', 'pyarrow', 'statsmodels']))\n"
        "import coterie, coterie.cli.main\n"
        "print(coterie.from_table(sys.argv[1], client='school', target='score').clients)"
    )
    command = [sys.executable, "-c", code, csv_file(tmp_path / "t.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "('b', 'a', 'c')"


def test_by_default_all_other_columns_are_features():
    with_bool = pd.DataFrame(TABLE | {"late": [True, False, True, False] + [True] * 4})
    found = from_table(with_bool, **BOTH, holdout=0, standardize=False)
    assert found.feature_names == ("x", "kind=blue", "kind=green", "n", "late")
    assert client(found.train, "a")[0][:, 4].tolist() == [0, 1], "rows 2 and 5 of the table"
    few = from_table(with_bool, **BOTH, drop=["kind", "late"])
    assert few.feature_names == ("x", "n")


def test_a_csv_file_reads_texts_numbers_and_what_is_true(tmp_path, monkeypatch):
    """Ids keep their spelling; a column that turns into text late is text from the first row on."""
    text = 'id,code,ok,"a, b",y\n007,1,true,1.5,1\n007,02,False,2.5,2\n7,3,TRUE,3e1,3\n\n7,4,false,4,4\n7,x,true,-5,5\n'
    (tmp_path / "t.csv").write_text("\ufeff" + text, encoding="utf-8")
    monkeypatch.setattr(columns_module, "CHUNK", 4)  # the text comes in the second chunk
    options = {"features": ["code", "ok", "a, b"], "holdout": 0, "standardize": False}
    with pytest.warns(ColumnWarning, match="'007' and '7' are probably the same name"):
        found = from_table(tmp_path / "t.csv", client="id", target="y", **options)
    assert found.clients == ("007", "7")
    assert found.feature_names == ("code=1", "code=3", "code=4", "code=x", "ok", "a, b"), "02 is the reference"
    x, _ = client(found.train, "7")
    assert x.tolist() == [[0, 1, 0, 0, 1, 30], [0, 0, 1, 0, 0, 4], [0, 0, 0, 1, 1, -5]]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = parquet_file(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pip install 'coterie\[tables\]'"):
        from_table(path, **BOTH)


def test_ids_of_whole_numbers_keep_their_order_of_appearance():
    found = from_table({"c": [7, 3, 7, 10, 3], "x": np.arange(5.0), "y": np.arange(5.0)}, client="c", target="y")
    assert found.clients == ("7", "3", "10")


# ---- targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, 0, 2, 1, 0, 0, 1, 0], [2.5] * 4 + [1.0] * 4])
def test_numbers_are_a_regression(values):
    found = from_table(TABLE | {"score": values}, **BOTH, holdout=0)
    assert found.train.y.dtype == torch.float64
    mean, deviation = np.mean(values), np.std(values)
    assert found.schema.target_scale == pytest.approx((mean, deviation))
    assert found.recommended["learner"] == f"linear:bias=true,scale={deviation / 10:.6g},center={mean:.6g}"


@pytest.mark.parametrize(("unit", "origin"), [(1e-7, 0), (1e-3, 5e4), (1e6, 80)])
def test_results_do_not_depend_on_the_unit_of_the_target(unit, origin):
    random = np.random.default_rng(0)
    site, x = np.repeat(np.arange(12), 30), random.normal(size=(360, 2))
    y = np.where(site % 2, 2.0, -2.0) * x[:, 0] + x[:, 1] + random.normal(0, 0.3, 360)

    def fitted(target):
        table = {"site": site, "a": x[:, 0], "b": x[:, 1], "y": target}
        return coterie.fit(from_table(table, client="site", target="y"), "ifca", clusters=2, rounds=30)

    plain, other = fitted(y), fitted((y + origin) * unit)
    assert plain.assignments == other.assignments
    assert len(set(plain.assignments.values())) == 2
    assert other.metrics["rmse"] == pytest.approx(plain.metrics["rmse"] * unit, rel=1e-6)


@pytest.mark.parametrize(("unit", "origin"), [(1e-6, 0.0), (1e4, 1e6)])
def test_targets_of_arrays_far_from_the_first_models_get_a_note(unit, origin):
    random = np.random.default_rng(0)
    clients = [(x, (-1) ** k * x[:, 0] * unit + origin) for k, x in enumerate(random.normal(size=(6, 30, 2)))]
    with pytest.warns(UserWarning, match="one of them may attract all clients") as caught:
        coterie.fit(coterie.from_arrays(clients), "ifca", clusters=2, rounds=2)
    learner = str(caught[0].message).rpartition("learner ")[2]
    found = coterie.fit(coterie.from_arrays(clients), "ifca", clusters=2, rounds=60, learner=learner)
    assert len(set(found.assignments.values())) == 2


def test_a_run_can_start_from_that_of_a_table_with_other_means():
    random = np.random.default_rng(0)
    table = {"site": ["a", "b", "c"] * 20, "x": random.normal(size=60), "y": random.normal(size=60)}
    first = coterie.fit(from_table(table, client="site", target="y"), "fedavg", rounds=2)
    later = from_table(table | {"x": table["x"] + 0.5}, client="site", target="y")
    with pytest.warns(UserWarning, match="scaled with other means"):
        coterie.fit(later, "fedavg", rounds=2, init=first)


def test_unscaled_features_have_first_models_of_the_usual_size():
    found = from_table(TABLE | {"score": list(range(8))}, **BOTH, standardize=False)
    assert found.recommended["learner"].startswith("linear:bias=true,scale=1,center=")


def test_a_network_that_starts_far_from_the_target_gets_a_warning():
    random = np.random.default_rng(0)
    table = {"site": ["a", "b", "c"] * 40, "x": random.normal(size=120), "y": random.normal(100, 17, 120)}
    data = from_table(table, client="site", target="y")
    assert "lr" in data.recommended  # for the linear learner only: a network finds its own
    with pytest.warns(
        UserWarning, match="target 'y' has the mean 97.93 and the standard deviation 19.36, but a network"
    ):
        coterie.fit(data, "fedavg", learner="mlp", rounds=1, lr=0.001)


@pytest.mark.parametrize(
    ("values", "expected"),
    [(["no", "yes", "maybe", "no"] * 2, [1, 2, 0, 1] * 2), ([True, False] * 4, [1, 0] * 4)],
)
def test_texts_and_booleans_are_classes_in_sorted_order(values, expected):
    table = {"c": ["a"] * 4 + ["b"] * 4, "x": np.arange(8.0), "y": values}
    found = from_table(table, client="c", target="y", holdout=0)
    assert found.train.y.tolist() == expected
    assert found.recommended["learner"] == "logistic"


# ---- rows ----------------------------------------------------------------------------------------------------


def test_the_held_out_rows_follow_from_seed_and_id_alone():
    """Against the permutation of the client's key, written out; 0.25 of 8 rows are 2."""
    n = 8
    table = {"c": ["a", "b"] * n, "x": np.arange(2.0 * n), "y": np.arange(2.0 * n)}
    found = from_table(table, client="c", target="y", seed=5, standardize=False)
    for at, name in enumerate(["a", "b"]):
        key = keys_for_clients(5, Purpose.SCENARIO, 0, hash_ids([name]))
        order = permutations(key, np.array([n]), n, 0)[0]
        assert client(found.test, name)[1] == [2.0 * place + at for place in order[:2]]
        assert client(found.train, name)[1] == [2.0 * place + at for place in order[2:]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from("abde"), min_size=4, max_size=30), st.randoms(use_true_random=False))
def test_every_row_is_in_one_part_and_the_order_of_clients_is_irrelevant(owners, random):
    owners = [*owners, "a", "a", "b", "b"]
    y = [float(i) for i in range(len(owners))]
    table = {"c": owners, "x": y, "y": y}
    found = from_table(table, client="c", target="y", standardize=False)
    assert found.clients == tuple(dict.fromkeys(owners))
    for name in found.clients:
        mine = {value for owner, value in zip(owners, y, strict=True) if owner == name}
        train, test = client(found.train, name)[1], client(found.test, name)[1]
        assert sorted(train + test) == sorted(mine)
        assert len(test) == (0 if len(mine) == 1 else min(len(mine) - 1, max(1, round(len(mine) / 4))))
    groups = sorted(set(owners))
    random.shuffle(groups)
    moved = [i for name in groups for i in range(len(y)) if owners[i] == name]
    other = from_table(
        {"c": [owners[i] for i in moved], "x": [y[i] for i in moved], "y": [y[i] for i in moved]},
        client="c",
        target="y",
        standardize=False,
    )
    for name in groups:
        assert client(found.test, name)[1] == client(other.test, name)[1]


def test_other_seeds_hold_out_other_rows():
    table = {"c": ["a", "b"] * 20, "x": np.arange(40.0), "y": np.arange(40.0)}
    one, two = (from_table(table, client="c", target="y", seed=seed).test.y.tolist() for seed in (0, 1))
    assert one != two


# ---- features ------------------------------------------------------------------------------------------------


def test_features_are_standardised_over_all_training_rows():
    random = np.random.default_rng(0)
    table = {"c": ["a", "b", "d"] * 20, "u": random.normal(5, 3, 60), "v": random.exponential(9, 60)}
    raw = from_table(table | {"y": table["u"]}, client="c", target="y", standardize=False)
    found = from_table(table | {"y": table["u"]}, client="c", target="y")
    plain, shifted = raw.train.x.numpy(), found.train.x.numpy()
    np.testing.assert_allclose(shifted, (plain - plain.mean(axis=0)) / plain.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(
        found.test.x.numpy(), (raw.test.x.numpy() - plain.mean(axis=0)) / plain.std(axis=0), rtol=1e-9
    )


def test_a_constant_column_is_left_out_with_a_warning():
    table = {"c": ["a", "b"] * 4, "one": [1.0] * 8, "x": np.arange(8.0), "y": np.arange(8.0)}
    with pytest.warns(ColumnWarning, match=r"left out: one \(constant: 1 in all training rows\)") as reported:
        found = from_table(table, client="c", target="y")
    assert Path(reported[0].filename) == Path(__file__)
    assert found.feature_names == ("x",)


def test_the_recommended_step_is_below_the_limit_of_every_client():
    """By hand: squared lengths 3, 1 | 8 with the constant give means 2 + 1 and 8 + 1, so the step is 1/9."""
    assert stable_step(np.array([3.0, 1.0, 8.0]), np.array([2, 1])) == 0.11
    random = np.random.default_rng(1)
    table = {"c": list("abdef") * 12, "y": random.normal(size=60)}
    table |= {f"x{j}": random.standard_t(3, 60) for j in range(6)}
    found = from_table(table, client="c", target="y")
    for name in found.clients:
        x = np.column_stack([client(found.train, name)[0], np.ones(len(client(found.train, name)[1]))])
        assert found.recommended["lr"] < 2 / np.linalg.eigvalsh(x.T @ x / len(x))[-1]


# ---- mistakes ------------------------------------------------------------------------------------------------


def without(name: str) -> dict[str, list]:
    return {key: value for key, value in TABLE.items() if key != name}


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE, {"client": "scool"}, "unknown client column 'scool': did you mean 'school'?"),
        (TABLE, {"target": "scores"}, "unknown target column 'scores': did you mean 'score'?"),
        (TABLE, {"features": "x,m"}, "unknown feature column 'm'"),
        (TABLE, {"target": "school"}, "client and target are both 'school'"),
        (TABLE, {"features": "x,score"}, "'score' is the target and cannot be a feature"),
        (TABLE, {"features": ["x", "x"]}, "features: 'x' is listed twice"),
        (TABLE, {"features": []}, "features must be column names separated by commas"),
        (TABLE, {"holdout": 1.0}, "holdout must be a share of at least 0 and below 1, got 1.0"),
        (TABLE, {"holdout": "much"}, "holdout must be a share"),
        ({"school": [], "x": [], "score": []}, {}, "the table has no rows"),
        (TABLE | {"school": ["a"] * 8}, {}, "client column 'school' holds only 'a'"),
        (TABLE | {"school": list("abcdefgh")}, {}, "every row has another client.* pass holdout=0"),
        (TABLE | {"x": [1.0, np.nan, 3, np.inf, *range(4)]}, {}, "column 'x' has 1 infinite values"),
        (TABLE | {"score": [np.nan] * 8}, {}, "target 'score' is missing in every row"),
        (TABLE | {"x": [1.0, np.nan, 3, *range(5)]}, {"missing": "refuse"}, "column 'x' has 1 missing .*--missing"),
        (TABLE | {"school": ["a", None, *"bababa"]}, {}, "column 'school' has 1 missing .* row 2"),
        (TABLE | {"kind": ["red"] * 8}, {"features": "kind"}, "feature 'kind' cannot be used: constant: red"),
        (TABLE | {"score": ["1,500", "2,500"] * 4}, {}, "column 'score' may have a decimal comma, or a comma between"),
        (TABLE | {"score": ["1,5", "2.5"] * 4}, {}, "column 'score' writes numbers in two ways"),
        (TABLE | {"score": ["same"] * 8}, {}, "target 'score' is 'same' in every row"),
        (TABLE | {"x": [[1], [2], [3], [4], [5], [6], [7], [8]]}, {}, "one-dimensional"),
        ({"school": list("aabb"), "kind": ["c"] * 4, "score": [1.0, 2, 3, 4]}, {}, "no feature is left .*kind: const"),
        (without("x") | {"n": [b"1", b"two"] * 4}, {"features": "n"}, "feature 'n' cannot be used: holds .S3"),
        (42, {}, "expected a DataFrame, an Arrow table, a Dataset or a path to .csv or .parquet, got int"),
        ("nowhere.csv", {}, "nowhere.csv is no file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_sentence(table, options, message):
    if isinstance(table, dict):
        table = {name: np.array(values, dtype=object) if None in values else values for name, values in table.items()}
    with pytest.raises((InputError, ConfigError), match=message) as caught:
        from_table(table, **BOTH | options)
    assert "\n" not in str(caught.value)


def test_mistakes_with_frames_are_explained_too():
    frame = pd.DataFrame(TABLE)
    for table, options, message in (
        (frame.set_axis(["school", "x", "x", "n", "score"], axis=1), {}, "two columns named 'x'"),
        (pl.DataFrame(TABLE).lazy(), {}, r"got LazyFrame: call collect\(\) first"),
        (frame.assign(n=pd.array([1, None] * 4, dtype="Int64")), {"missing": "refuse"}, "column 'n' has 4 missing"),
        (pl.DataFrame(TABLE).with_columns(n=pl.Series([None, 1] * 4)), {"missing": "refuse"}, "column 'n' has 4 miss"),
    ):
        with pytest.raises(InputError, match=message):
            from_table(table, **BOTH | options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "t.csv is empty"),
        ("t.csv", b"school,x,score\n", "has no rows below its first line"),
        ("t.csv", b"school,x,score\na,1,2\nb,1\n", "a row has 2 values for 3 columns"),
        ("t.csv", b"school,x,score\na,1,2\nb\xff,1,3\n", "no readable CSV file in UTF-8"),
        ("t.csv", b"school,x,score\na,NA,2\nb,,3\nb,1,4\n", "column 'x' has 2 missing"),
        ("t.csv", b"1,2,3\na,1,2\nb,2,3\n", "holds numbers only: it must name the columns"),
        ("t.csv", b"school;a,x;score\na;1,5;2\nb;2,5;3\n", "may be separated by ',' or ';'"),
        ("t.csv", b"school,x,x\na,1,2\n", "two columns named 'x'"),
        ("t.parquet", b"PAR1 nothing", "no readable Parquet file"),
        ("t.xlsx", b"", "neither .csv, .tsv nor .parquet"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, ConfigError), match=message) as caught:
        from_table(tmp_path / name, **BOTH, missing="refuse")
    assert "\n" not in str(caught.value)


def test_another_table_is_read_by_the_schema_of_the_first(tmp_path):
    first = {"s": ["a", "b"] * 6, "x": list(range(12)), "k": ["u", "v", "w"] * 4, "y": ["no", "yes", "yes"] * 4}
    named = {"client": "s", "target": "y"}
    data = from_table(first, features="x,k", **named)
    second = {"s": ["a", "b"] * 4, "x": [10.0, 20] * 4, "k": ["u"] * 8, "y": ["no"] * 8}
    pd.DataFrame(second).to_csv(tmp_path / "t.csv", index=False)
    for source in (second, tmp_path / "t.csv"):
        again = from_table(source, schema=data.schema, holdout=0, **named)
        assert again.schema == data.schema
        (mean, deviation), *_ = data.schema.scales
        assert again.train.x[:, 0].tolist() == [(10 - mean) / deviation] * 4 + [(20 - mean) / deviation] * 4
        assert again.profile == data.profile, "both classes, though only one is here"
    for odd in ({"schema": data.schema, "features": "x"}, {"schema": 3}, {"schema": type(data.schema)()}):
        with pytest.raises(ConfigError, match="schema"):
            from_table(second, **named, **odd)
    with pytest.raises(InputError, match="column 'k' holds '9', which is not a category of the training table"):
        from_table(second | {"k": ["9"] * 8}, schema=data.schema, **named)


def test_models_of_a_table_with_other_columns_are_no_start():
    table = {"s": ["a", "b"] * 10, "x": list(range(20)), "z": [0.5, 1, 2, 3] * 5, "y": [1.0, 2, 4, 3, 5] * 4}
    named = {"client": "s", "target": "y"}
    earlier = coterie.fit(from_table(table, features="x", **named), "fedavg", rounds=1)
    with pytest.raises(ConfigError, match="other columns or class labels"):
        coterie.fit(from_table(table, features="z", **named), "fedavg", rounds=1, init=earlier)
    with pytest.warns(UserWarning, match="scaled with other means"):
        coterie.fit(from_table(table, features="x", seed=1, **named), "fedavg", rounds=1, init=earlier)
    coterie.fit(from_table(table, schema=earlier.schema, **named), "fedavg", rounds=1, init=earlier)


@pytest.mark.parametrize(("name", "value"), [("task", "classify"), ("task", 1), ("missing", "impute it")])
def test_an_unknown_task_or_treatment_of_missing_values_is_refused(name, value):
    table = {"site": ["a", "b"] * 4, "hours": list(range(8)), "score": [0, 1] * 4}
    with pytest.raises(ConfigError, match=f"{name} must be .* or .*, got "):
        coterie.from_table(table, client="site", target="score", **{name: value})
