"""The checkout of the repository: code that is not in the installed package, and the version of the code."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
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


@cache
def code_version() -> str:
    """Return the version of the code as git describes it, or that of the package if git does not know it.

    It ends in `-dirty` if files of `coterie`, `papers` or `benchmarks` other than results have been changed since.
    """
    try:
        described = _git("describe", "--always")
        changed = _git("status", "--porcelain", "--", "coterie", "papers", "benchmarks", ":(exclude)*.jsonl")
    except (OSError, subprocess.CalledProcessError):
        return version("coterie")
    return f"{described}-dirty" if changed else described


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return found.stdout.strip()
