"""Docstrings of public names have a summary, Args, Returns and Raises where they apply, and an example."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.methods.base import Method

PACKAGES = ("", "methods", "tiers", "learners", "clustering", "callbacks", "data", "sklearn", "testing")
"""Packages whose `__all__` is public; those of Flower are named in the reference."""
FLOWER = (
    "node.make_client_app",
    "server.make_server_app",
    "strategy.ClusteredStrategy",
    "clients.clients_of",
    "raw_table.raw_table",
)
WITHOUT_EXAMPLE = {
    *("FirstModels", "Initial", "Run", "Step"),  # Coterie makes them and passes them to methods
    *("Outcome", "Session", "TrainingRun"),  # and these to callbacks
    "ClusteredResult",  # see ClusteredStrategy
}
REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "api"


def public():
    """Yield name and value of every public class and function."""
    for package in PACKAGES:
        module = import_module(f"coterie.{package}".rstrip("."))
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield pytest.param(name, value, id=f"{package}.{name}".lstrip("."))


def public_of_flower():
    pytest.importorskip("flwr", reason="the names are in coterie[flower]")
    for path in FLOWER:
        module, _, name = path.rpartition(".")
        yield name, getattr(import_module(f"coterie.flower.{module}"), name)


def faults(name, value):
    """Yield what the docstring of a public class or function lacks."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    if not text or text.startswith(f"{name}("):  # the text that dataclasses make
        yield "a docstring"
        return
    if not text.partition("\n")[0].endswith((".", ")", ":")):
        yield "a summary line"
    if ">>>" not in text and name not in WITHOUT_EXAMPLE and not is_error(value):
        yield "an example that runs"
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        if signature.parameters and "Args:" not in text:
            yield "Args"
        if (
            "Returns:" not in text
            and signature.return_annotation not in ("None", "NoReturn")
            and value.__name__ != "no_files"
        ):
            yield "Returns"
        if "Raises:" not in text and re.search(r"^\s+raise \w", inspect.getsource(value), re.MULTILINE):
            yield "Raises"


def is_error(value):
    return inspect.isclass(value) and issubclass(value, BaseException)


@pytest.mark.parametrize(("name", "value"), [*public()])
def test_a_public_name_has_a_complete_docstring(name, value):
    assert list(faults(name, value)) == []


def test_public_names_of_flower_have_complete_docstrings():
    assert {name: found for name, value in public_of_flower() if (found := list(faults(name, value)))} == {}


def test_missing_parts_are_found():
    def short(x):
        """Return x"""
        raise ValueError(x)

    assert list(faults("short", short)) == ["a summary line", "an example that runs", "Args", "Returns", "Raises"]


def test_every_public_name_has_a_place_in_the_reference():
    text = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    assert "\n::: coterie.errors\n" in text
    shown = set(re.findall(r"^::: coterie[\w.]*\.(\w+)$", text, re.MULTILINE))
    shown |= {name for name, value in vars(coterie.errors).items() if inspect.isclass(value)}  # shown as a module
    named = {each.values[0] for each in public()}
    with_page = {kind.__name__ for kind in Method.members.values()}  # docs/methods
    assert named - shown - with_page == set()
