"""The record of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.federation import Note
from coterie.core.numbers import finite, finite_numbers
from coterie.methods.round import Step
from coterie.training.divergence import DIVERGED, overflow_refused
from coterie.training.measures import measured
from coterie.training.planning import Plan
from coterie.training.records import RoundRecord
from coterie.training.snapshot import RoundSnapshot


@overflow_refused()
def record_of(
    plan: Plan, done: Step, seconds: float, records: Sequence[RoundRecord] = (), epsilon: float | None = None
) -> RoundRecord:
    """Return the record of a round: its required figures and every measure that applies.

    Args:
        plan: The run.
        done: Result of the round; with several restarts, the one with the lowest loss is recorded.
        seconds: Duration of the round.
        records: Records of the rounds before it.
        epsilon: Privacy budget spent so far, in a run with differential privacy.
    """
    now = RoundSnapshot.after(plan, done, records, epsilon)
    return RoundRecord(
        round=now.round,
        seconds=round(seconds, 6),
        loss=finite(done.state.loss[now.restart]),
        clusters=sum(size > 0 for size in now.sizes),
        moved=int(done.moved[now.restart]),
        answered=done.answered,
        missing=list(done.missing),
        rejected=list(done.rejected),
        bytes_up=done.bytes_up,
        bytes_down=done.bytes_down,
        path=done.path,
        stopped=DIVERGED if done.diverged else None,
        notes=_notes(now),
        events=finite_numbers(done.events),
        tests=finite_numbers(done.tests),
        measures=measured(now, "round"),
    )


def _notes(now: RoundSnapshot) -> list[Mapping[str, Any]]:
    """Return the problems of the round and of the evaluation after it."""
    silence = now.evaluation.silence
    return [note.plain() for note in (*now.step.notes, *([] if silence is None else [Note(silence)]))]
