"""The section about whether clusters are worth it: the table of alternatives and the verdict in words."""

from __future__ import annotations

from typing import Any

from coterie.evaluate.baselines import PHRASES, POOLED, RUN, Baselines, Candidate, Difference, number
from coterie.report.formats import ABSENT, plural, score, signed
from coterie.report.reading import RunData
from coterie.training.result import BASELINES

VERDICTS = {"better": "better", "worse": "worse", "same": "within noise"}
"""Words under the title `this run is`."""
SHORT = {
    "better": "their models predict better than one model for all ({figures})",
    "same": "one model for all predicts as well, as far as the data show ({figures})",
    "worse": "one model for all predicts better ({figures})",
}


def baselines_of(run: RunData) -> Baselines | None:
    """Return the stored comparison of a run with other models; None if it has none."""
    stored = run.metrics.get(BASELINES)
    return None if stored is None else Baselines.from_json(stored)


def section(run: RunData) -> dict[str, Any] | None:
    """Return the section about the alternatives; None where the run has no such comparison."""
    found = baselines_of(run)
    if found is None:
        return None
    columns = ("log loss", "AUC", "accuracy") if found.classification else ("RMSE", "R²")
    mean = "mean accuracy over clients" if found.classification else "mean RMSE over clients"
    return {
        "sentences": found.sentences(),
        "columns": [*columns, mean, "difference to this run"],
        "rows": [_row(found, each) for each in found.candidates],
        "how": _how(found),
        "verdicts": found.clustered,
    }


def table_rows(found: Baselines) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the comparison for the terminal."""
    columns = ["log loss", "AUC"] if found.classification else ["RMSE", "R²"]
    last = ["this run is"] * found.clustered
    rows = [
        [row["name"], *row["cells"][:2], row["cells"][-1], *[row["verdict"]] * found.clustered]
        for row in (_row(found, each) for each in found.candidates)
    ]
    return ["model", *columns, "difference (95 % interval)", *last], rows


def headline(found: Baselines) -> str:
    """Return the verdict against one model in a clause, and against the best alternative if that wins."""
    pooled, best = found.difference(POOLED), found.best_alternative
    if pooled.low is None:
        return ""
    if found.caution:
        return "one model for all predicts almost without error, so a feature probably holds the target"
    line = SHORT[pooled.verdict].format(figures=found.figures(RUN, POOLED))
    if best.key == POOLED or found.difference(best.key).verdict != "worse":
        return line
    winner = f"{PHRASES[best.key]} predicts better than the clusters ({found.figures(best.key, RUN)})"
    return f"{line}, but {winner}" if pooled.verdict == "better" else winner


def _row(found: Baselines, each: Candidate) -> dict[str, Any]:
    gap = next((gap for gap in found.differences if gap.key == each.key), None)
    if found.classification:
        cells = [number(each.loss), _index(each.auc), score(each.accuracy, "accuracy")]
    else:
        cells = [number(each.rmse), _index(each.r2)]
    mean = score(each.per_client, "accuracy" if found.classification else "rmse")
    return {
        "name": each.name,
        "main": each.key == RUN,
        "cells": [*cells, mean, ABSENT if gap is None else _interval(gap)],
        "verdict": "" if gap is None or gap.low is None or not found.clustered else VERDICTS[gap.verdict],
        "kind": "" if gap is None else gap.verdict,
    }


def _index(value: float | None) -> str:
    return ABSENT if value is None else signed(f"{value:.3f}")


def _interval(gap: Difference) -> str:
    if gap.low is None or gap.high is None:
        return signed(number(gap.value))
    value, low, high = map(signed, gap.texts())
    return f"{value} ({low} to {high})"


def _how(found: Baselines) -> str:
    rate = (
        ""
        if found.base_rate is None
        else f" The most frequent class has {100 * found.base_rate:.1f} % of the training samples."
    )
    what = "log loss" if found.classification else "RMSE"
    fitted = (
        "Site intercepts are fixed, with a weak penalty; those of the mixed model are penalised by a variance that is "
        "estimated"
        if found.classification
        else "Site intercepts are fixed; those of the mixed model are random, fitted by restricted maximum likelihood"
    )
    spread = "" if found.deviation is None else f" (their standard deviation is {number(found.deviation)})"
    return (
        f"All models were fitted to the same training samples and predict the same {found.samples} held-out samples of "
        f"{plural(len(found.clients), 'client')}.{rate} Differences are those of the {what}, positive where this run "
        f"is better; their 95 % intervals take clients as independent. {fitted}{spread}. A model of a site alone needs "
        f"three training rows for each coefficient: {_alone(found)}."
    )


def _alone(found: Baselines) -> str:
    """Return the number of clients with enough rows for a local model, in words."""
    clients = len(found.clients)
    if found.alone == clients:
        return "every client has them"
    return f"{found.alone} of {plural(clients, 'client')} have them, the others use the model for all"
