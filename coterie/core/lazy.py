"""Lazy imports: the public names of a package are imported on first use.

A node of a Flower federation starts a process for every message, and most processes need only a small part of Coterie.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_attributes(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package that imports its names lazily.

    Args:
        package: Name of the package.
        names: Public names by the module that defines them.
        modules: Modules that are attributes of the package.
    """
    module_of = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")  # the import sets the attribute
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # later accesses no longer call this function
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of, *modules})

    return get, names_of
