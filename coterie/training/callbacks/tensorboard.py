"""Tracking with TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coterie.core.registry import register
from coterie.training.callbacks.base import TrainingRun
from coterie.training.callbacks.tracking import Identity, Outcome, Session, Tracker, flat_settings, run_name

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LONGEST_VALUE = 6000
"""Number of characters of a setting that the table of settings shows."""


@register("tensorboard")
@dataclass
class TensorBoard(Tracker):
    """Write event files for TensorBoard: figures as scalars, settings and outcome as texts.

    Args:
        folder: Folder in which every run gets its own folder. By default `tensorboard` in the run folder, or in the
            current folder if the run has no folder.

    Raises:
        ConfigError: if TensorBoard is not installed.

    Example:
        >>> from coterie.callbacks import TensorBoard
        >>> tracker = TensorBoard(folder="logs")
    """

    packages: ClassVar[tuple[str, ...]] = ("tensorboard",)

    folder: str | None = None

    def open(self, run: TrainingRun, known: Identity | None) -> Session:
        """Start an event file, or one that continues those of the known folder."""
        from torch.utils.tensorboard import SummaryWriter

        if known is not None:
            # readers ignore the events of rounds that are repeated
            return TensorBoardSession(SummaryWriter(known["folder"], purge_step=run.first_round))
        session = TensorBoardSession(SummaryWriter(str(self._folder_of(run))))
        session.writer.add_text("settings", _table(flat_settings(run.config, LONGEST_VALUE)))
        return session

    def _folder_of(self, run: TrainingRun) -> Path:
        if self.folder is None and run.folder is not None:
            return run.folder.resolve() / "tensorboard"
        unique = "" if run.folder is not None else time.strftime("-%Y%m%d-%H%M%S")
        return Path(self.folder or "tensorboard").resolve() / f"{run_name(run)}{unique}"


class TensorBoardSession(Session):
    """Event files that are being written."""

    def __init__(self, writer: SummaryWriter) -> None:
        self.writer = writer

    @property
    def identity(self) -> Identity:
        return {"folder": str(self.writer.log_dir)}

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a killed run keeps its rounds

    def close(self, outcome: Outcome) -> None:
        self.log(outcome.figures or {}, outcome.step)
        self.writer.add_text("status", f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status)
        self.writer.close()


def _table(settings: Mapping[str, object]) -> str:
    """Return settings as a table in Markdown."""
    rows = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in settings.items()]
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])
