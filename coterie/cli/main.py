"""The commands. Each reads its arguments, calls the library and prints the result."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from coterie import __version__
from coterie.cli import show
from coterie.cli.assignments import assignments_command
from coterie.cli.comparison_output import Outputs, comparison_outputs
from coterie.cli.data import data as data_commands
from coterie.cli.describe import describe as describe_name
from coterie.cli.diagnose import PAGE, diagnose_command, recommended_plan
from coterie.cli.export import export_command
from coterie.cli.flower import flower as flower_commands
from coterie.cli.folders import free_folder, resumable, runs_complete
from coterie.cli.json_output import check_json, write_json_output
from coterie.cli.options import RunCommand, SuggestingGroup, is_complete, read_config, split_options, workers_option
from coterie.cli.plugins import FLAG, HELP, PluginCommand, load_all
from coterie.cli.predict import predict_command
from coterie.cli.progress import comparison_progress, run_progress
from coterie.cli.purposes import PURPOSES
from coterie.cli.reproduce import reproduce_command
from coterie.cli.scoreboard import scoreboard_command
from coterie.cli.sweep import continue_sweep, sweep_command
from coterie.cli.table import print_columns, scenario_and_options
from coterie.cli.terminal import OUTPUT_FAILED, Terminal, discard_output, make_streams_tolerant, on_one_line
from coterie.cli.tiers import tiers_command
from coterie.data import find_scenario
from coterie.data import scenario as build_scenario
from coterie.errors import ConfigError, TrainingError, from_system, shown
from coterie.experiments.compare import MOST_SEEDS, is_comparison, jobs_of, plan_comparison, run_comparison, seed_list
from coterie.experiments.pools import Pool, chosen_pool
from coterie.experiments.sweep import is_sweep
from coterie.methods.base import Method
from coterie.options import AUTO
from coterie.report.commands import run_command
from coterie.report.contact_sheet import contact_sheet
from coterie.report.diagnosis import write_diagnosis
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.training.callbacks import tracker_from_text
from coterie.training.choosing import announcement
from coterie.training.fitting import carry_out, resume
from coterie.training.planning import MethodChoice, method_of_config, prepare
from coterie.training.result import Result
from coterie.training.runs.folder import RunFolder
from coterie.training.runs.outputs import check_output, write_output

out = Terminal()
err = Terminal(stderr=True)

track_option = click.option(
    "--track",
    multiple=True,
    metavar="TRACKER",
    help="Also record the run with mlflow, tensorboard, wandb or csv, with settings after a colon "
    "(mlflow:experiment=a, csv:path=rounds.csv); may be given several times.",
)


@click.group(cls=SuggestingGroup, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="coterie")
@click.option(FLAG, multiple=True, expose_value=False, metavar="FILE", help=HELP, callback=load_all)
def cli() -> None:
    """Clustered federated learning: find groups of clients and train a model for each group.

    \b
    coterie run rotated-digits --method ifca --clusters 4
    coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3
    coterie describe ifca
    """


@cli.command(cls=RunCommand)
@click.argument("scenario", required=False)
@click.option(
    "--method",
    help="Method to run (see 'coterie methods'); auto diagnoses the clients and follows the recommendation. "
    "[default: ifca]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="TOML file with any of these options; flags override it.",
)
@click.option("--out", "folder", type=click.Path(path_type=Path), help="New folder for the run. [default: runs/...]")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the result as JSON; - prints it."
)
@track_option
def run(
    scenario: str | None,
    method: str | None,
    config_file: Path | None,
    folder: Path | None,
    json_file: Path | None,
    track: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run one method on a scenario or on your own table.

    A scenario may recommend other defaults than those below: 'coterie describe SCENARIO' shows them.

    \b
    coterie run rotated-digits --method ifca --clusters 4 --restarts 5
    coterie run mixed-regression --method ifca --groups 3 --samples 10-200 --participation 0.3
    coterie run pupils.csv --client school --target score --clusters 3
    coterie run --config runs/rotated-digits-ifca-seed0/config.toml --seed 7
    """
    check_json(json_file)
    trackers = [tracker_from_text(text) for text in track]
    from_file = read_config(config_file)
    given = from_file | {name: value for name, value in flags.items() if value is not None}
    file_scenario, file_method, file_out = (given.pop(key, None) for key in ("scenario", "method", "out"))
    out_of_file = _folder_of_config(config_file, file_out)
    name, given = scenario_and_options(scenario or file_scenario, given)
    method = method or file_method or "ifca"
    of_scenario, of_run = split_options(name, list(Method.members) if method == AUTO else [method], given)
    chosen: MethodChoice = method
    if method != AUTO and method == file_method and is_complete(method, from_file):
        chosen, of_run = _method_of_file(method, of_run, flags)
    seed = of_run.get("seed", 0)
    data = build_scenario(name, seed=seed, **of_scenario)
    print_columns(err, data.column_notes)
    if method == AUTO:
        plan = recommended_plan(data, {key: value for key, value in given.items() if key in of_run})
        method = plan.method.name
    else:
        plan = prepare(data, chosen, of_run.pop("learner", None), of_run)  # finds mistakes before a folder is created
    folder = folder or out_of_file or free_folder(f"{name}-{method}-seed{seed}")
    if plan.tries:
        _warn(announcement(plan))
    with resumable(folder, err), run_progress(err, plan.rounds, method) as bar:
        result = carry_out(plan, folder, [bar, *trackers], bar.trial)
    _conclude(result, folder, json_file)


