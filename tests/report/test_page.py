"""The page: whole for every kind of run, safe for every text."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import coterie
from coterie.evaluate.groups import GroupProfile, Groups
from coterie.report.groups import profile_rows
from coterie.report.page import embedded, write_report
from coterie.report.reading import run_from_parts
from coterie.training.subject import Subject
from tests.records import without

HOSTILE = "</script><img src=x onerror=alert(1)>"
OPTIONAL = ("sizes", "assignments", "restart", "restart_losses", "accuracy", "worst_tenth", "ari")


class Elements(HTMLParser):
    """Every element with its attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.void = {"meta", "link", "input", "img", "br"}
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


def page(tmp_path, runs, **options):
    return write_report(runs, tmp_path / "new" / "report.html", **options).read_text(encoding="utf-8")


def full(make_run):
    truth = ("north", "north", "south", "south")
    runs = []
    for seed in (0, 1):
        runs.append(make_run("ifca", seed, truth=truth, certainty=(1.0, 1.0, 1.0, 0.5)))
        runs.append(make_run("fedavg", seed, truth=truth, clusters=(0,) * 4, scores=(0.8, 0.8, 0.85, 0.7)))
        runs.append(make_run("local", seed, truth=truth, clusters=(0, 1, 2, 3), scores=(0.6, 0.95, 0.6, 0.6)))
    return runs


def test_every_question_has_its_section(tmp_path, make_run):
    text = page(tmp_path, full(make_run))
    found = Elements(text)
    assert not found.unbalanced
    assert not found.open
    sections = [attributes["id"] for tag, attributes in found.found if tag == "section"]
    subject = ["methods", "numbers", "groups", "clients", "map", "gains"]
    assert sections == [*subject, "formation", "curves", "agreement", "cost", "method", "again"]
    figures = [a for tag, a in found.found if tag == "svg" and a.get("class") == "figure"]
    assert len(figures) == 6  # two of gains, map, strip, two of curves
    assert all(a["aria-label"] for a in figures)
    assert "4 of 4 clients gain" not in text
    assert "3 of 4 clients gain, 1 loses" in text  # against fedavg: 0.9, 0.9, 0.8 < 0.85, 0.8


def test_nothing_is_fetched_when_it_is_viewed(tmp_path, make_run):
    text = page(tmp_path, full(make_run))
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    for tag, attributes in Elements(text).found:
        assert tag not in ("img", "iframe", "object", "embed")
        assert not any(name in attributes for name in ("src", "srcset", "action"))
        assert attributes.get("href", "data:,") == "data:,"


def test_hostile_ids_stay_text(tmp_path, make_run):
    ids = (HOSTILE, 'a"b', "c'd & <e>", "\u2028{{ 7 * 7 }}")
    runs = [make_run(m, ids=ids, truth=ids, certainty=(1.0,) * 4, learner=HOSTILE) for m in ("ifca", "fedavg")]
    runs = [run_from_parts({**r.config, "scenario": HOSTILE}, r.records, vars(r)) for r in runs]
    text = page(tmp_path, runs)
    found = Elements(text)
    assert not found.unbalanced
    assert "img" not in [tag for tag, _ in found.found]
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
    assert [tag for tag, _ in found.found].count("script") == 2
    assert html.escape(HOSTILE) in text  # it is shown, as text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&") & set(data)
    assert [client["id"] for client in json.loads(data)["clients"]] == list(ids)
    assert "{{ 7 * 7 }}" in text


def test_embedded_json_reads_back():
    value = {"a": [HOSTILE, "&amp;", "ü\u2028"], "b": 1.5}
    assert json.loads(embedded(value)) == value
    assert not set("<>&\u2028") & set(embedded(value))


@pytest.mark.parametrize("absent", [*[(key,) for key in OPTIONAL], OPTIONAL])
def test_keys_may_be_absent(tmp_path, make_run, absent):
    runs = full(make_run)
    for run in runs:
        run.records[:] = [without(record, *absent) for record in run.records]
    text = page(tmp_path, runs)
    assert not Elements(text).unbalanced
    if "assignments" in absent and "sizes" in absent:
        assert 'id="formation"' not in text


