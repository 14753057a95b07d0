"""Output of the commands on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.cli.about import listed_methods
from coterie.cli.purposes import Purpose
from coterie.cli.terminal import visible
from coterie.data import SCENARIOS
from coterie.evaluate.baselines import Baselines
from coterie.experiments.reproduction import Claim
from coterie.experiments.sweep import Sweep
from coterie.methods.settings import most_of
from coterie.report import certainty, choosing, descent, one_shot, privacy, rate, worth
from coterie.report.coefficients import could_fit_better, table_rows
from coterie.report.comparison import Comparison, compare
from coterie.report.formats import plain, plural
from coterie.report.formats import score as score_text
from coterie.report.groups import sentences as group_sentences
from coterie.report.reading import RunData
from coterie.report.tables import MethodColumn, cell, method_columns, method_rows
from coterie.training.divergence import DIVERGED
from coterie.training.exploding import EXPLODED
from coterie.training.measures import MEASURES, Measure, Unit
from coterie.training.records import Metrics
from coterie.training.result import BASELINES, REGRESSION, Result
from coterie.training.stopping import SETTLED

OPTIONAL_COLUMNS = (
    ("up", "down"),
    ("rounds",),
    ("finetuned_worst_tenth",),
    ("sample_identity",),
    ("seconds",),
    ("clusters",),
)
"""Columns of a comparison that are left out, in this order, while the table is too wide for the terminal."""
ANY_WIDTH = 1000
"""Line width that is enough for every table."""


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        left = column in ("", "method", "name", "option", "meaning")
        table.add_column(column, justify="left" if left else "right", no_wrap=column not in ("", "meaning"))
    return table


def result(console: Console, found: Result) -> None:
    """Print the figures of one run."""
    m = found.metrics
    if m.diverged:
        console.print(f"DIVERGED {m.why_diverged}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    lines: dict[str, str] = {}
    if "diagnosed" in m:
        lines["method"] = f"{found.config['method']}, chosen by a diagnosis: {m['diagnosed']['reason']}"
    lines |= {
        "clusters": f"{m.clusters} of {len(found.parameters)} in use, {m.clients} clients",
    }
    if not _scores_withheld(found):
        lines["loss"] = f"{_figure(m.loss)} on the training data"
    if sentence := rate.answer(m):
        lines["lr"] = sentence
    lines |= _measures(found) | _unused(found) | _certainty(found)
    if "moment_descent" in m:
        lines["anchors"] = _anchors(m["moment_descent"])
    if "one_shot" in m:
        lines |= _one_shot(m["one_shot"])
    if sentence := one_shot.grouped(m):
        lines["grouped"] = sentence
    if descent.changes_clusters(found.records):
        lines["K"] = descent.answer(found.records)
    if "chosen" in m:
        lines["chosen"] = choosing.answer(m["chosen"])
    if sentence := privacy.guarantee(found.config, m):
        lines["privacy"] = sentence
    up, down = m.bytes_up / 1e6, m.bytes_down / 1e6
    lines["cost"] = f"{_rounds(m)}, {up:.2f} MB up, {down:.2f} MB down, {m.seconds:.1f} s"
    lines |= _ending(found)
    if m.evaluated_on == "validation samples":
        lines["note"] = "there is no test data: figures are on the validation samples"
    if m.evaluated_on == "training data":
        lines["note"] = "there is no held-out data: figures are on the training data, and therefore too optimistic"
    if sentence := could_fit_better(m):
        lines["fit"] = sentence
    width = max(map(len, lines)) + 1
    for name, text in lines.items():
        console.print(f"{name:<{width}}{text}", highlight=False, soft_wrap=True)
    _choice(console, m.get("chosen"))
    _alternatives(console, m.get(BASELINES))
    _groups(console, found)
    _coefficients(console, m.get(REGRESSION))


def _measures(found: Result) -> dict[str, str]:
    """Return the lines of all measures with a sentence and a known value."""
    m = found.metrics
    texts = {name: str(value) for name, value in found.config.items()}
    texts |= {"clients": str(m.clients), "honest": str(m.clients - m.get("attackers", 0))}
    texts |= {name: _text(m[name], measure.unit) for name, measure in MEASURES.items() if name in m}
    return {
        measure.label: measure.sentence.format_map(texts)
        for name, measure in MEASURES.items()
        if measure.sentence and name in m and _has_value(measure, found)
    }


def _unused(found: Result) -> dict[str, str]:
    """Return a line about clusters that no client has joined, which is no finding about the number of groups."""
    used, asked = found.metrics.clusters, found.config.get("clusters")
    if not isinstance(asked, int) or used is None or used >= asked:
        return {}
    have = f"only {used} of {asked} clusters {'has' if used == 1 else 'have'} clients"
    return {"caution": f"{have}: give more --restarts, or compare with --clusters auto"}


def _certainty(found: Result) -> dict[str, str]:
    """Return lines about the certainty of the assignment, and a warning if clusters may contain several groups."""
    parts = [certainty.sure_clients([found.clients]), certainty.unsure_clients(found.clients)]
    sentence = "; ".join(part for part in parts if part)
    warning = certainty.hidden_groups(found.metrics)
    return ({"certainty": sentence} if sentence else {}) | ({"warning": warning} if warning else {})


def _has_value(measure: Measure, found: Result) -> bool:
    """Return whether a measure has a value; a score of None is infinite, unless clients do not report scores."""
    if measure.unit == "score":
        return found.metrics[measure.name] is not None or not _scores_withheld(found)
    return found.metrics[measure.name] is not None


def _text(value: Any, unit: Unit) -> str:
    """Return a value in the unit of its measure."""
    if value is None or unit in ("score", "number"):
        return _figure(value)
    forms = {"share": "{:.1%}", "index": "{:.3f}", "small number": "{:.2e}"}
    return forms.get(unit, "{}").format(value).replace("%", " %")


def _scores_withheld(found: Result) -> bool:
    """Return whether clients do not report scores, as in a run with local differential privacy."""
    return "epsilon" in found.metrics and all(client.score is None for client in found.clients)


def _rounds(m: Metrics) -> str:
    """Return the number of rounds, and of exchanges before them."""
    before = m.get("exchanges", m.rounds) - m.rounds
    first = f"{before} exchange{'s' * (before != 1)}"
    trained = f"{m.rounds} round{'s' * (m.rounds != 1)}"
    return trained if not before else f"{first}, then {trained}" if m.rounds else first


def _anchors(found: Mapping[str, Any]) -> str:
    """Return one line about the anchors and groups of moment descent."""
    sizes = Counter(found["anchors"].values())
    groups = " + ".join(str(sizes[g]) for g in sorted(sizes))
    apart = f", about {found['delta']:.3g} apart" if found["clusters"] > 1 else ""
    return (
        f"{len(found['anchors'])} in {found['clusters']} group{'s' * (found['clusters'] > 1)} ({groups}){apart}; "
        f"{len(found['sigma'])} steps, {found['exchanges']} exchanges, {found['bytes_up'] / 1e6:.2f} MB up"
    )


def _one_shot(found: Mapping[str, Any]) -> dict[str, str]:
    """Return one or two lines about the clustering of the clients' own solutions."""
    without = found["without_solution"]
    missing = f", {without} clients without a solution were assigned by their loss" if without else ""
    lines = {
        "one shot": f"{found['solved']} solutions ({found['solver']}){missing}; {found['bytes_up'] / 1e6:.2f} MB up"
    }
    if found.get("separation"):
        convex, alpha = found["convex"] or {}, found["separation"]["alpha"]
        how = f" at lambda {convex['lam']:.3g}, {'' if convex['certified'] else 'not '}proved" if convex else ""
        apart = "" if alpha is None else f"; centres {alpha:.1f} times as far apart as clusters are wide"
        lines["found by"] = f"{found['clustering']} clustering{how}{apart}"
    return lines


