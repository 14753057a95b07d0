"""A small app that is ready to run, written into a new folder."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template

from coterie.errors import ConfigError, StorageError

WRITTEN = {
    "pyproject.toml.template": "pyproject.toml",
    "server_app.py.template": "server_app.py",
    "client_app.py.template": "client_app.py",
    "README.md.template": "README.md",
    "gitignore.template": ".gitignore",
}
LONGEST_NAME = 32
"""Letters that Flower allows in the name of an app."""


def write_app(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder and return its files; after a failure none of them is left."""
    source, name = files("coterie.flower.local") / "template", app_name(folder.resolve().name)
    written = [folder / file for file in WRITTEN.values()]
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already: name a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        for template, path in zip(WRITTEN, written, strict=True):
            text = Template((source / template).read_text(encoding="utf-8"))
            path.write_text(text.substitute(name=name), encoding="utf-8")
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}; name another folder") from None
    return written


def app_name(folder: str) -> str:
    """A name as Flower wants it: a letter first, then letters, digits and hyphens."""
    name = re.sub("[^a-z0-9]+", "-", folder.lower()).strip("-")
    name = name if name[:1].isalpha() else f"app-{name}"
    return name[:LONGEST_NAME].strip("-")
