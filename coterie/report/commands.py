"""How to run it again: the exact command, or the Python call."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from coterie.data import SCENARIOS
from coterie.methods import METHODS
from coterie.report.comparison import MethodRuns
from coterie.report.reading import RunData

WIDE = 84
"""Letters in a line before a command goes on in the next one."""


def scenario_options(run: RunData) -> dict[str, Any]:
    """Those keys of the config that belong to the scenario, not to the method."""
    entry = METHODS.get(run.method)
    known = {"scenario", "method"}
    if entry is not None:
        known |= {option.name for option in entry.accepts} | entry.refuses
    return {name: value for name, value in run.config.items() if name not in known}


def is_named(run: RunData) -> bool:
    """Whether a command can run it again: arrays have no name, and a learner of one's own is no text."""
    return run.method in METHODS and run.scenario in SCENARIOS and not own_learner(run)


def method_options(run: RunData, spelled: Collection[str] = ()) -> dict[str, Any]:
    """The options that matter: all that a default would not give back by itself, and those in `spelled`."""
    entry = METHODS.get(run.method)
    if entry is None:
        return {}
    defaults = {option.name: option.default for option in entry.accepts} | dict(entry.defaults(run.config))
    # what the scenario or its data (lr) suggests would come back unasked, so it is spelled out even at the default
    named = SCENARIOS.get(run.scenario)
    suggested = {"clusters", "dtype", "lr", *spelled, *(named.recommended if named else ())}
    return {
        name: run.config[name]
        for name in (option.name for option in entry.accepts)
        if name in run.config and name != "seed" and (name in suggested or run.config[name] != defaults.get(name))
    }


def run_command(run: RunData, spelled: Collection[str] = ()) -> str:
    """The command line, or the Python call for arrays or a model of one's own; `spelled` are named in any case."""
    if not is_named(run):
        options = _in_python(run, spelled) | {"seed": repr(run.seed)}
        return _call(f"result = coterie.fit(\n    federation, method={run.method!r}, ", options)
    options = scenario_options(run) | method_options(run, spelled)
    return _line(["coterie", "run", run.scenario, "--method", run.method, "--seed", str(run.seed)], options)


def compare_command(main: MethodRuns) -> str:
    """What runs the baselines beside this method."""
    run = main.first
    names = list(dict.fromkeys(["local", "fedavg", main.name]))
    if not is_named(run):
        return _call(
            f"coterie.compare(\n    federation, {names!r}, seeds={len(main.runs)}, out='comparison', ", _in_python(run)
        )
    command = ["coterie", "compare", run.scenario, "--methods", ",".join(names), "--seeds", str(len(main.runs))]
    return _line(command, scenario_options(run) | method_options(run))


def own_learner(run: RunData) -> bool:
    """Whether the learner is a module of the user's own, which no command can name."""
    return str(run.config.get("learner", "")).startswith("module:")


def _in_python(run: RunData, spelled: Collection[str] = ()) -> dict[str, str]:
    """The options as Python text; `my_module` and `my_start` stand for values that a config cannot hold."""
    words = {name: repr(value) for name, value in method_options(run, spelled).items()}
    if own_learner(run):
        words["learner"] = "my_module"
    if run.config.get("start") == "given":
        words["start"] = "my_start"
    return words


def _line(command: list[str], options: dict[str, Any]) -> str:
    """A command broken into lines that can be read and still be pasted."""
    words = [f"--{name.replace('_', '-')} {shlex.quote(_text(value))}" for name, value in options.items()]
    return " \\\n".join(_broken(shlex.join(command), words, " "))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _call(opening: str, options: dict[str, str]) -> str:
    first, _, second = opening.partition("\n")
    words = [f"{name}={value}" for name, value in options.items()]
    return "\n".join([first, *_broken(second.rstrip(", "), words, ", "), ")"])


def _broken(begin: str, words: list[str], between: str) -> list[str]:
    lines = [begin]
    for word in words:
        if len(lines[-1]) + len(word) > WIDE:
            lines[-1] += between.rstrip()
            lines.append("    " + word)
        else:
            lines[-1] += between + word
    return lines
