"""Facts about methods and other registered members, for the terminal and the reference pages."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from coterie.cli.options import family_of
from coterie.core.plain import hints_of, settings_of, written
from coterie.core.registry import Registered, families_of
from coterie.methods.base import Method
from coterie.methods.run import Initializer, own_options
from coterie.methods.settings import PRIVACY_OPTIONS, RUN_OPTIONS
from coterie.options import Option, from_options, options_by_field
from coterie.report.comparison import ORDER
from coterie.tiers import AssignmentRule, Distance, Objective, ProcedureStep
from coterie.training.budget import why_not

SECTIONS = {
    "": "Options of the method",
    "local": "Local training",
    "averaging": "Averaging",
    "server": "Server",
    "init": "Initialisation",
    "run": "Run",
}
"""Titles of the groups of options, by the field of the method that they belong to; `run`: options of every run."""

TIERS: Mapping[str, tuple[type[Registered], str]] = {
    "objective": (Objective, "how well a cluster explains a sample"),
    "assignment": (AssignmentRule, "how clients are assigned to clusters, and what they compute in a round"),
    "procedure": (ProcedureStep, "when the number of clusters changes; without steps it is fixed"),
    "distance": (Distance, "how far apart two clients are"),
}
"""Family of each of the four tiers, and the question that its members answer, by the field of `Tiered`."""

TRACK = "--track"


# ---- methods ---------------------------------------------------------------------------------------------------------


def listed_methods() -> list[type[Method]]:
    """Return all methods: local models, one global model, methods that find groups, and methods with known groups."""
    return sorted(Method.members.values(), key=lambda kind: (ORDER.index(kind.groups.kind), kind.exchanges))


def default_method(kind: type[Method]) -> Method:
    """Return the method with its default options, without recommendations of a scenario."""
    method: Method = from_options(kind, kind.preferred({}))
    return method


def sections(kind: type[Method]) -> dict[str, list[Option]]:
    """Return every option of a method by the title of its group, with the method's own defaults."""
    defaults = default_method(kind).to_options()
    place = {each.name: at for at, each in enumerate(_own_first(kind))}
    found = {SECTIONS.get(name, name.capitalize()): options for name, options in options_by_field(kind).items()}
    own = found[SECTIONS[""]]
    found[SECTIONS[""]] = tuple(sorted(own, key=lambda each: place[each.name]))
    found[SECTIONS["run"]] = RUN_OPTIONS
    return {
        title: [replace(each, default=defaults.get(each.name, each.default)) for each in taken]
        for title, options in found.items()
        if (taken := [each for each in options if each.name not in kind.refuses])
    }


def private_forms(kind: type[Method]) -> str:
    """Return the values of `privacy` that the method supports with the defaults of private runs, or why it has none."""
    if kind.refuses >= PRIVACY_OPTIONS:
        return "none; no noise is added to the messages" if kind.exchanges else "none; nothing leaves a client"
    method = default_method(kind).with_options(kind.private_options)
    if not method.initializer.any_count:
        return f"none; init={method.initializer.name} asks clients for facts without noise"
    why = {where: why_not(method.tiers(), where) for where in ("local", "central")}
    forms = [f"privacy={where}" for where, reason in why.items() if reason is None]
    return " or ".join(forms) if forms else f"none; {why['local']}"


TABLES_ON_NODES = (
    "counts, means, extremes and frequent texts of the columns of each node, before the first round, if Flower nodes "
    "hold tables"
)
"""Facts that the server sees about tables with every method."""


def server_sees(kind: type[Method]) -> dict[str, str]:
    """Return the values that the server sees of each client with the method's default options, by name."""
    method = default_method(kind)
    if not method.exchanges:
        return {"update": "nothing: no model is sent"} if method.trains else {}
    return ({"update": method.tiers().seen()} if method.trains else {}) | dict(method.reveals())


