"""Protocol of callbacks: the calls of the training loop, and the facts about the run that it passes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coterie.core.registry import Registered

if TYPE_CHECKING:
    from coterie.core.state import ServerState
    from coterie.training.planning import Plan
    from coterie.training.records import RoundRecord
    from coterie.training.result import Result


@dataclass
class TrainingRun:
    """Facts about a training run for callbacks, which only read them; the loop keeps them up to date."""

    config: Mapping[str, Any]
    """Settings of the run by name; the values can be written as JSON."""
    folder: Path | None
    """Run folder, or None if nothing is written to disk."""
    first_round: int
    """Number of the first round of this process: 0, or the round at which a resumed run continues."""
    rounds: int
    """Number of rounds of the run."""
    records: list[RoundRecord] = field(default_factory=list)
    """Records of all finished rounds."""
    progress: Progress | None = None
    """Server state and plan, for callbacks that need more than the records."""


@dataclass
class Progress:
    """Present state of a run."""

    plan: Plan
    """Plan of the run."""
    state: ServerState
    """State after the last finished round."""
    best: ServerState | None = None
    """State with the lowest validation loss, if it is kept; it gives the final models."""
    last: bool = False
    """Whether no further round will follow."""


class Callback(Registered, family="callback"):
    """Base class of callbacks; every method does nothing unless it is overridden.

    A callback that the command line or a file can name is a dataclass with a registered name, whose fields are its
    settings. Any other subclass can be passed to `fit` as an object.

    Example:
        >>> import coterie
        >>> from coterie.callbacks import Callback
        >>> class StopAfterTwo(Callback):
        ...     def on_round(self, run, record):
        ...         return record.round == 1
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, "fedavg", learner="logistic", rounds=5, callbacks=[StopAfterTwo()])
        >>> len(result.records)
        2
    """

    reason: ClassVar[str] = "callback"
    """Reason that is recorded if this callback stops the run early."""

    def on_start(self, run: TrainingRun) -> None:
        """Prepare for the run. Called before the first round, and again when the run is resumed.

        Args:
            run: Facts about the run.
        """

    def on_round_start(self, run: TrainingRun, round_: int) -> None:
        """Prepare for a round. Called before any client is asked.

        Args:
            run: Facts about the run.
            round_: Number of the round, from 0.
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
