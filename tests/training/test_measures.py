"""The table of measures, and custom measures in records, terminal, comparison and report."""

from __future__ import annotations

import re
import string
from io import StringIO
from unittest.mock import patch

import pytest
from rich.console import Console

import coterie
from coterie.cli import show
from coterie.errors import ConfigError
from coterie.report.reading import run_from_parts
from coterie.testing.checks import small_federation
from coterie.training.measures import BUILT_IN, MEASURES, RESERVED


@pytest.fixture
def table():
    """The table, restored after the test."""
    with patch.dict(MEASURES):
        yield MEASURES


def largest_share(now):
    return max(now.sizes) / sum(now.sizes)


def only_in_the_first_round(now):
    return now.round == 0


OPTIONS = {"clusters": 2, "rounds": 3, "seed": 0}


def run(**more):
    return coterie.fit(small_federation("logistic"), "ifca", learner="logistic", **OPTIONS, **more)


@pytest.mark.parametrize("measure", BUILT_IN, ids=lambda measure: measure.name)
def test_every_measure_has_a_description(measure):
    assert measure.label
    assert measure.description
    assert not measure.description.endswith(".")
    assert measure.name not in RESERVED
    used = {name for _, name, _, _ in string.Formatter().parse(measure.sentence) if name}
    known = {*MEASURES, "clients", "honest", "finetune", "poison"}
    assert used <= known, "the sentence names a figure or an option"
    assert not measure.sentence or measure.when != "round"


def test_names_are_unique():
    assert len(BUILT_IN) == len({measure.name for measure in BUILT_IN})


def test_every_optional_figure_is_in_the_table():
    result = run(lr=0.1)  # findings of the initialisation are not measures
    assert {name for record in result.records for name in record.measures} <= MEASURES.keys()
    assert result.metrics.measures.keys() <= MEASURES.keys()


def test_a_custom_measure_appears_everywhere(table, tmp_path):
    coterie.measure(
        "largest_share", label="largest", description="of the clients {all} are in the largest cluster", unit="share"
    )(largest_share)
    result = run(out=tmp_path / "run")
    shares = [record["largest_share"] for record in result.records]
    assert shares == [max(record["sizes"]) / sum(record["sizes"]) for record in result.records]
    assert result.metrics["largest_share"] == shares[-1]
    again = coterie.load(tmp_path / "run")
    assert again.metrics["largest_share"] == shares[-1]
    text = StringIO()
    show.result(Console(file=text, width=120), result)
    assert re.search(rf"^largest +{100 * shares[-1]:.1f} % of the clients {{all}} are in the", text.getvalue(), re.M)
    text = StringIO()
    show.comparison(Console(file=text, width=200), [run_from_parts(again.config, again.records, again.summary())])
    assert "largest" in text.getvalue().splitlines()[0]
    page = coterie.write_report(result, tmp_path / "page.html").read_text()
    assert "Largest, by round" in page
    assert '<abbr title="of the clients {all} are in the largest cluster">largest</abbr>' in page


def test_a_measure_decides_where_it_applies(table):
    coterie.measure("early", applies=only_in_the_first_round, when="round")(largest_share)
    result = run()
    assert ["early" in record for record in result.records] == [True, False, False]
    assert "early" not in result.metrics


def test_a_value_that_is_not_finite_is_none(table):
    coterie.measure("lost")(lambda now: float("inf"))
    result = run()
    assert {record["lost"] for record in result.records} == {None}
    text = StringIO()
    show.result(Console(file=text, width=120), result)
    assert "lost" not in text.getvalue()


def test_a_name_is_taken_once(table):
    coterie.measure("largest_share")(largest_share)
    coterie.measure("largest_share")(largest_share)  # as when a notebook cell is run twice
    for name in ("largest_share", "ari", "loss", "round"):
        with pytest.raises(ConfigError, match=f"there is already a figure called {name!r}"):
            coterie.measure(name)(only_in_the_first_round)
