"""What to do: a small table from what was found to a method."""

from __future__ import annotations

from coterie.diagnosis.values import Gain, Power, Recommendation, Setting, Shift, Structure

RESTARTS = 10
"""Random first models of ifca of which the best is kept; fewer often miss a group."""
WORTHWHILE = 0.05
"""Share of the loss of one model below which a gain is called small."""


def recommend(shift: Shift, structure: Structure, power: Power, gain: Gain, regression: bool) -> Recommendation:
    """Return the method that suits the findings, with the reason in a sentence."""
    if structure.kind == "groups" and shift.kind != "labels":
        return _groups(structure, power, gain)
    most = f"{gain.most_over_one:.3g} of {gain.one_model:.3g} {gain.unit}"
    if structure.kind == "one":
        if gain.most_over_one > WORTHWHILE * gain.one_model:
            return _one_model(
                f"No difference in the relation was found, but there are too few samples to exclude a gain of up to "
                f"{most}: train one model, and diagnose again with more samples."
            )
        if shift.kind in ("labels", "features"):
            return _one_model(
                f"Only the {shift.kind} differ: one model learns from all clients; groups could gain at most {most}."
            )
        return _one_model(f"One model fits all clients: groups could gain at most {most}, with 95 % confidence.")
    if shift.kind == "labels":
        return _fine_tuned(
            "Only the frequency of the labels differs, which moves the intercept of each client: one model that every "
            "client fine-tunes adapts to that, and the slopes are learned from all clients."
        )
    if structure.kind == "continuum":
        better = "a linear mixed model, or one model that every client fine-tunes," if regression else ""
        better = better or "one model that every client fine-tunes"
        return _fine_tuned(
            f"The clients differ smoothly and do not form groups: {better} fits that better than clusters."
        )
    return _fine_tuned(
        "The clients differ, but there are too few samples to tell groups from a smooth spread: train one model that "
        "every client fine-tunes, and diagnose again with more samples for each client."
    )


def _groups(structure: Structure, power: Power, gain: Gain) -> Recommendation:
    count = structure.clusters or 1
    share = gain.over_one.value / gain.one_model
    if gain.over_one.low <= 0:
        return _one_model(
            f"The clients seem to form {count} groups, but a model for each may gain nothing: the expected gain is "
            f"{gain.over_one.value:.3g} {gain.unit}, between {gain.over_one.low:.3g} and {gain.over_one.high:.3g}."
        )
    needed = power.samples_needed
    placing = "" if needed is None else f"; a client needs about {needed} samples to be placed"
    reason = (
        f"There are {count} groups, and a model for each is expected to lower the {gain.unit} by "
        f"{gain.over_one.value:.3g} ({100 * share:.0f} % of that of one model){placing}."
    )
    return Recommendation(
        "ifca",
        (Setting("clusters", count), Setting("restarts", RESTARTS)),
        ("--method", "ifca", "--clusters", str(count), "--restarts", str(RESTARTS)),
        False,
        reason,
    )


def _one_model(reason: str) -> Recommendation:
    return Recommendation("fedavg", (), ("--method", "fedavg"), True, reason)


def _fine_tuned(reason: str) -> Recommendation:
    return Recommendation("fedavg", (Setting("finetune", 5),), ("--method", "fedavg", "--finetune", "5"), True, reason)
