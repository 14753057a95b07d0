"""Live progress on the terminal; silent where standard error is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.comparing import Job
from coterie.comparing import Progress as OnProgress
from coterie.runs.folder import Record


def _bars(console: Console, unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def run_progress(console: Console, rounds: int, method: str) -> Iterator[Callable[[Record], None]]:
    """One bar over the rounds, with the latest figures behind it."""
    with _bars(console, "rounds") as bars:
        task = bars.add_task(method, total=rounds, note="")

        def on_round(record: Record) -> None:
            figures = {
                name: record[name] for name in ("loss", "accuracy", "rmse", "ari") if record.get(name) is not None
            }
            note = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
            bars.update(task, completed=record["round"] + 1, note=note)

        yield on_round


@contextmanager
def comparison_progress(console: Console, jobs: Sequence[Job]) -> Iterator[OnProgress]:
    """One bar over all rounds of all jobs, with the jobs at work behind it."""
    total = {job.name: job.rounds() for job in jobs}
    done = dict.fromkeys(total, 0)
    with _bars(console, "rounds") as bars:
        task = bars.add_task(f"{len(jobs)} runs", total=sum(total.values()), note="")

        def progress(job: Job, rounds: int) -> None:
            done[job.name] = rounds
            active = [name for name, count in done.items() if 0 < count < total[name]]
            bars.update(task, completed=sum(done.values()), note=" ".join(active))

        yield progress