def _folder_of_config(config_file: Path | None, out: object) -> Path | None:
    """Return the folder of the run that a TOML file names; None if it names none."""
    if out is None:
        return None
    if not isinstance(out, str) or not out or "\0" in out:
        raise ConfigError(f"{config_file}: out must be the path of a folder, got {shown(out)}")
    return Path(out)


def _method_of_file(
    method: str, options: Mapping[str, Any], flags: Mapping[str, Any]
) -> tuple[MethodChoice, dict[str, Any]]:
    """Return the typed method of a complete TOML file, and the options that remain for the run, flags last."""
    flagged = {name: value for name, value in options.items() if flags.get(name) is not None}
    in_file = {name: value for name, value in options.items() if name not in flagged}
    chosen, rest = method_of_config({"method": method, **in_file})
    return chosen, rest | flagged


def _conclude(result: Result, folder: Path, json_file: Path | None) -> None:
    """Write the JSON file and the report, and print the result."""
    with runs_complete(folder):
        printed = write_json_output(json_file, result.summary() | {"config": dict(result.config)})
        runs = read_runs(folder)
        pages = {"report": write_report(runs, folder / "report.html")}
        if result.diagnosis is not None:
            pages["diagnosis"] = write_diagnosis(result.diagnosis, folder / PAGE, run_command(runs[0]))
        if not printed:
            show.result(out, result)
            _print_paths(run=folder, **pages)
    if result.metrics.diverged:
        raise TrainingError(f"{result.metrics.why_diverged}; the figures and the report are in {folder}")


def _print_paths(**paths: Path) -> None:
    width = max(8, *(len(name) + 1 for name in paths))
    for name, path in paths.items():
        out.print(f"{name:<{width}}{on_one_line(path)}", soft_wrap=True)


