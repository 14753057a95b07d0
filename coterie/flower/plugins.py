"""Plugins on the server and on nodes, and the error of a node that lacks one.

A request names its task and the tier members in it. Both sides must know them, so plugins are loaded on both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from coterie.core.registry import Registered, UnknownMemberError
from coterie.core.task import Task
from coterie.flower.untrusted import MissingPluginError, shown
from coterie.plugins.loading import FROM_FILE, load_plugin

HOME = "coterie."
"""Prefix of the modules that every installation has."""


def load_plugins(plugins: Iterable[str | Path], folders: Iterable[str | Path] | None = None) -> None:
    """Import plugins.

    Args:
        plugins: Paths of Python files, or names of importable modules.
        folders: Folders that are searched first for files with a relative path and for modules. By default files are
            searched in the folders that Python imports from, which include the folder of the Flower app.

    Raises:
        ConfigError: if there is no such file or module, or importing it fails.
    """
    for plugin in plugins:
        file = Path(plugin)
        if file.suffix != ".py" and folders is not None:
            file = Path(*str(plugin).split(".")).with_suffix(".py")
        places = map(Path, sys.path if folders is None else folders)
        found = (place / file for place in places if file.suffix == ".py" and (place / file).is_file())
        load_plugin(next(found, plugin))


def origins_of(task: Task) -> dict[str, str]:
    """Return the file or module that registers each member of a task which is not part of Coterie, by name."""
    return {
        member.name: _origin(type(member)) for member in _members(task) if not type(member).__module__.startswith(HOME)
    }


def _members(value: object) -> Iterator[Registered]:
    """Yield every registered value in a task, including the task."""
    if isinstance(value, Registered):
        yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from _members(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _members(each)


def _origin(member: type) -> str:
    module = member.__module__
    return f"{module.removeprefix(FROM_FILE)}.py" if module.startswith(FROM_FILE) else module


def missing_plugin(error: UnknownMemberError, origins: Mapping[str, object]) -> MissingPluginError:
    """Return the error for a request that names a member which is not registered at this node.

    Args:
        error: Error with the unknown name.
        origins: Plugin of each name, as the server sent it.
    """
    plugin = origins.get(error.name)
    if plugin is None:
        return MissingPluginError(
            f"this node does not know the {error.family} {shown(error.name)}: install the same version of coterie on "
            "the server and on every node"
        )
    return MissingPluginError(
        f"this node does not know the {error.family} {shown(error.name)}: load the plugin {shown(plugin)} here "
        "(plugins of make_client_app, or COTERIE_PLUGINS)"
    )
