"""Tracking with Weights & Biases."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from coterie.core.registry import register
from coterie.errors import ConfigError, shown
from coterie.training.callbacks.base import TrainingRun
from coterie.training.callbacks.tracking import Identity, Outcome, Session, Tracker, flat_settings, run_name

if TYPE_CHECKING:
    from wandb import Run

LONGEST_VALUE = 6000
"""Number of characters of a setting that are stored."""

MODES = ("offline", "online")


@register("wandb")
@dataclass
class WandB(Tracker):
    """Record a run with Weights & Biases: settings as its config, figures as history, the outcome in its summary.

    By default the run is written to this machine only, and `wandb sync` uploads it later. The library's own error
    reports are switched off, unless the environment variable WANDB_ERROR_REPORTING is set otherwise.

    Args:
        project: Name of the project.
        mode: `offline` writes to the folder only, `online` sends every round to the server.
        folder: Folder in which the library creates its folder `wandb`. By default the run folder, or the current
            folder if nothing else is written.

    Raises:
        ConfigError: if the library is not installed, or the mode is unknown.

    Example:
        >>> from coterie.callbacks import WandB
        >>> tracker = WandB(project="hospitals")
    """

    packages: ClassVar[tuple[str, ...]] = ("wandb",)

    project: str = "coterie"
    mode: Literal["offline", "online"] = "offline"
    folder: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ConfigError(f"wandb: mode must be one of {', '.join(MODES)}, got {shown(self.mode)}")

    def open(self, run: TrainingRun, known: Identity | None) -> Session:
        """Start a run, or continue the known one under its id."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the library starts its process
        import wandb

        folder = Path(self.folder or run.folder or ".").resolve()
        _check_folder(folder)
        return WandBSession(
            wandb.init(
                project=self.project,
                mode=self.mode,
                dir=str(folder),
                id=secrets.token_hex(4) if known is None else known["id"],
                name=run_name(run),
                config=flat_settings(run.config, LONGEST_VALUE),
                resume="allow" if self.mode == "online" else None,  # offline runs of one id are joined by `wandb sync`
                reinit="create_new",  # a run that the user has opened stays open
                save_code=False,
                settings=wandb.Settings(console="off", silent=True, disable_git=True),
            )
        )


class WandBSession(Session):
    """An open run of Weights & Biases."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def identity(self) -> Identity:
        return {"id": str(self.run.id)}

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.run.log(dict(figures), step=step)

    def close(self, outcome: Outcome) -> None:
        self.run.summary.update({**(outcome.figures or {}), "status": outcome.status, "reason": outcome.reason})
        self.run.finish(exit_code=int(outcome.status == "failed"))


def _check_folder(folder: Path) -> None:
    """Raise an OSError if a folder is not writable; the library itself would choose another one."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written")
