"""Live progress on the terminal; silent if standard error is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from coterie.experiments.compare import Job
from coterie.experiments.compare import Progress as OnProgress
from coterie.experiments.reproducing import OnCell
from coterie.experiments.reproducing import OnProgress as OnCellProgress
from coterie.experiments.reproduction import Cell, Figures
from coterie.report.descent import event_line
from coterie.training.callbacks.base import Callback, TrainingRun
from coterie.training.measures import MEASURES
from coterie.training.records import RoundRecord

SPEED_PERIOD = 3600.0
"""Seconds over which the speed is averaged to estimate the remaining time; a single trial run may take minutes."""


def _bars(console: Console, unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=SPEED_PERIOD,
    )


TRIALS = "clusters=auto"
"""Description of the bar during trial runs."""


@dataclass(frozen=True)
class RunBar(Callback):
    """Progress bar of one run and of the trial runs before it."""

    bars: Progress
    task: TaskID
    rounds: int
    method: str

    def on_start(self, run: TrainingRun) -> None:
        """Show the rounds of an earlier process."""
        self._count(self.method, run.first_round, self.rounds, "rounds")

    def on_round(self, run: TrainingRun, record: RoundRecord) -> None:
        self.show(record)

    def show(self, record: RoundRecord) -> None:
        """Show the latest figures, and a line for each change of K."""
        names = ("loss", *(measure.name for measure in MEASURES.values() if measure.progress))
        figures = {name: record[name] for name in names if record.get(name) is not None}
        note = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
        done = record.round + 1
        self.bars.update(
            self.task,
            description=self.method,
            total=self.rounds,
            completed=done,
            unit="rounds",
            note=note,
        )
        for event in record.events if self.bars.console.is_terminal else ():
            line = event_line(done, event)
            self.bars.print(line, highlight=False, markup=False, soft_wrap=True)

    def trial(self, done: int, total: int) -> None:
        """Show the number of finished trial runs and their largest number; after the last one rounds start at 0."""
        if done == total:
            self._count(self.method, 0, self.rounds, "rounds")
        elif self.bars.tasks[self.task].description != TRIALS:
            self._count(TRIALS, done, total, "trial runs at most")
        else:
            self.bars.update(self.task, completed=done)

    def _count(self, description: str, done: int, total: int, unit: str) -> None:
        """Start a new count, so that work of an earlier process does not enter the estimate of the speed."""
        self.bars.reset(self.task, total=total, completed=done, description=description, unit=unit, note="")


@contextmanager
def run_progress(console: Console, rounds: int, method: str) -> Iterator[RunBar]:
    """Show one bar for the rounds with the latest figures, and a line for each change of K."""
    with _bars(console, "{task.fields[unit]}") as bars:
        yield RunBar(bars, bars.add_task(method, total=rounds, unit="rounds", note=""), rounds, method)


@contextmanager
def comparison_progress(console: Console, jobs: Sequence[Job]) -> Iterator[OnProgress]:
    """Show one bar for all rounds of all jobs, with the names of the running jobs."""
    total = {job.name: job.rounds() for job in jobs}
    done = dict.fromkeys(total, 0)
    with _bars(console, "rounds") as bars:
        task = bars.add_task(f"{len(jobs)} runs", total=sum(total.values()), note="")

        def progress(job: Job, rounds: int) -> None:
            done[job.name] = rounds
            active = [name for name, count in done.items() if 0 < count < total[name]]
            bars.update(task, completed=sum(done.values()), note=" ".join(active))

        yield progress


@contextmanager
def cell_progress(
    console: Console,
) -> Iterator[tuple[Callable[[Sequence[Cell]], None], OnCellProgress, OnCell]]:
    """Show one bar for the work of all cells, and a line with the remaining time for each finished cell."""
    done: dict[tuple[str, int], int] = {}
    started, finished = time.monotonic(), 0
    work: dict[str, int] = {}
    with _bars(console, "steps of work") as bars:
        task = bars.add_task("cells", total=None, note="")

        def on_start(cells: Sequence[Cell]) -> None:
            done.update({(cell.name, cell.seed): 0 for cell in cells})
            work["total"] = sum(cell.work for cell in cells)
            bars.update(task, total=work["total"], description=f"{len(cells)} cells")

        def on_progress(cell: Cell, steps: int) -> None:
            done[cell.name, cell.seed] = steps
            work.setdefault("before", sum(done.values()))  # work of interrupted cells
            bars.update(task, completed=sum(done.values()))

        def on_cell(cell: Cell, figures: Figures, seconds: float) -> None:
            nonlocal finished
            finished += 1
            worked = sum(done.values()) - work.get("before", 0)
            left = (time.monotonic() - started) / max(worked, 1) * (work["total"] - sum(done.values()))
            text = ", ".join(f"{n} {v}" for n, v in figures.items() if isinstance(v, int | float))
            bars.console.print(
                f"{finished} of {len(done)}: {cell.name}, seed {cell.seed}: {text} ({seconds:.0f} s; "
                f"about {left / 60:.0f} min left)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

        yield on_start, on_progress, on_cell
