"""Import of code that is in a checkout of the repository, but not in the installed package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from coterie.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]
"""Root of the checkout, if the package runs from one."""


def import_from_checkout(module: str, what: str) -> ModuleType:
    """Return a package that is next to `coterie` in a checkout.

    Args:
        module: Name of the package.
        what: Start of the error message: the content of the package with a verb, such as "the reproductions are".

    Raises:
        ConfigError: if `coterie` does not run from a checkout of the repository.
    """
    if not CHECKOUT.joinpath(*module.split("."), "__init__.py").is_file():
        raise ConfigError(
            f"{what} not part of the installed package: clone the repository, install it with "
            "'pip install --editable .' and run the command again"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return import_module(module)
