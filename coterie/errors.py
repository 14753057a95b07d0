"""Errors and warnings of Coterie.

::

    CoterieError
    ├── InputError        invalid data (also a ValueError)
    ├── ConfigError       an invalid option, name or combination of options (also a ValueError)
    ├── RunError          a run folder that is missing, already in use, unfinished or damaged
    ├── StorageError      a file that cannot be read or written: disk full, no permission, size limit
    ├── WorkerError       the scheduler or the workers of a cluster failed; the run can be resumed
    └── TrainingError     training failed: there is no solution, or no client replied
        └── SilenceError  no client replied to a request to evaluate models

A run that diverges does not raise an error. It returns a result whose `metrics["diverged"]` is True and issues a
`DivergenceWarning`.

Every message is one line. It says what was expected, what was found, and what to do next.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class CoterieError(Exception):
    """Base class of all errors of Coterie.

    The command line prints the message and exits with code 2.

    Args:
        message: Message of the error. Line breaks are replaced by spaces.

    Example:
        >>> from coterie.errors import ConfigError, CoterieError
        >>> try:
        ...     raise ConfigError("clusters must be at least 1, got 0")
        ... except CoterieError as error:
        ...     print(error)
        clusters must be at least 1, got 0
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(" ".join(str(message).splitlines()))


class InputError(CoterieError, ValueError):
    """Raised for invalid data: NaN, clients without samples, wrong shapes or label types."""


class ConfigError(CoterieError, ValueError):
    """Raised for an invalid option, an unknown name, or options that cannot be combined."""


class RunError(CoterieError):
    """Raised for a run folder that is missing, already in use, unfinished or damaged."""


class StorageError(CoterieError):
    """Raised for a file or folder that cannot be read or written: disk full, no permission, size limit reached."""


class TrainingError(CoterieError):
    """Raised when training fails: there is no solution, or no client replied."""


class WorkerError(CoterieError):
    """Raised when the scheduler or the workers of a cluster fail; the run can be resumed with others."""


class SmallWorkWarning(UserWarning):
    """Warning that the work is too small for a cluster: it would be faster in this process."""


class DivergenceWarning(UserWarning):
    """Warning that training diverged: a result exists, but its models must not be used."""


class ColumnWarning(UserWarning):
    """Warning about how a table was read: columns or rows were dropped, or the task was inferred."""


class SilenceError(TrainingError):
    """Raised when no client replies to a request to evaluate models."""


def error_name(error: CoterieError) -> str:
    """Return the name of the class of this module that describes an error best, for `named_error`."""
    return next(str(kind.__name__) for kind in type(error).__mro__ if globals().get(kind.__name__) is kind)


def named_error(name: str, message: str) -> CoterieError:
    """Return the error that another process has described by the name of its class and its message."""
    error: CoterieError = globals()[name](message)
    return error


def unknown_name(what: str, given: object, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name; its message suggests the most similar valid name.

    Args:
        what: Kind of the named thing, such as `method` or `setting of learner mlp`.
        given: Name that is unknown.
        known: Valid names.

    Example:
        >>> print(unknown_name("method", "ifka", ["fedavg", "ifca"]))
        unknown method 'ifka': did you mean 'ifca'?
        >>> print(unknown_name("setting of learner mlp", "hiden", ["hidden", "l2"]))
        unknown setting 'hiden' of learner mlp: did you mean 'hidden'?
    """
    kind, of, owner = what.partition(" of ")
    unknown = f"unknown {kind} {shown(given)}{of}{owner}"
    names = sorted(" ".join(str(name).split()) or "''" for name in known)  # a message is one line
    near = _most_similar(given, names) if isinstance(given, str) else None
    advice = f"did you mean {near!r}?" if near else f"choose one of {', '.join(names)}"
    return ConfigError(f"{unknown}: {advice}")


def _most_similar(given: str, names: Sequence[str]) -> str | None:
    """Return the most similar name, or None if none is similar; very short names differ in half of their letters."""
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5 if len(given) < 3 else 0.55)
    return near[0] if near else None


LONGEST = 80
"""Maximum number of characters of a value in a message."""


def shown(value: object) -> str:
    """Return the representation of a value for an error message: one line, shortened if it is long."""
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a NumPy scalar
            value = value.item()
        text = " ".join(repr(value).split())
    except Exception:  # an integer of thousands of digits; an object without a working repr
        return f"{type(value).__name__} that cannot be printed"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; undecodable bytes from the command line cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_system(error: BaseException) -> CoterieError | None:
    """Convert a system failure into a CoterieError with a readable message.

    System failures are files that cannot be read or written and failed memory allocations, as reported by Python,
    NumPy or torch.

    Args:
        error: Any exception.

    Returns:
        The converted error; the same object for a CoterieError; None for any other exception.
    """
    if isinstance(error, CoterieError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory(error)):
        return TrainingError(
            "memory ran out: use fewer or smaller models, fewer clients or fewer parallel jobs, or close other programs"
        )
    if isinstance(error, OSError):
        return StorageError(_os_sentence(error))
    return None


@contextmanager
def memory_failures() -> Iterator[None]:
    """Convert a failed memory allocation inside the `with` block into the error that `from_system` returns."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = from_system(error)
        if known is None:
            raise
        raise known from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a RuntimeError reports that torch could not allocate memory."""
    text = str(error)
    return any(part in text for part in ("can't allocate memory", "out of memory", "Storage size calculation overflow"))


_ADVICE = {
    errno.ENOSPC: "free some space on that disk, or choose another folder",
    errno.EDQUOT: "free some of your quota, or choose another folder",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
    errno.EACCES: "check the permissions, or choose another folder",
    errno.EPERM: "check the permissions, or choose another folder",
    errno.EROFS: "choose a writable folder",
    errno.ENOENT: "create the folder first, or check the path",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or use fewer parallel jobs",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def _os_sentence(error: OSError) -> str:
    """Return the message for an OSError: which file failed, why, and what to do next."""
    names = [_one_line(name) for name in (error.filename, error.filename2) if name is not None]
    reason = _one_line(error.strerror or error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk, then try again")
    return f"{' and '.join(names) or 'a file'} cannot be read or written ({reason}): {advice}"


def _one_line(text: object) -> str:
    """Return a text without line breaks; paths may contain any character."""
    shown = os.fsdecode(text) if isinstance(text, bytes) else str(text)
    return " ".join(shown.split())
