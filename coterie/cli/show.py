"""What the commands print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from coterie.config import Option
from coterie.errors import unknown_name
from coterie.learners import LEARNERS, learner_options
from coterie.methods import METHODS
from coterie.methods.base import SEEN, Entry
from coterie.report.comparison import compare
from coterie.report.reading import RunData
from coterie.report.tables import method_rows
from coterie.result import Result
from coterie.scenarios import SCENARIOS, ScenarioEntry


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        left = column in ("", "method", "name", "option", "meaning")
        table.add_column(column, justify="left" if left else "right", no_wrap=column not in ("", "meaning"))
    return table


def result(console: Console, found: Result) -> None:
    """The figures of one run."""
    m = found.metrics
    lines: dict[str, str] = {
        "clusters": f"{m['clusters']} of {len(found.parameters)} in use, {m['clients']} clients",
        "loss": f"{_figure(m['loss'])} on the training data",
    }
    for score in {"accuracy", "rmse"} & m.keys():
        lines[score] = f"{_figure(m[score])}  worst-off tenth {_figure(m['worst_tenth'])}"
    if "sure" in m:
        lines["sure"] = f"{m['sure']} of {m['clients']} clients are sure of their group"
    if "ari" in m:
        lines["ari"] = f"{m['ari']:.3f} agreement with the truth"
    if "parameter_error" in m:
        lines["error"] = f"{m['parameter_error']:.4f} largest distance to a true model"
    up, down = m["bytes_up"] / 1e6, m["bytes_down"] / 1e6
    lines["cost"] = f"{m['rounds']} rounds, {up:.2f} MB up, {down:.2f} MB down, {m['seconds']:.1f} s"
    if m["evaluated_on"] == "training data":
        lines["note"] = "no held-out data was given: figures are on the training data and flatter the models"
    for name, text in lines.items():
        console.print(f"{name:<9}{text}", highlight=False, soft_wrap=True)


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4f}"


def comparison(console: Console, runs: Sequence[RunData]) -> None:
    """One row a method, mean ± standard deviation over seeds."""
    found = compare(runs)
    percent = " %" if found.higher_is_better else ""
    titles = {"score": found.score_name + percent, "worst": "worst tenth", "clusters": "groups", "ari": "ARI"}
    titles |= {"rounds": "rounds", "up": "MB up", "down": "MB down", "seconds": "seconds"}
    table = _table("method", *titles.values())
    for row in method_rows(found):
        cells = {key: f"{row[key].text.removesuffix(' %')} {row[key].spread}".strip() for key in titles}
        table.add_row(row["name"], *(cells | {"seconds": row["seconds"].text}).values())
    console.print(table)
    seeds = len(found.main.runs)
    console.print(f"mean ± standard deviation over {seeds} seeds\n" if seeds > 1 else "one seed\n", highlight=False)


def methods(console: Console) -> None:
    """All methods, one line each."""
    table = _table("method", "")
    for entry in METHODS.values():
        table.add_row(entry.name, entry.summary)
    console.print(table)
    console.print("\n'coterie describe NAME' tells more.", highlight=False)


def scenarios(console: Console) -> None:
    """All scenarios, one line each."""
    table = _table("name", "")
    for entry in SCENARIOS.values():
        table.add_row(entry.name, entry.summary)
    console.print(table)
    console.print(
        "\n'coterie describe NAME' tells more. Your own data: coterie.from_arrays in Python.", highlight=False
    )


def describe(console: Console, name: str) -> None:
    """Everything about one name."""
    if name in METHODS:
        _describe_method(console, METHODS[name])
    elif name in SCENARIOS:
        _describe_scenario(console, SCENARIOS[name])
    elif name in LEARNERS:
        _describe_learner(console, name)
    else:
        raise unknown_name("method, scenario or learner", name, [*METHODS, *SCENARIOS, *LEARNERS])


def _options(console: Console, title: str, options: Sequence[Option]) -> None:
    console.print(f"\n{title}", style="bold")
    table = _table("option", "default", "meaning")
    for option in options:
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        default = "-" if option.default is None else str(option.default)
        table.add_row(option.name, default, option.help + choices)
    console.print(table)


def _describe_method(console: Console, entry: Entry) -> None:
    console.print(f"{entry.name}: {entry.summary}", style="bold", highlight=False)
    console.print(entry.paper, highlight=False)
    console.print(f"\n{_composition(entry)}", highlight=False)
    twin = f"with one cluster it equals {entry.twin}" if entry.twin else f"no twin: {entry.no_twin}"
    console.print(f"twin: {twin}", highlight=False)
    console.print("\nWhat the server gets to see of each client", style="bold")
    console.print(f"  update: {SEEN}", highlight=False)
    for row, meaning in entry.reveals.items():
        console.print(f"  {row}: {meaning}", highlight=False)
    if entry.options:
        _options(console, "Options of its own", shown_options(entry, own=True))
    _options(console, "Common options", shown_options(entry, own=False))


def shown_options(entry: Entry, *, own: bool) -> list[Option]:
    """A method's own options, or the common ones it takes, with the defaults that it sets."""
    defaults = entry.defaults({})
    chosen = [o for o in entry.accepts if (o in entry.options) == own]
    return [replace(o, default=defaults.get(o.name, o.default)) for o in chosen]


def _composition(entry: Entry) -> str:
    """The docstring of the function that composes the method."""
    return (entry.compose.__doc__ or "").strip()


def _describe_scenario(console: Console, entry: ScenarioEntry) -> None:
    console.print(f"{entry.name}: {entry.summary}", style="bold", highlight=False)
    console.print(" ".join((entry.build.__doc__ or "").split()), highlight=False)
    _options(console, "Options", entry.options)
    console.print("\nRun options it suggests", style="bold")
    console.print(suggestions(entry), highlight=False)


def suggestions(entry: ScenarioEntry) -> str:
    """The run options that suit a scenario, on one line."""
    return ", ".join(f"{name}={value}" for name, value in entry.recommended.items())


def _describe_learner(console: Console, name: str) -> None:
    console.print(f"{name}: a learner", style="bold", highlight=False)
    console.print(" ".join((LEARNERS[name].__doc__ or "").split()), highlight=False)
    console.print("\nSettings", style="bold")
    table = _table("name", "default")
    for setting in learner_options(name).values():
        default = setting.default
        table.add_row(setting.name, "-".join(map(str, default)) if isinstance(default, tuple) else str(default).lower())
    console.print(table)
    console.print(f"\nexample: --learner {name}:{next(iter(learner_options(name)))}=...", highlight=False)
