"""One HTML file that opens anywhere, without a network: styles, script, figures and data are inside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from coterie.evaluate.certainty import SURE
from coterie.methods.initializers import GivenModels
from coterie.report import (
    choosing,
    coefficients,
    descent,
    groups,
    one_shot,
    privacy,
    rate,
    sentences,
    tables,
    worth,
)
from coterie.report.commands import is_named, own_learner, run_command
from coterie.report.comparison import Comparison, MethodRuns, compare, contingency, curve, gains, pairs
from coterie.report.figures.curves import Line, curves
from coterie.report.figures.gains import SINGLE, gains_figure
from coterie.report.figures.map import SHAPES, ClientMap, client_map, symbol
from coterie.report.figures.strip import formation, is_strip, leaders, seen
from coterie.report.figures.svg import colour, tag
from coterie.report.formats import ABSENT, natural, plural
from coterie.report.reading import RunData
from coterie.report.template import asset, template
from coterie.training import subject
from coterie.training.measures import MEASURES
from coterie.training.runs.outputs import write_output

STYLES = {"self": 1, "one": 2, "truth": 1, "found": 6}
"""Number of line styles in the style sheet for each kind of method (classes found0, found1, ...)."""


def write_report(runs: Sequence[RunData], path: Path, unfinished: int = 0) -> Path:
    """Write the page about these runs; `unfinished` runs are only mentioned."""
    page = render(compare(runs), unfinished)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, page)
    return path


def render(found: Comparison, unfinished: int = 0) -> str:
    """Return the page as text."""
    script = asset("page.js")
    return template("page.html").render(
        style=Markup(asset("page.css")),
        script=Markup(script),
        # only this very script may run: whatever slipped into the page as text stays text
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=embedded({"clients": tables.client_facts(found)}),
        **_words(found, unfinished),
        **_figures(found),
        **_tables(found),
    )


def embedded(value: object) -> Markup:
    """Return JSON that is safe inside a script element: it can neither end the element nor start another one."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _words(found: Comparison, unfinished: int) -> dict[str, Any]:
    main = found.main
    return {
        "title": subject.title(main.first.config),
        "subject": subject.sentence(main.first.config, main.first.subject, main.first.clients),
        "headline": sentences.headline(found),
        "diverged": bool(main.diverged),
        "support": sentences.support(found),
        "notes": sentences.notes(found, unfinished),
        "main": main,
        "score_word": sentences.score_words(found),
        "score_name": found.score_name,
        "sends_nothing": [m.name for m in found.methods if not any(run.metrics.bytes_up for run in m.runs)],
        "points": found.higher_is_better,
        "several": len(main.runs) > 1,
        "names": [method.name for method in found.methods],
        "seeds": sorted({run.seed for method in found.methods for run in method.runs}),
        "on_training": main.first.metrics.evaluated_on == "training data",
        "sure": round(100 * SURE),
        "restarts": sentences.restarts_words(main),
        "command": run_command(main.first),
        "named": is_named(main.first),
        "own_learner": own_learner(main.first),
        "given_init": main.first.config.get("init") == GivenModels.name,
        "plural": plural,
        "absent": ABSENT,
    }


def _tables(found: Comparison) -> dict[str, Any]:
    columns, clients = tables.client_table(found)
    method_columns = tables.method_columns(found)
    others = [method for method in found.methods if method is not found.main]
    return {
        "tiles": tables.tiles(found),
        "worth": worth.section(found.main.first),
        "groups": None if found.main.groups == "self" else groups.section(found.main.first),
        "references": groups.reference_note(found.main.first),
        "column_notes": found.main.first.subject.columns,
        "method_columns": method_columns,
        "has_measures": any(column.key in MEASURES and column.key != "worst_tenth" for column in method_columns),
        "rows": tables.method_rows(found, method_columns),
        "costs": tables.cost_rows(found),
        "columns": columns,
        "clients": clients,
        "options": tables.option_rows(found.main.first),
        "rate": rate.answer(found.main.first.metrics),
        "about": tables.method_words(found.main),
        "others": [tables.method_words(method) for method in others],
        "troubles": tables.trouble_rows(found.main.first),
        "returned": tables.returned_rows(found.main),
        "private": privacy.guarantee(found.main.first.config, found.main.first.metrics),
        "beyond": privacy.beyond(found.main.first.config, found.main.first.metrics),
        "truth_known": any(method.over_seeds("ari") for method in found.methods),
        "agreement": _agreement(found.main),
        "coefficients": coefficients.section(found.main.first),
        "one_shot": one_shot.section(found.main.first),
        "grouped": one_shot.grouped(found.main.first.metrics),
        "choice": choosing.section(found.main.first),
        "descent": descent.section(found.main.first),
    }


