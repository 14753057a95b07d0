"""Every error that Coterie raises on purpose.

::

    CoterieError
    ├── InputError        data that cannot be used (also a ValueError)
    ├── ConfigError       an option or a name that makes no sense (also a ValueError)
    ├── RunError          a run folder that is missing, taken, unfinished or damaged
    ├── StorageError      a file that cannot be written: disk full, no permission, size limit
    └── TrainingError     the training itself failed: it has no solution, or nobody answered
        └── SilenceError  nobody answered a question that changes no model

A training that diverges ends with a result whose `metrics["diverged"]` is True and with a `DivergenceWarning`.

A message is one line and says what was expected, what arrived, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """Base of all errors below; the command line prints it and exits with code 2."""


class InputError(CoterieError, ValueError):
    """Data that cannot be used: NaN, empty clients, wrong shapes or label types."""


class ConfigError(CoterieError, ValueError):
    """An option, a name or a combination of them that makes no sense."""


class RunError(CoterieError):
    """A run folder that is missing, taken, unfinished or damaged."""


class StorageError(CoterieError):
    """A file or folder that cannot be written: the disk is full, permission is missing, a size limit was reached."""


class TrainingError(CoterieError):
    """The training failed: there is no solution, or no client answered."""


class DivergenceWarning(UserWarning):
    """The training diverged: there is a result, but its models are not to be used."""


class SilenceError(TrainingError):
    """No client answered when it was asked how well the models fit."""


def unknown_name(what: str, given: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a registry, with the nearest valid one."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    if near:
        return ConfigError(f"unknown {what} {given!r}: did you mean {near[0]!r}?")
    return ConfigError(f"unknown {what} {given!r}: choose one of {', '.join(names)}")
