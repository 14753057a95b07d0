"""What the documents say runs, and the generated pages are those of the code."""

import re
import runpy
import shlex
from pathlib import Path
from unittest.mock import patch

import pytest

from coterie.cli.about import families
from coterie.cli.main import cli
from coterie.cli.reference import cli_page, measures_table, methods_page
from coterie.experiments.page import page
from coterie.experiments.reproduce import RESULTS
from coterie.methods import Method
from coterie.training.measures import MEASURES
from papers import REPRODUCTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(
        ROOT / "docs" / name
        for name in (
            *("architecture.md", "data.md", "one-shot.md", "clustering.md", "finetuning.md", "soft.md"),
            *("choosing-clusters.md", "callbacks.md", "tiers.md", "adaptive.md", "representation.md", "flower.md"),
            "flower-deployment.md",
            *("defaults.md", "two-phase.md", "benchmarks.md", "flower-faults.md"),
            *("privacy.md", "robust.md", "divergence.md", "measures.md", "certainty.md", "diagnose.md", "sklearn.md"),
            *("export.md", "tables.md", "report.md"),
        )
    ),
]


@pytest.fixture(autouse=True)
def families_as_they_were():
    """Forget what documents and examples register."""
    before = [(family, dict(family.members)) for family in families()]
    yield
    for family, members in before:
        family.members.clear()
        family.members.update(members)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore:the group of")  # which a page is about
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if page.name == "flower.md":
        pytest.importorskip("flwr", reason="the page is about coterie[flower]")
    monkeypatch.chdir(tmp_path)
    with patch.dict(MEASURES):  # a page may add some
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), {})


def commands() -> list[str]:
    texts = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    help_texts = [command.help or "" for command in [cli, *cli.commands.values()]]
    texts += [line.strip() for text in help_texts for line in text.splitlines()]
    return [line.split("#")[0].strip() for line in texts if line.startswith("coterie ")]


@pytest.mark.parametrize("line", commands())
def test_commands_in_documents_and_help_are_accepted(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_method.py").touch()  # the plugin of the documents
    monkeypatch.setenv("COTERIE_PLUGINS", "")
    _, name, *arguments = shlex.split(line)
    cli.commands[name].make_context(name, arguments).close()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_generated_pages_are_fresh():
    assert (ROOT / "docs" / "methods.md").read_text() == methods_page(), "run 'make docs'"
    assert (ROOT / "docs" / "cli.md").read_text() == cli_page(), "run 'make docs'"
    assert (ROOT / "docs" / "measures.md").read_text().endswith(measures_table()), "run 'make docs'"
    written = page(REPRODUCTIONS.values(), RESULTS)
    assert (ROOT / "docs" / "reproductions.md").read_text() == written, "run 'make reproductions'"


def test_links_between_documents_lead_somewhere():
    for document in [*PAGES, *(ROOT / "docs" / name for name in ("methods.md", "cli.md", "reproductions.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_readme_lists_the_registered_methods():
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    listed = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert listed == set(Method.members)