@cli.command(cls=RunCommand)
@click.argument("scenario", required=False)
@click.option("--methods", required=True, help="Methods to compare, separated by commas.")
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    default=3,
    show_default=True,
    help="Number of seeds; every method is run once for each seed.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel runs. [default: one for each core]")
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), help="New folder for the runs. [default: runs/compare-...]"
)
@comparison_outputs
def compare(
    scenario: str | None,
    methods: str,
    seeds: int,
    jobs: int | None,
    folder: Path | None,
    csv_file: Path | None,
    latex_file: Path | None,
    figure_file: Path | None,
    against: str | None,
    **flags: Any,
) -> None:
    """Compare methods on a scenario or on your own table over several seeds.

    An option applies to all methods that have it; --seed is the first seed.

    \b
    coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3
    coterie compare mixed-regression --methods fedavg,ifca --seeds 5 --noise 0.5
    coterie compare --table pupils.csv --client school --target score --methods local,fedavg,ifca
    """
    given = {name: value for name, value in flags.items() if value is not None}
    scenario, given = scenario_and_options(scenario, given)
    first = given.pop("seed", 0)
    pool = chosen_pool(jobs, given.pop("workers", None))
    names = [name.strip() for name in methods.split(",") if name.strip()]
    outputs = Outputs(csv_file, latex_file, figure_file, against)
    outputs.check(names)
    of_scenario, of_run = split_options(scenario, names, given)
    folder = folder or free_folder(f"compare-{scenario}")
    plan_comparison(scenario, names, seed_list(seeds, first), of_scenario | of_run, folder)
    if scenario == "table":
        print_columns(err, build_scenario(scenario, seed=first, **of_scenario).column_notes)
    _run_comparison(folder, pool, outputs)


cli.add_command(diagnose_command)
cli.add_command(sweep_command)


def _run_comparison(folder: Path, pool: Pool, outputs: Outputs | None = None) -> None:
    with resumable(folder, err), comparison_progress(err, jobs_of(folder)) as progress:
        failed = run_comparison(folder, pool, progress)
    for line in failed:
        err.print(f"failed  {on_one_line(line)}", style="red", soft_wrap=True)
    with runs_complete(folder):
        runs = read_runs(folder)
        report = write_report(runs, folder / "report.html", unfinished=len(failed))
        show.comparison(out, runs)
        if outputs is not None:
            outputs.write(folder, out)
        _print_paths(runs=folder / "jobs", report=report)
    if failed:
        sys.exit(2)


@cli.command(name="resume", cls=PluginCommand)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="For a comparison or a sweep: number of parallel runs. [default: one for each core]",
)
@workers_option
@track_option
def resume_command(folder: Path, jobs: int | None, workers: str | None, track: tuple[str, ...]) -> None:
    """Resume an interrupted run, comparison or sweep.

    The result is the same as without the interruption. A tracker of the run continues its record if it is named again
    with --track.

    \b
    coterie resume runs/rotated-digits-ifca-seed0
    """
    trackers = [tracker_from_text(text) for text in track]
    if trackers and (is_comparison(folder) or is_sweep(folder)):
        raise ConfigError("--track is only for a single run: leave it out for a comparison or a sweep")
    if is_comparison(folder):
        _run_comparison(folder, chosen_pool(jobs, workers))
        return
    if is_sweep(folder):
        continue_sweep(folder, chosen_pool(jobs, workers))
        return
    run = RunFolder.open(folder)
    if run.finished:
        err.print(f"the run in {on_one_line(folder)} is already finished", soft_wrap=True)
    with resumable(folder, err), run_progress(err, run.planned_rounds, str(run.asked_config["method"])) as bar:
        result = resume(folder, callbacks=[bar, *trackers], on_trial=bar.trial, warn=_warn, workers=workers)
    _conclude(result, folder, None)


@cli.command(cls=PluginCommand)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", "file", type=click.Path(path_type=Path), help="File to write. [default: RUN/report.html]")
@comparison_outputs
def report(
    folder: Path,
    file: Path | None,
    csv_file: Path | None,
    latex_file: Path | None,
    figure_file: Path | None,
    against: str | None,
) -> None:
    """Write the HTML report of a run or comparison again.

    \b
    coterie report runs/compare-rotated-digits --out digits.html
    """
    if file is not None:
        check_output(file)
    outputs = Outputs(csv_file, latex_file, figure_file, against)
    outputs.check()
    runs = read_runs(folder)
    unfinished = len(jobs_of(folder)) - len(runs) if is_comparison(folder) else 0
    path = write_report(runs, file or folder / "report.html", unfinished=unfinished)
    outputs.write(folder, out)
    _print_paths(report=path)


