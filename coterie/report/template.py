"""The templates of the pages and the files that are put into them, each read and compiled once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template


@cache
def asset(name: str) -> str:
    """Return the text of a file of this package, such as `page.css`."""
    return files("coterie.report").joinpath(name).read_text(encoding="utf-8")


@cache
def template(name: str) -> Template:
    """Return a compiled template of this package; to compile a page takes longer than to fill it in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(asset(name))
