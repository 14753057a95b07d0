"""Tables of the page as rows of text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.evaluate.baselines import RUN
from coterie.report import privacy
from coterie.report.commands import option_text, scenario_options
from coterie.report.comparison import Comparison, MethodRuns, Spread, gains, mean_scores, spread
from coterie.report.formats import ABSENT, count, like, megabytes, natural, plain, score, seconds, signed, spans
from coterie.report.reading import RunData, typed_method
from coterie.report.worth import baselines_of
from coterie.training.measures import MEASURES, Measure, Unit
from coterie.training.result import REGRESSION

Format = Callable[[float | None], str]

NOTHING = 1e-9
"""Share of the mean below which a standard deviation counts as rounding."""
UNITS = {"%": 100, "ms": 1000, "min": 1 / 60}
"""Factors of the units that a format may choose."""


@dataclass(frozen=True)
class Cell:
    """Figure over seeds, such as `93.7 %` and `± 1.3`."""

    text: str
    spread: str = ""


@dataclass(frozen=True)
class Tile:
    """Number below the headline."""

    name: str
    value: Cell
    note: str = ""


def cell(found: Spread | None, form: Format) -> Cell:
    """Return the mean, and ± the standard deviation of several different seeds."""
    if found is None:
        return Cell(ABSENT)
    text = form(found.mean)
    if not found.sd or found.sd < NOTHING * abs(found.mean):
        return Cell(text)
    if text == ABSENT or "e" in text:  # too large or too small to be written out
        return Cell(text, f"± {plain(found.sd)}")
    # in the unit of the mean, with its decimals
    return Cell(text, f"± {like(UNITS.get(text.rpartition(' ')[2], 1) * found.sd, text)}")


def score_form(found: Comparison) -> Format:
    """Return the format of this comparison's scores."""
    return lambda value: score(value, found.score_name)


def form_of(measure: Measure, found: Comparison) -> Format:
    """Return the format of a measure's values in tables."""
    forms: Mapping[Unit, Format] = {
        "score": score_form(found),
        "share": lambda value: score(value, "accuracy"),
        "index": index_form,
        "count": _count,
    }
    return forms.get(measure.unit, plain)


def index_form(value: float | None) -> str:
    """Return an index from 0 to 1 with two decimals."""
    return ABSENT if value is None else signed(f"{value:.2f}")


def _count(value: float | None) -> str:
    return ABSENT if value is None else count(value)


# ---- headline and methods ------------------------------------------------------------------------------------


def tiles(found: Comparison) -> list[Tile]:
    """Return the row of numbers under the headline, all about the main method."""
    main, form = found.main, score_form(found)
    name = "accuracy" if found.higher_is_better else "RMSE"
    shown = [
        Tile(name, cell(main.over_seeds(found.score_name), form), "mean over clients"),
        Tile(f"{name}, worst-off tenth", cell(main.over_seeds("worst_tenth"), form), "of the clients"),
    ]
    agreement = main.over_seeds("ari")
    if agreement is not None and main.groups in ("found", "truth"):
        shown.append(Tile("agreement with the truth", cell(agreement, index_form), "adjusted Rand index, 1 is perfect"))
    return shown + _pooled_tiles(main)


def _pooled_tiles(main: MethodRuns) -> list[Tile]:
    """Return figures over all held-out samples, if the run was compared with other models."""
    every = [found for run in main.runs if (found := baselines_of(run)) is not None]
    if not every:
        return []
    mine = [found.candidate(RUN) for found in every]
    note = "over all held-out samples"
    if not every[0].classification:
        return [
            Tile("RMSE, pooled", cell(spread(each.rmse for each in mine), plain), note),
            Tile("R²", cell(spread(each.r2 for each in mine), index_form), note),
        ]
    return [
        Tile("AUC", cell(spread(each.auc for each in mine), index_form), note),
        Tile("log loss", cell(spread(each.loss for each in mine), plain), note),
        Tile(
            "base rate",
            cell(spread(found.base_rate for found in every), lambda value: score(value, "accuracy")),
            "share of the most frequent class",
        ),
    ]


def _begins(method: MethodRuns) -> bool:
    """Return whether clients were asked before the first round."""
    return method.over_seeds("exchanges") is not None


def _exchanges(method: MethodRuns) -> Spread | None:
    """Return the number of rounds of communication, including those before the first round of training."""
    return method.over_seeds("exchanges") if _begins(method) else method.over_seeds("rounds")


def _in_megabytes(method: MethodRuns, metric: str) -> Spread | None:
    found = method.over_seeds(metric)
    return None if found is None else Spread(tuple(value / 1e6 for value in found.values))


@dataclass(frozen=True)
class MethodColumn:
    """Column of the table of methods."""

    key: str
    title: str
    figures: Callable[[MethodRuns], Spread | None]
    form: Format
    hint: str = ""
    """Meaning of the column, for a tooltip."""


