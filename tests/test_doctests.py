"""The examples in the docstrings of the package run and print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.core.registry import Registered
from coterie.data import SCENARIOS
from coterie.learners import LEARNERS
from coterie.training.measures import MEASURES

PACKAGE = Path(coterie.__file__).parent


def holds_examples(path):
    """Return whether the source of a module has an example; the module is not imported."""
    return ">>>" in path.read_text(encoding="utf-8")


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = sorted(name_of(path) for path in PACKAGE.rglob("*.py") if holds_examples(path))


@pytest.fixture
def restored_families():
    """Remove the classes, learners, scenarios and measures that an example registers."""
    kinds, tables = [Registered], [LEARNERS, SCENARIOS, MEASURES]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "members" in vars(kind):
            tables.append(kind.members)
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, restored_families, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried, "a module with >>> in its text has no example in a docstring"
    assert failed == 0
