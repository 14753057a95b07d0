"""Early stopping: end a run when a figure has stopped improving."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from coterie.core.registry import register
from coterie.errors import ConfigError, shown
from coterie.training.callbacks.base import Callback, TrainingRun
from coterie.training.records import RoundRecord
from coterie.training.stopping import TOLERANCE, Watch

if TYPE_CHECKING:
    from coterie.training.result import Result

DIRECTIONS = ("min", "max")


@register("early-stopping")
@dataclass
class EarlyStopping(Callback):
    """End a run after several measurements of a figure without improvement.

    A resumed run takes its earlier rounds into account, so it stops where it would have stopped without the
    interruption.

    Args:
        monitor: Name of a figure in the records, such as `loss`, `validation_loss` or `accuracy`. Rounds that do not
            measure it do not count.
        patience: Number of consecutive measurements without improvement after which the run ends.
        tolerance: Improvements below this fraction of the best value do not count.
        mode: `min` if lower values are better, `max` if higher values are better.

    Raises:
        ConfigError: if `patience` is below 1, `tolerance` is negative or `mode` is unknown.

    Example:
        >>> from coterie.callbacks import EarlyStopping
        >>> callback = EarlyStopping("accuracy", patience=5, mode="max")
    """

    monitor: str = "loss"
    patience: int = 10
    tolerance: float = TOLERANCE
    mode: Literal["min", "max"] = "min"

    reason: ClassVar[str] = "patience"

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"early-stopping: patience must be at least 1, got {shown(self.patience)}")
        if not self.tolerance >= 0:
            raise ConfigError(f"early-stopping: tolerance must not be negative, got {shown(self.tolerance)}")
        if self.mode not in DIRECTIONS:
            raise ConfigError(f"early-stopping: mode must be one of {', '.join(DIRECTIONS)}, got {shown(self.mode)}")
        self._watch = self._new_watch()
        self._measured = False

    def on_start(self, run: TrainingRun) -> None:
        self._watch, self._measured = self._new_watch(), False
        for record in run.records:
            self._see(record)

    def on_round(self, run: TrainingRun, record: RoundRecord) -> bool:
        self._see(record)
        return self._watch.exhausted

    def on_end(self, run: TrainingRun, result: Result) -> None:
        if result.records and not self._measured:
            known = ", ".join(sorted(name for name in result.records[-1] if name != "round"))
            warnings.warn(
                f"early-stopping had no effect, because no round measured {self.monitor!r}: the last round has {known}",
                stacklevel=2,
            )

    def _new_watch(self) -> Watch:
        return Watch(self.monitor, self.patience, tolerance=self.tolerance)

    def _see(self, record: RoundRecord) -> None:
        if self.monitor not in record:
            return
        self._measured = True
        value = record[self.monitor]
        if self.mode == "max" and value is not None:
            value = -value
        self._watch.see({"round": record["round"], self.monitor: value})