def _choice(console: Console, found: Mapping[str, Any] | None) -> None:
    """Print the numbers of clusters that were tried, with their results."""
    if not found:
        return
    console.print("\nNumbers of clusters tried", style="bold", highlight=False)
    table = _table(*choosing.COLUMNS)
    for row in choosing.table_rows(found):
        table.add_row(*row)
    console.print(table)
    console.print(choosing.how(found), highlight=False, soft_wrap=True)


def _alternatives(console: Console, found: Mapping[str, Any] | None) -> None:
    """Print the held-out error next to those of simpler alternatives, and whether the difference matters."""
    if found is None:
        return
    baselines = Baselines.from_json(found)
    header, rows = worth.table_rows(baselines)
    console.print("\nIs it worth it?", style="bold", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(header):
        table.add_column(column, justify="right" if at in (1, 2) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for sentence in baselines.sentences():
        console.print(sentence, highlight=False, soft_wrap=True)


def _groups(console: Console, found: Result) -> None:
    """Print the coefficients in which each group differs most from the others."""
    sentence = group_sentences(found.metrics)
    if not sentence:
        return
    console.print("\nWhat distinguishes the groups", style="bold", highlight=False)
    sizes = Counter(found.assignments.values())
    for cluster, words in sentence.items():
        line = f"cluster {cluster} ({plural(sizes[cluster], 'client')}): {visible(words)}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


MOST_COEFFICIENTS, MOST_CLUSTERS = 8, 5
"""Largest table of coefficients on the terminal; the report also has larger ones."""


def _coefficients(console: Console, found: Mapping[str, Any] | None) -> None:
    """Print estimates and intervals of the coefficients of all clusters in use, if they fit on a screen."""
    used = [row["cluster"] for row in found["clusters"] if row["clients"]] if found else []
    if not found or len(found["names"]) > MOST_COEFFICIENTS or len(used) > MOST_CLUSTERS:
        return
    names = [f"cluster {k}" for k in used]
    table, title = _coefficient_table(found, names, intervals=True), f"with {100 * found['level']:g} % intervals"
    if _width(console, table) > console.width:
        table, title = _coefficient_table(found, names, intervals=False), "their intervals are in the report"
    console.print(f"\nCoefficients, {title}", style="bold", highlight=False)
    console.print(table)


def _coefficient_table(found: Mapping[str, Any], clusters: Sequence[str], intervals: bool) -> Table:
    """Return a table with a row for each coefficient and a column for each cluster."""
    table = _table("name", *clusters)
    for name, cells in table_rows(found):
        texts = [f"{one} ({both.replace(' to ', ', ')})" if intervals else one for one, both in cells]
        table.add_row(Text(visible(name)), *texts)
    return table


def _ending(found: Result) -> dict[str, str]:
    """Return lines about the validation figures, the reason of an early stop, and the chosen models."""
    m, config, lines = found.metrics, found.config, {}
    for score in {"validation_accuracy", "validation_rmse"} & m.keys():
        text = f"{score.removeprefix('validation_')} {_figure(m[score])}, loss {_figure(m['validation_loss'])}"
        lines["held out"] = f"{text} on {100 * config['validation']:g} % of the training samples"
    if m.stopped is not None:
        what = "validation loss in {} evaluations" if "validation" in config else "training loss in {} rounds"
        whys = {
            "patience": f"no better {what.format(config.get('patience'))}",
            "privacy": "one more round would have exceeded the budget privacy_epsilon",
            DIVERGED: "no client had a finite update any more",
            EXPLODED: "the training loss was far too high and did not decrease",
            SETTLED: "the training loss had settled",
        }
        why = whys.get(m.stopped, "a callback stopped it")
        lines["stopped"] = f"after {m.rounds} of {most_of(config['rounds'])} rounds: {why}"
    if "best_rounds" in m:
        lines["models"] = f"those after {m['best_rounds']} rounds, with the lowest validation loss"
    return lines


MOST_PLAIN = 1e9
"""Larger figures are written with an exponent."""


def _figure(value: float | None) -> str:
    if value is None:
        return "infinite"
    return f"{value:.4f}" if abs(value) < MOST_PLAIN else f"{value:.4g}"


def comparison(console: Console, runs: Sequence[RunData]) -> None:
    """Print a table with one row for each method: mean ± standard deviation over seeds."""
    found = compare(runs)
    columns = method_columns(found)
    table, spared = _comparison(found, columns), iter(OPTIONAL_COLUMNS)
    while _width(console, table) > console.width and (left_out := next(spared, None)):
        columns = [column for column in columns if column.key not in left_out]
        table = _comparison(found, columns)
    console.print(table)
    seeds = len(found.main.runs)
    console.print(f"mean ± standard deviation over {seeds} seeds\n" if seeds > 1 else "one seed\n", highlight=False)


def _comparison(found: Comparison, columns: Sequence[MethodColumn]) -> Table:
    """Return a table with these columns of a comparison; the unit of scores is in the title."""
    percent = {"score": " %"} if found.higher_is_better else {}
    table = _table("method", *(column.title + percent.get(column.key, "") for column in columns))
    for row in method_rows(found, columns):
        cells = {key: f"{each.text.removesuffix(' %')} {each.spread}".strip() for key, each in row["cells"].items()}
        if "seconds" in cells:
            cells["seconds"] = row["cells"]["seconds"].text
        table.add_row(row["name"] + " (diverged)" * row["diverged"], *cells.values())
    return table


def _width(console: Console, table: Table) -> int:
    """Return the width of the table if no cell is wrapped or cut."""
    return console.measure(table, options=console.options.update(width=ANY_WIDTH)).maximum


def plain_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print texts as a table with left-aligned columns."""
    if title:
        console.print(f"\n{title}", style="bold", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in header:
        table.add_column(column, justify="left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def claims(console: Console, made: Sequence[Claim]) -> None:
    """Print one line for each claim, with its verdict first."""
    colours = {"holds": "green", "does not hold": "red", "undecided": "yellow", "not run": "yellow"}
    console.print()
    for claim in made:
        verdict = (f"{claim.verdict:<14}", colours[claim.verdict])
        console.print(Text.assemble(verdict, visible(f"{claim.text}: {claim.evidence}")))


def sweep(console: Console, found: Sweep) -> None:
    """Print one row for each combination, the best first, and the command for the best one."""
    percent = " %" if found.score_name == "accuracy" else ""
    table = _table(*found.best, f"validation {found.score_name}{percent}", "validation loss", "seconds")
    for each in found.cells:
        score = cell(each.score, lambda value: score_text(value, found.score_name))
        figures = [f"{score.text.removesuffix(' %')} {score.spread}".strip(), cell(each.loss, plain).text]
        table.add_row(*(_value(value) for value in each.options.values()), *figures, plain(each.seconds))
    console.print(table)
    seeds = len(found.seeds)
    console.print(f"mean ± standard deviation over {seeds} seeds\n" if seeds > 1 else "one seed\n", highlight=False)
    lines = [("failed", f"{_assigned(each.options)}: {each.failed}") for each in found.cells if each.failed]
    lines += [("best", _assigned(found.best)), *(("note", note) for note in found.notes), ("command", "")]
    for name, text in lines:
        console.print(f"{name:<8}{text}".rstrip(), highlight=False, markup=False, soft_wrap=True)
    console.print(found.command + "\n", highlight=False, markup=False, soft_wrap=True)


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _assigned(options: Mapping[str, object]) -> str:
    """Return options as text, such as `lr=0.1, local_steps=10`."""
    return ", ".join(f"{name}={_value(value)}" for name, value in options.items())


def methods(console: Console) -> None:
    """Print all methods, one line each."""
    table = _table("method", "")
    for kind in listed_methods():
        table.add_row(kind.name, kind.summary)
    console.print(table)
    console.print(
        "\n'coterie describe NAME' describes a method, 'coterie methods --for PURPOSE' recommends methods.",
        highlight=False,
    )


def purpose(console: Console, purpose: Purpose) -> None:
    """Print the recommended methods for a purpose, each with a command."""
    console.print(purpose.situation, highlight=False)
    for choice in purpose.choices:
        console.print(f"\n{choice.method}", style="bold", highlight=False)
        console.print(f"  {choice.reason}", highlight=False)
        console.print(f"  {choice.command}", highlight=False, soft_wrap=True)
    console.print("\n'coterie diagnose' recommends a method for your clients.", highlight=False)


def scenarios(console: Console) -> None:
    """Print all scenarios, one line each."""
    table = _table("name", "")
    for entry in SCENARIOS.values():
        table.add_row(entry.name, entry.summary)
    console.print(table)
    console.print(
        "\n'coterie describe NAME' describes a scenario. For your own data use 'coterie run --table FILE', or "
        "coterie.from_arrays in Python.",
        highlight=False,
    )
