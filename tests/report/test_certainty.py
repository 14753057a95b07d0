"""The certainty of an assignment in words."""

from __future__ import annotations

import pytest

from coterie.report.certainty import hidden_groups, sure_clients, unsure_clients
from coterie.report.comparison import compare
from coterie.report.page import write_report
from coterie.report.sentences import headline, notes
from coterie.training.records import ClientResult, Metrics


def client(certainty, n=10, cluster=0, **others) -> ClientResult:
    return ClientResult(id="a", n=n, cluster=cluster, certainty=certainty, measures=others)


def test_sure_clients():
    four = [client(p, cluster=k % 2) for k, p in enumerate((1.0, 0.95, 0.9499, 0.0))]
    assert sure_clients([four]).startswith("2 of 4 clients belong to their cluster rather than another")
    assert sure_clients([four, [client(1.0, cluster=k) for k in range(4)]]).startswith("2 to 4 of 4 clients belong")
    assert sure_clients([[client(None), client(None, cluster=1)]]) == ""


def test_no_client_is_sure_of_the_only_cluster_in_use():
    assert sure_clients([[client(1.0)] * 3]) == ""


def test_unsure_clients():
    rows = [client(0.99), client(0.7, n=1, posterior=[0.7, 0.3], samples_needed=12)]
    assert unsure_clients(rows) == (
        "1 cannot be placed with certainty (median 1 training sample; about 12 would be needed)"
    )
    rows += [client(0.02, posterior=[0.02, 0.98])]
    assert unsure_clients(rows).endswith("; 1 fits another cluster better")
    assert unsure_clients([client(0.99), client(None)]) == ""


def test_hidden_groups():
    assert hidden_groups(Metrics(measures={"mixed": [2]})).startswith("cluster 2 may hide more than one group: its")
    assert hidden_groups(Metrics(measures={"mixed": [0, 2]})).startswith("clusters 0 and 2 may hide")
    assert hidden_groups(Metrics()) == ""


def test_the_page_warns_and_shows_the_certainty(tmp_path, make_run):
    run = make_run(certainty=(1.0, 0.9999, 0.75, 0.0), metrics={"mixed": [1]})
    found = compare([run])
    assert headline(found).endswith("probability, but a cluster may hide more than one group.")
    assert any(note.caution and "Cluster 1 may hide" in note.text for note in notes(found))
    text = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    for cell in ("&gt; 99.9 %", "75.0 %", "&lt; 0.1 %"):
        assert f">{cell}<" in text
    assert "posterior" not in text
    assert "margin" not in text.split("</style>")[1]


@pytest.mark.parametrize("certainty", [0.0, 1.0])
def test_a_certainty_of_zero_survives_json(certainty):
    row = client(certainty)
    assert ClientResult.from_json(row.to_json()).certainty == certainty
    assert "certainty" not in client(None).to_json()