def python_form(value: Any, nested: bool = False) -> str:
    """Return the Python expression of a typed value.

    It has all settings that are not None; for nested values only numbers and settings that differ from their defaults.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    written_fields = [
        f"{each.name}={python_form(own, nested=True)}"
        for each in _own_first(type(value))
        if (own := getattr(value, each.name)) is not None and (not nested or _is_informative(each, own))
    ]
    return f"{type(value).__name__}({', '.join(written_fields)})"


def _own_first(kind: type) -> list[Field[Any]]:
    """Return the fields of a dataclass, its own fields before those of its base classes."""
    place = {
        name: at
        for at, base in reversed(list(enumerate(kind.__mro__)))
        for name in vars(base).get("__annotations__", {})
    }
    return sorted(settings_of(kind), key=lambda each: place[each.name])


def _is_informative(each: Field[Any], value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (is_number and value != 0) or value != _default_of(each)


def _default_of(each: Field[Any]) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def values_text(option: Option) -> str:
    """Return the values that an option allows, in words."""
    family = family_of(option)
    if family is not None:
        return ", ".join(family.members)
    return ", ".join(option.choices) if option.choices else option.wanted()


# ---- members of families ---------------------------------------------------------------------------------------------


def families() -> list[type[Registered]]:
    """Return the base classes of all families that have members."""
    return [family for family in _below(Registered) if "members" in vars(family) and family.family and family.members]


def _below(base: type[Registered]) -> Iterator[type[Registered]]:
    for each in base.__subclasses__():
        yield each
        yield from _below(each)


def members_called(name: str) -> list[type[Registered]]:
    """Return all members of this name in any family; each class once."""
    return list(dict.fromkeys(family.members[name] for family in families() if name in family.members))


def family_names(member: type[Registered]) -> str:
    """Return the names of the families of a member: `callback, tracker`."""
    return ", ".join(dict.fromkeys(family.family for family in reversed(families_of(member))))


def flags_of(member: type[Registered], options: Iterable[Option]) -> list[str]:
    """Return the flags that accept this member."""
    taken = [
        option.flag for option in options if issubclass(option.kind, Registered) and issubclass(member, option.kind)
    ]
    is_tracker = any(family.family == "tracker" for family in families_of(member))
    return [*dict.fromkeys(taken), *([TRACK] if is_tracker else [])]


@dataclass(frozen=True)
class Setting:
    """Description of a setting of a member."""

    name: str
    values: str
    default: str
    meaning: str


def member_settings(member: type[Registered]) -> list[Setting]:
    """Return the settings of a member of a family, from its fields."""
    hints: Mapping[str, Any] = hints_of(member)  # type: ignore[arg-type]  # a class can be hashed
    notes = argument_notes(member) | field_notes(member)
    found = []
    for each in settings_of(member):
        default = _default_of(each)
        text = "required" if default is MISSING else "-" if default is None else written(default)
        meaning = each.metadata["option"]["help"] if "option" in each.metadata else notes.get(each.name, "")
        found.append(Setting(each.name, type_text(hints[each.name]), text, meaning))
    return found


def initializer_settings(kind: type[Initializer]) -> list[Option]:
    """Return the settings that follow the colon in `--init name:...`."""
    return list(own_options(kind()))


def argument_notes(kind: type) -> dict[str, str]:
    """Return the texts in the section Args of a class's docstring, by argument."""
    _, _, section = (inspect.getdoc(kind) or "").partition("\nArgs:\n")
    notes, name = dict[str, str](), ""
    for line in section.split("\n"):
        if line and not line.startswith(" "):
            break
        if line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(": ")
            notes[name] = text
        elif name and line.strip():
            notes[name] += f" {line.strip()}"
    return notes


def field_notes(kind: type) -> dict[str, str]:
    """Return the texts below the fields of a class and of its base classes, by field."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            notes |= _notes_in_source(base)
    return notes


def _notes_in_source(kind: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):  # a class without a file, as in a notebook
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[statement.target.id] = " ".join(below.value.value.split())
    return found


def type_text(hint: Any) -> str:
    """Return the type of a setting in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(map(written, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"several of {type_text(get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, Registered):
        return f"name of {'an' if hint.family[0] in 'aeiou' else 'a'} {hint.family}"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", types.NoneType: "none"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def first_sentence(kind: type) -> str:
    """Return the first sentence of a class's docstring, without its full stop."""
    opening = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    return opening.split(". ")[0].removesuffix(".")


def description(kind: type) -> list[str]:
    """Return the paragraphs of a docstring up to its first section, such as Args or Example."""
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    found = []
    for paragraph in paragraphs:
        if paragraph.split("\n")[0] in ("Args:", "Returns:", "Raises:", "Example:", "Examples:"):
            break
        found.append(" ".join(paragraph.split()))
    return found


# ---- tiers -----------------------------------------------------------------------------------------------------------


def users_of_members() -> dict[tuple[str, str], list[str]]:
    """Return the methods that use each member by default, by tier and name of the member."""
    users: dict[tuple[str, str], list[str]] = {}
    for kind in listed_methods():
        if {"assignment", "procedure"} <= {each.name for each in settings_of(kind)}:
            continue  # a method whose members the user chooses
        for used in _members_of(default_method(kind)):
            users.setdefault(used, []).append(kind.name)
    return users


def _members_of(method: Method) -> Iterator[tuple[str, str]]:
    tiers = method.tiers()
    yield "objective", tiers.objective.name
    yield "assignment", tiers.assignment.name
    for step in tiers.procedure.steps:
        yield "procedure", step.name
    if tiers.distance is not None:
        yield "distance", tiers.distance.name
