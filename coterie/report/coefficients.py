"""The section about the coefficients of linear and logistic models, as words, rows and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.report.figures.forest import forest
from coterie.report.figures.svg import colour
from coterie.report.formats import ABSENT, listed, plain, plural, signed
from coterie.report.reading import RunData
from coterie.training.records import Metrics
from coterie.training.result import GROUPS, REGRESSION

MOST = 30
"""Largest number of coefficients that are shown one by one."""
SLACK = 0.02
"""Share of the loss by which that of the run's models may exceed the smallest possible one."""
CLIENTS_ARE_INDEPENDENT = "clients count as independent of each other, the samples of one client do not"
SAMPLES_ARE_INDEPENDENT = "every sample counts as independent, for want of more clients than coefficients"
COLLINEAR = "features are collinear: coefficients that the data do not determine have no interval"
"""Notes on the errors of the coefficients of some clusters."""
MOST_LINES = 240
"""Largest number of intervals in the figure; with more, only the table is shown."""


def section(run: RunData) -> dict[str, Any] | None:
    """Return the section about the coefficients; None where the run has none."""
    found = run.metrics.get(REGRESSION)
    if not found:
        return None
    names, used = found["names"], [row for row in found["clusters"] if row["clients"]]
    shown, odds = len(names) <= MOST, "classes" in found
    drawn = shown and len(names) * len(used) <= MOST_LINES
    label = f"Coefficients of {plural(len(used), 'cluster')} with their intervals"
    scaled = comparable(found, used, run.metrics.get(GROUPS) or {})
    drawn_names, drawn_rows = scaled or (names, used)
    return {
        "count": len(names),
        "odds": odds,
        "level": f"{100 * found['level']:g} %",
        "svg": forest(drawn_names, drawn_rows, label) if drawn else None,
        "scaled": scaled is not None,
        "legend": [(row["cluster"], colour(row["cluster"]), _about(row, odds)) for row in used],
        "notes": _notes(used),
        "guides": _guides(found),
        "clusters": [row["cluster"] for row in used],
        "rows": table_rows(found) if shown else [],
    }


def comparable(
    found: Mapping[str, Any], used: Sequence[Mapping[str, Any]], groups: Mapping[str, Any]
) -> tuple[list[str], list[dict[str, Any]]] | None:
    """Return names and rows of the coefficients for one standard deviation of each feature, without intercepts.

    Features in different units and an intercept far from the data do not fit on one axis.

    Returns:
        None if the coefficients are not in original units, or the standard deviation of no feature is known.
    """
    if found.get("units") != "original":
        return None
    spread = dict(zip(groups.get("features", ()), groups.get("deviations", ()), strict=True))
    several = "classes" in found and len(found["classes"]) > 2
    features = [name.rpartition(": ")[2] if several else name for name in found["names"]]
    kept = [j for j, feature in enumerate(features) if spread.get(feature) is not None]
    if not kept:
        return None

    def times(values: Sequence[float | None]) -> list[float | None]:
        return [None if (value := values[j]) is None else value * spread[features[j]] for j in kept]

    rows = [dict(row) | {key: times(row[key]) for key in ("estimate", "low", "high")} for row in used]
    return [found["names"][j] for j in kept], rows


def could_fit_better(metrics: Metrics) -> str:
    """Return a caution if the models fit the training samples of their groups clearly less well than they could."""
    found = metrics.get(REGRESSION) or {}
    behind, loss = found.get("behind"), found.get("loss")
    if behind is None or loss is None or behind <= SLACK * loss:
        return ""
    return (
        f"the models of this run fit the training samples of their groups less well than they could: mean loss "
        f"{plain(loss + behind)} against {plain(loss)} for the best models of the same groups; more rounds, a larger "
        "learning rate or averaging by samples may help"
    )


def table_rows(found: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return for each coefficient its name, and its estimate and interval in each cluster in use as text."""
    used = [row for row in found["clusters"] if row["clients"]]
    return [(name, [_figures(row, j) for row in used]) for j, name in enumerate(found["names"])]


def _figures(row: Mapping[str, Any], j: int) -> tuple[str, str]:
    """Return estimate and interval with decimals by the width of the interval, such as `0.31` and `0.14 to 0.48`."""
    estimate, low, high = (row[key][j] for key in ("estimate", "low", "high"))
    if low is None or high is None:
        return plain(estimate), ABSENT
    size = math.floor(math.log10(high - low)) if high > low else -2
    if not -5 < size < 6:
        return plain(estimate), f"{plain(low)} to {plain(high)}"
    one, two, three = (signed(f"{value:.{max(0, 1 - size)}f}") for value in (estimate, low, high))
    return one, f"{two} to {three}"


def _about(row: Mapping[str, Any], odds: bool) -> str:
    words = f"{plural(row['clients'], 'client')}, {plural(row['samples'], 'sample')}"
    return words if row["sigma"] is None or odds else f"{words}, noise {plain(row['sigma'])}"


def _notes(used: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on the standard errors and on coefficients that the data do not determine."""
    kinds = (
        ([row for row in used if row["unit"] == "clients"], CLIENTS_ARE_INDEPENDENT),
        ([row for row in used if row["unit"] == "samples"], SAMPLES_ARE_INDEPENDENT),
        ([row for row in used if row["collinear"]], COLLINEAR),
    )
    notes = [_of_clusters(rows, text, several=len(used) > 1) for rows, text in kinds if rows]
    return notes + [f"Cluster {row['cluster']} has no intervals: {row['why']}." for row in used if row["why"]]


def _of_clusters(rows: Sequence[Mapping[str, Any]], text: str, several: bool) -> str:
    """Return a note with the clusters that it is about, which are not named if there is one only."""
    if not several:
        return f"{text[0].upper()}{text[1:]}."
    return f"In cluster{'s' if len(rows) > 1 else ''} {listed([str(row['cluster']) for row in rows])}, {text}."


def _guides(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and meaning of the figures that the theory is about, as far as they are known."""
    nu = found.get("floor") or {}
    every = [
        ("noise", found.get("sigma"), "residual standard deviation over all clusters"),
        ("separation", found.get("separation"), "least distance between two models"),
        ("skewness", found.get("skewness"), "chi-squared skewness of the sample sizes; 0 when all are equal"),
        ("gamma", found.get("gamma"), "step size times the largest curvature of a client; below 1 for the theory"),
        ("kappa", found.get("kappa"), "how far local steps stray; 1 is best"),
        ("nu", nu.get("nu"), _about_nu(nu)),
        ("error", nu.get("error"), "distance to the true models that nu leads to, constants taken as 1"),
    ]
    return [(name, plain(value), meaning) for name, value, meaning in every if value is not None]


def _about_nu(nu: Mapping[str, Any]) -> str:
    says = "; from 1 on it says nothing" if nu.get("nu", 0) >= 1 else ""
    return f"share of samples in a wrong cluster that the theory allows for, constants taken as 1{says}"
