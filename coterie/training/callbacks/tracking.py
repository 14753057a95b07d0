"""Base class of trackers: callbacks that copy the settings and figures of a run to another program or file."""

from __future__ import annotations

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from coterie.core.plain import from_text, to_text
from coterie.errors import ConfigError
from coterie.files import write_json
from coterie.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from coterie.training.records import RoundRecord
    from coterie.training.result import Result

IDENTITIES = "tracker.json"
"""File in the run folder with the trackers' own runs, so that a resumed run continues them."""

PER_CLUSTER = ("sizes", "shares")
"""Figures of a record that are lists with one number per cluster."""

COUNTED = ("missing", "rejected")
"""Figures of a record that are lists of clients; their length is tracked."""

LONGEST_REASON = 500
"""Number of characters of an error message that a tracker stores."""

Identity = Mapping[str, str]
"""Texts by which a tracker finds its own run again, such as an id."""


class TrackerWarning(UserWarning):
    """Warning that a tracker failed: the training run continues, but the tracker records no more of it."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    status: Literal["finished", "stopped early", "failed"]
    """Whether the run finished, stopped early or failed."""
    reason: str = ""
    """Rule that stopped the run early, or the error that ended it."""
    figures: Mapping[str, float] | None = None
    """Final figures by name; None if there is no result."""
    step: int = 0
    """Number of the last round."""


class Session(ABC):
    """Record of one training run in a tracker while the run continues."""

    @property
    def identity(self) -> Identity:
        """Texts by which `Tracker.open` finds this session again when the run is resumed."""
        return {}

    @abstractmethod
    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures of a round.

        Args:
            figures: Figures by name.
            step: Number of the round.
        """

    @abstractmethod
    def close(self, outcome: Outcome) -> None:
        """Write the end of the run, and release all resources."""


class Tracker(Callback, family="tracker"):
    """Base class of trackers; a subclass implements `open`.

    A tracker that the command line can name is a registered dataclass. An exception in a tracker never ends the
    training run: it is reported once as a `TrackerWarning`, and the tracker does nothing for the rest of the run.
    Trackers are not frozen, because they hold the open session.

    Example:
        >>> import coterie
        >>> from coterie.callbacks import Session, Tracker
        >>> class Printer(Tracker):
        ...     def open(self, run, known):
        ...         return PrinterSession()
        >>> class PrinterSession(Session):
        ...     def log(self, figures, step):
        ...         print(f"round {step}: {figures['answered']:.0f} clients")
        ...     def close(self, outcome):
        ...         print(outcome.status)
        >>> data = coterie.scenario("mixed-regression", clients=8)
        >>> result = coterie.fit(data, "ifca", clusters=2, rounds=2, callbacks=[Printer()])
        round 0: 8 clients
        round 1: 8 clients
        finished
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that the tracker needs; the extra that installs them has the tracker's name."""

    _session: Session | None = None

    def __post_init__(self) -> None:
        for package in self.packages:
            if find_spec(package) is None:
                raise ConfigError(
                    f"the tracker {self.name} needs the package {package}, which is not installed: "
                    f"pip install 'coterie[{self.name}]'"
                )

    @abstractmethod
    def open(self, run: TrainingRun, known: Identity | None) -> Session:
        """Start recording a run.

        Args:
            run: Facts about the run.
            known: Identity of the session that an earlier process opened for the same run folder; None if this is the
                first one.

        Returns:
            The session that receives the figures.
        """
        raise NotImplementedError

    def on_start(self, run: TrainingRun) -> None:
        self._session = None
        with self._failures_reported():
            known = _identities(run.folder)
            self._session = self.open(run, known.get(self._key))
            if run.folder is not None and self._session.identity:
                write_json(run.folder / IDENTITIES, known | {self._key: dict(self._session.identity)})

    def on_round(self, run: TrainingRun, record: RoundRecord) -> None:
        with self._failures_reported():
            if self._session is not None:
                figures = figures_of(record)
                self._session.log(figures, int(figures.pop("round")))

    def on_end(self, run: TrainingRun, result: Result) -> None:
        stopped = result.metrics.get("stopped")
        self._close(
            Outcome(
                status="finished" if stopped is None else "stopped early",
                reason=stopped or "",
                figures=figures_of(result.metrics, "final/"),
                step=max(len(result.records) - 1, 0),
            )
        )

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        self._close(Outcome("failed", cut(f"{type(error).__name__}: {error}", LONGEST_REASON)))

    @property
    def _key(self) -> str:
        """Key of the tracker in the file of identities; trackers with other settings have other keys."""
        return to_text(self) if self.name else type(self).__qualname__

    def _close(self, outcome: Outcome) -> None:
        with self._failures_reported():
            session, self._session = self._session, None
            if session is not None:
                session.close(outcome)

    @contextmanager
    def _failures_reported(self) -> Iterator[None]:
        """Turn an exception into a warning, and end the session."""
        try:
            yield
        except Exception as error:  # training continues whatever a library raises
            self._session = None
            reason = cut(" ".join(f"{type(error).__name__}: {error}".split()), LONGEST_REASON)
            warnings.warn(
                f"the tracker {self.name or type(self).__name__} failed and records no more of this run, which "
                f"continues ({reason})",
                TrackerWarning,
                stacklevel=4,  # the caller of the callback
            )


