"""The section about the groups: size, labels and the sentence about each, and the table of profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.core.readings import date_text
from coterie.evaluate.baselines import number
from coterie.evaluate.groups import GroupProfile, Groups
from coterie.report.figures.svg import colour
from coterie.report.formats import ABSENT, listed, percent, plain, plural, score, signed
from coterie.report.reading import RunData
from coterie.training.records import Metrics
from coterie.training.result import GROUPS, REGRESSION
from coterie.training.subject import Subject

SHOWN = 12
"""Number of features in the table of profiles that are shown at once: those in which groups differ most."""
MOST_CLASSES = 8
"""Largest number of classes whose shares are shown."""


def section(run: RunData) -> dict[str, Any] | None:
    """Return the section about the groups; None for a run with fewer than two."""
    clusters = sorted({row.cluster for row in run.clients})
    if len(clusters) < 2:
        return None
    stored = run.metrics.get(GROUPS)
    found = None if stored is None else Groups.from_json(stored)
    rows = [] if found is None else profile_rows(found, run.subject)
    return {
        "cards": [_card(run, cluster, found) for cluster in clusters],
        "clusters": clusters,
        "first": rows[:SHOWN],
        "rest": rows[SHOWN:],
    }


def sentences(metrics: Metrics) -> dict[int, str]:
    """Return for each cluster the coefficients in which it differs clearly, in words; empty without coefficients."""
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
        return f"{percent(shares[1][0])} {shares[1][1]}"
    most = sorted(shares, reverse=True)[:2]
    return "mostly " + listed([f"{name} ({100 * share:.0f} %)" for share, name in most])


def profile_rows(found: Groups, subject: Subject | None = None) -> list[dict[str, Any]]:
    """Return the rows of the table of profiles: labels first, then features, those in which groups differ most first.

    Args:
        found: Profiles of the groups.
        subject: Facts about the data, which name the features that are shares or dates.
    """
    return [*_target_row(found), *_class_rows(found), *_feature_rows(found, subject or Subject())]


def _row(name: str, cells: Sequence[tuple[str, str]], total: str) -> dict[str, Any]:
    """Return a row of the table: the text and the remark of each group, and the text of all groups together."""
    return {"name": name, "cells": list(cells), "all": total, "sides": any(side for _, side in cells)}


def _mean(found: Groups, values: Sequence[float]) -> float:
    """Return the mean of a figure over the samples of all groups."""
    total = sum(profile.samples for profile in found.profiles)
    return sum(value * profile.samples for value, profile in zip(values, found.profiles, strict=True)) / total


def _target_row(found: Groups) -> list[dict[str, Any]]:
    values = [profile.target for profile in found.profiles if profile.target is not None]
    if not values:
        return []
    return [_row(found.target or "target", [(plain(value), "") for value in values], plain(_mean(found, values)))]


def _class_rows(found: Groups) -> list[dict[str, Any]]:
    rows = []
    for at, name in enumerate(found.classes[:MOST_CLASSES]):
        shares = [profile.shares[at] for profile in found.profiles]
        cells = [(percent(share), "") for share in shares]
        rows.append(_row(f"{found.target or 'class'} = {name}", cells, percent(_mean(found, shares))))
    return rows


def _feature_rows(found: Groups, subject: Subject) -> list[dict[str, Any]]:
    """Return a row for each feature; features whose sums overflowed are left out."""
    gaps = []
    for j, name in enumerate(found.features):
        values, mean, spread = [profile.means[j] for profile in found.profiles], found.means[j], found.deviations[j]
        if spread is None or mean is None or None in values:
            continue
        effects = [(value - mean) / spread if spread > 0 else 0.0 for value in values]
        form = _form(name, subject)
        cells = [(form(value), _side(effect)) for value, effect in zip(values, effects, strict=True)]
        gaps.append((-max(map(abs, effects)), j, _row(name, cells, form(mean))))
    return [row for _, _, row in sorted(gaps, key=lambda each: each[:2])]


def _form(name: str, subject: Subject) -> Callable[[float], str]:
    """Return the format of the mean of a feature: a share in percent, a date, or a number."""
    origin = dict(subject.dates).get(name)
    if origin is not None:
        return lambda value: date_text(origin + value)
    return percent if name in subject.shares else plain


def _side(effect: float) -> str:
    """Return the difference of a mean in standard deviations if it is at least 0.2; else nothing."""
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
