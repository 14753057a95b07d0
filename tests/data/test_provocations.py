"""Attempts to provoke a silent wrong answer: each ends in an error, or in a note that names what was done."""

from __future__ import annotations

import re
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import coterie
from coterie import from_table
from coterie.errors import ColumnWarning, CoterieError

N = 120
RANDOM = np.random.default_rng(0)
SITES = [f"s{i % 6}" for i in range(N)]
X = RANDOM.normal(50, 9, N).round(2).tolist()
Y = RANDOM.normal(size=N).round(3).tolist()


def cycle(*values: object) -> list[object]:
    return [values[i // 6 % len(values)] for i in range(N)]


def with_one(values: list, odd: object, at: int = 7) -> list:
    return [odd if i == at else value for i, value in enumerate(values)]


def texts(values: list) -> list[str]:
    return [str(value) for value in values]


FIVE, TWO = cycle("1", "2", "3", "4", "5"), cycle("a", "b")
DATES = [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(N)]
COLUMNS: dict[str, tuple[list, str]] = {
    # ---- identifiers and codes
    "patient_id": (list(range(1000, 1000 + N)), "dropped: .*looks like an identifier"),
    "row": (list(range(N)), "dropped: .*looks like an identifier"),
    "scattered id": (RANDOM.choice(10**6, N, replace=False).tolist(), "dropped: .*looks like an identifier"),
    "sequence": (RANDOM.choice(10**6, N, replace=False).tolist(), "used: .*drop it if it is an identifier"),
    "name": ([f"person {i}" for i in range(N)], "dropped: .*looks like an identifier"),
    "zip": (cycle("01234", "04567", "09999"), "used: category: reference"),
    "site code": ([int(site[1:]) for site in SITES], "dropped: .*code of the client"),
    "site name": ([f"Hospital {site}" for site in SITES], "dropped: another|dropped: .*another name of the client"),
    "beds": ([100 + 17 * int(site[1:]) for site in SITES], "used: .*same in all rows of each client"),
    "code": (cycle(1, 2, 3), "used: .*identifier or code; drop it"),
    # ---- constant and empty
    "constant": ([3.5] * N, "dropped: constant: 3.5"),
    "constant text": (["yes"] * N, "dropped: constant: yes"),
    "constant date": (["2024-01-01"] * N, "dropped: constant: 2024-01-01"),
    "empty": ([None] * N, "dropped: all values are missing"),
    "only NA": (["NA"] * N, "dropped: all values are missing|dropped: constant"),
    "flag": (cycle("yes", None), "used: 'yes' or missing: used as an indicator"),
    # ---- missing values
    "holes": (with_one(X, None), "used: .*1 missing value replaced by the mean"),
    "nan": (with_one(X, float("nan")), "used: .*1 missing value replaced by the mean"),
    "NA": (with_one(texts(X), "NA"), "used: number.*1 missing value replaced by the mean"),
    "question mark": (with_one(texts(X), "?"), "used: number.*; 1 missing value replaced by the mean"),
    "unknown": (with_one(texts(X), "unknown"), "dropped: holds 119 numbers and 1 text such as 'unknown'"),
    "-999": (with_one(X, -999), "used: .*holds -999, which often marks a missing value"),
    "9999": (with_one(X, 9999.0), "used: .*holds 9999, which often marks a missing value"),
    "infinite": (with_one(X, float("inf")), "error: column 'infinite' has 1 infinite values"),
    "inf text": (with_one(texts(X), "inf"), "error: column 'inf text' has 1 infinite values"),
    "huge": (with_one(X, 1e200), "error: column 'huge' holds 1e\\+200"),
    "text holes": (with_one(TWO, None), "used: category.*1 missing value counted as the reference"),
    # ---- how numbers are written
    "comma": ([f"{x:.1f}".replace(".", ",") for x in X], "used: number: mean 5.*decimal comma"),
    "thousands": ([f"{1000 * x:,.1f}" for x in X], "used: number: mean 5.*decimal point"),
    "grouped comma": ([f"{x * 1e3:,.1f}".translate(str.maketrans(",.", ".,")) for x in X], "used: .*decimal comma"),
    "ambiguous": (cycle("1,234", "2,345", "3,456"), "error: .*'ambiguous' may have a decimal comma, or a comma"),
    "both marks": (with_one(texts(X), "1,5"), "error: column 'both marks' writes numbers in two ways"),
    "percent": ([f"{x}%" for x in X], "dropped: texts such as .* which look like numbers with a percent sign"),
    "pounds": ([f"£{x}" for x in X], "dropped: .*look like numbers with a symbol such as a currency sign"),
    "weights": ([f"{x} kg" for x in X], "dropped: .*look like numbers with a unit"),
    "short years": ([f"{1 + i % 28:02d}/{1 + i % 12:02d}/24" for i in range(N)], "dropped: .*two digits for the year"),
    "named months": ([f"{1 + i % 28} Mar 2024" for i in range(N)], "dropped: .*dates with names of months"),
    "times": ([f"{i % 24}:{i % 60:02d}" for i in range(N)], "dropped: .*look like times of day"),
    "far": (with_one(X, 1e9), "used: .*1000000000 is 9 standard deviations from the mean, .*dominates"),
    "dashes": (with_one(texts(X), "-", 8), "used: number.*; 1 missing value replaced by the mean"),
    "currency": (cycle("$1,200", "$900"), "used: category"),
    "spaced": (cycle("1 234", "2 345"), "used: category"),
    # ---- dates
    "iso": (DATES, "used: date \\(year-month-day\\), as days since 2024-01-01"),
    "german": ([".".join(reversed(d.split("-"))) for d in DATES], "used: date \\(day.month.year\\)"),
    "american": ([f"{d[5:7]}/{d[8:]}/{d[:4]}" for d in DATES], "used: date \\(month/day/year\\)"),
    "either": (cycle("03/04/2024", "05/06/2024", "07/08/2024"), "error: .*'either' may be read as day/month/year or"),
    "two ways": (cycle("2024-12-31", "31.12.2024"), "error: .*'two ways' are written in different ways"),
    "no date": (with_one(DATES, "2024-02-31"), "dropped: holds 119 dates and 1 text such as '2024-02-31'"),
    "compact": (cycle(20240131, 20240215, 20231224), "used: .*looks like dates written as numbers"),
    # ---- categories
    "case": (cycle("Red", "red", "blue"), "used: .*'Red' and 'red' are probably the same name"),
    "rare": (with_one(TWO, "zebra"), "used: .*1 rare values pooled as 'other'"),
    "other": (with_one(cycle("a", "b", "other"), "zebra"), "used: .*pooled as 'other'"),
    "many levels": ([f"l{i % 50}" for i in range(N)], "dropped: text with 50 different values.*none is in"),
    "notes": ([f"note {i} about {i * 7 % 113}" for i in range(N)], "dropped: nearly every row has another text"),
    "yes": (cycle("yes", "no"), "used: category: reference 'no', features for yes"),
    "truth": (cycle("TRUE", "false"), "used: true or false"),
    "mixed": (with_one(list(range(N)), "none at all"), "dropped: .*and 1 text such as 'none at all'"),
    "ages": (with_one([18 + i % 60 for i in range(N)], "?"), "used: number.*1 missing value replaced by the mean"),
    "lists": ([[1, 2]] * N, "dropped: holds list"),
    "bytes": ([b"a"] * N, "dropped: holds bytes"),
}  # fmt: skip


def outcome(table: dict, name: str, **options: object) -> str:
    """`used: ...`, `dropped: ...` or `error: ...`: what a user learns about a column."""
    cells = {key: np.empty(len(values), dtype=object) for key, values in table.items()}
    for key, values in table.items():
        cells[key][:] = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        try:
            data = from_table(cells, client="site", target="y", **options)
        except CoterieError as error:
            return f"error: {error}"
    note = next(note for note in data.column_notes if note.column == name)
    return f"{note.action}: {note.detail}"


@pytest.mark.parametrize("name", COLUMNS)
def test_no_column_is_read_in_silence(name):
    values, expected = COLUMNS[name]
    found = outcome({"site": SITES, "x": X, name: values, "y": Y}, name)
    assert re.match(expected, found), found


TARGETS: dict[str, tuple[dict, dict, str]] = {
    "0/1": ({"y": cycle(0, 1)}, {}, "target: classification: 2 classes \\(0, 1\\); choose --task regression"),
    "1/2": ({"y": cycle("1", "2")}, {}, "target: classification: 2 classes \\(1, 2\\)"),
    "few whole numbers": ({"y": cycle(1, 2, 3, 4, 5)}, {}, "target: regression.*choose --task classification"),
    "classes asked for": ({"y": FIVE}, {"task": "classification"}, "target: classification: 5 classes \\(1, 2, 3"),
    "texts regressed": ({"y": TWO}, {"task": "regression"}, "error: .*cannot be regressed"),
    "measurements as classes": ({"y": Y}, {"task": "classification"}, "error: .*so it has no classes"),
    "holes": ({"y": with_one(Y, None)}, {}, "target: regression.*; 1 row without a target is left out"),
    "NA among numbers": ({"y": with_one(texts(Y), "NA")}, {}, "target: regression.*1 row without a target"),
    "None as a class": ({"y": cycle("None", "mild")}, {}, "target: classification: 2 classes \\(None, mild\\)"),
    "two numbers": ({"y": cycle(0.5, 2.5)}, {}, "target: regression.*seems to hold 0.5 and 2.5 only: if they are cl"),
    "a word": (
        {"y": with_one(texts(Y), "unknown")},
        {},
        "error: target 'y' holds 119 numbers and 1 text such as 'unkn",
    ),
    "identifiers": ({"y": [f"id{i}" for i in range(N)]}, {}, "error: target 'y' has another text in nearly every row"),
    "one huge value": ({"y": with_one(Y, 1e9)}, {}, "target: regression: [^;]*; 1000000000 is 9 standard deviations"),
    "constant": ({"y": [1.5] * N}, {}, "error: target 'y' is 1.5 in every row"),
    "dates": ({"y": DATES}, {}, "error: target 'y' holds dates"),
    "infinite": ({"y": with_one(Y, float("inf"))}, {}, "error: target 'y' has 1 infinite"),
    "decimal commas": ({"y": [str(y).replace(".", ",") for y in Y]}, {}, "target: regression|error: .*decimal comma"),
    "case": ({"y": cycle("Yes", "yes", "no")}, {}, "target: classification: 3 .*are probably the same name"),
    "missing client": ({"site": with_one(SITES, None), "y": Y}, {}, "error: column 'site' has 1 missing value,"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_no_target_is_read_in_silence(name):
    changed, options, expected = TARGETS[name]
    found = outcome({"site": SITES, "x": X, "y": Y} | changed, "y", **options)
    assert re.match(expected, found), found


def test_a_point_between_thousands_is_not_taken_for_a_decimal_point():
    """1.234 is ambiguous in a table whose other numbers have decimal commas."""
    table = {"site": SITES, "x": [str(x).replace(".", ",") for x in X], "n": cycle("1.234", "5.678"), "y": Y}
    assert "'n' may have a decimal point, or a point between thousands" in outcome(table, "n")
    plain = {"site": SITES, "x": X, "n": cycle("1.234", "5.678"), "y": Y}
    assert outcome(plain, "n").startswith("used: number: mean 3.")


def test_a_column_without_a_name_gets_its_place(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["site,,y", *(f"{s},{x},{y}" for s, x, y in zip(SITES, X, Y, strict=True))]))
    data = from_table(file, client="site", target="y")
    assert [note.column for note in data.column_notes] == ["site", "column 2", "y"]


def test_a_table_read_by_another_ones_schema_has_notes():
    first = from_table({"site": SITES, "x": X, "y": Y}, client="site", target="y")
    second = from_table({"site": SITES, "x": X, "new": X, "y": Y}, client="site", target="y", schema=first.schema)
    assert [(note.column, note.action) for note in second.column_notes] == [
        ("site", "client"), ("x", "used"), ("new", "dropped"), ("y", "target"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    data = from_table({"site": SITES, "x": X, "y": Y}, client="site", target="y")
    return coterie.fit(data, "local", rounds=2)


def test_predictions_in_another_unit_are_warned_of(trained):
    with pytest.warns(ColumnWarning, match="'x' is far from its values in the training rows"):
        trained.predict({"x": [1000 * x for x in X[:5]]}, client="s1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.predict({"x": X}, client="s1")


def test_rows_of_other_clients_are_warned_of(trained):
    with pytest.warns(ColumnWarning, match="contains other clients than 's1', such as 's0'"):
        trained.predict({"site": SITES, "x": X}, client="s1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.predict({"site": ["s1", "s1"], "x": X[:2]}, client="s1")


def test_labelled_samples_of_several_clients_are_warned_of():
    data = from_table({"site": SITES, "x": X, "y": Y}, client="site", target="y")
    result = coterie.fit(data, "ifca", clusters=2, rounds=2)
    with pytest.warns(ColumnWarning, match="belong to 6 clients in column 'site'"):
        result.predict({"x": X[:2]}, support={"site": SITES, "x": X, "y": Y})


def test_clients_that_differ_only_in_case_are_named():
    found = outcome({"site": with_one(SITES, "S1"), "x": X, "y": Y}, "site")
    assert "'s1' and 'S1' are probably the same name" in found


def test_clients_without_a_target_are_counted():
    y = [None if site == "s3" else value for site, value in zip(SITES, Y, strict=True)]
    found = outcome({"site": SITES, "x": X, "y": y}, "site")
    assert "5 clients, 100 rows; 1 client has no row with a target" in found


def test_python_users_are_warned_of_what_is_left_out():
    table = {"site": SITES, "x": X, "patient_id": list(range(N)), "y": Y}
    with pytest.warns(ColumnWarning, match="left out: patient_id") as found:
        from_table(table, client="site", target="y")
    assert Path(found[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_table(table, client="site", target="y", drop="patient_id")
        from_table(table, client="site", target="y", features="x")


# ---- files -----------------------------------------------------------------------------------------------------------


def table_file(folder: Path, lines: list[str], header: str = "site,x,y,comment") -> Path:
    file = folder / "table.csv"
    file.write_text("\n".join([header, *lines, ""]))
    return file


LINES = [f"{site},{x},{y},ok" for site, x, y in zip(SITES, X, Y, strict=True)]


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_a_quotation_mark_that_swallows_rows_is_refused(tmp_path, column, rows):
    """A mark at the start of a cell makes everything up to the next mark one cell: rows would vanish."""
    cells = [line.split(",") for line in LINES]
    cells[10][column] = '"' + cells[10][column]
    cells[10 + rows][column] += '"'
    with pytest.raises(coterie.InputError, match="a cell holds whole rows"):
        from_table(table_file(tmp_path, [",".join(row) for row in cells]), client="site", target="y")


def test_a_quotation_mark_that_is_never_closed_is_refused(tmp_path):
    lines = [*LINES[:10], LINES[10].replace("ok", '"ok'), *LINES[11:]]
    with pytest.raises(coterie.InputError, match="a cell holds whole rows"):
        from_table(table_file(tmp_path, lines), client="site", target="y")


@pytest.mark.parametrize("text", ["two\nlines", "a, b,\nand c", "one,\ntwo,\nthree", "a\n\nb"])
def test_texts_of_several_lines_are_cells(tmp_path, text):
    lines = [line.replace("ok", f'"{text}"') if i % 2 else line for i, line in enumerate(LINES)]
    data = from_table(table_file(tmp_path, lines), client="site", target="y")
    assert data.column_notes[0].detail.startswith("6 clients, 120 rows")


def test_names_of_columns_among_the_rows_are_refused(tmp_path):
    with pytest.raises(coterie.InputError, match="a row repeats the names of the columns"):
        from_table(table_file(tmp_path, [*LINES[:60], "site,x,y,comment", *LINES[60:]]), client="site", target="y")


def test_the_line_that_names_the_separator_is_no_header(tmp_path):
    file = table_file(tmp_path, ["site;x;y", *(line[:-3].replace(",", ";") for line in LINES)], header="sep=;")
    assert len(from_table(file, client="site", target="y").clients) == 6


# ---- ids, spellings, roles -------------------------------------------------------------------------------------------

LONG = [2**53 + int(site[1:]) for site in SITES]


@pytest.mark.parametrize(
    "ids",
    [
        np.array(LONG),
        np.array(LONG, dtype=object),
        np.array([np.int64(each) for each in LONG] + [None], dtype=object)[:-1],
        np.array([Decimal(each) for each in LONG], dtype=object),
        np.array([2**70 + each for each in LONG], dtype=object),
        np.array(LONG, dtype=np.uint64),
    ],
)
def test_long_ids_of_clients_keep_all_digits(ids):
    data = from_table({"site": ids, "x": X, "y": Y}, client="site", target="y")
    assert set(data.clients) == {str(each) for each in ids}


def test_long_ids_that_have_become_floats_are_refused():
    with pytest.raises(coterie.InputError, match="lost their last digits"):
        from_table({"site": np.array(LONG, dtype=float), "x": X, "y": Y}, client="site", target="y")


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("Total", "is the name of a line of totals"),
        ("Gesamt", "is the name of a line of totals"),
        ("1.23457E+17", "looks like a long number that a spreadsheet has shortened"),
    ],
)
def test_clients_that_are_no_clients(name, remark):
    assert remark in outcome(
        {"site": [name if i % 40 == 0 else s for i, s in enumerate(SITES)], "x": X, "y": Y}, "site"
    )


@pytest.mark.parametrize("words", [("true", "1", "0"), ("yes", "no", "Y"), ("ja", "nein", "yes"), ("FALSE", "0", "1")])
def test_true_and_false_in_several_spellings(words):
    assert "probably mean the same" in outcome({"site": SITES, "x": X, "z": cycle(*words), "y": Y}, "z")
    assert "probably mean the same" in outcome({"site": SITES, "x": X, "y": cycle(*words)}, "y")


@pytest.mark.parametrize("words", [("true", "false"), ("yes", "no"), ("1", "0", "2"), ("f", "m"), ("no", "maybe", "n")])
def test_other_levels_have_meanings_of_their_own(words):
    assert "probably mean the same" not in outcome({"site": SITES, "x": X, "z": cycle(*words), "y": Y}, "z")


@pytest.mark.parametrize("value", [lambda site: float(site[1:]) / 3, lambda site: "ab"[int(site[1:]) % 2]])
def test_a_target_of_clients_is_no_target_of_rows(value):
    found = outcome({"site": SITES, "x": X, "y": [value(site) for site in SITES]}, "y")
    assert "has the same value in all rows of each client" in found
    assert "has the same value" not in outcome({"site": SITES, "x": X, "y": Y}, "y")


def test_infinite_numbers_among_texts_are_named():
    assert "dropped: holds 42 numbers and 78 texts" in outcome(
        {"site": SITES, "x": X, "z": cycle("a", "inf", "b"), "y": Y}, "z"
    )


@pytest.mark.parametrize("form", [lambda table: table, pa.Table.from_pandas])
def test_numbers_that_are_categories_in_a_data_frame_are_no_numbers(form):
    """The size of such codes means nothing, and the data frame says so."""
    codes = pd.Categorical([i // 6 % 4 for i in range(N)])
    frame = pd.DataFrame({"site": pd.Categorical([int(site[1:]) for site in SITES]), "x": X, "code": codes, "y": Y})
    with pytest.warns(ColumnWarning, match="code .is categorical, but its levels are numbers"):
        assert from_table(form(frame), client="site", target="y").schema.feature_names == ("x",)
    with pytest.raises(coterie.InputError, match="target 'code' is categorical, but its levels are numbers"):
        from_table(form(frame), client="site", target="code", features="x")
    data = from_table(form(frame), client="site", target="code", features="x", task="classification")
    assert data.schema.classes == (0, 1, 2, 3)
    named = frame.assign(code=pd.Categorical([f"level {i // 6 % 4}" for i in range(N)]))
    assert len(from_table(form(named), client="site", target="y").schema.feature_names) == 4


def test_a_feature_may_not_be_called_as_the_constant():
    assert "error: column 'intercept' has the name" in outcome({"site": SITES, "intercept": X, "y": Y}, "intercept")


# ---- predictions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> coterie.Result:
    table = {
        "site": SITES,
        "x": with_one(X, None),
        "full": X,
        "day": DATES,
        "ok": cycle("true", "false"),
        "kind": with_one(TWO, "zebra"),
        "place": cycle("u", "v", "w"),
        "y": Y,
    }
    table = {name: np.array(values, dtype=object) for name, values in table.items()}
    return coterie.fit(from_table(table, client="site", target="y"), "fedavg", rounds=2)


ROW = {"x": 55.0, "full": 55.0, "day": "2024-03-01", "ok": "true", "kind": "a", "place": "u"}


def one_row(changed: dict[str, object]) -> dict[str, np.ndarray]:
    return {
        name: np.array([value], dtype=None if isinstance(value, np.datetime64) else object)
        for name, value in (ROW | changed).items()
    }


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"day": np.datetime64("2024-03-01")}, {}),
        ({"day": "2024-03-01T00:00:00Z"}, {}),
        ({"ok": True}, {}),
        ({"ok": "TRUE"}, {}),
        ({"ok": 1}, {}),
        ({"x": "55"}, {}),
        ({"x": "55,0"}, {}),
        ({"x": " 55.0 "}, {}),
        ({"x": "NA"}, {"x": None}),
        ({"kind": "unheard of"}, {"kind": "zebra"}),
        ({"kind": " a "}, {}),
    ],
)
def test_the_same_value_written_otherwise_predicts_the_same(result, changed, same):
    one, other = (float(result.predict(one_row(change), client="s1")[0]) for change in (changed, same))
    assert one == other


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": "much"}, "column 'x' must hold numbers"),
        ({"x": "1,234"}, "column 'x' holds '1,234', which may have a decimal comma"),
        ({"x": np.datetime64("2024-03-01")}, "column 'x' must hold numbers"),
        ({"x": float("inf")}, "column 'x' must hold finite numbers"),
        ({"day": "03/04/2024"}, "column 'day' must hold dates such as 2024-12-31"),
        ({"day": 45000}, "column 'day' must hold dates"),
        ({"ok": "yes"}, "column 'ok' must hold true or false"),
        ({"ok": 2}, "column 'ok' must hold true or false"),
        ({"place": "x"}, "column 'place' holds 'x', which is not a category of the training table .'u', 'v', 'w'."),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_its_column(result, changed, message):
    with pytest.raises(coterie.InputError, match=message):
        result.predict(one_row(changed), client="s1")


def test_a_missing_value_in_a_column_that_had_none_is_warned_of(result):
    with pytest.warns(ColumnWarning, match="column 'full' has 1 missing value, but training rows had none"):
        result.predict(one_row({"full": None}), client="s1")


def test_an_array_is_no_table(result):
    with pytest.raises(coterie.InputError, match="the run was made from a table"):
        result.predict(np.zeros((1, len(result.schema.feature_names))), client="s1")


def test_notes_are_kept_with_the_result(result, tmp_path):
    result.save(tmp_path / "run")
    again = coterie.load(tmp_path / "run")
    assert again.column_notes == result.column_notes
    assert again.schema == result.schema
    assert {note.action for note in result.column_notes} == {"client", "used", "target"}


# ---- new clients -----------------------------------------------------------------------------------------------------

GROUPED = np.where(np.arange(N) % 6 < 3, 1.0, -1.0) * (np.array(X) - 50) + RANDOM.normal(0, 0.5, N)


@pytest.fixture(scope="module", params=["regression", "classification"])
def grouped(request) -> tuple[coterie.Result, np.ndarray]:
    y = GROUPED if request.param == "regression" else np.where(GROUPED > 0, "high", "low").astype(object)
    data = from_table({"site": SITES, "x": X, "y": y}, client="site", target="y")
    return coterie.fit(data, "ifca", clusters=2, restarts=3, rounds=30), y


def rows_of(y: np.ndarray, wanted: np.ndarray) -> dict[str, np.ndarray]:
    return {"site": np.full(wanted.sum(), "new"), "x": np.array(X)[wanted], "y": y[wanted]}


def test_a_new_client_that_fits_a_cluster_is_placed_in_silence(grouped):
    result, y = grouped
    for group in (0, 1):
        wanted = np.arange(N) % 6 // 3 == group
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result.predict_frame(rows_of(y, wanted), client="site")


def test_a_new_client_that_fits_no_cluster_is_warned_of(grouped):
    """Half of its rows are of each group: no model fits, although one is placed with certainty."""
    result, y = grouped
    rows = rows_of(y, np.ones(N, dtype=bool))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = result.predict_frame(rows, client="site")
    assert set(found["placed_by"]) == {"labelled rows that fit no cluster"}
    assert found["certainty"].isna().all(), "a certainty compares clusters, of which none fits"
    assert [str(each.message)[:40] for each in caught] == ["1 new client fits no cluster ('new'): th"]
    for ask in (result.weigh, result.assign, result.certainty, lambda table: result.predict({"x": X}, support=table)):
        with pytest.warns(ColumnWarning, match="the labelled samples fit no cluster"):
            ask({name: values for name, values in rows.items() if name != "site"})
