"""Bundles of Flower apps for a SuperLink, which contain the settings of one run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from coterie.errors import ConfigError

Setting = str | int | float | bool
"""Value of a setting in Flower's configs."""
Project = dict[str, Any]
"""Content of a pyproject.toml."""
PROJECT = "pyproject.toml"
COMPONENTS = ("serverapp", "clientapp")


def make_bundle(app: Path, settings: Mapping[str, Setting]) -> bytes:
    """Return the bundle of an app whose `[tool.flwr.app.config]` is overridden by these settings.

    The settings are written into the bundle, because Flower refuses to override settings that the app does not list.

    Args:
        app: Folder of the app.
        settings: Settings of the run.

    Raises:
        ConfigError: if the folder is not a complete Flower app.
    """
    project = read_project(app)
    project["tool"]["flwr"]["app"].setdefault("config", {}).update(settings)
    try:
        files: dict[str, bytes | Path] = {**collect_files(app.resolve()), PROJECT: tomli_w.dumps(project).encode()}
        return build_fab_from_files(files)[0]
    except Exception as error:  # Flower's checks of a project raise errors of many kinds
        raise ConfigError(f"{app} cannot be bundled as a Flower app: {_one_line(error)}") from None


def read_project(app: Path) -> Project:
    """Return the pyproject.toml of an app.

    Raises:
        ConfigError: if a part that is needed to run the app is missing or invalid.
    """
    where = app / PROJECT
    try:
        project = tomllib.loads(where.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigError(f"{app} has no {PROJECT}: create an app with 'coterie flower init {app}'") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid TOML: {_one_line(error)}") from None
    if not isinstance(_value(project, "tool", "flwr", "app", "components"), dict):
        raise ConfigError(
            f"{where} has no [tool.flwr.app.components]: name the folder of a Flower app, or create one with "
            "'coterie flower init FOLDER'"
        )
    if not isinstance(_value(project, "project", "name"), str):
        raise ConfigError(f'{where} has no name under [project]: add one, such as name = "myfed"')
    if not isinstance(_value(project, "tool", "flwr", "app", "config", default={}), dict):
        raise ConfigError(f"{where}: [tool.flwr.app.config] must be a table of settings")
    for component in COMPONENTS:
        _check_component(app, component, _value(project, "tool", "flwr", "app", "components", component))
    return project


def _value(table: object, *names: str, default: object = None) -> object:
    """Return the value at a path of names in nested tables."""
    for name in names:
        if not isinstance(table, dict) or name not in table:
            return default
        table = table[name]
    return table


def _check_component(app: Path, component: str, reference: object) -> None:
    """Raise ConfigError if the code of a component is missing or is not valid Python."""
    expected = f"{app / PROJECT}: {component} under [tool.flwr.app.components] must be MODULE:NAME"
    module, colon, name = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigError(f'{expected}, such as "{component[:6]}_app:app", got {reference!r}')
    stem = app.joinpath(*module.split("."))
    file = next((f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f.is_file()), None)
    if file is None:
        raise ConfigError(f"{expected}, but {stem.with_suffix('.py')} does not exist")
    try:
        compile(file.read_bytes(), str(file), "exec", ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}: correct the Python code") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file} cannot be read as Python code: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
