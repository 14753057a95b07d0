"""Functions as callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from coterie.errors import ConfigError
from coterie.training.callbacks.base import Callback, TrainingRun
from coterie.training.records import RoundRecord

if TYPE_CHECKING:
    from coterie.training.result import Result


class Lambda(Callback):
    """Callback made of functions, all of which are optional.

    It has no name on the command line, because a function cannot be written as text.

    Args:
        on_round: Called with the record of every round; the run ends if it returns True.
        on_start: Called with the facts about the run before the first round.
        on_end: Called with the result.
        on_error: Called with the exception that ended the training.

    Example:
        >>> from coterie.callbacks import Lambda
        >>> callback = Lambda(lambda record: record["loss"] < 0.01)
    """

    def __init__(
        self,
        on_round: Callable[[RoundRecord], bool | None] | None = None,
        *,
        on_start: Callable[[TrainingRun], None] | None = None,
        on_end: Callable[[Result], None] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._on_round = on_round
        self._on_start = on_start
        self._on_end = on_end
        self._on_error = on_error

    def on_start(self, run: TrainingRun) -> None:
        if self._on_start is not None:
            self._on_start(run)

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool | None:
        return None if self._on_round is None else self._on_round(record)

    def on_end(self, run: TrainingRun, result: Result) -> None:
        if self._on_end is not None:
            self._on_end(result)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(error)


OnRound = Callable[[RoundRecord], bool | None]
"""Function of the record of a round; it ends the run by returning True."""


class _Function(Lambda):
    """Function that a user passed as a callback."""

    reason: ClassVar[str] = "on_round"


def as_callback(callback: Callback | OnRound) -> Callback:
    """Return the callback itself, or one that calls the function with the record of each round.

    Raises:
        ConfigError: if it is neither.
    """
    if isinstance(callback, Callback):
        return callback
    if not callable(callback):
        raise ConfigError(
            f"callbacks must be functions or derive from coterie.callbacks.Callback, got {type(callback).__name__}"
        )
    return _Function(callback)
