"""`coterie tiers`: the members of each tier, their settings, and which methods use them."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from coterie.cli.about import TIERS, first_sentence, member_settings, users_of_members
from coterie.cli.plugins import PluginCommand
from coterie.cli.terminal import Terminal
from coterie.core.registry import Registered

out = Terminal()


@click.command(name="tiers", cls=PluginCommand)
def tiers_command() -> None:
    """List the members of the four tiers, and the methods that use them.

    \b
    coterie tiers
    coterie run rotated-digits --method tiered --assignment em-mixture:mu=0.4 --objective ratio
    """
    users = users_of_members()
    for number, (tier, (family, question)) in enumerate(TIERS.items(), start=1):
        out.print(Text.assemble((f"{number}  {tier}", "bold"), f": {question}"))
        out.print(_table(tier, family, users))
        out.print()
    out.print(
        "'coterie describe NAME' describes a member, 'coterie describe tiered' how to compose members. Methods are "
        "listed with their default members.",
        highlight=False,
        soft_wrap=True,
    )


def _table(tier: str, family: type[Registered], users: dict[tuple[str, str], list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("name", no_wrap=True)
    table.add_column("meaning")
    for name, member in family.members.items():
        lines = {
            "settings": ", ".join(f"{each.name}={each.default}" for each in member_settings(member)),
            "methods": ", ".join(users.get((tier, name), ())),
        }
        parts = [Text.assemble((f"{key}:", "dim"), f" {text}") for key, text in lines.items() if text]
        table.add_row(name, Text("\n").join([Text(first_sentence(member)), *parts]))
    return table
