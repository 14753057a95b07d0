"""The section about the clients' own solutions: how the clusters were found, and whether they can be trusted."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.report.clusterpath import clusterpath
from coterie.report.descent import closeness
from coterie.report.formats import plain, plural
from coterie.report.reading import RunData

MOST_DRAWN = 1500
"""Largest number of points of a path in a picture."""


def section(run: RunData) -> dict[str, Any] | None:
    """Return sentences and the picture of a path; None if the run was not initialised with solutions."""
    found = run.metrics.get("one_shot")
    if not found or not found.get("separation"):
        return None
    return {"sentences": sentences(found), "cautions": found["warnings"], "picture": _picture(found)}


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return sentences about the clustering: how it was found, the distances, and the conditions of the theory."""
    return [text for text in (_solved(found), _counted(found), _convex(found), _apart(found), _theory(found)) if text]


def _solved(found: Mapping[str, Any]) -> str:
    without = found["without_solution"]
    rest = f" {plural(without, 'client')} had none and joined the cluster that fits best." if without else ""
    how = {"exact": "exactly", "sgd": "by projected stochastic gradients", "steps": "by local steps from one model"}
    many = plural(found["solved"], "client")
    return (
        f"{many} solved their own problems {how[found['solver']]}; {found['clustering']} clustering put the solutions "
        f"into {plural(found['K'], 'cluster')}.{rest}"
    )


def _counted(found: Mapping[str, Any]) -> str:
    counted = found["counted"]
    if not counted:
        return ""
    if counted["rule"] == "held-out":
        first = f" ({counted['tests'][0]['text']})" if counted["tests"] else ""
        return f"The number of clusters was found by tests on halves of the clients' samples{first}."
    scores = ", ".join(f"{K}: {plain(score)}" for K, score in counted["scores"].items())
    return f"The number of clusters was found by the {counted['rule']} ({scores})."


def _convex(found: Mapping[str, Any]) -> str:
    convex = found["convex"]
    if not convex:
        return ""
    proved = "proved" if convex["certified"] else "not proved"
    return (
        f"Lambda is {plain(convex['lam'])}; that this is its partition is {proved} (duality gap {convex['gap']:.1e})."
    )


def _apart(found: Mapping[str, Any]) -> str:
    apart = found["separation"]
    if apart["nearest_clusters"] is None:
        return ""
    one, other = apart["nearest_clusters"]
    alpha = "infinite" if apart["alpha"] is None else plain(apart["alpha"])
    return (
        f"Separation {alpha}: the nearest centres (clusters {one} and {other}) are {plain(apart['centre_distance'])} "
        f"apart, the widest cluster has radius {plain(max(apart['radii']))}; above 1 the clusters are separable."
    )


def _theory(found: Mapping[str, Any]) -> str:
    apart = found["separation"]
    if apart["recoverable_by_13"] is None:
        return ""
    if apart["recoverable_by_13"]:
        return "Condition (13) holds: convex clustering is guaranteed to give these clusters for a range of lambda."
    return (
        "Condition (13), which would guarantee that convex clustering gives these clusters, does not hold; it is far "
        "from necessary."
    )


def _picture(found: Mapping[str, Any]) -> str:
    """Return an SVG file as a data address, which keeps its styles separate; empty if there is nothing to draw."""
    path = (found["convex"] or {}).get("path") or {}
    if not path.get("tree") or len(path["labels"]) > MOST_DRAWN:
        return ""
    drawn = clusterpath(
        np.array(path["tree"]), path["lambdas"], path["K"], path["selected"], path["labels"], path["clients"]
    )
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()


def grouped(metrics: Mapping[str, Any]) -> str | None:
    """Return a line about the grouping of clients before the first round; None if there was none."""
    found = metrics.get("grouping")
    if not found:
        return None
    nearest = found.get("nearest")
    apart = "" if nearest is None else f", those of two groups at least {nearest:.1f} degrees apart"
    diverged = found.get("diverged")
    joined = f", {diverged} that diverged joined by their loss" if diverged else ""
    sent = f"{found['bytes_up'] / 1e6:.2f} MB up"
    return f"{found['answered']} clients by {found['by']}{apart}{joined}{_cuts(found)}; {sent}"


def _cuts(found: Mapping[str, Any]) -> str:
    """Return words such as `, cut once by 3 tests; closest of the others: p ...`; empty where no tests decided."""
    tests = found.get("tests") or []
    if not tests:
        return ""
    others = [test for test in tests if not test["value"] < test["threshold"]]
    cuts = len(tests) - len(others)
    cut = f"cut {plural(cuts, 'time')} by {plural(len(tests), 'test')}" if cuts else "never cut"
    rest = f"; closest {'of the others' if cuts else 'test'}: {max(others, key=closeness)['text']}" if others else ""
    return f", {cut}{rest}"
