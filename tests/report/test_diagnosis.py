"""The page of a diagnosis: whole, safe, without a script, and readable with many clients."""

import re
from dataclasses import replace

import pytest

import coterie
from coterie.report.diagnosis import render
from coterie.report.figures.client_forest import SHOWN, client_forest, selected
from tests.diagnosis.made import alike, grouped
from tests.report.test_page import HOSTILE, Elements

MANY = [1 + (7 * i) % 800 for i in range(240)]


@pytest.mark.parametrize("made", [grouped(), grouped(MANY), grouped([1]), alike()])
def test_the_page_is_whole_and_loads_nothing(made):
    page = render(made, "coterie run x --method ifca")
    elements = Elements(page)
    assert elements.open == []
    assert elements.unbalanced == []
    names = {name for name, _ in elements.found}
    assert not names & {"script", "img", "iframe", "object"}
    assert not re.search(r"https?://|url\(|@import", page)
    assert "nan" not in page.lower().replace("nano", "")
    assert "coterie run x --method ifca" in page


def test_texts_of_the_data_stay_texts():
    made = grouped()
    named = replace(
        made,
        facts=replace(made.facts, name=HOSTILE, target=HOSTILE),
        clients=tuple(replace(client, id=HOSTILE + client.id) for client in made.clients),
        warnings=(HOSTILE,),
    )
    page = render(named, HOSTILE)
    assert HOSTILE not in page
    assert page.count("&lt;/script&gt;") >= len(made.clients) + 3


def test_sections_that_do_not_apply_are_absent():
    page = render(alike(), "")
    assert "Probability of placing a client" not in page
    assert "no groups were found" in page
    assert "Do not cluster." in page


def test_the_forest_shows_the_most_deviating_and_the_largest():
    clients = grouped(MANY).clients
    shown = selected(clients)
    assert len({client.id for client in shown}) == SHOWN
    deviating = sorted(clients, key=lambda client: -client.distance)[: SHOWN // 2]
    assert {client.id for client in deviating} <= {client.id for client in shown}
    rest = [client for client in clients if client not in deviating]
    assert max(rest, key=lambda client: client.samples) in shown
    forest = client_forest(clients, "units", "label")
    assert len(forest.others) == 240 - SHOWN
    assert forest.svg.count("<title>") == SHOWN + 1
    assert "180 others" in forest.svg


def test_few_clients_all_have_a_row():
    forest = client_forest(grouped().clients, "units", "label")
    assert forest.others == ()
    assert "others" not in forest.svg


def test_a_report_of_a_diagnosis_is_its_page(tmp_path):
    path = coterie.write_report(grouped(), tmp_path / "page.html")
    assert "coterie.fit(data, &#34;ifca&#34;, clusters=3, restarts=2)" in path.read_text()
