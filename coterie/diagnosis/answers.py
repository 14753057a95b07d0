"""The diagnosis in words: five questions with their answers and the supporting numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coterie.diagnosis.shift import DRAWS, model_differs
from coterie.diagnosis.values import Diagnosis, Estimate, Recommendation, Shift, ShiftTest, Structure

LEAST_P = 1 / (DRAWS + 1)
"""Smallest p-value that the random draws can show; it is shown as an upper bound."""
LEAST_LENGTH, MOST_LENGTH = 1e-5, 1e7
"""Range of lengths of intervals for which numbers are written without an exponent."""


@dataclass(frozen=True)
class Answer:
    """One question of the diagnosis with its answer."""

    question: str
    sentence: str
    """The answer in plain words."""
    evidence: tuple[str, ...]
    """Sentences with the numbers that support the answer."""


def answers(diagnosis: Diagnosis) -> tuple[Answer, ...]:
    """Return the five questions with their answers."""
    return (
        _differ(diagnosis),
        Answer("In what do they differ?", _kind(diagnosis.shift), tuple(_aspects(diagnosis))),
        Answer("Groups, or a smooth spread?", diagnosis.structure.sentence, tuple(_form(diagnosis.structure))),
        _known(diagnosis),
        Answer("What should be done?", _action(diagnosis.recommendation), (diagnosis.recommendation.reason,)),
    )


def python_call(recommendation: Recommendation) -> str:
    """Return the call of `fit` that follows the recommendation."""
    options = "".join(f", {name}={value!r}" for name, value in recommendation.settings().items())
    return f'coterie.fit(data, "{recommendation.method}"{options})'


def as_text(diagnosis: Diagnosis) -> str:
    """Return the whole diagnosis as text for a console, with the call of `fit` at its end."""
    lines = [subject(diagnosis)]
    for answer in answers(diagnosis):
        lines += ["", answer.question, *(f"  {sentence}" for sentence in (answer.sentence, *answer.evidence))]
    lines += [f"  {python_call(diagnosis.recommendation)}"]
    lines += [f"Note: {warning}" for warning in diagnosis.warnings]
    return "\n".join(lines)


def subject(diagnosis: Diagnosis) -> str:
    """Return one sentence about the data and the model that was tested."""
    facts = diagnosis.facts
    target = f", target {facts.target}" if facts.target else ""
    kind = "regression" if facts.classes is None else f"classification into {facts.classes} classes"
    return (
        f"{facts.name}: {facts.clients:,} clients with {facts.samples:,} samples ({facts.smallest:,} to "
        f"{facts.largest:,} each, median {facts.median:,g}), {plural(facts.features, 'feature')}, {kind}{target}."
    )


def _differ(diagnosis: Diagnosis) -> Answer:
    """Return whether one model fits all clients."""
    test = diagnosis.shift.model
    if test.rejects:
        sentence = f"Yes. One model does not fit all clients ({p_text(test.p_value)})."
        spread = f"is {with_interval(test.effect)}"
    else:
        sentence = f"No difference was found: one model fits all clients ({p_text(test.p_value)})."
        spread = f"is at most {number(test.effect.high)} with 95 % confidence"
    evidence = f"The standard deviation of predictions between clients, in {test.unit}, {spread}."
    return Answer("Do the clients differ?", sentence, (evidence,))


def _kind(shift: Shift) -> str:
    """Return the kind of shift; the test of the model may find a difference that no test of one aspect confirms."""
    if shift.kind == "none" and shift.model.rejects:
        return "It is unclear in what the clients differ: no aspect alone shows a clear difference."
    return shift.sentence


def _aspects(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield one sentence for each aspect in which clients can differ."""
    shift = diagnosis.shift
    for name, test in (("Relation", shift.relation), ("Features", shift.features), ("Labels", shift.labels)):
        yield f"{name}: {aspect_text(test, shift.level)}."


def verdict(test: ShiftTest, level: float) -> str:
    """Return whether an aspect differs: clearly at a quarter of the level, because there are four such tests."""
    if not test.rejects:
        return "no difference found"
    return "different" if test.p_value < level / 4 else "unclear"


def aspect_text(test: ShiftTest, level: float) -> str:
    """Return whether an aspect differs, with its p-value and effect."""
    return f"{verdict(test, level)} ({p_text(test.p_value)}; effect {with_interval(test.effect)}, in {test.unit})"