def method_columns(found: Comparison) -> list[MethodColumn]:
    """Return the columns of the table of methods: score, clusters, every measure that a method has, costs."""

    def metric(name: str) -> Callable[[MethodRuns], Spread | None]:
        return lambda method: method.over_seeds(name)

    form, worst = score_form(found), MEASURES["worst_tenth"]
    known = [
        measure
        for measure in MEASURES.values()
        if measure.column and any(method.over_seeds(measure.name) for method in found.methods)
    ]
    return [
        MethodColumn("score", MEASURES[found.score_name].label, metric(found.score_name), form),
        MethodColumn("worst_tenth", worst.label, metric("worst_tenth"), form, worst.description),
        MethodColumn("clusters", "groups", metric("clusters"), _count, "number of clusters that have a client"),
        *(MethodColumn(m.name, m.label, metric(m.name), form_of(m, found), m.description) for m in known),
        MethodColumn("rounds", "rounds", _exchanges, _count),
        MethodColumn("up", "MB up", lambda method: _in_megabytes(method, "bytes_up"), plain),
        MethodColumn("down", "MB down", lambda method: _in_megabytes(method, "bytes_down"), plain),
        MethodColumn("seconds", "seconds", metric("seconds"), plain),
    ]


def method_rows(found: Comparison, columns: Sequence[MethodColumn]) -> list[dict[str, Any]]:
    """Return one row for each method: its name, and the figures of these columns over its seeds."""
    return [
        {
            "name": method.name,
            "summary": "" if method.first.method_class is None else method.first.method_class.summary,
            "cells": {column.key: cell(column.figures(method), column.form) for column in columns},
            "seeds": len(method.runs),
            "main": method is found.main,
            "diverged": bool(method.diverged),
        }
        for method in found.methods
    ]


def cost_rows(found: Comparison) -> list[dict[str, Any]]:
    """Return bytes and seconds of each method, with the length of their bars in percent of the longest."""
    spreads = [
        {
            key: method.over_seeds(metric)
            for key, metric in (("up", "bytes_up"), ("down", "bytes_down"), ("time", "seconds"))
        }
        for method in found.methods
    ]
    traffic = _most([each[key] for each in spreads for key in ("up", "down")])
    time = _most([each["time"] for each in spreads])
    return [
        {
            "name": method.name,
            "main": method is found.main,
            "rounds": cell(_exchanges(method), _count).text,
            "starts": int(method.first.config.get("restarts", 1)),
            "up": _bar(each["up"], megabytes, traffic),
            "down": _bar(each["down"], megabytes, traffic),
            "time": _bar(each["time"], seconds, time),
        }
        for method, each in zip(found.methods, spreads, strict=True)
    ]


def _most(values: Sequence[Spread | None]) -> float:
    return max((value.mean for value in values if value is not None), default=0.0)


def _bar(value: Spread | None, form: Format, most: float) -> dict[str, str]:
    share = 100 * value.mean / most if value and most else 0.0
    return {"text": form(value.mean) if value else ABSENT, "share": f"{share:.1f}"}


# ---- clients -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """Column of the table of clients."""

    key: str
    title: str
    numeric: bool = True


def client_table(found: Comparison) -> tuple[list[Column], list[dict[str, tuple[str, object]]]]:
    """Return the columns, and for each client of the first seed the text and the value to sort by."""
    first, form = found.main.first, score_form(found)
    known = {key for row in first.clients for key, value in row.items() if value is not None}
    averages, tuned = mean_scores(found.main), mean_scores(found.main, "finetuned")
    versus = {base.groups: {g.client: g for g in gains(found.main, base)} for base in found.baselines}
    optional = {
        "truth": Column("truth", "true group", numeric=False),
        "finetuned": Column("finetuned", MEASURES["finetuned"].label),
        "certainty": Column("certainty", "certainty"),
        "samples_needed": Column("samples_needed", "samples needed"),
    }
    columns = [
        Column("id", "client", numeric=False),
        Column("n", "samples"),
        Column("cluster", "cluster"),
        *(optional[key] for key in ("truth",) if key in known),
        Column("score", "accuracy" if found.higher_is_better else "RMSE"),
        *(Column(base.groups, f"gain over {base.name}") for base in found.baselines),
        *(optional[key] for key in ("finetuned", "certainty", "samples_needed") if key in known),
        Column("loss", "loss"),
    ]
    rows = []
    for row in first.clients:
        values: dict[str, tuple[str, object]] = {
            "id": (row.id, row.id),
            "n": (str(row.n), row.n),
            "cluster": (str(row.cluster), row.cluster),
            "truth": (str(row.get("truth", ABSENT)), str(row.get("truth", ""))),
            "score": (form(averages.get(row.id)), averages.get(row.id)),
            "finetuned": (form(tuned.get(row.id)), tuned.get(row.id)),
            "certainty": (_certainty(row.certainty), row.certainty),
            "samples_needed": (str(row.get("samples_needed", ABSENT)), row.get("samples_needed")),
            "loss": (plain(row.loss), row.loss),
        }
        for kind, by_client in versus.items():
            gain = by_client.get(row.id)
            values[kind] = (_gain(gain.gain, found), gain.gain) if gain else (ABSENT, None)
        rows.append(values)
    return columns, rows


