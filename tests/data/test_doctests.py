"""The examples in docstrings of tables, data, reports and estimators run, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import coterie.data
import coterie.evaluate
import coterie.report
import coterie.sklearn

PACKAGES = (coterie.data, coterie.evaluate, coterie.report, coterie.sklearn)
PUBLIC = (
    *("from_arrays", "from_hf", "from_rows", "from_table", "from_torch", "partitioned", "register_scenario"),
    *("partition.dirichlet", "partition.classes_per_client", "partition.iid", "partition.by_column"),
)


def modules() -> list[str]:
    return [
        found.name for package in PACKAGES for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]


@pytest.mark.parametrize(
    "name", [name for name in modules() if ">>>" in inspect.getsource(importlib.import_module(name))]
)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_have_complete_docstrings(name):
    function = coterie.data
    for part in name.split("."):
        function = getattr(function, part)
    text = inspect.getdoc(function) or ""
    assert text.startswith("Return ")
    for section in ("Args:", "Raises:", "Example:"):
        assert f"\n{section}\n" in text
