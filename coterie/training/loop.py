"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from coterie.core.client_state import NEVER
from coterie.core.state import ServerState
from coterie.errors import TrainingError
from coterie.methods.base import Method
from coterie.methods.round import Step
from coterie.methods.run import Run
from coterie.training.divergence import overflow_refused

MOST_SILENT = 3
"""Number of consecutive rounds without a usable reply after which training is aborted."""


def train(
    method: Method, run: Run, state: ServerState, before_round: Callable[[int], None] = lambda round_: None
) -> Iterator[Step]:
    """Train round by round, from a state to the last round of the run, and yield each round's result.

    A round without replies changes nothing, and the next one starts. A round in which no client has a finite update is
    the last one: the models stay as they are, and further rounds would only repeat it.

    Args:
        method: The method.
        run: The run's context.
        state: The state to start from.
        before_round: Called with the number of each round before any client is asked.

    Raises:
        TrainingError: if no client replies in the first round, or in `MOST_SILENT` consecutive rounds, or if the
            arithmetic fails.
    """
    silent = 0
    state = state.in_plain_layout()
    while state.round < run.rounds:
        before_round(state.round)
        with overflow_refused():  # covers the round only, because errors in callbacks have other causes
            step = method.step(run, state)
        silent = 0 if step.answered or step.diverged else silent + 1
        if silent:
            _refuse_silence(step, silent)
        state = step.state.in_plain_layout()
        step = replace(step, state=state)
        yield step if method.exchanges else replace(step, bytes_up=0, bytes_down=0)
        if step.diverged:
            return


def _refuse_silence(step: Step, silent: int) -> None:
    """Raise an error if waiting for another round is useless; `silent` such rounds came in a row."""
    round_, accepted = step.state.round - 1, step.state.accepted
    why = f" ({step.notes[0].reason})" if step.notes else ""
    if bool((accepted == NEVER).all()):
        what = (
            f"the replies of all {len(step.rejected)} clients were refused"
            if step.rejected
            else f"none of the {len(step.missing)} clients that were asked has replied"
        )
        raise TrainingError(f"round {round_}: {what}{why}; nothing was changed")
    if silent >= MOST_SILENT:
        raise TrainingError(
            f"round {round_}: no usable reply in {silent} consecutive rounds{why}; the models are those of round "
            f"{int(accepted.max())}: check the clients and resume"
        )
