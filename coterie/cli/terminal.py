"""The terminal: text is printed as it is, whatever it holds."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

from coterie.errors import StorageError

_TURNING = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that change the direction of what follows, so that a text shows other than it is."""


UNPRINTED = "the output could not be printed to its end ({})"
"""What is said when standard output fails."""


class Terminal(Console):
    """A console for text that users and files bring.

    Square brackets and :names: are no markup, control characters (escape sequences among them) and undecodable bytes
    of file names are shown as escapes, and a reader that stops reading is an error like any other.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        give_up_output()
        raise StorageError(UNPRINTED.format(os.strerror(errno.EPIPE)))


def visible(text: str) -> str:
    """Return the text with everything escaped that a terminal would act upon or cannot show; lines and tabs stay."""
    return "".join(c if c in "\n\t" or not _acts(c) else c.encode("unicode_escape").decode() for c in text)


def on_one_line(text: object) -> str:
    """Return the text as `visible` does, with line breaks and tabs escaped, too: for paths and messages."""
    return "".join(c if not _acts(c) else c.encode("unicode_escape").decode() for c in str(text))


def _acts(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _TURNING


def make_streams_tolerant() -> None:
    """Print characters that the streams cannot encode as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_exactly(text: str) -> None:
    """Print text for other programs: no width, no styles.

    Raises:
        StorageError: if standard output is closed early or full.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        give_up_output()
        raise StorageError(UNPRINTED.format(error.strerror or error)) from None


def give_up_output() -> None:
    """Send what is still to be printed nowhere: standard output has failed, and Python would try again at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # closed, or not a file at all
        pass
