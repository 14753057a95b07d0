"""Plugins: Python files or installed packages that register methods, tier members, tasks, callbacks or scenarios.

A plugin is imported once; what it registers with `coterie.register` is then known by name everywhere. Three ways lead
to one: `load_plugin("my_method.py")` or `--plugin my_method.py`; the environment variable `COTERIE_PLUGINS`, which
worker processes inherit; and the entry-point group `coterie.plugins` of an installed package.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from coterie.core.registry import Registered
from coterie.errors import ConfigError, shown

GROUP = "coterie.plugins"
"""Entry-point group of installed plugins."""
FROM_FILE = "coterie_plugin_"
"""Prefix of the module names of plugin files."""
VARIABLE = "COTERIE_PLUGINS"
"""Environment variable with the paths of plugin files, separated as in PATH."""


def load_plugin(plugin: str | Path) -> ModuleType:
    """Import a plugin, so that what it registers is known, here and in worker processes.

    Args:
        plugin: Path of a Python file, or the name of an importable module.

    Raises:
        ConfigError: if there is no such file or module, or importing it fails.
    """
    path = Path(plugin)
    if path.suffix != ".py":
        try:
            return import_module(str(plugin))
        except ImportError as error:
            raise ConfigError(f"plugin {shown(str(plugin))} is neither a Python file nor a module ({error})") from error
    path = path.resolve()
    known = [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    module = _from_file(path)
    if str(path) not in known:
        os.environ[VARIABLE] = os.pathsep.join([*known, str(path)])
    return module


def _from_file(path: Path) -> ModuleType:
    name = f"{FROM_FILE}{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"there is no plugin file {shown(str(path))}: give the path of a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module while they are defined
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"plugin {shown(str(path))} cannot be imported: {type(error).__name__}: {error}") from error
    return module


@cache
def load_installed() -> None:
    """Import the plugins that installed packages declare and those that `COTERIE_PLUGINS` names; once per process."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(path)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise ConfigError(
                f"the installed plugin {entry.name} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"
            ) from error


def knows(family: type[Registered], name: object) -> bool:
    """Return whether a family has a member of this name, after a look into installed plugins if need be."""
    if name not in family.members:
        load_installed()
    return name in family.members
