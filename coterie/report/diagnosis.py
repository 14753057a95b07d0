"""The diagnosis as one HTML page that needs no script and no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from coterie.diagnosis.answers import answers, in_step, p_text, python_call, subject, verdict, with_interval
from coterie.diagnosis.values import ClientDiagnosis, Diagnosis, Estimate, Shift, ShiftTest, Structure
from coterie.report.figures import client_scatter
from coterie.report.figures.client_forest import client_forest
from coterie.report.figures.criterion import criterion_figure
from coterie.report.figures.power import power_figure
from coterie.report.figures.svg import colour
from coterie.report.formats import ABSENT, megabytes, plain, plural, seconds, signed
from coterie.report.template import asset, template
from coterie.training.runs.outputs import write_output

MOST_ROWS = 1000
"""Largest number of clients in the table; diagnosis.json has all clients."""


def write_diagnosis(diagnosis: Diagnosis, path: Path, command: str | None = None) -> Path:
    """Write the page of a diagnosis.

    Args:
        diagnosis: The diagnosis.
        path: The file to write.
        command: Command that follows the recommendation; by default the call in Python.

    Returns:
        The path of the file.
    """
    write_output(path, render(diagnosis, command or python_call(diagnosis.recommendation)))
    return path


def render(diagnosis: Diagnosis, command: str) -> str:
    """Return the page as text."""
    return template("diagnosis.html").render(
        style=Markup(asset("page.css") + asset("diagnosis.css")),
        command=command,
        plural=plural,
        **_words(diagnosis),
        **_figures(diagnosis),
        **_tables(diagnosis),
    )


def _words(diagnosis: Diagnosis) -> dict[str, Any]:
    cost = diagnosis.cost
    found = answers(diagnosis)
    return {
        "facts": diagnosis.facts,
        "seed": diagnosis.seed,
        "headline": headline(diagnosis),
        "subject": subject(diagnosis),
        "warnings": diagnosis.warnings,
        "answers": found,
        "structure_sentence": diagnosis.structure.sentence,
        "known": found[3].sentence,
        "level": f"{100 * diagnosis.shift.level:g} %",
        "unit": diagnosis.shift.model.unit,
        "cost": (
            f"{plural(cost.exchanges, 'exchange')} with the clients, {megabytes(cost.bytes_up)} MB up, "
            f"{megabytes(cost.bytes_down)} MB down, {seconds(cost.seconds)}."
        ),
    }


def headline(diagnosis: Diagnosis) -> str:
    """Return the recommendation in one sentence."""
    recommendation, clusters, gain = diagnosis.recommendation, diagnosis.structure.clusters, diagnosis.gain
    if recommendation.do_not_cluster or clusters is None or gain.one_model <= 0:
        return f"{'Do not cluster. ' if recommendation.do_not_cluster else ''}{recommendation.reason}"
    lowered = f"{100 * gain.over_one.value / gain.one_model:.0f} %"
    groups = f"The clients form {plural(clusters, 'group')}"
    return f"{groups}; a model for each is expected to lower the {gain.unit} by {lowered}."


def _figures(diagnosis: Diagnosis) -> dict[str, Any]:
    clients, power = diagnosis.clients, diagnosis.power
    forest = client_forest(clients, diagnosis.shift.model.unit, "Deviation of clients from the pooled model")
    return {
        "forest": forest,
        "shown": len(clients) - len(forest.others),
        "map": client_scatter.client_scatter(clients, f"Map of {plural(len(clients), 'client')}, coloured by group"),
        "undrawn": max(0, len(clients) - client_scatter.SHOWN),
        "power": power_figure(power, [client.samples for client in clients], "Power against number of samples")
        if power.curve
        else None,
        "criterion": _criterion(diagnosis.structure),
    }


def _criterion(structure: Structure) -> dict[str, Any] | None:
    """Return the figure and the table of the criteria, ordered by the number of groups."""
    if len(structure.candidates) < 2:
        return None
    values = [(plural(each.clusters, "group"), each.criterion, each.clusters) for each in structure.candidates]
    best = min(value for _, value, _ in values)
    rows = [(name, value, clusters == structure.clusters) for name, value, clusters in values]
    if structure.continuum is not None:
        best = min(best, structure.continuum)
        rows.append(("smooth spread", structure.continuum, structure.kind == "continuum"))
    return {
        "svg": criterion_figure(structure, f"Criterion of 1 to {plural(len(structure.candidates), 'group')}"),
        "rows": [(name, plain(value - best), chosen) for name, value, chosen in rows],
    }


def _tables(diagnosis: Diagnosis) -> dict[str, Any]:
    shift, clients = diagnosis.shift, diagnosis.clients
    named = {
        "One model for all clients": shift.model,
        "Relation between features and target": shift.relation,
        "Features": shift.features,
        "Labels": shift.labels,
        "Features at equal labels": shift.conditional,
    }
    largest = sorted(clients, key=lambda client: -client.samples)
    return {
        "tests": [_test_row(name, test, diagnosis.shift) for name, test in named.items()],
        "legend": _legend(clients),
        "clients": [_client_row(client) for client in largest[:MOST_ROWS]],
        "unlisted": len(clients) > MOST_ROWS,
        "gains": _gains(diagnosis),
    }


def _test_row(name: str, test: ShiftTest, shift: Shift) -> dict[str, Any]:
    decides = test is shift.model  # at the whole level; the others share it
    found = ("different" if test.rejects else "no difference found") if decides else verdict(test, shift.level)
    return {
        "name": name,
        "rejects": found == "different",
        "result": found,
        "p_value": p_text(test.p_value).removeprefix("p ").removeprefix("= "),
        "effect": _value(test.effect),
        "interval": _interval(test.effect),
        "unit": test.unit,
    }


def _interval(estimate: Estimate) -> str:
    _, low, high = in_step(estimate)
    return f"{signed(low)} to {signed(high)}"


def _value(estimate: Estimate) -> str:
    return signed(in_step(estimate)[0])


def _legend(clients: tuple[ClientDiagnosis, ...]) -> list[tuple[str, str, int, int]]:
    """Return the name, colour, number of clients and number of certain clients of each group."""
    groups = sorted({client.group for client in clients if client.group is not None})
    members = {group: [client for client in clients if client.group == group] for group in groups}
    return [
        (f"group {group + 1}", colour(group), len(own), sum(client.can_be_placed for client in own))
        for group, own in members.items()
    ]


def _client_row(client: ClientDiagnosis) -> dict[str, Any]:
    return {
        "id": client.id,
        "samples": f"{client.samples:,}",
        "deviation": _value(client.deviation),
        "interval": _interval(client.deviation),
        "distance": plain(client.distance),
        "group": "" if client.group is None else f"group {client.group + 1}",
        "class": "" if client.group is None else colour(client.group),
        "probability": ABSENT if client.probability is None else f"{100 * client.probability:.0f} %",
        "uncertain": client.group is not None and not client.can_be_placed,
    }


def _gains(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the rows of the list of gains: name and value."""
    gain = diagnosis.gain
    rows = [("Loss of one model", f"{plain(gain.one_model)} ({gain.unit})")]
    if gain.clusters is not None:
        rows += [
            (f"Gain of {plural(gain.clusters, 'group')} over one model", with_interval(gain.over_one)),
            ("Gain of groups over one model per client", with_interval(gain.over_local)),
        ]
    if gain.personal is not None:
        rows.append(
            ("Gain of one model per client, shrunken to the others, over one model", with_interval(gain.personal))
        )
    if gain.most_over_one < gain.one_model:
        rows.append(("Upper bound of the gain of any personalisation over one model", plain(gain.most_over_one)))
    return rows