def _certainty(value: float | None) -> str:
    """Return a probability in percent; one that would be rounded to 100 or 0 is shown as `> 99.9 %` or `< 0.1 %`."""
    if value is None:
        return ABSENT
    return "> 99.9 %" if value > 0.9995 else "< 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"


def _gain(value: float, found: Comparison) -> str:
    if found.higher_is_better:
        return signed(f"{100 * value:+.1f}")
    return ("+" if value > 0 else "") + plain(value)


def client_facts(found: Comparison) -> list[dict[str, Any]]:
    """Return the tooltip of each client of the first seed: its id and pairs of name and text."""
    columns, rows = client_table(found)
    bases = {base.groups: (base.name, mean_scores(base)) for base in found.baselines}
    form, facts = score_form(found), []
    for row in rows:
        pairs = [(column.title, row[column.key][0]) for column in columns if column.key not in ("id", *bases, "loss")]
        for kind, (name, scores) in bases.items():
            pairs.append((f"with {name}", f"{form(scores.get(str(row['id'][1])))} (gain {row[kind][0]})"))
        facts.append({"id": row["id"][0], "facts": pairs})
    return facts


# ---- options and privacy -------------------------------------------------------------------------------------


def option_rows(run: RunData) -> list[tuple[str, str, str]]:
    """Return name, value and meaning of every option: those of the scenario, then those of the method in its order."""
    kind = run.method_class
    known = {} if kind is None else {option.name: option.help for option in kind.options()}
    own = scenario_options(run)
    rows = []
    places = {name: place for place, name in enumerate(known)}
    # a file of TOML has tables after all other values, so its order is not that of a run in memory
    for name, value in sorted(run.config.items(), key=lambda item: places.get(item[0], -1)):
        if name in ("scenario", "method") or (kind is not None and name in kind.refuses):
            continue
        meaning = "option of the scenario" if name in own and kind is not None else known.get(name, "")
        rows.append((name, option_text(value), meaning))
    return rows


def trouble_rows(run: RunData) -> list[tuple[str, str, str]]:
    """Return the failures of remote clients: the reason, the rounds (from 1) and the clients."""
    rounds: dict[str, list[int]] = {}
    clients: dict[str, set[str]] = {}
    for record in run.records:
        for note in record.notes:
            rounds.setdefault(note["reason"], []).append(record.round + 1)
            clients.setdefault(note["reason"], set()).update(note["clients"])
    return [(reason, spans(seen), _some(clients[reason])) for reason, seen in rounds.items()]


def _some(names: Collection[str], shown: int = 5) -> str:
    """Return the first names, and the number of the others."""
    first = ", ".join(sorted(names, key=natural)[:shown])
    return first + f" and {len(names) - shown} more" * (len(names) > shown)


def method_words(found: MethodRuns) -> dict[str, Any]:
    """Return the description of a method: a sentence, the step in symbols, the paper, and what the server sees."""
    method = typed_method(found.first)
    if method is None:
        return {"name": found.name, "sentence": "", "step": "", "paper": "", "saw": {}, "trains": True}
    opening, _, rest = (inspect.getdoc(type(method)) or "").partition("\n\n")
    step = rest.partition("\n\n")[0]
    return {
        "name": found.name,
        "sentence": f"{found.name}: {' '.join(opening.split())}",
        "step": "" if step.startswith(("Example", "Args")) else " ".join(step.split()),
        "paper": method.citation,
        "saw": privacy.server_saw(method, found.first.config),
        "trains": method.trains,
    }


def returned_rows(main: MethodRuns) -> Mapping[str, str]:
    """Return the figures that clients sent for this report after the training, with their meaning."""
    known = {key for row in main.first.clients for key in row} | (
        {"sums", "curvature"} if main.first.metrics.get(REGRESSION) else set()
    )
    meaning = {
        "score": "the score of its model on its data",
        "loss": "the mean loss of its model on its data",
        "finetuned": "the score of the model that it fine-tuned by local steps and kept",
        "losses": "the mean loss under every cluster's model on its held-out samples, on one half of them and on its "
        "training samples, and three sums of products of residuals, from which the certainty follows",
        "curvature": "the largest eigenvalue of X^T X / n of its features",
        "sums": "cross-products of its features and residuals, which are added up over the clients of its cluster",
    }
    return {name: words for name, words in meaning.items() if name in known}
