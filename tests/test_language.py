"""Constructions that make texts hard to read do not come back: in code, help texts and documentation.

Names in backticks and strings without a space are not prose and are not checked.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from coterie.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
CODE = ("coterie", "papers", "benchmarks", "website", "examples", "docs")
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs",
    "coterie",
    ".github",
)

EVERYWHERE = {
    r"(no|any|some|every)body": "name them: 'no client', 'the user', 'all clients'",
    r"(go|goes|went|gone|going) on with": "'resume', 'continue'",
    r"put(s|ting)? aside": "'hold out', 'validation split'",
    r"(rounds?|measurements?|times|epochs?) in a row": "'consecutive rounds'",
    r"as (was|were) asked": "name the setting",
    r"(is|are|was|were|be|been|being) told(?! (apart|from))": "'receives', 'knows', 'is distinguished'",
    r"(un)?begun": "'started', 'initialised'",
    r"(live|lives|clients|begin|run) elsewhere": "'remote clients'",
    r"liars?": "'attackers'",
    r"what bears": "'robust alternative to the mean'",
    r"strangers?": "'new clients', 'untrusted input'",
    r"(the|a) (shelf|census|roll)": "'client state store', 'client directory', 'client registry'",
    r"lanes?": "'restarts'",
    r"beside": "'next to', 'compared with', 'in addition to'",
    r"headed|heads on one body": "'cluster heads on a shared body'",
    r"one's own": "'your own'",
    r"greetings?|introductions": "'onboarding', 'first message'",
    r"so many": "'this many', 'several'",
    r"but for": "'except for', 'up to rounding'",
    r"(tell|tells|told|telling) \w+ from|told from": "'distinguish', 'be distinguished from'",
    r"(nothing|something) is said": "'nothing is known'",
    r"of (its|their) own(?= ?(?:[.,;:)]|and\b|or\b|from\b|in\b))": "'separate', 'local'",
    r"(the|of) (least|greatest) (loss|losses|distance|number|value|lambda|gain|error|norm|length|size|time)": (
        "'lowest', 'smallest', 'largest'"
    ),
}
"""Patterns of whole words that no text contains, and what to write instead."""

FIRST_LINES = {
    r"(What|Who|Whom|Whose)": "name the thing: 'The ...', 'Return the ...', 'Clients that ...'",
    r"(So|As) many": "'Number of ...'",
    r"Of": "name what is described: 'Number of ...', 'Shape of ...'",
    r"(Where|When|Why|At most)": "name the thing: 'Path of ...', 'Reason ...', 'Largest number of ...'",
    r"(By how|How many|How much)": "name the thing: 'Difference ...', 'Number of ...'",
}
FIRST_SIGNS = re.compile(r"[(~$]")
"""Signs with which no docstring begins: shapes follow the description."""
WORDS = {
    *("told", "beside", "nobody", "everybody", "somebody", "anybody", "liar", "liars", "lies", "stranger", "strangers"),
    *("lane", "lanes", "shelf", "census", "roll_call", "introductions", "begun", "greeting", "greetings"),
}
"""Parts of names, between underscores, that no class, function, variable or argument has."""
"""Patterns with which no docstring begins: its first line says what the thing is or does."""


def found(text: str, rules: dict[str, str], start: str = r"\b") -> Iterator[str]:
    """Yield a message for every forbidden construction in a text."""
    prose = re.sub(r"`[^`]*`", "``", " ".join(text.split()))
    for pattern, advice in rules.items():
        for match in re.finditer(rf"{start}(?<!{{)({pattern})\b(?!\.\w|[\w.]*[_(])", prose, re.IGNORECASE):
            around = prose[max(match.start() - 30, 0) : match.end() + 30]
            yield f"'{match[1]}' in '{around}': write {advice}"


def python_texts(source: str) -> Iterator[tuple[int, str, dict[str, str] | None]]:
    """Yield the line and text of strings and comments; of docstrings a second time, with the rules of first lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value, None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip(), FIRST_LINES
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, None


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every class, function, argument and variable that is defined in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def name_messages(path: Path) -> Iterator[str]:
    source = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("!"))
    for line, name in names_in(source):
        parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_").split("_")
        yield from (f"{path.relative_to(ROOT)}:{line}: {part!r} in {name}" for part in parts if part in WORDS)


def code_messages(path: Path) -> Iterator[str]:
    source = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("!"))  # shell of notebooks
    for line, text, rules in python_texts(source):
        messages = [*(found(text, EVERYWHERE) if rules is None else found(text, rules, "^"))]
        if rules is not None and FIRST_SIGNS.match(text):
            messages.append(f"'{text[:30]}': begin with the description, and let shapes follow")
        yield from (f"{path.relative_to(ROOT)}:{line}: {message}" for message in messages)


def page_messages(path: Path) -> Iterator[str]:
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for paragraph in prose.split("\n\n"):
        yield from (f"{path.relative_to(ROOT)}: {message}" for message in found(paragraph, EVERYWHERE))


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for inner, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{name} {inner}")


def paths(names: tuple[str, ...], ending: str) -> list[Path]:
    return sorted(
        path for name in names for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob(ending))
    )


@pytest.mark.parametrize("folder", CODE)
def test_code_is_in_plain_english(folder):
    messages = [message for path in paths((folder,), "*.py") for message in code_messages(path)]
    assert not messages, "\n" + "\n".join(messages)


@pytest.mark.parametrize("folder", [*CODE, "tests"])
def test_names_are_in_plain_english(folder):
    messages = [message for path in paths((folder,), "*.py") for message in name_messages(path)]
    assert not messages, "\n" + "\n".join(messages)


def test_pages_are_in_plain_english():
    messages = [message for path in paths(PAGES, "*.md") for message in page_messages(path)]
    assert not messages, "\n" + "\n".join(messages)


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in commands(cli, "coterie")])
def test_help_texts_are_in_plain_english(name, command):
    with click.Context(command, info_name=name) as context:
        messages = list(found(command.get_help(context), EVERYWHERE))
    assert not messages, "\n" + "\n".join(messages)


@pytest.mark.parametrize(
    "text",
    [
        "one that is unfinished is gone on with",
        "nobody has to say",
        "So many rounds in a row without an answer end a run",
        "aggregated as was asked",
        "the client is told its cluster",
        "the share of\n    liars.",
        "what bears some that are false",
        "so many of them",
        "every case runs in a process of its own.",
        "the model of least loss and the one with the least loss",
        "the model of the greatest gain",
    ],
)
def test_forbidden_constructions_are_found(text):
    assert list(found(text, EVERYWHERE))


@pytest.mark.parametrize(
    "text", ["the field `liars`", "airplanes fly", "{liars} of them", "beside.safetensors has more", "begins at one"]
)
def test_other_texts_are_accepted(text):
    assert not list(found(text, EVERYWHERE))


def test_docstrings_are_distinguished_from_other_strings():
    source = '"""What it does."""\nname = "What is this"\nwidth = 3\n"""Of a line."""\n'
    messages = [
        (line, message)
        for line, text, rules in python_texts(source)
        if rules is not None
        for message in found(text, rules, "^")
    ]
    assert [line for line, _ in messages] == [1, 4]
