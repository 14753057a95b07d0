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
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class CoterieError(Exception):
    """Base of all errors below; the command line prints it and exits with code 2. Its message is one line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(" ".join(str(message).splitlines()))


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


class ColumnWarning(UserWarning):
    """A table was read in a way worth knowing: columns or rows are left out, or the task was inferred."""


class SilenceError(TrainingError):
    """No client answered when it was asked how well the models fit."""


def unknown_name(what: str, given: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a registry, with the nearest valid one."""
    names = sorted(" ".join(str(name).split()) or "''" for name in known)  # a message is one line
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5) if isinstance(given, str) else []
    if near:
        return ConfigError(f"unknown {what} {shown(given)}: did you mean {near[0]!r}?")
    return ConfigError(f"unknown {what} {shown(given)}: choose one of {', '.join(names)}")


LONGEST = 80
"""Letters of a value that a message shows."""


def shown(value: object) -> str:
    """Return a value as an error message shows it: its repr on one line, cut if it is long."""
    try:
        value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value  # of NumPy
        text = " ".join(repr(value).split())
    except Exception:  # an integer of thousands of digits; an object without a working repr
        return f"{type(value).__name__} that cannot be printed"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} letters)"


def is_unicode(text: str) -> bool:
    """Whether the text can be stored as UTF-8: undecodable bytes of the command line cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_system(error: BaseException) -> CoterieError | None:
    """Return a CoterieError with a plain sentence for a failure of the system, None for anything else.

    Failures of the system are those that no argument is to blame for: files that cannot be read or written, and memory
    that ran out, as Python, NumPy or torch report it. A CoterieError is returned as it is.
    """
    if isinstance(error, CoterieError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory(error)):
        return TrainingError(
            "memory ran out: use fewer or smaller models, fewer clients, or fewer jobs at a time, or end other programs"
        )
    if isinstance(error, OSError):
        return StorageError(_os_sentence(error))
    return None


@contextmanager
def memory_failures() -> Iterator[None]:
    """Raise a failure to allocate memory inside the block as the CoterieError that `from_system` gives for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = from_system(error)
        if known is None:
            raise
        raise known from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch's allocator, which raises a RuntimeError, found no memory."""
    text = str(error)
    return any(part in text for part in ("can't allocate memory", "out of memory", "Storage size calculation overflow"))


_ADVICE = {
    errno.ENOSPC: "free some space on that disk, or choose another folder",
    errno.EDQUOT: "free some of your quota, or choose another folder",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
    errno.EACCES: "check the permissions, or choose another folder",
    errno.EPERM: "check the permissions, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOENT: "create the folder first, or check the path",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or use fewer jobs at a time",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def _os_sentence(error: OSError) -> str:
    """What could not be read or written, why, and what to do."""
    names = [_one_line(name) for name in (error.filename, error.filename2) if name is not None]
    reason = _one_line(error.strerror or error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk, then try again")
    return f"{' and '.join(names) or 'a file'} cannot be read or written ({reason}): {advice}"


def _one_line(text: object) -> str:
    """Text without line breaks, as it can be printed; paths may hold anything."""
    shown = os.fsdecode(text) if isinstance(text, bytes) else str(text)
    return " ".join(shown.split())
