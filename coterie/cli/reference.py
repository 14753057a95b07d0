"""Generation of the reference pages from the code: `python -m coterie.cli.reference docs` (or `make docs`)."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from coterie.cli.about import (
    SECTIONS,
    default_method,
    description,
    families,
    first_sentence,
    listed_methods,
    member_settings,
    private_forms,
    python_form,
    sections,
    server_sees,
    values_text,
)
from coterie.cli.describe import suggestions
from coterie.cli.main import cli
from coterie.cli.options import default_text
from coterie.cli.purposes import PURPOSES
from coterie.core.registry import Registered
from coterie.data import SCENARIOS, scenario
from coterie.errors import ConfigError
from coterie.learners import LEARNERS, learner_options
from coterie.methods.base import Method, TieredMethod
from coterie.methods.ifca import IFCA
from coterie.options import Option, options_of
from coterie.training.measures import BUILT_IN
from coterie.training.planning import prepare

NOTE = "<!-- Written by `make docs` from the code; do not edit. -->\n"
WIDTH = 96
COMMON = frozenset(option.name for option in options_of(TieredMethod))
NAMED = (
    *("init", "optimizer", "schedule", "server optimizer", "combine", "tracker"),
    *("objective", "assignment", "procedure step", "distance"),
)
"""Families whose members are values of options."""

GROUPS = {
    "self": "A model for every client",
    "one": "One model for all clients",
    "found": "Methods that find clusters",
    "truth": "Methods with known clusters: the best result that clustering could reach",
}
"""Titles of the parts of the list of methods, by the source of the clusters."""


def method_page(kind: type[Method]) -> str:
    """Return the generated part of the page of a method."""
    lines = [NOTE, "## The algorithm\n"]
    lines += [f"{paragraph}\n" for paragraph in description(kind)]
    lines.append(f"{kind.equals()}\n")
    if kind.learners is not None:
        lines.append(f"Learners: {', '.join(f'`{name}`' for name in kind.learners)}.\n")
    lines.append("## How to run it\n")
    lines.append(f"```sh\ncoterie run {_example(kind)} --method {kind.name}\ncoterie describe {kind.name}\n```\n")
    lines.append("In Python, with the defaults written out:\n")
    lines.append(f"```py\n{_broken(python_form(default_method(kind)))}\n```\n")
    lines.append("## Options\n")
    special, changed = _special(kind), _changed(kind)
    lines.append(_table(special) if special else "The method adds no options.\n")
    lines.append("All other options are [those that most methods have](../reference/options.md).\n")
    if changed:
        lines.append("Other defaults: " + ", ".join(f"`{o.name}={default_text(o)}`" for o in changed) + ".\n")
    if kind.refuses:
        lines.append("Not supported: " + ", ".join(f"`{name}`" for name in sorted(kind.refuses)) + ".\n")
    lines.append("## What the server sees\n")
    seen = server_sees(kind)
    lines += [f"- `{row}`: {meaning}" for row, meaning in seen.items()]
    lines.append("" if seen else "No messages travel: the data stays in one process.\n")
    lines.append(f"Private runs: {private_forms(kind)}. See [Privacy](../privacy.md).\n")
    lines.append(f"## Citation\n\n{_capital(kind.citation)}.\n")
    return "\n".join(lines)


def methods_index() -> str:
    """Return docs/methods/index.md: all methods, by the source of their clusters."""
    parts = [NOTE, "# Methods\n"]
    parts.append(
        "Each page has the idea, a picture, when to use the method and when not, its options and what the server sees. "
        "[Which method?](../which-method.md) helps to choose one. `coterie methods` prints this list, and "
        "`coterie describe NAME` prints the options of a method.\n"
    )
    for kind, title in GROUPS.items():
        parts.append(f"## {title}\n")
        rows = [
            (f"[`{each.name}`]({page_name(each)})", f"{each.summary} ({short_citation(each)})")
            for each in listed_methods()
            if each.groups.kind == kind
        ]
        parts.append(_list(rows))
    return "\n".join(parts)


def short_citation(kind: type[Method]) -> str:
    """Return a citation without titles: `Ghosh, Chung, Yin, Ramchandran 2020`."""
    first = kind.citation.split(";")[0]
    authors, colon, rest = first.partition(": ")
    years = [word for word in rest.replace(",", " ").split() if word.isdigit() and len(word) == 4]
    if not colon or not years:
        return kind.citation
    names = authors.split(", ")
    return f"{', '.join(names) if len(names) < 4 else f'{names[0]} and others'} {years[0]}"


def page_name(kind: type[Method]) -> str:
    """Return the file name of the page of a method: `hcfl-plus.md` for `hcfl+`."""
    return f"{kind.name.replace('+', '-plus')}.md"


def purposes_table() -> str:
    """Return the generated part of docs/which-method.md: methods to try first for each purpose, with commands."""
    parts = [NOTE]
    for purpose in PURPOSES.values():
        parts.append(f"## {purpose.name}\n\n{purpose.situation}\n\n```sh\ncoterie methods --for {purpose.name}\n```\n")
        parts += ["| method | why | command |", "| --- | --- | --- |"]
        for choice in purpose.choices:
            page = page_name(Method.members[choice.method])
            parts.append(f"| [`{choice.method}`](methods/{page}) | {choice.reason} | `{choice.command}` |")
        parts.append("")
    return "\n".join(parts)


def options_page() -> str:
    """Return docs/reference/options.md: the options of most methods, and the named values of options."""
    parts = [NOTE, "# Options that most methods have\n"]
    parts.append(
        "Defaults are those of `ifca`. The page of each method lists other defaults, and options that it does not "
        "support.\n"
    )
    for title, options in sections(IFCA).items():
        shared = [option for option in options if title != SECTIONS[""] or option.name in COMMON]
        parts.append(f"## {title if title != SECTIONS[''] else 'Exchange'}\n\n{_table(shared)}")
    parts.append("## Named values\n")
    parts.append(
        "Settings follow the name, as in `--init gaussian:sd=2`; in TOML they are a table, `init = {name = "
        '"gaussian", sd = 2}`. `init` also accepts a run folder, a result or models.\n'
    )
    parts += [_family(family) for family in families() if family.family in NAMED]
    return "\n".join(parts)


def scenarios_page() -> str:
    """Return docs/reference/scenarios.md: every scenario with its options."""
    parts = [NOTE, "# Scenarios\n", "`coterie describe NAME` prints the same text in the terminal.\n"]
    parts.append(_list([(f"[`{each.name}`](#{each.name})", each.summary) for each in SCENARIOS.values()]))
    for entry in SCENARIOS.values():
        text = " ".join((entry.build.__doc__ or "").split())
        parts += [f"## {entry.name}\n", f"{_capital(entry.summary)}. {text}\n", _table(entry.options)]
        recommended = ", ".join(f"`{part}`" for part in suggestions(entry).split(", "))
        parts.append(f"Recommended options of runs: {recommended}.\n")
    return "\n".join(parts)


def learners_page() -> str:
    """Return docs/reference/learners.md: every learner with its settings."""
    parts = [NOTE, "# Learners\n"]
    parts.append(
        "A learner is a family of models. A function that returns a `torch.nn.Module` is also a learner: "
        "`coterie.fit(data, learner=function)`.\n"
    )
    for name, build in LEARNERS.items():
        settings = ", ".join(f"`{p.name}={_default(p.default)}`" for p in learner_options(name).values())
        parts.append(f"## {name}\n\n{' '.join((build.__doc__ or '').split())} Settings: {settings}.\n")
    return "\n".join(parts)


def measures_table() -> str:
    """Return the table of the optional figures of records and metrics in docs/measures.md."""
    moments = {"round": "round", "end": "end", "both": "round, end"}
    rows = [f"| `{each.name}` | {each.description} | {moments[each.when]} | {each.better or ''} |" for each in BUILT_IN]
    return "\n".join([NOTE, "| name | meaning | when | better |", "| --- | --- | --- | --- |", *rows, ""])


def _default(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _list(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| name | what it is |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows), ""])


def _table(options: tuple[Option, ...] | list[Option]) -> str:
    lines = ["| option | default | values | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{each.name}` | {default_text(each)} | {values_text(each)} | {each.help} |" for each in options]
    return "\n".join([*lines, ""])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _example(kind: type[Method]) -> str:
    """Return a scenario that the method can run on."""
    for name in ("rotated-digits", "mixed-regression", "linear-representation"):
        with suppress(ConfigError):
            prepare(scenario(name), kind.name, None, {})
            return name
    raise AssertionError(f"no scenario for {kind.name}")


def _broken(expression: str) -> str:
    """Return a Python call in the format of Ruff, with each outer argument on a separate line."""
    name, _, arguments = expression.replace("'", '"').removesuffix(")").partition("(")
    lines, depth, line = list[str](), 0, ""
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            lines.append(line.strip())
            line = ""
        else:
            line += letter
    lines += [line.strip()] if line.strip() else []
    return "\n".join([f"{name}(", *(f"    {each}," for each in lines), ")"]) if lines else f"{name}()"


def _special(kind: type[Method]) -> list[Option]:
    """Return the options that most other methods do not have."""
    listed = [o for title, options in sections(kind).items() if title != SECTIONS["run"] for o in options]
    return [each for each in listed if each.name not in COMMON]


def _changed(kind: type[Method]) -> list[Option]:
    """Return the common options whose default differs from that of IFCA."""
    own = {option.name: option for options in sections(kind).values() for option in options}
    usual = {option.name: option.default for options in sections(IFCA).values() for option in options}
    return [o for name, o in own.items() if name in COMMON and o.default != usual.get(name)]


def _family(family: type[Registered]) -> str:
    """Return a section with the members of a family and their settings."""
    lines = [f"### {family.family}\n"]
    for name, member in family.members.items():
        if issubclass(member, Method) and family.family != Method.family:
            lines.append(f"- `{name}`: {member.summary} (see the page of this method)")
            continue
        settings = ", ".join(f"`{each.name}={each.default}`" for each in member_settings(member))
        lines.append(f"- `{name}`: {first_sentence(member)}" + (f". Settings: {settings}" if settings else ""))
    return "\n".join([*lines, ""])


def command_pages() -> dict[str, str]:
    """Return the help text of every command, by the name of its page below docs/reference/cli."""
    root = click.Context(cli, info_name="coterie", terminal_width=WIDTH)
    rows = [(f"[`coterie {name}`]({name}.md)", each.get_short_help_str(200)) for name, each in cli.commands.items()]
    index = [NOTE, "# Command line\n", f"```text\n{cli.get_help(root)}\n```\n", _list(rows)]
    pages = {"index.md": "\n".join(index)}
    for name, command in cli.commands.items():
        pages[f"{name}.md"] = "\n".join([NOTE, *_help(name, command, root, "#")])
    return pages


def _help(name: str, command: click.Command, parent: click.Context, mark: str) -> list[str]:
    """Return the help text of a command, followed by those of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    parts = [f"{mark} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"]
    for inner, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        parts += _help(inner, subcommand, context, f"{mark}#")
    return parts


def generated_pages() -> dict[str, str]:
    """Return every page that is generated as a whole, by its path below docs."""
    whole = {
        "methods/index.md": methods_index(),
        "reference/options.md": options_page(),
        "reference/scenarios.md": scenarios_page(),
        "reference/learners.md": learners_page(),
    }
    return whole | {f"reference/cli/{name}": text for name, text in command_pages().items()}


def generated_endings() -> dict[str, str]:
    """Return the end of every page that starts with text written by hand, by its path below docs."""
    ends = {f"methods/{page_name(kind)}": method_page(kind) for kind in listed_methods()}
    return ends | {"measures.md": measures_table(), "which-method.md": purposes_table()}


def main() -> None:
    """Write the pages into the folder given as the only argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coterie.cli.reference FOLDER")
    folder = Path(sys.argv[1])
    for path, text in generated_pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for path, text in generated_endings().items():
        page = folder / path
        by_hand = page.read_text().partition(NOTE)[0] if page.exists() else f"# {page.stem}\n\n"
        page.write_text(by_hand + text)


if __name__ == "__main__":
    main()
