"""An app's folder as the bundle that a SuperLink takes, with the settings of one run written into it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from coterie.errors import ConfigError

Setting = str | int | float | bool
"""What Flower's configs hold."""
PROJECT = "pyproject.toml"


def make_bundle(app: Path, settings: Mapping[str, Setting]) -> bytes:
    """The app's files, its `[tool.flwr.app.config]` with these settings in place of its own.

    Flower's own way to override a config refuses names that the app does not list.
    """
    project = read_project(app)
    project["tool"]["flwr"]["app"].setdefault("config", {}).update(settings)
    files: dict[str, bytes | Path] = {**collect_files(app.resolve()), PROJECT: tomli_w.dumps(project).encode()}
    try:
        return build_fab_from_files(files)[0]
    except ValueError as error:
        raise ConfigError(f"{app} cannot be bundled as a Flower app: {' '.join(str(error).split())}") from None


def read_project(app: Path) -> dict[str, dict[str, dict[str, dict[str, dict[str, Setting]]]]]:
    """The pyproject.toml of an app."""
    try:
        project = tomllib.loads((app / PROJECT).read_text())
        project["tool"]["flwr"]["app"]["components"]
    except OSError:
        raise ConfigError(f"{app} has no {PROJECT}: make an app with 'coterie flower init {app}'") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{app / PROJECT} is no valid TOML: {error}") from None
    except (KeyError, TypeError):
        raise ConfigError(
            f"{app / PROJECT} has no [tool.flwr.app.components]: name the folder of a Flower app, or make one with "
            "'coterie flower init FOLDER'"
        ) from None
    return project