def _agreement(main: MethodRuns) -> dict[str, Any] | None:
    """Return the table of true groups by clusters and the index of each seed; nothing if no groups were looked for."""
    table = contingency(main.first) if main.groups in ("found", "truth") else None
    if table is None:
        return None
    truths, clusters, counts = table
    most = max(max(row) for row in counts)
    shades = [[round(100 * n / most) for n in row] for row in counts]
    aris = [(run.seed, tables.index_form(run.metrics["ari"])) for run in main.runs if "ari" in run.metrics]
    return {
        "clusters": clusters,
        "rows": [(t, list(zip(row, shade, strict=True))) for t, row, shade in zip(truths, counts, shades, strict=True)],
        "aris": aris,
    }


# ---- figures -------------------------------------------------------------------------------------------------


def _figures(found: Comparison) -> dict[str, Any]:
    first = found.main.first
    truths = sorted({str(row["truth"]) for row in first.clients if row.get("truth") is not None}, key=natural)
    label = f"Map of the clients of {found.main.name}: a point for each, coloured by cluster"
    drawn = client_map(first.clients, truths, label)
    return {
        "gain_figures": [_gain_figure(found, base) for base in found.baselines if pairs(found.main, base)],
        "single": SINGLE,
        "map": drawn,
        "map_legend": _legend(first, truths, drawn),
        "formation": _formation(found.main),
        "formation_legend": [(k, colour(k), sum(row.cluster == k for row in first.clients)) for k in seen(first)],
        "strip": is_strip(first),
        "leads": leaders(first),
        "curve_figures": _curve_figures(found),
    }


def _gain_figure(found: Comparison, base: MethodRuns) -> dict[str, Any]:
    each = gains(found.main, base)
    caption = sentences.gain_caption(found, base)
    places = {row.id: at for at, row in enumerate(found.main.first.clients)}
    label = f"Gain of each client over {sentences.PHRASES[base.groups]}: {caption}"
    return {
        "title": f"Against {sentences.PHRASES[base.groups]} ({base.name})",
        "caption": caption,
        "many": len(each) > SINGLE,
        "svg": gains_figure(each, places, label, found.higher_is_better),
    }


def _legend(run: RunData, truths: list[str], drawn: ClientMap | None) -> dict[str, Any]:
    """Return the clusters with their colours and sizes, and the true groups with their shapes."""
    clusters = sorted({row.cluster for row in run.clients})
    sizes = {k: sum(row.cluster == k for row in run.clients) for k in clusters}
    return {
        "clusters": [(k, colour(k), sizes[k]) for k in clusters],
        "truths": [(name, _key(SHAPES[i % len(SHAPES)])) for i, name in enumerate(truths)] if drawn else [],
        "repeats": len(truths) > len(SHAPES),
    }


def _key(shape: str) -> Markup:
    return tag("svg", symbol(shape, 8, 8, 5, "point key"), viewBox="0 0 16 16", width=16, height=16, aria_hidden="true")


def _formation(main: MethodRuns) -> Markup | None:
    if main.groups != "found" or max(descent.numbers_of_clusters(main.first)) < 2:
        return None
    return formation(main.first, f"Clusters of the clients of {main.name}, round by round")


def _curve_figures(found: Comparison) -> list[dict[str, Any]]:
    name = sentences.score_words(found)
    wanted = [
        (found.score_name, f"{_capital(name)} on held-out data, by round", found.higher_is_better),
        ("loss", "Training loss, by round", False),
        *((m.name, f"{_capital(m.label)}, by round", m.unit == "share") for m in MEASURES.values() if m.curve),
    ]
    drawn = []
    for key, title, percent in wanted:
        lines = _lines(found, key)
        if lines:
            drawn.append({"key": key, "title": title, "svg": curves(lines, f"{title}, for {_named(lines)}", percent)})
    return drawn


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _named(lines: Sequence[Line]) -> str:
    return ", ".join(each.name for each in lines)


def _lines(found: Comparison, key: str) -> list[Line]:
    lines, used = [], dict.fromkeys(STYLES, 0)
    methods = [method for method in found.methods if not method.diverged] or found.methods  # others would be flat lines
    # the main method comes first among its kind, so it always has the solid line
    for method in sorted(methods, key=lambda each: each is not found.main):
        style = f"{method.groups}{used[method.groups] % STYLES[method.groups]}"
        used[method.groups] += 1
        shape = curve(method, key)
        if shape is not None:
            lines.append(Line(method.name, style, shape, main=method is found.main))
    return lines
