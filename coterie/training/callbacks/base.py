"""The protocol of callbacks: what the training loop calls, and what it tells a callback about the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.registry import Registered

if TYPE_CHECKING:
    from coterie.training.result import Result

RoundRecord = Mapping[str, Any]
"""The figures of one round by name; `round` is its number, counted from 0."""


@dataclass(frozen=True)
class TrainingRun:
    """Facts about a training run that every callback may use."""

    config: Mapping[str, Any]
    """Settings of the run by name; the values can be written as JSON."""
    folder: Path | None
    """Run folder, or None if nothing is written to disk."""
    first_round: int
    """Number of the first round of this process: 0, or the round at which a resumed run continues."""
    rounds: int
    """Number of rounds that were requested."""


class Callback(Registered, family="callback"):
    """Base of callbacks; every method does nothing unless it is overridden.

    A callback that the command line or a file can name is a dataclass with a registered name; its fields are its
    settings. Any other subclass can be passed to `fit` as an object.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Prepare for the run. Called before the first round, and again when the run is resumed.

        Args:
            run: Facts about the run.
        """

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool | None:
        """Handle the figures of a round. Called after every round.

        Args:
            run: Facts about the run.
            record: Figures of the round by name.

        Returns:
            True to end the run after this round; False or None to continue.
        """
        return None

    def on_end(self, run: TrainingRun, result: Result) -> None:
        """Handle the result. Called once, when the run has ended normally.

        Args:
            run: Facts about the run.
            result: Result of the run.
        """

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Handle a failure. Called instead of `on_end` when training raises an exception, which is raised afterwards.

        Args:
            run: Facts about the run.
            error: The exception.
        """
