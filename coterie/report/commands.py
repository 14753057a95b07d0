"""The command or the Python call that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from coterie.core.plain import NAME
from coterie.data import SCENARIOS
from coterie.methods.base import Method
from coterie.methods.initializers import GivenModels
from coterie.methods.settings import RUN_OPTIONS
from coterie.options import from_options
from coterie.report.comparison import MethodRuns
from coterie.report.reading import RunData, is_given

WIDE = 84
"""Largest number of characters of a line of a command."""


def scenario_options(run: RunData) -> dict[str, Any]:
    """Return the options of the config that belong to the scenario and not to the method."""
    kind = run.method_class
    known = {"scenario", "method"}
    if kind is not None:
        known |= {option.name for option in kind.options()} | kind.refuses
    return {name: value for name, value in run.config.items() if name not in known}


def is_named(run: RunData) -> bool:
    """Return whether a command can repeat the run: user-defined arrays, learners and models have no name."""
    known = run.method_class is not None and run.scenario in SCENARIOS
    return known and not own_learner(run) and run.config.get("init") != GivenModels.name


def method_options(run: RunData, spelled: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that differ from their defaults, and those in `spelled`."""
    kind = run.method_class
    if kind is None:
        return {}
    # values that the scenario or its data (lr) suggest would replace a default, so that they are always spelled out
    named = SCENARIOS.get(run.scenario)
    kept = {"clusters", "dtype", "lr", *spelled, *(named.recommended if named else ())}
    defaults = {option.name: option.default for option in RUN_OPTIONS}
    needed = _needed(kind, {name: value for name, value in run.config.items() if name in kind.own_names()}, kept)
    return {
        name: run.config[name]
        for name in (option.name for option in kind.options())
        if name in run.config
        and name != "seed"
        and (name in kept or (run.config[name] != defaults[name] if name in defaults else name in needed))
    }


def _needed(kind: type[Method], own: Mapping[str, Any], kept: Collection[str]) -> dict[str, Any]:
    """Return the settings of a method without those that follow from the others by default."""
    needed = {name: value for name, value in own.items() if not is_given(value) or name != "init"}
    whole = from_options(kind, needed).to_options()
    for name in [name for name in needed if name not in kept]:
        without = {other: value for other, value in needed.items() if other != name}
        if from_options(kind, without).to_options() == whole:
            needed = without
    return needed | {name: value for name, value in own.items() if name == "init" and is_given(value)}


def run_command(run: RunData, spelled: Collection[str] = ()) -> str:
    """Return the command line, or the Python call for arrays and own models; options in `spelled` are always named."""
    if not is_named(run):
        options = _in_python(run, spelled) | {"seed": repr(run.seed)}
        return _call(f"result = coterie.fit(\n    federation, method={run.method!r}, ", options)
    options = scenario_options(run) | method_options(run, spelled)
    return _line(["coterie", "run", run.scenario, "--method", run.method, "--seed", str(run.seed)], options)


def compare_command(main: MethodRuns) -> str:
    """Return the command that also runs the baselines."""
    run = main.first
    names = list(dict.fromkeys(["local", "fedavg", run.method]))
    if not is_named(run):
        return _call(
            f"coterie.compare(\n    federation, {names!r}, seeds={len(main.runs)}, out='comparison', ", _in_python(run)
        )
    command = ["coterie", "compare", run.scenario, "--methods", ",".join(names), "--seeds", str(len(main.runs))]
    return _line(command, scenario_options(run) | method_options(run))


def own_learner(run: RunData) -> bool:
    """Return whether the learner is a user-defined module, which no command can name."""
    return str(run.config.get("learner", "")).startswith("module:")


def _in_python(run: RunData, spelled: Collection[str] = ()) -> dict[str, str]:
    """Return the options as Python text; `my_module` and `my_models` stand for values that a config cannot hold."""
    words = {name: repr(value) for name, value in method_options(run, spelled).items()}
    if own_learner(run):
        words["learner"] = "my_module"
    if run.config.get("init") == GivenModels.name:
        words["init"] = "my_models"
    return words


def _line(command: list[str], options: dict[str, Any]) -> str:
    """Return a command broken into lines that can be read and still be pasted."""
    words = [f"--{name.replace('_', '-')} {shlex.quote(option_text(value))}" for name, value in options.items()]
    return " \\\n".join(_broken(shlex.join(command), words, " "))


def option_text(value: object) -> str:
    """Return an option's plain value as a flag takes it: a member of a family as `name:setting=value,...`."""
    if isinstance(value, Mapping):
        settings = ",".join(f"{name}={option_text(own)}" for name, own in value.items() if name != NAME)
        return f"{value[NAME]}:{settings}" if settings else str(value[NAME])
    if isinstance(value, list):
        return " + ".join(map(option_text, value))
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
