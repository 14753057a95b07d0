"""A small app that is ready to run, written into a new folder."""

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

WRITTEN = {
    "pyproject.toml.template": "pyproject.toml",
    "server_app.py.template": "server_app.py",
    "client_app.py.template": "client_app.py",
    "README.md.template": "README.md",
    "gitignore.template": ".gitignore",
}
LONGEST_NAME = 32
"""Letters that Flower allows in the name of an app."""


@dataclass(frozen=True)
class Subject:
    """The data that a new app is about."""

    about: str = "finds the four rotations of handwritten digits among 16 clients"
    model: str = 'clusters = 4\nlr = 0.5\nlearner = "mlp:hidden=64"'
    """Settings of the run that depend on the data."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Texts in the templates."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Templates in place of others."""


def subject_of_table(path: Path, client: str, target: str, **options: str | None) -> Subject:
    """Return a table as the subject of an app, after a look at it.

    Args:
        path: File with the rows of all clients.
        client: Column that names the client of each row.
        target: Column to predict.
        **options: Other arguments of `raw_table`; None for its defaults.

    Raises:
        InputError: if the table cannot be read.
        ConfigError: if an argument does not fit.
    """
    given = {"client": client, "target": target, **{name: value for name, value in options.items() if value}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)  # the run says what becomes of each column
        clients = len(from_table(path, **given).clients)  # type: ignore[arg-type]
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
    return Subject(
        f"predicts {target} for the {clients} clients of {path.name}",
        "clusters = 2                 # number of groups; learner and lr follow from the table unless they are given",
        {"table": json.dumps(str(path.resolve())), "arguments": arguments},
        {"client_app.py.template": "table_client_app.py.template"},
    )


def write_app(folder: Path, subject: Subject | None = None) -> list[Path]:
    """Write the app into a new or empty folder and return its files; after a failure none of them is left.

    Args:
        folder: The folder.
        subject: The data that the app is about; by default handwritten digits.
    """
    source, name = files("coterie.flower.local") / "template", app_name(folder.resolve().name)
    chosen = Subject() if subject is None else subject
    texts = {"name": name, "about": chosen.about, "model": chosen.model, **chosen.values}
    written = [folder / file for file in WRITTEN.values()]
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already: name a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        for template, path in zip(WRITTEN, written, strict=True):
            text = Template((source / chosen.templates.get(template, template)).read_text(encoding="utf-8"))
            path.write_text(text.substitute(texts), encoding="utf-8")
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
