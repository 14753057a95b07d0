"""The report of a result."""

from __future__ import annotations

from pathlib import Path

from coterie.diagnosis.values import Diagnosis
from coterie.report.diagnosis import write_diagnosis
from coterie.report.page import write_report as write_page
from coterie.report.reading import RunData, read_runs
from coterie.training.result import Result
from coterie.training.subject import subject_of


def write_report(result: Result | Diagnosis | str | Path, path: str | Path) -> Path:
    """Write one self-contained HTML page about a result or a diagnosis.

    Args:
        result: A result, a diagnosis, or the folder of a finished run or comparison.
        path: The file to write.

    Returns:
        The path of the file.

    Raises:
        RunError: if the folder holds no finished run.

    Example:
        >>> import coterie
        >>> result = coterie.fit(coterie.scenario("rotated-digits", clients=8), "fedavg", rounds=2)
        >>> page = coterie.write_report(result, "report.html")  # doctest: +SKIP
    """
    if isinstance(result, Diagnosis):
        return write_diagnosis(result, Path(path))
    if not isinstance(result, Result):
        return write_page(read_runs(Path(result)), Path(path))
    found = result.with_diagnostics()
    run = RunData(found.config, found.records, found.metrics, found.clients, subject=subject_of(found.summary()))
    return write_page([run], Path(path))
