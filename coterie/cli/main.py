"""The commands. Each reads its arguments, calls the library, prints what came out."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from coterie import __version__
from coterie.choosing import announcement
from coterie.cli import show
from coterie.cli.data import data as data_commands
from coterie.cli.flower import flower as flower_commands
from coterie.cli.folders import free_folder, kept
from coterie.cli.options import SuggestingGroup, read_config, scenario_name, split_options, with_run_options
from coterie.cli.predict import predict_command
from coterie.cli.progress import comparison_progress, run_progress
from coterie.cli.reproduce import reproduce_command
from coterie.cli.sweep import go_on_with_sweep, sweep_command
from coterie.cli.tiers import tiers_command
from coterie.comparing import is_comparison, jobs_of, plan_comparison, run_comparison
from coterie.errors import CoterieError
from coterie.fitting import carry_out, resume
from coterie.planning import prepare
from coterie.report.contact_sheet import contact_sheet
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.result import Result
from coterie.runs.folder import RunFolder
from coterie.scenarios import scenario as build_scenario
from coterie.sweeping import is_sweep

out = Console()
err = Console(stderr=True)


@click.group(cls=SuggestingGroup, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="coterie")
def cli() -> None:
    """Clustered federated learning: find the groups among clients, train a model for each.

    \b
    coterie run rotated-digits --method ifca --clusters 4
    coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3
    coterie describe ifca
    """


@cli.command()
@click.argument("scenario", required=False)
@click.option("--method", help="Method to run (see 'coterie methods'). [default: ifca]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with any of these options.")
@click.option("--out", "folder", type=click.Path(path_type=Path), help="New folder for the run. [default: runs/...]")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the result as JSON; - prints it."
)
@with_run_options
def run(
    scenario: str | None,
    method: str | None,
    config_file: Path | None,
    folder: Path | None,
    json_file: Path | None,
    **flags: Any,
) -> None:
    """Run one method on a scenario, or on your own table.

    A scenario may suggest other defaults than those below: 'coterie describe SCENARIO' shows them.

    \b
    coterie run rotated-digits --method ifca --clusters 4 --restarts 5
    coterie run mixed-regression --method ifca --groups 3 --samples 10-200 --participation 0.3
    coterie run --table pupils.csv --client school --target score --clusters 3
    coterie run --config runs/rotated-digits-ifca-seed0/config.toml --seed 7
    """
    given = read_config(config_file) | {name: value for name, value in flags.items() if value is not None}
    file_scenario, file_method, file_out = (given.pop(key, None) for key in ("scenario", "method", "out"))
    name, method = scenario_name(scenario or file_scenario, given), method or file_method or "ifca"
    of_scenario, of_run = split_options(name, [method], given)
    learner, start = of_run.pop("learner", None), of_run.pop("start", None)
    seed = of_run.get("seed", 0)
    data = build_scenario(name, seed=seed, **of_scenario)
    plan = prepare(data, method, learner, start, of_run)  # a mistake shows before a folder is made
    folder = folder or (Path(file_out) if file_out else free_folder(f"{name}-{method}-seed{seed}"))
    if plan.tries:
        err.print(f"note: {announcement(plan)}", style="yellow", highlight=False, soft_wrap=True)
    with kept(folder, err), run_progress(err, plan.options.rounds, method) as on_round:
        result = carry_out(plan, folder, on_round, on_round.trial)
    _conclude(result, folder, json_file)


def _conclude(result: Result, folder: Path, json_file: Path | None) -> None:
    """Print the result, write the report and the JSON file."""
    report = write_report(read_runs(folder), folder / "report.html")
    if str(json_file) == "-":
        click.echo(json.dumps(result.summary() | {"config": dict(result.config)}, indent=1))
        return
    if json_file is not None:
        json_file.write_text(json.dumps(result.summary() | {"config": dict(result.config)}, indent=1) + "\n")
    show.result(out, result)
    out.print(f"run     {folder}", highlight=False, soft_wrap=True)
    out.print(f"report  {report}", highlight=False, soft_wrap=True)


@cli.command()
@click.argument("scenario", required=False)
@click.option("--methods", required=True, help="Methods to compare, separated by commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each method.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time. [default: one a core]")
@click.option("--out", "folder", type=click.Path(path_type=Path), help="New folder. [default: runs/compare-...]")
@with_run_options
def compare(
    scenario: str | None, methods: str, seeds: int, jobs: int | None, folder: Path | None, **flags: Any
) -> None:
    """Compare methods on a scenario, or on your own table, over several seeds.

    An option goes to those methods that take it; --seed is the first seed.

    \b
    coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3
    coterie compare mixed-regression --methods fedavg,ifca --seeds 5 --noise 0.5
    coterie compare --table pupils.csv --client school --target score --methods local,fedavg,ifca
    """
    given = {name: value for name, value in flags.items() if value is not None}
    scenario = scenario_name(scenario, given)
    first = given.pop("seed", 0)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    of_scenario, of_run = split_options(scenario, names, given)
    folder = folder or free_folder(f"compare-{scenario}")
    plan_comparison(scenario, names, list(range(first, first + seeds)), of_scenario | of_run, folder)
    _run_comparison(folder, jobs)


cli.add_command(sweep_command)


def _run_comparison(folder: Path, workers: int | None) -> None:
    with kept(folder, err), comparison_progress(err, jobs_of(folder)) as progress:
        failed = run_comparison(folder, workers, progress)
    runs = read_runs(folder)
    report = write_report(runs, folder / "report.html", unfinished=len(failed))
    show.comparison(out, runs)
    out.print(f"runs    {folder / 'jobs'}", highlight=False, soft_wrap=True)
    out.print(f"report  {report}", highlight=False, soft_wrap=True)
    for line in failed:
        err.print(f"failed  {line}", style="red", highlight=False, soft_wrap=True)
    if failed:
        sys.exit(2)


@cli.command(name="resume")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--jobs", type=click.IntRange(min=1), help="For a comparison or a sweep: runs at a time. [default: one a core]"
)
def resume_command(folder: Path, jobs: int | None) -> None:
    """Go on with an interrupted run, comparison or sweep; it ends as if it had never stopped.

    \b
    coterie resume runs/rotated-digits-ifca-seed0
    """
    if is_comparison(folder):
        _run_comparison(folder, jobs)
        return
    if is_sweep(folder):
        go_on_with_sweep(folder, jobs)
        return
    run = RunFolder.open(folder)
    if run.finished:
        err.print(f"{folder} is finished already", highlight=False, soft_wrap=True)
    config = run.asked_config
    with kept(folder, err), run_progress(err, int(config["rounds"]), str(config["method"])) as on_round:
        result = resume(
            folder,
            on_round=on_round,
            on_trial=on_round.trial,
            warn=lambda text: err.print(f"note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True),
        )
    _conclude(result, folder, None)


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", "file", type=click.Path(path_type=Path), help="File to write. [default: RUN/report.html]")
def report(folder: Path, file: Path | None) -> None:
    """Write the HTML report of a finished run or comparison again.

    \b
    coterie report runs/compare-rotated-digits --out digits.html
    """
    runs = read_runs(folder)
    unfinished = len(jobs_of(folder)) - len(runs) if is_comparison(folder) else 0
    path = write_report(runs, file or folder / "report.html", unfinished=unfinished)
    out.print(f"report  {path}", highlight=False, soft_wrap=True)


cli.add_command(predict_command)


@cli.command()
def methods() -> None:
    """List the methods."""
    show.methods(out)


@cli.command()
@click.option("--show", "name", metavar="NAME", help="Draw what the clients of this scenario see, as SVG.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="With --show: which drawing of it.")
@click.option(
    "--file", type=click.Path(path_type=Path, dir_okay=False), help="With --show: the file [default: NAME.svg]."
)
def scenarios(name: str | None, seed: int, file: Path | None) -> None:
    """List the scenarios, or draw what the clients of one see.

    \b
    coterie scenarios --show diverse-shift
    """
    if name is None:
        show.scenarios(out)
        return
    drawn = contact_sheet(build_scenario(name, seed=seed))
    path = file or Path(f"{name}.svg")
    path.write_text(drawn, encoding="utf-8")
    out.print(f"drawing {path}", highlight=False, soft_wrap=True)


@cli.command()
@click.argument("name")
def describe(name: str) -> None:
    """Tell all about a method, a scenario or a learner: options, defaults, paper, what the server sees.

    \b
    coterie describe ifca
    coterie describe rotated-digits
    coterie describe mlp
    """
    show.describe(out, name)


cli.add_command(tiers_command)
cli.add_command(data_commands)
cli.add_command(flower_commands)
cli.add_command(reproduce_command)


def main() -> None:
    """The entry point: a mistake of the user's is one line and exit code 2."""
    warnings.showwarning = lambda message, *_: err.print(f"note: {message}", style="yellow", markup=False)
    try:
        code = cli.main(standalone_mode=False)
    except CoterieError as error:
        err.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