cli.add_command(assignments_command)
cli.add_command(predict_command)
cli.add_command(export_command)


@cli.command(cls=PluginCommand)
@click.option("--for", "purpose", type=click.Choice(list(PURPOSES)), help="List only methods for this purpose.")
def methods(purpose: str | None) -> None:
    """List all methods, or the recommended methods for a purpose.

    \b
    coterie methods
    coterie methods --for unknown-k
    """
    if purpose is None:
        show.methods(out)
    else:
        show.purpose(out, PURPOSES[purpose])


@cli.command(cls=PluginCommand)
@click.option("--show", "name", metavar="NAME", help="Draw images of each client of this scenario, as SVG.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="With --show: seed of the scenario."
)
@click.option(
    "--file", type=click.Path(path_type=Path, dir_okay=False), help="With --show: file to write. [default: NAME.svg]"
)
def scenarios(name: str | None, seed: int, file: Path | None) -> None:
    """List the scenarios, or draw images of the clients of one.

    \b
    coterie scenarios --show diverse-shift
    """
    if name is None:
        show.scenarios(out)
        return
    path = file or Path(f"{find_scenario(name).name}.svg")
    check_output(path)
    write_output(path, contact_sheet(build_scenario(name, seed=seed)))
    _print_paths(drawing=path)


@cli.command(cls=PluginCommand)
@click.argument("name")
def describe(name: str) -> None:
    """Describe a method, scenario, learner or other component by its name.

    The description has all options with their defaults and meanings.

    \b
    coterie describe ifca
    coterie describe rotated-digits
    coterie describe mlp
    coterie describe adam
    """
    describe_name(out, name)


cli.add_command(tiers_command)
cli.add_command(data_commands)
cli.add_command(flower_commands)
cli.add_command(reproduce_command)
cli.add_command(scoreboard_command)


TRACEBACK = "COTERIE_TRACEBACK"
"""Environment variable that makes unexpected errors show their traceback, with any value."""


def main() -> None:
    """Run the program; an error is one sentence on standard error and exit code 2, an interruption exit code 130."""
    make_streams_tolerant()
    warnings.showwarning = lambda message, *_: _warn(message)
    try:
        code = cli.main(prog_name="coterie", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except Exception as error:
        known = explain(error)
        if known is None and os.environ.get(TRACEBACK):
            raise
        _print_error(known or _bug_report(error))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def explain(error: Exception) -> str | None:
    """Return one line about an error: what happened, why, and what to do; None for an unexpected error."""
    if isinstance(error, OSError) and error.filename is None and _is_of_output(error):
        discard_output()
        return OUTPUT_FAILED.format(error.strerror or error)
    known = from_system(error)
    if known is not None:
        return on_one_line(known)
    if isinstance(error, RecursionError):
        return "the input is nested too deeply: simplify it"
    if isinstance(error, UnicodeError):
        return on_one_line(f"a text cannot be decoded or encoded ({error}): use UTF-8")
    return None


def _bug_report(error: Exception) -> str:
    what = on_one_line(f"{type(error).__name__}: {error}")
    return f"unexpected error, a bug in Coterie ({what}): set {TRACEBACK}=1 to see the traceback, and report it"


def _is_of_output(error: OSError) -> bool:
    """Return whether an error without a file name came from printing, since streams have no file name."""
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)


def _print_error(text: str) -> None:
    with suppress(OSError):  # standard error may be closed, too; the exit code still shows the failure
        err.print(f"error: {text}", style="red", soft_wrap=True)


def _warn(message: object) -> None:
    err.print(f"note: {on_one_line(message)}", style="yellow", soft_wrap=True)


if __name__ == "__main__":
    main()
