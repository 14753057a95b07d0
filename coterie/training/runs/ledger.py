"""The privacy ledger: every round in which the clients of a private run were asked, counted before they were asked.

The file is replaced as a whole and contains a checksum, so an incomplete ledger is never mistaken for a complete one.
It is created with the run folder: a run that needs a ledger and has none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.errors import RunError
from coterie.training.runs.files import read_checked_json, write_checked_json, writing

LEDGER = "asked.json"
"""Name of the ledger file."""


def read_ledger(folder: Path) -> list[int]:
    """Return the rounds in which clients were asked; a round that was asked several times appears as often.

    Raises:
        RunError: if the ledger is missing or damaged, so that the spent budget is unknown.
    """
    path = folder / LEDGER
    try:
        asked = read_checked_json(path)["asked"]
        if not isinstance(asked, list) or not all(isinstance(round_, int) and round_ >= 0 for round_ in asked):
            raise ValueError("it is not a list of rounds")
    except (OSError, ValueError, KeyError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise RunError(
            f"{path} cannot be read ({reason}), so the privacy budget that this run has spent is unknown: restore the "
            "file, or run it again in a new folder"
        ) from None
    return list(asked)


def write_ledger(folder: Path, asked: Sequence[int]) -> None:
    """Replace the ledger; it is on the disk when this function returns."""
    with writing(folder / LEDGER):
        write_checked_json(folder / LEDGER, {"asked": list(asked)})


def check_ledger(folder: Path, asked: Sequence[int], recorded: int, counted: int) -> None:
    """Refuse a ledger that does not contain all rounds in the rest of the folder.

    Args:
        folder: The run folder.
        asked: The rounds in the ledger.
        recorded: Number of rounds with a record.
        counted: Largest length of the ledger in a checkpoint.

    Raises:
        RunError: if rounds are missing in the ledger.
    """
    if len(asked) < counted or not set(range(recorded)) <= set(asked):
        raise RunError(
            f"{folder / LEDGER} contains fewer rounds than the records and checkpoints of the folder, so it is not the "
            "ledger of this run: restore it, or run it again in a new folder"
        )
