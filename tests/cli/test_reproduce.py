"""`coterie reproduce` on the command line."""

from pathlib import Path

from coterie.experiments import checkout, reproduce

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_name_all_reproductions_are_listed(coterie, tmp_path):
    code, out, _ = coterie("reproduce", "--results", tmp_path / "results.jsonl")
    assert code == 0
    assert "ifca-table1" in out
    assert "0 of 24" in out


def test_the_results_are_those_of_the_checkout_from_any_folder(coterie, tmp_path, monkeypatch):
    assert ROOT / "papers" / "reproductions.jsonl" == reproduce.RESULTS
    (tmp_path / "papers").mkdir()  # not the folder of the checkout
    _, elsewhere, _ = coterie("reproduce")
    monkeypatch.chdir(ROOT / "docs")
    _, inside, _ = coterie("reproduce")
    assert elsewhere == inside
    assert "66 of 66" in inside


def test_outside_a_checkout_the_error_explains_what_to_do(coterie, tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    for arguments in ((), ("ifca-table1",), ("--page", tmp_path / "page.md")):
        code, _, err = coterie("reproduce", *arguments)
        assert code == 2
        assert err.strip().splitlines() == [
            "error: the reproductions are not part of the installed package: clone the repository, install it with "
            "'pip install --editable .' and run the command again"
        ]


def test_a_quick_run_prints_tables_and_verdicts_and_stores_nothing(coterie, tmp_path):
    code, out, err = coterie("reproduce", "ifca-figure3", "--quick", "--only", "(c)", "--seeds", "1", "--jobs", "1")
    assert code == 0
    assert "holds         (c) R=0.25, n=25: more clients help" in out
    assert "not run       (d) R=0.5, n=25: more clients help" in out
    assert "2 of 2: (c)" in err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_name_gets_a_suggestion(coterie):
    code, _, err = coterie("reproduce", "ifca-tabel1")
    assert code == 2
    assert "ifca-table1" in err


def test_a_wrong_cell_names_the_right_ones(coterie):
    code, _, err = coterie("reproduce", "ifca-table1", "--only", "svhn")
    assert code == 2
    assert "no cell of ifca-table1 contains 'svhn' in its name" in err


def test_the_error_for_missing_data_names_the_command_to_download_it(coterie, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "none"))
    code, _, err = coterie("reproduce", "ifca-figure4", "--only", "single", "--seeds", "1", "--results", "r.jsonl")
    assert code == 2
    assert "coterie data get mnist" in err


def test_the_page_is_written(coterie, tmp_path):
    code, out, _ = coterie("reproduce", "--page", tmp_path / "page.md", "--results", tmp_path / "none.jsonl")
    assert code == 0
    assert "page.md" in out
    assert "not run" in (tmp_path / "page.md").read_text()
    assert "# Reproduction: IFCA" in (tmp_path / "page-ifca.md").read_text()
