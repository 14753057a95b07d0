"""Safe output of arbitrary texts on the terminal."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

from coterie.errors import StorageError

_BIDIRECTIONAL = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that change the direction of the following text, so that a text may look different from its content."""


OUTPUT_FAILED = "the output could not be printed completely ({})"
"""Error message if standard output fails."""


class Terminal(Console):
    """A console for texts of users and files.

    Square brackets and :names: are not markup. Control characters, including escape sequences, and undecodable bytes of
    file names are printed as escapes. A closed pipe is an error like any other.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        discard_output()
        raise StorageError(OUTPUT_FAILED.format(os.strerror(errno.EPIPE)))


def visible(text: str) -> str:
    """Return the text with control characters and unprintable characters escaped, except line breaks and tabs."""
    return "".join(c if c in "\n\t" or not _is_control(c) else c.encode("unicode_escape").decode() for c in text)


def on_one_line(text: object) -> str:
    """Return the text on one line, with all control characters escaped, for paths and messages."""
    return "".join(c if not _is_control(c) else c.encode("unicode_escape").decode() for c in str(text))


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _BIDIRECTIONAL


def make_streams_tolerant() -> None:
    """Print characters that the streams cannot encode as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_exactly(text: str) -> None:
    """Print text for other programs, without line wrapping and styles.

    Raises:
        StorageError: if standard output is closed or full.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        discard_output()
        raise StorageError(OUTPUT_FAILED.format(error.strerror or error)) from None


def discard_output() -> None:
    """Discard the remaining output after standard output has failed, since Python would try to print it at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        pass
