"""What the documents say runs, and the generated pages are those of the code."""

import json
import logging
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from unittest.mock import patch

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from coterie.cli.about import families, listed_methods
from coterie.cli.main import cli
from coterie.cli.options import all_options
from coterie.cli.reference import NOTE, generated_endings, generated_pages, page_name
from coterie.experiments.page import pages
from coterie.experiments.reproduce import RESULTS
from coterie.methods.base import Method
from coterie.training.measures import MEASURES
from papers import PAPERS
from website.links import rewritten
from website.pictures import PICTURES, drawn
from website.scoreboard import measured, standing
from website.tutorials import cells_of, notebook, run_cells
from website.tutorials import page as page_of_cells

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {"extending.md", "extending-parts.md"}
"""Pages whose blocks tests/test_extending.py runs."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in ELSEWHERE),
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
    if page.name.startswith("flower"):
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
    for path, text in generated_pages().items():
        assert (ROOT / "docs" / path).read_text() == text, f"{path} is stale: run 'make docs'"
    for path, text in generated_endings().items():
        assert (ROOT / "docs" / path).read_text().endswith(text), f"{path} is stale: run 'make docs'"
    for name, text in pages(PAPERS, RESULTS, "reproductions.md").items():
        assert (ROOT / "docs" / name).read_text() == text, "run 'make reproductions'"


def test_every_generated_page_is_of_something_that_is_there():
    """Pages of methods and commands that are gone would stay otherwise."""
    folders = ("methods", "reference/cli")
    found = {
        path.relative_to(ROOT / "docs").as_posix() for each in folders for path in (ROOT / "docs" / each).glob("*.md")
    }
    assert found == {path for path in {**generated_pages(), **generated_endings()} if path.startswith(folders)}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_a_page_that_is_written_by_hand_is_short(path):
    text = path.read_text()
    words = re.findall(r"[A-Za-z][\w'-]*", text.partition("<!-- Written by")[0])
    assert len(words) <= 1500, f"split docs/{path.name}: a page for users, and one for details or measurements"


@pytest.mark.parametrize("kind", listed_methods(), ids=lambda kind: kind.name)
def test_every_method_has_a_page_with_a_picture_and_advice(kind):
    by_hand = (ROOT / "docs" / "methods" / page_name(kind)).read_text().partition(NOTE)[0]
    for part in (f"# {kind.name}\n", "](../images/methods/", "\n## When to use it\n", "\n## When not to use it\n"):
        assert part in by_hand, f"write it above the generated part of docs/methods/{page_name(kind)}"


def test_the_pictures_are_those_of_their_script():
    for name in PICTURES:
        assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == drawn(name), "run 'make pictures'"


def test_a_tutorial_becomes_a_page_and_a_notebook_with_what_its_cells_print():
    cells = cells_of("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\na = 1\nprint(a)\na + 1\n")
    run_cells(cells)
    assert page_of_cells(cells, "name").split("\n\n")[2:] == [
        "Text.",
        "```python\na = 1\nprint(a)\na + 1\n```",
        "```text { .output }\n1\n```",
        "```text { .output }\n2\n```\n",
    ]
    text, code = json.loads(notebook(cells))["cells"]
    assert "".join(text["source"]) == "# Title\n\nText."
    assert [output["output_type"] for output in code["outputs"]] == ["stream", "execute_result"]


def test_pages_show_the_results_of_the_scoreboard():
    table = measured()
    assert "| [`two-phase`](methods/two-phase.md) | given |" in table
    assert "`oracle-averaging`" not in table, "it knows the groups"
    assert re.match(r"## On the scoreboard\n\nMean rank \d+\.\d in \d+ scenarios", standing("cfl"))
    assert "With `clusters=auto`: mean rank" in standing("ifca")
    assert standing("oracle") == standing("tiered") == ""


def test_counterparts_of_other_libraries_exist():
    """Every flag, method and setting in the right column of the tables of docs/coming-from.md."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "coming-from.md").read_text(), re.MULTILINE)
    text = "\n".join(row for row in rows if "---" not in row)
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    known = {flag for command in cli.commands.values() for option in command.params for flag in option.opts}
    known |= {option.flag for option in all_options().values()}
    assert flags - known == set()
    assert len(flags) > 20
    named = set(re.findall(r"\]\(methods/([\w-]+)\.md\)", text)) | set(re.findall(r"--method (\w[\w+-]*)", text))
    assert {name.replace("-plus", "+") for name in named} - {"METHOD"} <= set(Method.members)


def test_links_to_files_outside_docs_lead_to_pages():
    text = "[a](../CONTRIBUTING.md#taste) [b](../examples/own_data.py) [c](tables.md) [d](https://example.org)"
    wanted = (
        "[a](../contributing.md#taste) [b](../source/examples/own_data.py.md) [c](tables.md) [d](https://example.org)"
    )
    assert rewritten(text.replace("../", "../../"), "reference/page.md") == wanted


def test_the_citation_names_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.filterwarnings("ignore")  # of MkDocs' own dependencies
def test_the_site_is_built_without_a_warning(tmp_path, monkeypatch, caplog):
    """Every page is in the navigation, and every link and anchor leads somewhere.

    Without the reference of the API and without running the tutorials, which `make docs` does.
    """
    monkeypatch.setenv("COTERIE_DOCS_API", "false")
    monkeypatch.setenv("COTERIE_DOCS_RUN", "false")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=False)
    config.plugins.run_event("startup", command="build", dirty=False)
    build(config)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    start = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", start), "the site can be read without a network"
