"""The examples in the docstrings of the package run and print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.core.registry import Registered

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
    """Classes that an example registers are forgotten afterwards."""
    kinds, known = [Registered], {}
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "members" in vars(kind):
            known[kind] = dict(kind.members)
    yield
    for kind, members in known.items():
        kind.members.clear()
        kind.members.update(members)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, restored_families, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried, "a module with >>> in its text has no example in a docstring"
    assert failed == 0


def test_every_public_name_has_a_docstring_that_begins_with_a_sentence():
    for name in coterie.__all__:
        text = getattr(coterie, name).__doc__
        assert text, name
        summary = text.strip().split("\n\n")[0]
        assert summary.endswith("."), f"{name}: {summary}"
