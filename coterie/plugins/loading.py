"""Load plugins: Python files or installed packages that extend Coterie.

A plugin registers methods, tier members, tasks, callbacks or scenarios with `coterie.register`; afterwards they can be
used by name everywhere. A plugin is imported once. There are three ways to load one:

- `load_plugin("my_method.py")`, or `--plugin my_method.py` on the command line;
- the environment variable `COTERIE_PLUGINS`, which worker processes inherit;
- the entry-point group `coterie.plugins` of an installed package.
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
"""Environment variable that lists the paths of plugin files, separated as in PATH."""


def load_plugin(plugin: str | Path) -> ModuleType:
    """Import a plugin, so that everything it registers can be used by name, in this process and in worker processes.

    Args:
        plugin: Path of a Python file, or name of an importable module.

    Returns:
        The imported module.

    Raises:
        ConfigError: if the file or module does not exist, or importing it fails.

    Example:
        >>> import coterie
        >>> module = coterie.load_plugin("my_method.py")  # doctest: +SKIP
        >>> coterie.fit(data, "my-method")  # doctest: +SKIP
    """
    path = Path(plugin)
    if path.suffix != ".py":
        try:
            return import_module(str(plugin))
        except ImportError as error:
            raise ConfigError(
                f"plugin {shown(str(plugin))} is neither a Python file nor an importable module ({error}): give the "
                "path of a .py file or the name of an installed module"
            ) from error
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
        raise ConfigError(
            f"plugin {shown(str(path))} cannot be imported ({type(error).__name__}: {error}): correct the file"
        ) from error
    return module


@cache
def load_installed() -> None:
    """Import the plugins of installed packages and those listed in `COTERIE_PLUGINS`; once per process."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(path)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise ConfigError(
                f"the installed plugin {entry.name} ({entry.value}) cannot be imported "
                f"({type(error).__name__}: {error}): update or uninstall its package"
            ) from error


def knows(family: type[Registered], name: object) -> bool:
    """Return whether a family has a member of this name; unknown names cause installed plugins to be loaded first."""
    if name not in family.members:
        load_installed()
    return name in family.members
