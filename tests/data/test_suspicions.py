"""Tables that are read without an error but mean something else: each gets a remark that names the trouble."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import coterie
from coterie.core.readings import same_name
from coterie.data.copies import is_copy
from coterie.data.fitting import is_suspicious
from coterie.data.summary import Moments, summarize
from coterie.errors import ColumnWarning, InputError

N = 200
SITE = [f"s{i % 10}" for i in range(N)]
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(50, 10, N).round(3)
Y = (2 * X + RANDOM.normal(0, 9, N)).round(3)
EVERY_TENTH = np.arange(N) % 10 == 3


def note(name: str, **changed: object) -> str:
    """The note of a column; there is a warning if and only if it is suspicious."""
    table = {"site": SITE, "x": X, "y": Y, **changed}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ColumnWarning)
        data = coterie.from_table(table, client="site", target="y")
    found = next(each for each in data.column_notes if each.column == name)
    assert is_suspicious(found) == any(repr(name) in str(each.message) for each in caught)
    return found.detail


@pytest.mark.parametrize(
    ("usual", "code", "shown"),
    [
        (RANDOM.integers(1, 6, N).astype(float), 9, "9"),
        (RANDOM.integers(1, 3, N).astype(float), 9, "9"),
        (RANDOM.integers(0, 2, N).astype(float), -9, "-9"),
        (RANDOM.integers(18, 60, N).astype(float), -1, "-1"),
        (RANDOM.integers(18, 60, N).astype(float), 99, "99"),
        (RANDOM.normal(130, 10, N), 0, "0"),
        (RANDOM.normal(0, 1, N), 8888, "8888"),
        (np.datetime64("2020-01-01") + RANDOM.integers(0, 900, N), np.datetime64("1900-01-01"), "1900-01-01"),
        (np.datetime64("2020-01-01") + RANDOM.integers(0, 900, N), np.datetime64("9999-12-31"), "9999-12-31"),
    ],
)
def test_a_frequent_extreme_that_stands_apart_may_be_a_code_for_missing_values(usual, code, shown):
    assert f"; {shown} is in " in note("c", c=np.where(EVERY_TENTH, code, usual))
    assert "as a code" not in note("c", c=usual)


@pytest.mark.parametrize(
    "usual",
    [
        RANDOM.integers(1, 6, N),
        RANDOM.integers(0, 2, N),
        RANDOM.choice([0, 10, 20, 30, 40], N),
        RANDOM.poisson(2, N),
        np.where(EVERY_TENTH, 0, RANDOM.uniform(1, 90, N)),
        RANDOM.choice([10.0, 20.0, 90.0], N),
        RANDOM.choice([1, 5, 9], N),
        RANDOM.choice([-1, 0, 1], N),
        RANDOM.choice([0, 1, 50], N),
    ],
)
def test_scales_counts_and_amounts_are_not_suspected(usual):
    assert "as a code" not in note("c", c=usual)


def test_figures_of_clients_are_not_suspected():
    """One client may be far larger than all others, and all of its rows say so."""
    assert "as a code" not in note("c", c=[900 if i % 10 == 3 else 10 + i % 10 for i in range(N)])


def test_extremes_of_two_parts_are_those_of_the_whole():
    values = np.array([4.0, 1, 1, 7, 9, 9, 2, 1])
    for cut in range(1, 8):
        trained = np.array([1, 1, 0, 1, 1, 1, 1, 1])
        whole = Moments.of("plain", values, trained)
        both = Moments.of("plain", values[:cut], trained[:cut]) + Moments.of("plain", values[cut:], trained[cut:])
        assert (whole.low, whole.low_rows, whole.next_low) == (1, 2, 2)
        assert (whole.high, whole.high_rows, whole.next_high) == (9, 2, 7)
        assert (both.low, both.low_rows, both.next_low, both.high, both.high_rows, both.next_high) == (1, 2, 2, 9, 2, 7)


def test_classes_and_clients_that_stand_for_missing_values():
    text = np.where(Y > 100, "high", "low")
    assert "class 'NA' often marks" in note("y", y=np.where(EVERY_TENTH, "NA", text).tolist())
    assert "class 'unknown' often marks" in note("y", y=np.where(EVERY_TENTH, "unknown", text).tolist())
    assert "client 'nan' often marks" in note("site", site=np.where(EVERY_TENTH, "nan", SITE).tolist())
    assert "client '-999' often marks" in note("site", site=[-999 if i % 7 == 0 else i % 10 for i in range(N)])


def test_rare_classes_and_numbers_in_disguise():
    assert "class 'pos' is in 1 row only" in note("y", y=["pos" if i == 5 else "neg" for i in range(N)])
    assert "50 classes in 200 rows only" in note("y", y=[f"c{i // 4}" for i in range(N)])
    with pytest.raises(InputError, match="percent sign: remove the sign; choose --task classification"):
        note("y", y=[f"{value}%" for value in Y])


def test_suspicious_targets_warn_in_python():
    assert "holds -999" in note("y", y=np.where(EVERY_TENTH, -999, Y))
    assert "dominates" in note("y", y=np.where(np.arange(N) == 7, 1e9, Y))


@pytest.mark.parametrize(
    ("one", "other"),
    [("7", "007"), ("7", "7.0"), ("Bonn", "BONN "), ("\xe9a", "e\u0301a"), ("a b", "a\xa0 b"), ("s1", "s\x001")],
)
def test_two_spellings_of_one_name(one, other):
    assert same_name(one) == same_name(other)
    detail = note("site", site=[one if i % 20 < 10 and i % 2 else other if i % 2 else "z" for i in range(N)])
    assert "are probably the same name" in detail or one == other.strip()


@pytest.mark.parametrize(("one", "other"), [("7", "70"), ("1.5", "15"), ("a1", "a01"), ("-7", "7"), ("0", "")])
def test_different_names(one, other):
    assert same_name(one) != same_name(other)


def test_a_client_column_of_measurements():
    assert "look like measurements" in note("site", site=(X / 7).round(0) + 0.5)
    assert "150 clients in 200 rows only" in note("site", site=[f"p{i % 150}" for i in range(N)])


def test_copies_of_columns_in_other_units_and_words():
    assert "may be a copy of 'x'" in note("c", c=1.8 * X + 32)
    assert "may be a copy of 'x'" in note("c", c=-X)
    assert "may be a copy of the target" in note("c", c=Y / 1000)
    assert "copy" not in note("c", c=X + RANDOM.normal(0, 0.01, N))
    text = np.where(Y > 104, "high", "low")
    assert "may be a copy of the target" in note("c", y=text, c=(Y > 104).astype(int))
    assert "copy" not in note("c", y=text, c=(X > 51).astype(int))


def test_two_columns_with_few_levels_may_agree_by_chance():
    owner, trained = np.zeros(120, dtype=np.int64), np.ones(120, dtype=bool)
    one = summarize("one", np.array(["a"] * 70 + ["b"] * 50, dtype=object), trained, owner)
    other = summarize("other", np.array(["x"] * 50 + ["y"] * 70, dtype=object), trained, owner)
    assert not is_copy(one, other)
    assert is_copy(one, other, fewest_levels=2)


def test_rows_that_are_copies():
    twice = {"site": SITE * 2, "x": np.r_[X, X], "y": np.r_[Y, Y]}
    assert "200 rows equal an earlier row" in note("site", **twice)
    coarse = {"site": SITE * 2, "x": np.r_[X, X] > 50, "y": np.r_[Y, Y] > 100}
    assert "equal an earlier row" not in note("site", **coarse)


def test_months_codes_and_large_identifiers():
    assert "months written as numbers" in note("c", c=[202001 + i % 12 for i in range(N)])
    assert "last digits" in note("c", c=[1e17 + 64 * (i % 50) for i in range(N)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        codes = [f"{i % 10}e{4711 + i % 3}" for i in range(N)]  # no numbers: they would be infinite
        assert "category" in note("c", c=codes)


# ---- predictions -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    ward = ["a" if i % 3 else "b" for i in range(N)]
    ward[5] = "rare"
    dose = [None if i % 40 == 0 else float(value) for i, value in enumerate(X)]
    table = {"site": SITE, "x": X, "dose": dose, "ward": ward, "y": Y}
    return coterie.fit(coterie.from_table(table, client="site", target="y"), "fedavg", rounds=2)


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({}, ""),
        ({"x": [-999.0] + [50.0] * 9}, "1 row has a value far from those of the training rows, such as -999"),
        ({"x": [50.0] * 9 + [4000.0]}, "such as 4000"),
        ({"dose": [None] * 10}, r"'dose' has no value in 100% of the rows, but in [123]\.\d% of the training rows"),
        ({"ward": ["c"] * 10}, "'ward' has a value that is rare or absent in the training rows in 100% of the rows"),
        (
            {"ward": ["a"] * 9 + ["A"]},
            "'ward' holds 'A', which counts as 'other' but is probably 'a' in another spelling",
        ),
        ({"ward": ["a"] * 9 + ["c"]}, ""),
        ({"site": ["S1"] * 10}, "1 client is treated as new, .* 'S1' and 's1'"),
    ],
)
def test_rows_to_predict_that_differ_from_those_of_the_training(result, changed, warning):
    rows = {"site": ["s1"] * 10, "x": [50.0] * 10, "dose": [50.0] * 10, "ward": ["a"] * 10} | changed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ColumnWarning)
        result.predict_frame(rows, client="site")
    assert len(caught) == bool(warning)
    assert all(re.search(warning, str(each.message)) for each in caught)


def test_messages_show_cells_of_arrays_as_plain_values(result):
    rows = {"x": [50.0], "dose": [50.0], "ward": ["a"]}
    with pytest.raises(InputError, match="has 'many'"):
        result.predict(rows | {"x": ["many"]}, client="s1")
    assert coterie.errors.shown(np.int64(3)) == "3"
    assert coterie.errors.shown(np.False_) == "False"


# ---- codes, names of columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["patient_id", "icd_code", "zip", "PLZ"])
def test_codes_of_several_rows_are_used_with_a_warning(name):
    assert "its name is that of an identifier or code" in note(
        name.lower(), **{name.lower(): RANDOM.integers(9, 60, N)}
    )


def test_dates_with_times_that_are_written_as_numbers():
    assert "looks like dates with times" in note("c", c=[20230101103000 + 1000000 * (i % 27) for i in range(N)])


@pytest.mark.parametrize(
    ("later", "warned"),
    [
        ([1, 2, 3, 4, 5] * 4, False),
        ([0, 1, 2, 3, 4] * 4, True),  # coded from 0 on
        ([9] + [1, 2, 3, 4] * 5, True),  # a code for a missing value
        ([6] + [1, 2, 3, 4] * 5, False),  # one more than before
        ([True, False] * 10, True),
    ],
)
def test_codes_that_no_training_row_had(later, warned):
    table = {"site": SITE, "x": X, "k": [1 + i // 10 % 5 for i in range(N)], "y": Y}
    fitted = coterie.fit(coterie.from_table(table, client="site", target="y"), "fedavg", rounds=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ColumnWarning)
        fitted.predict({"x": [50.0] * len(later), "k": later}, client="s1")
    assert [("is it coded in the same way" in str(each.message)) for each in caught] == [True] * warned


LINES = [f"{s},{x},{y},2024-01-{1 + i % 28:02d}" for i, (s, x, y) in enumerate(zip(SITE, X, Y, strict=True))]


@pytest.mark.parametrize(
    ("first", "client", "target", "message"),
    [
        ("", "s0", "y", "looks like a row of values, such as"),  # no line of names at all
        ("Sales of 2024\n", "site", "y", "has one column only, 'Sales of 2024'"),
        ("site x y d\n", "site", "y", "has one column only, 'site x y d'"),
    ],
)
def test_files_without_names_of_columns(tmp_path, first, client, target, message):
    path = tmp_path / "t.csv"
    rows = [line.replace(",", " ") if "x y" in first else line for line in LINES]
    path.write_text(first + "\n".join(rows) + "\n")
    with pytest.raises(InputError, match=message):
        coterie.from_table(path, client=client, target=target)


def test_columns_that_are_called_like_one_of_their_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "\n".join(f"{s},{int(x)},{'ja' if y > 100 else 'nein'}" for s, x, y in zip(SITE, X, Y, strict=True))
    )
    first = path.read_text().splitlines()[0].split(",")
    with pytest.warns(ColumnWarning) as caught:
        coterie.from_table(path, client=first[0], target=first[2])
    said = " ".join(str(each.message) for each in caught)
    assert "is called like one of the clients" in said
    assert "is called like one of the classes" in said


def test_years_may_name_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,2019,2020,y\n" + "\n".join(f"{s},{x},{-x},{y}" for s, x, y in zip(SITE, X, Y, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        assert coterie.from_table(path, client="site", target="y").schema.feature_names == ("2019", "2020")


def of_clients(**columns):
    """Forty rows of eight clients."""
    random = np.random.default_rng(0)
    table = {"site": [f"s{i % 8}" for i in range(40)], "x": random.normal(size=40), "y": random.normal(size=40)}
    return coterie.from_table(table | columns, client="site", target="y", holdout=0)


@pytest.mark.parametrize("classes", [["no", "yes", "rare"], [0, 1, 2]])
def test_a_class_that_a_single_client_has_is_noted(classes):
    labels = [classes[2] if i in (3, 11) else classes[i // 8 % 2] for i in range(40)]
    with pytest.warns(ColumnWarning, match=f"class '{classes[2]}' is at one client only"):
        data = coterie.from_table(
            {"site": [f"s{i % 8}" for i in range(40)], "x": np.arange(40) % 7, "y": labels},
            client="site",
            target="y",
            task="classification",
        )
    assert len(data.schema.classes) == 3


def test_clients_without_any_value_of_a_column_are_counted():
    random = np.random.default_rng(1)
    values = [None if i % 8 in (2, 5) else value for i, value in enumerate(random.normal(size=40).tolist())]
    with pytest.warns(ColumnWarning, match="2 clients have no value at all, so that its effect is unknown there"):
        of_clients(dose=values)
    with pytest.warns(ColumnWarning, match="1 client has no value at all"):
        of_clients(ward=[None if i % 8 == 2 else "ab"[i // 8 % 2] for i in range(40)])


def test_one_date_or_nothing_is_not_called_constant():
    with pytest.warns(ColumnWarning, match="always 2024-03-01 or missing in training rows: to use whether it is"):
        data = of_clients(discharged=[None if i % 3 else "2024-03-01" for i in range(40)])
    assert data.schema.feature_names == ("x",)


@pytest.mark.parametrize("only", ["positive", 1])
def test_rows_without_the_only_class_may_be_the_other_class(only):
    table = {"site": ["a", "b"] * 20, "x": list(range(40)), "y": [only if i % 3 else None for i in range(40)]}
    message = rf"target 'y' is '?{only}'? or missing \(14 rows\).*if missing means another class, write it"
    with pytest.raises(InputError, match=message):
        coterie.from_table(table, client="site", target="y")