def tracker_from_text(text: str) -> Tracker:
    """Return the tracker of a text such as `mlflow` or `mlflow:experiment=hospitals`.

    Args:
        text: Name of the tracker, optionally followed by a colon and its settings.

    Returns:
        The tracker.

    Raises:
        ConfigError: if the tracker or a setting is unknown, or the tracker's package is not installed.

    Example:
        >>> from coterie.callbacks import tracker_from_text
        >>> tracker_from_text("csv:path=rounds.csv").path
        'rounds.csv'
    """
    tracker: Tracker = from_text(Tracker, text)
    return tracker


def _identities(folder: Path | None) -> dict[str, dict[str, str]]:
    """Return the identities of all trackers of a run folder, by the trackers' keys."""
    path = None if folder is None else folder / IDENTITIES
    if path is None or not path.exists():
        return {}
    known: dict[str, dict[str, str]] = json.loads(path.read_bytes())
    return known


def run_name(run: TrainingRun) -> str:
    """Return a name for a run: that of its folder, or its method and data."""
    if run.folder is not None:
        return run.folder.resolve().name
    return "-".join(str(run.config[key]) for key in ("method", "scenario") if key in run.config) or "run"


def figures_of(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the finite numbers among the figures of a record or of a result, by name.

    Figures within a mapping are named `outer/inner`, those of a cluster `sizes/0`. Lists of clients are replaced by
    their length. All other lists and texts are left out.

    Args:
        values: Figures by name.
        prefix: Prefix of every name.

    Returns:
        Numbers by name.
    """
    found: dict[str, float] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= figures_of(value, f"{name}/")
        elif key in PER_CLUSTER and value is not None:
            found |= figures_of({str(cluster): each for cluster, each in enumerate(value)}, f"{name}/")
        elif key in COUNTED and value is not None:
            found[name] = float(len(value))
        elif isinstance(value, Real) and math.isfinite(value):
            found[name] = float(value)
    return found


def flat_settings(config: Mapping[str, Any], longest: int, prefix: str = "") -> dict[str, str | int | float | bool]:
    """Return the settings of a run as a flat mapping of names to values.

    Settings within a mapping are named `outer.inner`; lists become JSON. None becomes the text `none`.

    Args:
        config: Settings by name.
        longest: Number of characters to which texts are cut.
        prefix: Prefix of every name.

    Returns:
        Numbers and texts by name.
    """
    flat: dict[str, str | int | float | bool] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flat_settings(value, longest, f"{name}.")
        elif isinstance(value, bool | int | float):
            flat[name] = value
        elif value is None:
            flat[name] = "none"
        else:
            flat[name] = cut(value if isinstance(value, str) else json.dumps(value, default=str), longest)
    return flat


def cut(text: str, longest: int) -> str:
    """Return a text cut to this number of characters; three dots mark the cut."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
