"""How to run it again: the exact command, or the Python call."""

from __future__ import annotations

import shlex
from typing import Any

from coterie.methods import METHODS
from coterie.report.comparison import MethodRuns
from coterie.report.reading import RunData

SUGGESTED = ("clusters", "learner", "rounds", "local_steps", "local_epochs", "batch_size", "lr", "restarts", "dtype")
"""Options that a scenario may suggest values for: they are always spelled out, even at the method's default."""


def scenario_options(run: RunData) -> dict[str, Any]:
    """Those keys of the config that belong to the scenario, not to the method."""
    entry = METHODS.get(run.method)
    known = {"scenario", "method"}
    if entry is not None:
        known |= {option.name for option in entry.accepts} | entry.refuses
    return {name: value for name, value in run.config.items() if name not in known}


def is_named(run: RunData) -> bool:
    """Whether the data can be made again by name; a named scenario stores its options, arrays have none."""
    return run.method in METHODS and bool(scenario_options(run))


def method_options(run: RunData) -> dict[str, Any]:
    """The options that matter: all that a default would not give back by itself."""
    entry = METHODS.get(run.method)
    if entry is None:
        return {}
    defaults = {option.name: option.default for option in entry.accepts} | dict(entry.defaults(run.config))
    return {
        name: run.config[name]
        for name in (option.name for option in entry.accepts)
        if name in run.config and name != "seed" and (name in SUGGESTED or run.config[name] != defaults.get(name))
    }


def run_command(run: RunData) -> str:
    """The command line, or the Python call for arrays of one's own."""
    if not is_named(run):
        return _python_call(run)
    options = scenario_options(run) | method_options(run)
    return _joined(["coterie", "run", run.scenario, "--method", run.method, "--seed", str(run.seed)], options)


def compare_command(main: MethodRuns) -> str:
    """What runs the baselines beside this method."""
    run = main.first
    names = list(dict.fromkeys(["local", "fedavg", main.name]))
    if not is_named(run):
        methods = ", ".join(repr(name) for name in names)
        lines = [f"folder = coterie.compare(federation, [{methods}], seeds={len(main.runs)}, out='comparison'"]
        return "".join(lines + [f", {name}={value!r}" for name, value in method_options(run).items()]) + ")"
    command = ["coterie", "compare", run.scenario, "--methods", ",".join(names)]
    return _joined(command, scenario_options(run) | method_options(run))


def own_learner(run: RunData) -> bool:
    """Whether the learner is a module of the user's own, which no command can name."""
    return str(run.config.get("learner", "")).startswith("module:")


def _joined(command: list[str], options: dict[str, Any]) -> str:
    """One line a few options, so that it can be read and still be pasted."""
    words = [shlex.join(command)]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')} {shlex.quote(_text(value))}")
    lines, line = [], words[0]
    for word in words[1:]:
        if len(line) + len(word) > 88:
            lines.append(line)
            line = "    " + word
        else:
            line += " " + word
    return " \\\n".join([*lines, line])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _python_call(run: RunData) -> str:
    options = method_options(run) | {"seed": run.seed}
    words = [f"{name}={value!r}" for name, value in options.items()]
    lines, line = [], "    "
    for word in words:
        if len(line) + len(word) > 88:
            lines.append(line.rstrip())
            line = "    "
        line += word + ", "
    body = "\n".join([*lines, line.rstrip()])
    return f"result = coterie.fit(\n    federation, method={run.method!r},\n{body}\n)"
