"""`coterie diagnose`: how clients differ, which groups they form and what to do, before anything is trained."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.padding import Padding

from coterie.cli.json_output import check_json, write_json_output
from coterie.cli.options import DataCommand, split_options
from coterie.cli.table import print_columns, scenario_and_options
from coterie.cli.terminal import Terminal, on_one_line, visible
from coterie.core.dataset import ClientDirectory
from coterie.core.plain import to_plain
from coterie.data import scenario as build_scenario
from coterie.diagnosis.answers import answers, subject
from coterie.diagnosis.diagnose import diagnose
from coterie.diagnosis.values import Diagnosis
from coterie.errors import StorageError
from coterie.methods.base import Method
from coterie.report.commands import option_text
from coterie.report.diagnosis import write_diagnosis
from coterie.training.planning import Plan, diagnosis_for, follow
from coterie.training.runs.folder import DIAGNOSIS
from coterie.training.runs.outputs import check_output, write_output

PAGE = "diagnosis.html"

out = Terminal()
err = Terminal(stderr=True)


@click.command(name="diagnose", cls=DataCommand)
@click.argument("scenario", required=False)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the diagnosis as JSON; - prints it."
)
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), help=f"Folder for {DIAGNOSIS} and {PAGE}. [default: none]"
)
def diagnose_command(
    scenario: str | None, seed: int, json_file: Path | None, folder: Path | None, **flags: Any
) -> None:
    """Test how clients differ and form groups, and recommend a method.

    Nothing is trained: clients are asked a few times for sums and small statistics. 'coterie run --method auto' follows
    the recommendation.

    \b
    coterie diagnose rotated-digits
    coterie diagnose --table pupils.csv --client school --target score --out diagnosis
    """
    check_json(json_file)
    if folder is not None:
        _make_folder(folder)
    given = {name: value for name, value in flags.items() if value is not None}
    name, given = scenario_and_options(scenario, given)
    of_scenario, _ = split_options(name, [], given)
    data = build_scenario(name, seed=seed, **of_scenario)
    print_columns(err, data.column_notes)
    with err.status("asking the clients"):
        found = diagnose(data, seed=seed)
    command = run_command(found, None if name == "table" else name, given)
    if not write_json_output(json_file, _json_object(found)):
        show_diagnosis(found, command)
    if folder is not None:
        write_files(found, folder, command)
        if json_file is None or str(json_file) != "-":
            out.print(f"page    {on_one_line(folder / PAGE)}", soft_wrap=True)


def _json_object(found: Diagnosis) -> Mapping[str, Any]:
    plain = to_plain(found)
    assert isinstance(plain, Mapping), "a dataclass"
    return plain


def _make_folder(folder: Path) -> None:
    """Create the output folder and check that its files can be written, before the clients are asked.

    Raises:
        StorageError: if the path is a file, or the files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise StorageError(f"{folder} is a file, but --out needs a folder: choose another name") from None
    for name in (DIAGNOSIS, PAGE):
        check_output(folder / name)


def write_files(found: Diagnosis, folder: Path, command: str) -> None:
    """Write the diagnosis as JSON and as a page into a folder."""
    write_output(folder / DIAGNOSIS, found.to_json())
    write_diagnosis(found, folder / PAGE, command)


def run_command(found: Diagnosis, scenario: str | None, given: Mapping[str, Any]) -> str:
    """Return the command that follows the recommendation on the same data.

    Args:
        found: The diagnosis.
        scenario: The scenario as the user named it; None for a table.
        given: Options of the scenario or the table that the user gave.
    """
    words = ["coterie", "run", *([] if scenario is None else [scenario])]
    for name, value in given.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", option_text(each)]
    words += found.recommendation.arguments
    words += ["--seed", str(found.seed)] if found.seed else []
    return shlex.join(words)


def recommended_plan(data: ClientDirectory, given: Mapping[str, Any]) -> Plan:
    """Diagnose the clients, print the recommendation, and return the plan that follows it.

    Args:
        data: The clients.
        given: Options of the run from flags or a TOML file.
    """
    with err.status("diagnosing the clients"):
        found = diagnosis_for(data, given, given.get("learner"))
    *_, action = answers(found)
    err.print(f"diagnosis: {on_one_line(action.sentence)} {on_one_line(' '.join(action.evidence))}", soft_wrap=True)
    # the recommended method comes first, so that a flag of several methods is read as an option of this one
    names = [found.recommendation.method, *Method.members]
    _, options = split_options(data.name, names, given)
    return follow(found, data, options.pop("learner", None), options)


def show_diagnosis(found: Diagnosis, command: str) -> None:
    """Print the five answers, the command that follows the recommendation, and the warnings."""
    out.print(visible(subject(found)))
    for number, answer in enumerate(answers(found), 1):
        out.print(f"\n{number}  {visible(answer.question)}", style="bold")
        out.print(Padding(visible(answer.sentence), (0, 0, 0, 3), expand=False))
        for sentence in answer.evidence:
            out.print(Padding(visible(sentence), (0, 0, 0, 3), expand=False), style="dim")
    out.print(f"\n   {on_one_line(command)}\n", style="bold", soft_wrap=True)
    for warning in found.warnings:
        out.print(f"note: {on_one_line(warning)}", style="yellow", soft_wrap=True)
    cost = found.cost
    out.print(
        f"cost    {cost.exchanges} exchanges, {cost.bytes_up / 1e6:.2f} MB up, {cost.bytes_down / 1e6:.2f} MB down, "
        f"{cost.seconds:.1f} s"
    )
