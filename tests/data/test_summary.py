"""Summaries of tables add up: the schema of any partition of the clients is that of the whole table."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import InputError
from coterie.core.readings import DATE_READINGS, NUMBER_READINGS, READINGS
from coterie.core.schema import Schema
from coterie.data.fitting import TableSettings, fit_schema
from coterie.data.summary import MOST_CODES, Moments, TableSummary, merge, summarize
from coterie.data.table import open_table

NUMBERS = ("1", "2.5", "-3", "1e2", "0.25")
CELLS = {
    "numbers": st.sampled_from([*NUMBERS, "", "NA"]),
    "commas": st.sampled_from(["1,5", "2,25", "7", ""]),
    "dates": st.sampled_from(["2024-01-31", "2023-12-01", "2024-02-29 12:00", ""]),
    "days": st.sampled_from(["31.12.2024", "1.2.2023"]),
    "truths": st.sampled_from(["true", "False", ""]),
    "texts": st.sampled_from(["red", "blue", "Red", "NA", "", "other"]),
    "codes": st.sampled_from(["1", "2", "3", "x", "007"]),
    "whole": st.integers(0, 10**6).map(str),
    "mixed": st.sampled_from([*map(str, range(30)), "unknown"]),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(6, 40))
    table = {name: draw(st.lists(cells, min_size=rows, max_size=rows)) for name, cells in CELLS.items()}
    table["site"] = draw(st.lists(st.sampled_from("abcdef"), min_size=rows, max_size=rows))
    table["y"] = [str(i % 7) for i in range(rows)]
    return table


def part(table: dict, sites: set[str]) -> TableSummary | None:
    at = [i for i, site in enumerate(table["site"]) if site in sites]
    columns = {name: np.array([cells[i] or None for i in at], dtype=object) for name, cells in table.items()}
    if not at:
        return None
    owner = np.unique(columns["site"].astype(str), return_inverse=True)[1]
    training = np.array([i % 4 > 0 for i in at])
    parts = [summarize(name, columns[name], training, owner) for name in columns if name != "site"]
    return TableSummary(len(set(owner.tolist())), len(at), 0, tuple(parts))


def fitted(summary: TableSummary):
    try:
        return fit_schema(summary, TableSettings("y"))
    except InputError as error:
        return str(error)


@settings(max_examples=25, deadline=None)
@given(tables(), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_the_schema_of_any_partition_of_the_clients_is_that_of_the_whole(table, place):
    whole = part(table, set("abcdef"))
    groups = [{site for site, at in zip("abcdef", place, strict=True) if at == k} for k in range(3)]
    merged = merge(found for group in groups if (found := part(table, group)) is not None)
    sent = [TableSummary.of_plain(json.loads(json.dumps(s.plain()))) for s in (whole, merged)]
    one, other = (fitted(summary) for summary in sent)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    (first, notes), (second, same_notes) = one, other
    assert [(c.kind, c.features) for c in first.columns] == [(c.kind, c.features) for c in second.columns]
    assert first.classes == second.classes
    np.testing.assert_allclose(first.scales, second.scales, rtol=1e-9, atol=1e-12)
    assert [note[:2] for note in notes] == [note[:2] for note in same_notes]


def test_moments_by_hand_add_up():
    """1, 2, 6 have mean 3 and variance (4 + 1 + 9) / 3; with 11 twice: mean 31 / 5, and variance of 1, 2, 6, 11, 11."""
    one = Moments.of("plain", np.array([1.0, 2.0, 6.0]), np.array([1, 1, 1]))
    assert (one.count, one.mean, one.low, one.high) == (3, 3.0, 1.0, 6.0)
    assert one.deviation == pytest.approx(math.sqrt(14 / 3))
    both = one + Moments.of("plain", np.array([11.0]), np.array([2]))
    assert both.mean == pytest.approx(6.2)
    assert both.deviation == pytest.approx(float(np.std([1, 2, 6, 11, 11])))


@pytest.mark.parametrize("shift", [0.0, 1e9, -1e12])
@pytest.mark.parametrize("size", [1.0, 1e-200, 1e90])
def test_moments_of_parts_keep_their_digits(shift, size):
    """Sums of squares would lose all digits at a mean of 1e9, and leave the range of floats at 1e-200."""
    values = (np.random.default_rng(0).normal(size=300) + shift) * size
    parts = [Moments.of("plain", chunk, np.ones(len(chunk), dtype=int)) for chunk in np.split(values, [7, 90, 91])]
    merged = sum(parts[1:], parts[0])
    assert merged.mean == pytest.approx(values.mean(), rel=1e-12)
    assert merged.deviation == pytest.approx(float((values / size).std() * size), rel=1e-3 if shift < 0 else 1e-6)


def test_equal_numbers_have_no_deviation():
    for value in (0.1, 1e-300, 3e80):
        part = Moments.of("plain", np.array([value] * 7), np.ones(7, dtype=int))
        assert (part + part + part).deviation == 0


@pytest.mark.parametrize("count", [5, 100, 3000, 50_000])
def test_the_number_of_different_whole_numbers_is_estimated(count):
    """Against the true number, from ten overlapping parts; the standard error of the estimate is 3 %."""
    values = np.random.default_rng(count).choice(10**7, count, replace=False).astype(float)
    parts = [values[max(0, k * count // 10 - 5) : (k + 1) * count // 10] for k in range(10)]
    columns = [summarize("id", part, np.ones(len(part), bool), np.zeros(len(part), int)) for part in parts]
    merged = sum(columns[1:], columns[0])
    assert merged.distinct_numbers() == pytest.approx(count, rel=0.1)
    if count <= MOST_CODES:
        assert merged.distinct_numbers() == count


def test_a_summary_holds_no_row():
    """1000 rows of a column of measurements leave as a few numbers; only levels of texts are listed."""
    random = np.random.default_rng(0)
    table = {
        "site": [f"s{i % 10}" for i in range(1000)],
        "age": random.normal(50, 9, 1000),
        "sex": ["f", "m"] * 500,
        "y": random.normal(size=1000),
    }
    summary = open_table(table, client="site", target="y").summary()
    assert len(json.dumps(summary.plain())) < 3000
    assert [column.name for column in summary.columns] == ["age", "sex", "y"], "the client column stays"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain["columns"][0].update(rows=-1),
        lambda plain: plain["columns"][0].update(sketch="zz"),
        lambda plain: plain["columns"][0].update(more=1),
        lambda plain: plain["columns"][0]["numbers"]["readings"][0].update(mean=math.inf),
        lambda plain: plain["columns"][0]["numbers"]["readings"][0].update(reading="guess"),
        lambda plain: plain["columns"].append(plain["columns"][0]),
        lambda plain: plain.pop("clients"),
    ],
)
def test_a_summary_that_no_table_has_is_refused(spoil):
    plain = open_table({"s": ["a", "b"] * 3, "x": range(6), "y": range(6)}, client="s", target="y").summary().plain()
    spoil(plain)
    with pytest.raises(InputError):
        TableSummary.of_plain(plain)


def test_tables_with_other_columns_are_refused_by_name():
    one, other = (
        open_table({"s": ["a", "b"] * 3, name: range(6), "y": range(6)}, client="s", target="y").summary()
        for name in ("x", "z")
    )
    with pytest.raises(InputError, match="column 'x' is in the table of one party only"):
        merge([one, other])


def test_nodes_agree_on_a_schema_and_encode_by_it():
    """Two nodes whose levels, scales and classes differ encode as one table would."""
    north = {"s": ["a", "b"] * 10, "x": range(20), "k": ["u", "v"] * 10, "y": ["no", "no", "yes", "no"] * 5}
    south = {"s": ["c", "d"] * 10, "x": range(50, 70), "k": ["w", "v"] * 10, "y": ["may", "no"] * 10}
    nodes = [open_table(table, client="s", target="y") for table in (north, south)]
    schema, notes = fit_schema(merge(node.summary() for node in nodes), TableSettings("y"))
    assert schema.classes == ("may", "no", "yes")
    schema = Schema.of_plain(json.loads(json.dumps(schema.plain())))
    apart = [node.dataset(schema, notes) for node in nodes]
    whole = {name: [*north[name], *south[name]] for name in north}
    together = open_table(whole, client="s", target="y").dataset(schema)
    x = np.concatenate([data.train.x.numpy() for data in apart])
    np.testing.assert_array_equal(x, together.train.x.numpy())
    assert abs(x[:, 0].mean()) < 1e-9


@pytest.mark.parametrize(
    ("text", "reading", "value"),
    [
        ("1234.5", "plain", 1234.5),
        ("-2e3", "plain", -2000),
        ("007", "plain", None),
        ("1_000", "plain", None),
        ("1,234.5", "decimal point", 1234.5),
        ("1,5", "decimal point", None),
        ("1.234,5", "decimal comma", 1234.5),
        ("1,5", "decimal comma", 1.5),
        ("1.5", "decimal comma", None),
        ("1970-01-02", "year-month-day", 1),
        ("1970/1/2 12:00", "year-month-day", 1.5),
        ("1970-01-02T02:00:00+02:00", "year-month-day", 1),
        ("1970-02-30", "year-month-day", None),
        ("2.1.1970", "day.month.year", 1),
        ("2/1/1970", "day/month/year", 1),
        ("2/1/1970", "month/day/year", 31),
        ("13/1/1970", "month/day/year", None),
    ],
)
def test_readings_by_hand(text, reading, value):
    """1 January 1970 is day 0, so 1 February is day 31."""
    assert READINGS[reading].read(text) == value


def test_every_reading_reads_its_example():
    assert all(reading.read(reading.example) is not None for reading in (*NUMBER_READINGS, *DATE_READINGS))
