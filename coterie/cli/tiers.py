"""`coterie tiers`: the members of each tier, their settings, and which methods use them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from coterie.cli.terminal import Terminal
from coterie.methods import METHODS
from coterie.methods.base import Entry
from coterie.options import AUTO, Options, settle
from coterie.tiers.compatibility import OWN_MIX
from coterie.tiers.members import FIXED, TIERS, Tier, settings_of
from coterie.tiers.method import Method
from coterie.tiers.procedure import Fixed

out = Terminal()


@click.command(name="tiers")
def tiers_command() -> None:
    """List the members of the four tiers, of which methods are made, and which method uses which.

    \b
    coterie tiers
    coterie run rotated-digits --method composed --weights em-mixture:mu=0.4 --objective ratio
    """
    users = users_of_members()
    for number, (tier, facts) in enumerate(TIERS.items(), start=1):
        out.print(Text.assemble((f"{number}  {tier}", "bold"), f": {facts.question}"))
        out.print(_table(tier, facts.members, users))
        out.print()
    out.print(
        "'coterie describe composed' tells how to put them together; methods are shown as they are by default.",
        highlight=False,
        soft_wrap=True,
    )


def _table(tier: Tier, members: Mapping[str, Callable[..., Any]], users: dict[tuple[Tier, str], list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("name", no_wrap=True)
    table.add_column("meaning")
    shown = {FIXED: Fixed, **members} if tier == "procedure" else members
    for name, member in shown.items():
        settings = {} if member is Fixed else settings_of(member)
        lines = {
            "settings": ", ".join(f"{key}={value}" for key, value in settings.items()),
            "methods": ", ".join(users.get((tier, name), ())),
        }
        parts = [Text.assemble((f"{key}:", "dim"), f" {text}") for key, text in lines.items() if text]
        table.add_row(name, Text("\n").join([Text(_meaning(member)), *parts]))
    return table


def _meaning(member: Callable[..., Any]) -> str:
    """The first sentence of what it says of itself."""
    opening = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
    return opening.split(". ")[0].removesuffix(".")


def users_of_members() -> dict[tuple[Tier, str], list[str]]:
    """The registered methods that are made of each member by default."""
    users: dict[tuple[Tier, str], list[str]] = {}
    for entry in METHODS.values():
        if entry.name != OWN_MIX:
            for used in _members_of(default_method(entry)):
                users.setdefault(used, []).append(entry.name)
    return users


def _members_of(method: Method) -> Iterable[tuple[Tier, str]]:
    yield "objective", method.objective.name
    yield "weights", method.weights.name
    for step in method.procedure.steps:
        yield "procedure", step.name
    if not method.procedure.steps:
        yield "procedure", FIXED
    if method.distance is not None:
        yield "distance", method.distance.name


def default_method(entry: Entry) -> Method:
    """What the method is made of where nothing is said and the data suggests nothing."""
    preferred = dict(entry.prefers({}))
    own = {option.name: option.default for option in entry.options}
    values = settle({}, preferred, own | dict(entry.defaults(preferred)))
    if values["clusters"] in (None, AUTO):
        values["clusters"] = 2
    if values["lr"] == AUTO:
        values["lr"] = 0.1
    values |= {"learner": entry.learners[0] if entry.learners else "logistic", "dtype": "float32"}
    common = {name: value for name, value in values.items() if name not in own}
    return entry.compose(Options(**common, own={name: values[name] for name in own}))
