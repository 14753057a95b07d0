"""Generation of a small Flower app that is ready to run."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

from coterie.data.table import from_table
from coterie.errors import ColumnWarning, ConfigError, StorageError

FILES_BY_TEMPLATE = {
    "pyproject.toml.template": "pyproject.toml",
    "server_app.py.template": "server_app.py",
    "client_app.py.template": "client_app.py",
    "README.md.template": "README.md",
    "gitignore.template": ".gitignore",
}
LONGEST_NAME = 32
"""Largest number of characters that Flower allows in the name of an app."""


@dataclass(frozen=True)
class AppContent:
    """Content of a new app that depends on its data."""

    about: str = "finds the four rotations of handwritten digits among 16 clients"
    """Description of the app, as the end of a sentence."""
    model: str = 'clusters = 4\nlr = 0.5\nlearner = "mlp:hidden=64"'
    """Settings of the run that depend on the data, as TOML."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Further texts to insert into the templates."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Templates that replace others, by the name of the replaced template."""


def content_for_table(path: Path, client: str, target: str, **options: str | None) -> AppContent:
    """Read a table, and return the content of an app for it.

    Args:
        path: File with the rows of all clients.
        client: Column that names the client of each row.
        target: Column to predict.
        **options: Other arguments of `raw_table`; None for its defaults.

    Raises:
        InputError: if the table cannot be read.
        ConfigError: if an argument is not allowed or does not suit the table.
    """
    given = {"client": client, "target": target, **{name: value for name, value in options.items() if value}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)  # the run reports how each column is used
        clients = len(from_table(path, **given).clients)  # type: ignore[arg-type]
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
    return AppContent(
        f"predicts {target} for the {clients} clients of {path.name}",
        "clusters = 2                 # number of groups; learner and lr follow from the table unless they are given",
        {"table": json.dumps(str(path.resolve())), "arguments": arguments},
        {"client_app.py.template": "table_client_app.py.template"},
    )


def write_app(folder: Path, content: AppContent | None = None) -> list[Path]:
    """Write an app into a new or empty folder and return its files; if that fails, all of them are removed.

    Args:
        folder: The folder.
        content: Content for the user's data; by default handwritten digits.

    Raises:
        ConfigError: if the folder is not empty.
        StorageError: if the files cannot be written.
    """
    source, name = files("coterie.flower.local") / "template", app_name(folder.resolve().name)
    chosen = AppContent() if content is None else content
    texts = {"name": name, "about": chosen.about, "model": chosen.model, **chosen.values}
    written = [folder / file for file in FILES_BY_TEMPLATE.values()]
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} already exists and is not an empty folder: name a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        for template, path in zip(FILES_BY_TEMPLATE, written, strict=True):
            text = Template((source / chosen.templates.get(template, template)).read_text(encoding="utf-8"))
            path.write_text(text.substitute(texts), encoding="utf-8")
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}; name another folder") from None
    return written


def app_name(folder: str) -> str:
    """Return a name that Flower accepts for an app: a letter, then letters, digits and hyphens."""
    name = re.sub("[^a-z0-9]+", "-", folder.lower()).strip("-")
    name = name if name[:1].isalpha() else f"app-{name}"
    return name[:LONGEST_NAME].strip("-")
