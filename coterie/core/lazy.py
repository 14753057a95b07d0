"""Names of a package that are imported when they are first used.

A node of a federation begins a process for every message, and needs little of what the packages offer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazily(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        names: The names that each of its modules brings.
        modules: The modules that are attributes of the package themselves.
    """
    home = {name: module for module, brought in names.items() for name in brought}

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")  # which makes it an attribute
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *modules})

    return get, names_of
