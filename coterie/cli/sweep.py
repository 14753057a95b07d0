"""`coterie sweep`: try every combination of some options, and rank them by validation samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from coterie.cli import show
from coterie.cli.folders import free_folder, resumable, runs_complete
from coterie.cli.json_output import check_json, write_json_output
from coterie.cli.options import RunCommand, all_options, is_member, split_options
from coterie.cli.progress import comparison_progress
from coterie.cli.table import print_columns, scenario_and_options
from coterie.cli.terminal import Terminal, on_one_line
from coterie.data import find_scenario
from coterie.data import scenario as build_scenario
from coterie.errors import ConfigError, unknown_name
from coterie.experiments.compare import MOST_SEEDS, seed_list
from coterie.experiments.pools import Pool, chosen_pool
from coterie.experiments.sweep import SHARE, SweepPlan, plan_sweep, rank_runs, read_plan, run_sweep
from coterie.options import Option
from coterie.training.planning import method_class

out = Terminal()
err = Terminal(stderr=True)


@click.command(name="sweep", cls=RunCommand)
@click.argument("scenario", required=False)
@click.option("--method", default="ifca", show_default=True, help="Method to run (see 'coterie methods').")
@click.option(
    "--over",
    multiple=True,
    metavar="NAME=V1,V2,...",
    help="Option to vary, and the values to try; may be given several times.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    default=1,
    show_default=True,
    help="Number of seeds; every combination is run once for each seed.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel runs. [default: one for each core]")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder for the runs; an interrupted sweep in it is resumed. [default: new folder runs/sweep-...]",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the ranking as JSON; - prints it."
)
def sweep_command(
    scenario: str | None,
    method: str,
    over: tuple[str, ...],
    seeds: int,
    jobs: int | None,
    folder: Path | None,
    json_file: Path | None,
    **flags: Any,
) -> None:
    """Try every combination of some options, and rank them by validation samples.

    The validation samples are a part of each client's training samples (--validation, by default a share of 0.2); test
    data is not used. The command prints a ranking, and the command that trains the best combination. --seed is the
    first seed; all other options are the same for every run.

    \b
    coterie sweep rotated-digits --method ifca --over lr=0.03,0.1,0.3 --over local_steps=1,10 --seeds 2
    coterie sweep mixed-regression --over clusters=2,3,4,5 --noise 0.5
    """
    check_json(json_file)
    given = {name: value for name, value in flags.items() if value is not None}
    scenario, given = scenario_and_options(scenario, given)
    first, share = given.pop("seed", 0), given.pop("validation", SHARE)
    pool = chosen_pool(jobs, given.pop("workers", None))
    swept = read_over(over, method, scenario)
    of_scenario, of_run = split_options(scenario, [method], given)
    folder = folder or free_folder(f"sweep-{scenario}-{method}")
    chosen = seed_list(seeds, first)
    plan_sweep(SweepPlan(scenario, method, swept, chosen, share, of_scenario | of_run), folder)
    if scenario == "table":
        print_columns(err, build_scenario(scenario, seed=first, **of_scenario).column_notes)
    continue_sweep(folder, pool, json_file)


def read_over(texts: Sequence[str], method: str, scenario: str) -> dict[str, list[object]]:
    """Return the values of each option in `--over NAME=V1,V2`, in the type of the option."""
    # options of the scenario, and options that the method does not have, are refused later, with the reason
    of_method = {option.name: option for option in method_class(method).options()}
    known = all_options() | of_method | {option.name: option for option in find_scenario(scenario).options}
    found: dict[str, list[object]] = {}
    for text in texts:
        name, given, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not given:
            raise ConfigError(f"--over must look like lr=0.01,0.1,1, got {text!r}")
        if name not in known:
            raise unknown_name(f"option of method {method}", name, known)
        if name in found:
            raise ConfigError(f"--over {name} is given twice: list all values of the option in one --over")
        found[name] = _read_values(known[name], values)
    return found


def _read_values(option: Option, text: str) -> list[object]:
    """Return the values of a text such as `0.1,1` or `adam,sgd:momentum=0.9,nesterov=true`, in the option's type."""
    if is_member(option):  # a comma before `setting=` belongs to the value before it
        return [value.strip() for value in re.split(r",(?!\s*\w+=)", text) if value.strip()]
    return [option.read(value.strip()) for value in text.split(",") if value.strip()]


def continue_sweep(folder: Path, pool: Pool, json_file: Path | None = None) -> None:
    """Run the unfinished runs of a planned sweep, and print the ranking."""
    with resumable(folder, err), comparison_progress(err, read_plan(folder).all_jobs(folder)) as progress:
        failed = run_sweep(folder, pool, progress)
    with runs_complete(folder):
        found = rank_runs(folder, failed)
        if not write_json_output(json_file, found.summary()):
            show.sweep(out, found)
            out.print(f"runs    {on_one_line(folder / 'jobs')}", soft_wrap=True)
