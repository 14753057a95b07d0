"""Links of the pages to files outside docs: to documents of the project, and to source files, which get a page each."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "README.md": "index.md",
}
"""Documents outside docs and their pages."""

LINK = re.compile(r"(\]\(\s*)([^)\s#]+)(#[^)\s]*)?(\s*\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".jsonl": "json"}


def home_of(page: str) -> str:
    """Return the path of a page's text in the project: `CONTRIBUTING.md` for `contributing.md`."""
    for document, name in DOCUMENTS.items():
        if name == page and name != "index.md":
            return document
    return f"docs/{page}"


def target_of(link: str, home: str) -> str | None:
    """Return the path in the project to which a link of the text at `home` leads; None: out of the project."""
    if re.match(r"[a-z]+:|/", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), link))


def page_of(target: str) -> str:
    """Return the page that shows a file of the project."""
    if target in DOCUMENTS:
        return DOCUMENTS[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}.md"


def rewritten(text: str, page: str) -> str:
    """Return the text of a page with links that lead to pages."""
    home = home_of(page)

    def link(match: re.Match[str]) -> str:
        target = target_of(match[2], home)
        if target is None:
            return match[0]
        return (
            f"{match[1]}{posixpath.relpath(page_of(target), posixpath.dirname(page) or '.')}{match[3] or ''}{match[4]}"
        )

    return LINK.sub(link, text)


def sources(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a page for each source file to which the given pages (name and text) lead, by its name."""
    found = {}
    for page, text in texts:
        for match in LINK.finditer(text):
            target = target_of(match[2], home_of(page))
            if target is None or target in DOCUMENTS or target.startswith("docs/"):
                continue
            path = ROOT / target
            if path.is_file():
                language = LANGUAGES.get(path.suffix, "text")
                found[page_of(target)] = f"# {target}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"
    return found