@pytest.mark.parametrize(("method", "clusters"), [("ifca", (0,) * 4), ("local", (0, 1, 2, 3))])
def test_sections_that_do_not_apply_are_absent(tmp_path, make_run, method, clusters):
    """One cluster, or models of clients alone: there are no groups to show; one method is not compared."""
    text = page(tmp_path, [make_run(method, clusters=clusters)])
    for section in ("methods", "worth", "groups", "map", "formation", "agreement", "gains", "coefficients", "columns"):
        assert f'id="{section}"' not in text


def test_baselines_alone(tmp_path, make_run):
    text = page(tmp_path, [make_run("local", clusters=(0, 1, 2, 3))])
    assert "nothing: no model travels" in text


def test_one_client_one_round(tmp_path, make_run):
    text = page(tmp_path, [make_run(scores=(0.5,), clusters=(0,), loss=(0.7,))])
    assert "One group: the only client has one model" in text


def test_a_learning_rate_that_was_given_is_among_the_options_only(tmp_path, make_run):
    text = page(tmp_path, [make_run("ifca", lr=0.125)])
    assert "<code>0.125</code>" in text
    assert "Learning rate found" not in text


def test_unfinished_runs_are_mentioned(tmp_path, make_run):
    assert "1 run of this comparison is not finished" in page(tmp_path, [make_run()], unfinished=1)


def test_clients_that_did_not_answer_in_the_end(tmp_path, make_run):
    run = make_run(certainty=(1.0,) * 4)
    fewer = run_from_parts(run.config, run.records, {"metrics": run.metrics, "clients": run.clients[1:]})
    text = page(tmp_path, [fewer])
    assert "2 groups, as asked for, among 3 clients" in text
    # four rows in the strip, but positions are unknown, so none may claim to be a certain client
    strip = text[text.index('id="formation"') : text.index('id="curves"')]
    assert strip.count("cell c") >= 4
    assert "data-client" not in strip


def test_many_clients_show_sizes_only(tmp_path, make_run):
    m = 1200
    clusters = tuple(i % 3 for i in range(m))
    runs = [make_run("ifca", scores=(0.9,) * m, clusters=clusters, certainty=(1.0,) * m)]
    runs.append(make_run("fedavg", scores=tuple(0.8 + 0.0002 * i for i in range(m)), clusters=(0,) * m))
    runs[0].records[:] = [without(record, "assignments") for record in runs[0].records]
    text = page(tmp_path, runs)
    assert "too many\n        clients to show each as a row" in text
    assert len(text) < 3_000_000


