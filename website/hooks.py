"""Hooks of MkDocs: pages that are made while the site is built, and navigation that follows from the code."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from coterie.cli.about import listed_methods
from coterie.cli.reference import GROUPS, NOTE, page_name
from website.links import DOCUMENTS, ROOT, rewritten, sources
from website.scoreboard import MEASURED, measured, standing, with_links
from website.tutorials import TUTORIALS, page_and_notebook

RUN = os.environ.get("COTERIE_DOCS_RUN", "true") == "true"
"""Whether the tutorials are run."""


SCOREBOARD = "scoreboard.md"
"""The page that `coterie scoreboard` writes after a long run; a checkout may be without it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that have a page for each method, module or command."""
    docs = Path(config.docs_dir)
    methods: list[Any] = ["methods/index.md"]
    for kind, title in GROUPS.items():
        methods.append({title: [f"methods/{page_name(each)}" for each in listed_methods() if each.groups.kind == kind]})
    _replace(config.nav, "Methods", methods)
    if (docs / SCOREBOARD).is_file():
        _section(config.nav, "Benchmarks").insert(0, SCOREBOARD)
    for title, folder in {"API": "reference/api", "Command line": "reference/cli"}.items():
        _replace(config.nav, title, _in_order_of_index(docs / folder, docs))
    return config


def _in_order_of_index(folder: Path, docs: Path) -> list[Any]:
    """Return the pages of a folder: its index, then the pages in the order in which the index links to them."""
    index = folder / "index.md"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text())
    others = sorted(path.name for path in folder.glob("*.md") if path != index and path.name not in linked)
    return [(folder / name).relative_to(docs).as_posix() for name in ("index.md", *linked, *others)]


def _section(items: list[Any] | None, title: str) -> list[Any]:
    """Return the pages of a section at the top of the navigation."""
    return next(each[title] for each in items or () if isinstance(each, dict) and title in each)


def _replace(items: list[Any] | None, title: str, pages: list[Any]) -> None:
    for item in items or ():
        if isinstance(item, dict):
            for name, inner in item.items():
                if name == title:
                    item[name] = pages
                elif isinstance(inner, list):
                    _replace(inner, title, pages)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add documents outside docs, tutorials with the output of their cells, and source files that pages name."""
    made: dict[str, str] = {
        page: (ROOT / document).read_text() for document, page in DOCUMENTS.items() if page != "index.md"
    }
    for script in TUTORIALS:
        name = f"tutorials/{script.stem}"
        made[f"{name}.md"], notebook = page_and_notebook(script, RUN)
        files.append(File.generated(config, f"{name}.ipynb", content=notebook))
    texts = [(each.src_uri, each.content_string) for each in files.documentation_pages()]
    linked = sources([*texts, *made.items()])
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for name, text in linked.items():
        files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links lead to pages, and show measured results where a page asks for them."""
    name = page.file.src_uri
    if MEASURED in markdown:
        markdown = markdown.replace(MEASURED, measured())
    if name == SCOREBOARD:
        markdown = "\n".join(with_links(line, "methods/") for line in markdown.splitlines())
        markdown = markdown.replace("![Ranks](scoreboard.svg)", "[![Ranks](scoreboard.svg)](scoreboard.svg)")
    for kind in listed_methods():
        if name == f"methods/{page_name(kind)}":
            markdown = markdown.replace(NOTE, standing(kind.name) + NOTE, 1)
    return markdown if name.startswith("source/") else rewritten(markdown, name)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Let mentions of documents, such as docs/defaults.md in a description of an option, lead to their pages."""
    folder = posixpath.dirname(page.url) or "."

    def link(match: re.Match[str]) -> str:
        if not (Path(config.docs_dir) / f"{match[1]}.md").is_file():
            return match[0]
        return f'<a href="{posixpath.relpath(f"{match[1]}.html", folder)}">{match[0]}</a>'

    parts = re.split(r"(<pre.*?</pre>|<a .*?</a>)", html, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<![\w/\"=.-])docs/([\w-]+)\.md\b", link, part) for part in parts[::2]]
    return "".join(parts)
