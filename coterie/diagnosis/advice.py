"""The recommended method, with the reason in a sentence."""

from __future__ import annotations

import math
from typing import Literal

from coterie.diagnosis.values import DataFacts, Gain, Power, Recommendation, Setting, Shift, Structure

RESTARTS = 10
"""Random initial models of ifca of which the best are kept; fewer often miss a group."""
WORTHWHILE = 0.05
"""Share of the loss of one model below which a gain is called small."""
NEARLY = 0.8
"""Share of the gain of a model for each client from which groups are recommended without being certain of them."""

FEWEST_STEPS, MOST_STEPS = 5, 100
"""Limits of the recommended number of local steps for fine-tuning."""
LEAST_NOISE = 1e-9
"""Smallest share of the loss of one model that counts as noise."""
MOST_INFORMATION = 0.25
"""Largest information of one label about its log-odds."""

Learned = Literal["regression", "logistic", "network"]
"""Kind of model: for numbers, for classes of a few features, or for classes of more features than are tested."""


def recommend(
    shift: Shift, structure: Structure, power: Power, gain: Gain, learned: Learned, *, steps: int = FEWEST_STEPS
) -> Recommendation:
    """Return the recommended method.

    Args:
        shift: Tests of the differences.
        structure: Form of the differences.
        power: Samples that a client needs.
        gain: Expected gains.
        learned: Kind of model.
        steps: Number of local steps for fine-tuning.
    """
    if structure.kind == "one":
        return _one_model(_alike(shift, gain))
    if shift.kind == "labels":
        return _fine_tuned(
            "Only the frequency of the labels differs, which moves the intercept of each client: one model that every "
            "client fine-tunes adapts to that, and the slopes are learned from all clients.",
            FEWEST_STEPS if learned == "network" else steps,
        )
    if learned == "network":
        return _found_in_training(structure)
    if structure.kind == "groups" and gain.over_one.low <= 0:
        expected = gain.over_one
        return _one_model(
            f"The clients seem to form {structure.clusters} groups, but a model for each may gain nothing: the "
            f"expected gain is {expected.value:.3g} {gain.unit}, between {expected.low:.3g} and {expected.high:.3g}."
        )
    if structure.kind == "groups":
        return _groups(gain, _certain(structure, power, gain))
    if gain.over_one.low > 0 and gain.personal is not None and gain.over_one.value >= NEARLY * gain.personal.value:
        return _groups(
            gain,
            f"The clients differ, and whether they form groups is unclear. But {gain.clusters} groups are expected "
            f"to lower the {gain.unit} by {_lowered(gain)}, as much as or nearly as much as a model for each client.",
        )
    if structure.kind == "continuum":
        better = (
            "a linear mixed model with random slopes, or one model that every client fine-tunes,"
            if learned == "regression"
            else ""
        )
        better = better or "one model that every client fine-tunes"
        return _fine_tuned(
            f"The clients differ smoothly and do not form groups: {better} fits that better than clusters.",
            steps,
        )
    return _fine_tuned(
        "The clients differ, but there are too few samples to distinguish groups from a smooth spread: train one model "
        "that every client fine-tunes, and diagnose again with more samples for each client.",
        steps,
    )


def tuning_steps(shift: Shift, gain: Gain, facts: DataFacts) -> int:
    """Return the number of local steps by which a client should fine-tune the model of all clients.

    A client with n samples should use the share r / (1 + r) of its own deviation from the model of all, where r is n
    times the variance of the coefficients over that of the noise. In t steps of size 1 / L, gradient descent takes the
    share 1 - exp(-t / L). The default L of a table is the largest mean squared length of a client's rows, with
    standardised features about twice the number of coefficients, so t = L log(1 + r).

    Args:
        shift: Tests of the differences; the effect on the model is the standard deviation of the clients' predictions.
        gain: Expected gains; what a model for each client leaves of the loss is the noise of a regression.
        facts: Facts about the clients.
    """
    effect = shift.model.effect.value**2
    if facts.classes is None:
        left = gain.one_model - (0.0 if gain.personal is None else max(gain.personal.value, 0.0))
        of_a_sample = effect / max(left, LEAST_NOISE * gain.one_model, LEAST_NOISE)
    else:
        of_a_sample = effect * MOST_INFORMATION
    coefficients = facts.features + 1
    steps = 2 * coefficients * math.log1p(facts.median * of_a_sample / coefficients)
    return int(min(max(math.ceil(steps), FEWEST_STEPS), MOST_STEPS))


def _alike(shift: Shift, gain: Gain) -> str:
    most = f"{gain.most_over_one:.3g} of {gain.one_model:.3g} {gain.unit}"
    if gain.most_over_one > WORTHWHILE * gain.one_model:
        return (
            f"No difference in the relation was found, but there are too few samples to exclude a gain of up to "
            f"{most}: train one model, and diagnose again with more samples."
        )
    if shift.kind in ("labels", "features"):
        return f"Only the {shift.kind} differ: one model learns from all clients; groups could gain at most {most}."
    return f"One model fits all clients: groups could gain at most {most}, with 95 % confidence."


def _certain(structure: Structure, power: Power, gain: Gain) -> str:
    needed = power.samples_needed
    placing = "" if needed is None else f"; a client needs about {needed} samples to be placed"
    return (
        f"There are {structure.clusters} groups, and a model for each is expected to lower the {gain.unit} by "
        f"{_lowered(gain)}{placing}."
    )


def _lowered(gain: Gain) -> str:
    share = gain.over_one.value / gain.one_model if gain.one_model > 0 else 0.0
    return f"{gain.over_one.value:.3g} ({100 * share:.0f} % of that of one model)"


def _groups(gain: Gain, reason: str) -> Recommendation:
    count = gain.clusters or 1
    return Recommendation(
        "ifca",
        (Setting("clusters", count), Setting("restarts", RESTARTS)),
        ("--method", "ifca", "--clusters", str(count), "--restarts", str(RESTARTS)),
        False,
        reason,
    )


def _found_in_training(structure: Structure) -> Recommendation:
    """Return the recommendation of the method that compares clients by the features of the trained network.

    A logistic model of a few principal components finds that clients differ, but not always the number of groups.
    """
    found = f"{structure.clusters} groups" if structure.kind == "groups" else "differences that may form groups"
    return Recommendation(
        "hcfl+",
        (),
        ("--method", "hcfl+"),
        False,
        f"A logistic model of the main components of the features finds {found}. hcfl+ compares the clients by the "
        "features that the trained model itself learns, and forms as many groups as these call for.",
    )


def _one_model(reason: str) -> Recommendation:
    return Recommendation("fedavg", (), ("--method", "fedavg"), True, reason)


def _fine_tuned(reason: str, steps: int = FEWEST_STEPS) -> Recommendation:
    arguments = ("--method", "fedavg", "--finetune", str(steps))
    return Recommendation("fedavg", (Setting("finetune", steps),), arguments, True, reason)
