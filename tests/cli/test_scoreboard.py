"""`coterie scoreboard` on the command line."""

from benchmarks.scoreboard.cells import FIRST_SEED, chosen_cells
from benchmarks.scoreboard.entries import ENTRIES
from coterie.experiments import checkout
from coterie.experiments.results import Measured, append, read
from coterie.experiments.scoreboard import KEPT_AS


def test_cells_are_stored_resumed_and_shown(coterie, tmp_path):
    names = "oracle-averaging,naive-averaging,hcfl+"
    cells = chosen_cells(None, 1, "linear few", names)
    order = sorted(names.split(","), key=list(ENTRIES).index)
    assert [cell.name for cell in cells] == [f"linear few samples: {name}" for name in order]
    assert {cell.seed for cell in cells} == {FIRST_SEED}
    file = tmp_path / "found.jsonl"
    for cell in cells:
        append(file, KEPT_AS, cell, Measured(cell.measure(tmp_path / "none"), 0.1), "v1")
    found = read(file, KEPT_AS)
    assert "refused" in found["linear few samples: hcfl+"][FIRST_SEED]
    before = file.read_text()
    command = ("scoreboard", "--only", "linear few", "--methods", names, "--seeds", 1, "--results", file)
    code, out, _ = coterie(*command, "--page", tmp_path / "board.md")
    assert code == 0
    assert file.read_text() == before  # nothing was run again
    assert "naive-averaging" in out
    text = (tmp_path / "board.md").read_text()
    assert "![Ranks](board.svg)" in text
    assert "naive-averaging, linear few samples: rank" in (tmp_path / "board.svg").read_text()
    _, shown, _ = coterie("scoreboard", "--show", "--results", file)
    assert out.startswith(shown)
    outdated = {**found[cells[0].name][FIRST_SEED], "version": "older", "cpu": -1}
    append(file, KEPT_AS, cells[0], Measured(outdated, 0.1), "older")
    code, _, _ = coterie(*command, "--again")  # runs the outdated cell only, and the new line counts
    assert code == 0
    assert len(file.read_text().splitlines()) == len(cells) + 2
    assert read(file, KEPT_AS)[cells[0].name][FIRST_SEED]["cpu"] >= 0


def test_scenarios_without_data_are_left_out_with_a_line_that_explains_how_to_get_it(coterie, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "none"))
    monkeypatch.delenv("COTERIE_SCOREBOARD_DATA", raising=False)
    code, _, err = coterie("scoreboard", "--only", "mnist", "--results", tmp_path / "none.jsonl")
    assert code == 2
    assert "left out: mnist concept, mnist all ('coterie data get mnist'" in err
    assert "error: no cell is left" in err


def test_outside_a_checkout_the_error_explains_what_to_do(coterie, tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    code, _, err = coterie("scoreboard", "--show")
    assert code == 2
    assert err.strip() == (
        "error: the scoreboard is not part of the installed package: clone the repository, install it with "
        "'pip install --editable .' and run the command again"
    )