def _form(structure: Structure) -> Iterator[str]:
    """Yield a comparison of the best number of groups with a smooth spread."""
    if structure.candidates and structure.continuum is not None:
        best = min(structure.candidates, key=lambda candidate: candidate.criterion)
        behind = structure.continuum - best.criterion
        better, worse = f"{plural(best.clusters, 'group')}", "a smooth spread"
        if behind < 0:
            better, worse = worse, better
        yield f"The criterion prefers {better} to {worse} by {number(abs(behind))}; 10 is decisive."


def _known(diagnosis: Diagnosis) -> Answer:
    """Return which clients can be placed in a group, and the expected gain of groups."""
    return Answer("What can be known?", _placed(diagnosis), tuple(_gained(diagnosis)))


def _placed(diagnosis: Diagnosis) -> str:
    power, clients = diagnosis.power, diagnosis.facts.clients
    if diagnosis.structure.kind == "unclear":
        return "Groups cannot be distinguished from a smooth spread, so that no client can be placed in a group."
    if power.separation is None or not power.curve:
        return "There are no groups in which clients could be placed."
    needed = (
        "and no number of samples up to the largest client is enough for the others"
        if power.samples_needed is None
        else f"and a client needs about {power.samples_needed:,} samples for that"
    )
    return (
        f"{power.placed:,} of {plural(clients, 'client')} can be placed in a group with a probability of at least "
        f"95 %, {needed} (the nearest groups differ by {number(power.separation)}, in {power.unit})."
    )


def _gained(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the expected gain of groups, or an upper bound if no groups were tried."""
    gain = diagnosis.gain
    if gain.clusters is not None:
        yield (
            f"Expected gain of {plural(gain.clusters, 'group')} over one model, by cross-validation: "
            f"{with_interval(gain.over_one)}, from a {gain.unit} of {number(gain.one_model)}."
        )
        yield f"Expected gain over one model per client: {with_interval(gain.over_local)}."
    elif gain.most_over_one >= gain.one_model:
        yield "The gain of personalisation over one model has no useful upper bound."
    else:
        yield (
            f"No personalisation is expected to gain more than {number(gain.most_over_one)} over one model, from a "
            f"{gain.unit} of {number(gain.one_model)}, with 95 % confidence."
        )
    if gain.personal is not None and gain.personal.low > 0 and model_differs(diagnosis.shift):
        # without a difference, shrinking gains by avoiding an overfitted model, not by personalisation
        yield f"Expected gain of one model per client that is shrunken to the others: {with_interval(gain.personal)}."


def _action(recommendation: Recommendation) -> str:
    options = listed([f"{name} = {value}" for name, value in recommendation.settings().items()])
    method = f"the method {recommendation.method}" + (f" with {options}" if options else "")
    return f"Do not cluster: use {method}." if recommendation.do_not_cluster else f"Use {method}."


# ---- numbers in sentences ----------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent where that stays short."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    return f"{value:.2e}" if size < -4 or size > 6 else f"{value:,.{max(0, 2 - size)}f}"


def with_interval(estimate: Estimate) -> str:
    """Return an estimate followed by its 95 % interval."""
    value, low, high = in_step(estimate)
    return f"{value} (95 % interval {low} to {high})"


def in_step(estimate: Estimate) -> tuple[str, str, str]:
    """Return the estimate and the ends of its interval with equal decimals, chosen by the length of the interval."""
    ends = (estimate.value, estimate.low, estimate.high)
    length = estimate.high - estimate.low
    if not all(map(math.isfinite, ends)) or not LEAST_LENGTH < length < MOST_LENGTH:
        return number(ends[0]), number(ends[1]), number(ends[2])
    decimals = max(0, 1 - math.floor(math.log10(length)))
    value, low, high = (f"{round(end, decimals) + 0.0:,.{decimals}f}" for end in ends)
    return value, low, high


def p_text(p_value: float) -> str:
    """Return a p-value as text."""
    return f"p ≤ {LEAST_P:g}" if p_value <= LEAST_P * 1.001 else f"p = {p_value:.2g}"


def plural(count: int, noun: str) -> str:
    """Return `1 client`, `2 clients`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"
