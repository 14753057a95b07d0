"""The paper's size of tables 1 and 8: what is run, from which weights, and verdicts that can fail."""

from coterie.testing.checks import small_federation
from coterie.training.planning import prepare
from papers.hcfl.full import MOBILENET, RESNET


def found_with(network, start_end: str, best: str) -> dict:
    return {
        row.title + start_end: {0: {"val": 50, "test": 60 if row.title == best else 40, "clusters": 3}}
        for row in network.rows
    }


def test_weights_that_are_there_are_started_from_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert [cell.options["learner"] for cell in MOBILENET.cells(1, False)] == ["mobilenet-v2"] * 21
    (tmp_path / "resnet18.safetensors").touch()
    assert not any("stored" in cell.name for cell in MOBILENET.cells(1, False) + RESNET.cells(1, True))
    for cell in RESNET.cells(3, False):
        assert cell.name.endswith(", stored weights")
        assert cell.options["learner"] == f"resnet18:norm=frozen-batch,stem=7,weights={tmp_path}/resnet18.safetensors"


def test_all_options_are_those_of_the_methods():
    for network in (MOBILENET, RESNET):
        for cell in network.cells(1, False):
            options = {name: value for name, value in cell.options.items() if name != "learner"}
            plan = prepare(small_federation("mlp"), cell.method, "mlp:hidden=2", options)
            assert (plan.rounds, plan.tiers.local.batch_size) == (200, 128)


def test_verdicts_by_hand():
    assert [claim.holds for claim in MOBILENET.claims({}, False)] == [None, None]
    best = found_with(MOBILENET, "", "HCFL+(FedRC), rho 0.1")
    assert [claim.holds for claim in MOBILENET.claims(best, False)] == [True, None]
    other = found_with(RESNET, ", stored weights", "ICFL, alpha 0.85")
    assert [claim.holds for claim in RESNET.claims(best | other, False)] == [None, False]


def test_a_row_has_the_paper_next_to_each_initialisation():
    found = found_with(MOBILENET, ", stored weights", "FedAvg")
    first = MOBILENET.tables(found, False)[0].rows[0]
    assert first[1:4] == ["49.19 ± 2.15", "not run", "50.0 (1)"]
    assert first[4:] == ["45.42 ± 2.42", "not run", "60.0 (1)", "1", "not run", "3"]
