"""The privacy ledger: every round in which the clients of a private run were asked, counted before they were asked.

The file is replaced as a whole and holds a checksum, so that a part of it is never mistaken for all of it. It is made
with the run folder: a run that must have one and has none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.errors import RunError
from coterie.training.runs.files import read_checked_json, write_checked_json, writing

LEDGER = "asked.json"


def read_ledger(folder: Path) -> list[int]:
    """The rounds that were asked, a round that was asked several times as often.

    Raises:
        RunError: The ledger is missing or damaged, so that nobody knows what was spent.
    """
    path = folder / LEDGER
    try:
        asked = read_checked_json(path)["asked"]
        if not isinstance(asked, list) or not all(isinstance(round_, int) and round_ >= 0 for round_ in asked):
            raise ValueError("it is no list of rounds")
    except (OSError, ValueError, KeyError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise RunError(
            f"{path} cannot be read ({reason}), so that nobody knows what the clients of this private run have given "
            "away: restore it, or run it again in a new folder"
        ) from None
    return list(asked)


def write_ledger(folder: Path, asked: Sequence[int]) -> None:
    """Replace the ledger; it is on the disk when this returns."""
    with writing(folder / LEDGER):
        write_checked_json(folder / LEDGER, {"asked": list(asked)})


def check_ledger(folder: Path, asked: Sequence[int], recorded: int, counted: int) -> None:
    """Refuse a ledger that is behind the rest of the folder.

    Args:
        folder: The run folder.
        asked: The ledger.
        recorded: The number of rounds that have a record.
        counted: The largest length of the ledger that a checkpoint has seen.
    """
    if len(asked) < counted or not set(range(recorded)) <= set(asked):
        raise RunError(
            f"{folder / LEDGER} counts fewer rounds than the records and checkpoints beside it, so that it is not the "
            "ledger of this run: restore it, or run it again in a new folder"
        )
