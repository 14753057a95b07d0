"""The section about the groups: size, labels and the sentence about each, and the table of profiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.evaluate.baselines import number
from coterie.evaluate.groups import GroupProfile, Groups
from coterie.report.figures.svg import colour
from coterie.report.formats import ABSENT, listed, plain, plural, score, signed
from coterie.report.reading import RunData
from coterie.training.records import Metrics
from coterie.training.result import GROUPS, REGRESSION

SHOWN = 12
"""Features in the table of profiles that are shown at once, those in which groups differ most."""
MOST_CLASSES = 8
"""Classes whose shares are shown."""


def section(run: RunData) -> dict[str, Any] | None:
    """What the page says about the groups; None where the run has fewer than two."""
    clusters = sorted({row.cluster for row in run.clients})
    if len(clusters) < 2:
        return None
    stored = run.metrics.get(GROUPS)
    found = None if stored is None else Groups.from_json(stored)
    rows = [] if found is None else profile_rows(found)
    return {
        "cards": [_card(run, cluster, found) for cluster in clusters],
        "clusters": clusters,
        "first": rows[:SHOWN],
        "rest": rows[SHOWN:],
    }


def sentences(metrics: Metrics) -> dict[int, str]:
    """Return for each cluster the coefficients in which it differs clearly, in words; empty where nothing is known."""
    stored, coefficients = metrics.get(GROUPS), metrics.get(REGRESSION)
    if stored is None or coefficients is None:
        return {}
    return Groups.from_json(stored).sentences(coefficients)


def _card(run: RunData, cluster: int, found: Groups | None) -> dict[str, Any]:
    rows = [row for row in run.clients if row.cluster == cluster]
    scores = [row.score for row in rows if row.score is not None]
    words = sentences(run.metrics).get(cluster, "")
    profile = None if found is None else next((p for p in found.profiles if p.cluster == cluster), None)
    name = "accuracy" if run.higher_is_better else "RMSE"
    facts = [f"{plural(len(rows), 'client')}, {plural(sum(row.n for row in rows), 'training row')}"]
    if scores:
        facts.append(f"mean {name} {score(float(np.mean(scores)), run.score_name)}")
    if found is not None and profile is not None:
        facts.append(_labels(found, profile))
    return {
        "cluster": cluster,
        "colour": colour(cluster),
        "facts": facts,
        "sentence": f"{words[0].upper()}{words[1:]}." if words else "",
    }


def _labels(found: Groups, profile: GroupProfile) -> str:
    if profile.target is not None:
        return f"mean {found.target or 'target'} {number(profile.target)}"
    shares = [(share, name) for share, name in zip(profile.shares, found.classes, strict=True)]
    if len(shares) == 2:
        return f"{100 * shares[1][0]:.1f} % {shares[1][1]}"
    most = sorted(shares, reverse=True)[:2]
    return "mostly " + listed([f"{name} ({100 * share:.0f} %)" for share, name in most])


def profile_rows(found: Groups) -> list[dict[str, Any]]:
    """Return the table of profiles: labels first, then features, those in which groups differ most first."""
    rows = []
    if found.profiles[0].target is not None:
        values = [p.target for p in found.profiles if p.target is not None]
        total = sum(p.samples for p in found.profiles)
        mean = sum(v * p.samples for v, p in zip(values, found.profiles, strict=True)) / total
        rows.append({"name": found.target or "target", "cells": [(plain(v), "") for v in values], "all": plain(mean)})
    for at, name in enumerate(found.classes[:MOST_CLASSES]):
        shares = [p.shares[at] for p in found.profiles]
        total = sum(p.samples for p in found.profiles)
        mean = sum(s * p.samples for s, p in zip(shares, found.profiles, strict=True)) / total
        label = f"{found.target or 'class'} = {name}"
        cells = [(f"{100 * s:.1f} %", "") for s in shares]
        rows.append({"name": label, "cells": cells, "all": f"{100 * mean:.1f} %"})
    gaps = []
    for j, name in enumerate(found.features):
        spread = found.deviations[j]
        values = [p.means[j] for p in found.profiles]
        if spread is None or found.means[j] is None or None in values:  # sums that overflowed
            continue
        effects = [(value - found.means[j]) / spread if spread > 0 else 0.0 for value in values]
        cells = [(plain(value), _side(effect)) for value, effect in zip(values, effects, strict=True)]
        gaps.append((-max(map(abs, effects)), j, {"name": name, "cells": cells, "all": plain(found.means[j])}))
    return rows + [row for _, _, row in sorted(gaps, key=lambda each: each[:2])]


def _side(effect: float) -> str:
    """Return by how many standard deviations a mean differs, where that is at least a fifth; else nothing."""
    return "" if abs(effect) < 0.2 else signed(f"{effect:+.1f} sd")


def reference_note(run: RunData) -> str:
    """Return which level of each categorical column, and which class, coefficients are measured against."""
    found = run.metrics.get(REGRESSION) or {}
    parts = [f"{column} = {level}" for column, level in (found.get("references") or {}).items()]
    notes = [f"Reference levels: {listed(parts)}."] if parts else []
    if found.get("reference") is not None:
        target = f"{found['target']} = " if found.get("target") else ""
        notes.append(
            f"Coefficients are log-odds against {target}{found['reference']}; exp(coefficient) is an odds ratio."
        )
    if found.get("units") == "standardised":
        notes.append("Features are standardised.")
    return " ".join(notes) or ABSENT