def test_own_arrays_from_training_to_page(tmp_path):
    rows = {name: ([[0.0, 1.0], [1.0, 0.0], [0.5, 0.1]], [1, 0, 0]) for name in (HOSTILE, "b", "c")}
    result = coterie.fit(coterie.from_arrays(rows), method="ifca", clusters=2, rounds=2, seed=0)
    text = coterie.write_report(result, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No held-out data was given" in text
    assert 'id="agreement"' not in text, "the true groups are not known"
    assert "coterie.from_arrays(...)" in text
    lr = result.metrics["learning_rate"]["lr"]
    assert f"Learning rate found before the first round: {lr:.3g}, from the largest curvature of a client" in text
    assert not Elements(text).unbalanced


def test_problems_during_the_run_are_listed_once_with_their_rounds(tmp_path, make_run):
    run = make_run(ids=("a", "b", HOSTILE, "d"))
    late = {"node": "7", "clients": ["b", HOSTILE], "reason": "node 7 has not answered within 5 s"}
    run.records[:] = [record | {"notes": [late]} for record in run.records]
    odd = {"node": "3", "clients": ["d"], "reason": "node 3 has values that are not finite"}
    run.records[1] |= {"notes": [late, odd]}
    text = page(tmp_path, [run])
    assert "<td>node 7 has not answered within 5 s</td><td>1-3</td><td>&lt;/script&gt;" in text
    assert "<td>node 3 has values that are not finite</td><td>2</td><td>d</td>" in text
    assert "On the way to the clients" not in page(tmp_path, [make_run()])


def stores(classes: bool):
    random = np.random.default_rng(0)
    shop = np.repeat([f"shop {i}" for i in range(30)], 24)
    price = random.normal(5, 2, 720)
    slope = np.where(np.arange(720) // 24 % 2, 3.0, -3.0)
    sales = 40 + slope * (price - 5) + random.standard_normal(720)
    target = np.where(sales > 40, "<b>high</b>", "low") if classes else sales
    kind = np.tile(["city", "city", "town"], 240)
    table = {"shop": shop, "price": price, "kind": kind, "sales": target}
    return coterie.from_table(table, client="shop", target="sales")


@pytest.mark.parametrize("classes", [False, True])
def test_a_table_from_training_to_page(tmp_path, classes):
    """The subject first, then the decision, alternatives, groups with their sentences, and coefficients."""
    result = coterie.fit(stores(classes), "ifca", clusters=2, restarts=3, rounds=60)
    text = coterie.write_report(result, tmp_path / "report.html").read_text(encoding="utf-8")
    found = Elements(text)
    assert not found.unbalanced
    sections = [attributes["id"] for tag, attributes in found.found if tag == "section"]
    assert sections[:5] == ["worth", "numbers", "groups", "coefficients", "clients"]
    subject = text[text.index('class="subject"') : text.index("<h1>")]
    assert ("Classification" if classes else "Regression of sales") in subject
    headline = text[text.index("<h1>") : text.index("</h1>")]
    assert "2 groups, as asked for, among 30 clients" in headline
    assert "predict better than one model for all" in headline
    groups = text[text.index('id="groups"') : text.index('id="coefficients"')]
    assert groups.count("effect of price") == 2
    assert "kind=town" in groups
    assert "Reference levels: kind = city." in text
    assert ("log-odds against sales = &lt;b&gt;high&lt;/b&gt;" in text) == classes
    assert "<b>" not in text


@pytest.mark.parametrize("classes", [False, True])
def test_a_notebook_shows_subject_decision_and_groups(classes):
    result = coterie.fit(stores(classes), "ifca", clusters=2, restarts=3, rounds=60)
    found = result._repr_html_()
    assert not Elements(found).unbalanced
    assert "ifca on a table" in found
    assert "The clusters predict better than one model for all" in found
    assert found.count("effect of price") == 2
    assert "<b>" not in found


def test_a_notebook_shows_a_run_of_networks_and_of_one_model():
    data = coterie.scenario("rotated-digits", clients=8)
    found = coterie.fit(data, "fedavg", rounds=1)._repr_html_()
    assert "<table" not in found
    assert "8 clients" in found


def test_profiles_show_shares_in_percent_and_dates_as_dates():
    profiles = tuple(GroupProfile(k, 5, 50, (0.25 + k / 2, 10.0 + 20 * k, 3.0, 0.5)) for k in (0, 1))
    found = Groups(
        ("unit=ward", "admitted", "age", "age missing"), (0.5, 9.0, 1.0, 0.5), (0.5, 20.0, 3.0, 0.5), profiles
    )
    subject = Subject(shares=("unit=ward", "age missing"), dates=(("admitted", 19358.0),))
    rows = {row["name"]: ([text for text, _ in row["cells"]], row["all"]) for row in profile_rows(found, subject)}
    assert rows == {
        "unit=ward": (["25.0 %", "75.0 %"], "50.0 %"),
        "admitted": (["2023-01-11", "2023-01-31"], "2023-01-21"),
        "age": (["3.00", "3.00"], "3.00"),
        "age missing": (["50.0 %", "50.0 %"], "50.0 %"),
    }


def test_the_page_of_a_run_without_groups_begins_with_that(tmp_path):
    random = np.random.default_rng(0)
    table = {"site": [f"s{i % 20}" for i in range(1600)], "x": random.normal(size=1600)}
    table["y"] = table["x"] + random.normal(size=1600)
    result = coterie.fit(coterie.from_table(table, client="site", target="y"), "ifca", clusters="auto", rounds=20)
    page = coterie.write_report(result, tmp_path / "report.html").read_text()
    header = page[: page.index("<main>")]
    assert "One group: all 20 clients share one model" in header
    assert "One model is as good" in header
    for absent in ("this run is</th>", "a cluster's clients", "Intervals take the clusters as given", "others use the"):
        assert absent not in page


def test_the_page_of_a_run_with_given_models_says_how_to_repeat_it(tmp_path):
    data = coterie.scenario("mixed-regression", clients=8, dimension=2, groups=2)
    given = [{"weight": np.ones(2)}, {"weight": -np.ones(2)}]
    result = coterie.fit(data, "ifca", clusters=2, init=given, rounds=1)
    page = coterie.write_report(result, tmp_path / "report.html").read_text()
    assert "pass the same ones as <code>init</code>" in page
    other = coterie.fit(data, "ifca", clusters=2, rounds=1)
    assert "pass the same ones" not in coterie.write_report(other, tmp_path / "other.html").read_text()
