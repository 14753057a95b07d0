"""Every package imports only from the packages before it, and keeps to what its layer may do."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = (
    "errors",
    "files",
    "core",
    "plugins",
    "options",
    "learners",
    "privacy",
    "client",
    "server",
    "tiers",
    "methods",
    "engines",
    "evaluate",
    "data",
    "cluster",
    "diagnosis",
    "training",
    "report",
    "experiments",
    "flower",
    "clustering",
    "callbacks",
    "extend",
    "sklearn",
    "",  # the names that `import coterie` offers
    "cli",
    "testing",
)
"""Packages and top-level modules from the bottom to the top; each may import only those before it."""

NEVER = {("client", "server"), ("server", "client"), ("testing", "cli")}
"""(package, package that it must not import wherever the two stand in the order)."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a source, the module first."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def calls_in(source: str) -> tuple[tuple[ast.Call, str], ...]:
    """Return every call in a source and the text of what is called."""
    return tuple((node, ast.unparse(node.func)) for node in nodes_of(source) if isinstance(node, ast.Call))


@cache
def source_of(module: str) -> str:
    return MODULES[module].read_text()


def imports(source: str, package: str, modules: Iterable[str] = ()) -> set[str]:
    """Return every module that the source imports anywhere, also inside functions and for type checking only.

    Args:
        source: Text of a module.
        package: Package that relative imports start from.
        modules: Names of our modules; `from a import b` counts as `a.b` if that is one of them, otherwise as `a`.
    """
    found: set[str] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            full = {f"{base}.{alias.name}" for alias in node.names}
            inner = full & set(modules)
            found |= inner if inner == full else inner | {base}
    for call, name in calls_in(source):
        if name.endswith(("__import__", "import_module")):
            found |= {a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


@cache
def imports_of(module: str) -> frozenset[str]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(imports(source_of(module), package, MODULES))


def package_of(module: str) -> str:
    """Return the package below `coterie` that a module belongs to; `coterie` itself is the empty text."""
    return module.split(".")[1] if "." in module else ""


def in_packages(*packages: str) -> list[str]:
    return [module for module in MODULES if package_of(module) in packages]


def our_imports() -> set[tuple[str, str]]:
    """Return (module, imported module) for every import from one of our packages into another."""
    return {
        (module, imported)
        for module in MODULES
        for imported in imports_of(module)
        if imported.split(".")[0] == "coterie" and package_of(imported) != package_of(module)
    }


def against_the_order(module: str, imported: str) -> bool:
    importer, target = package_of(module), package_of(imported)
    if importer == "":
        return target == "cli"  # `import coterie` offers names of every package, and no package imports it in turn
    return (importer, target) in NEVER or LAYERS.index(target) > LAYERS.index(importer)


def test_the_reader_of_imports_sees_every_form():
    source = (
        "import os.path as p\nfrom coterie import fit, data\nfrom .a import b\nfrom ..c import d\n"
        "if TYPE_CHECKING:\n  from coterie.x import y\ndef f():\n  import flwr.x"
    )
    expected = {"os.path", "coterie", "coterie.data", "coterie.core.a", "coterie.c", "coterie.x.y", "flwr.x"}
    assert imports(source, "coterie.core", {"coterie.data", "coterie.x.y"}) == expected
    assert imports("import_module('pickle')", "coterie") == {"pickle"}


def test_every_package_has_its_place_in_the_order():
    packages = {package_of(module) for module in MODULES}
    assert packages - set(LAYERS) == set()
    for package in packages - {"", "errors", "options", "files", "clustering", "callbacks", "extend"}:
        assert len(in_packages(package)) > 1, package


def test_a_package_imports_only_the_packages_before_it():
    odd = {(module, imported) for module, imported in our_imports() if against_the_order(module, imported)}
    assert sorted(odd) == []


def test_there_is_no_cycle_between_packages():
    graph: dict[str, set[str]] = {}
    for module, imported in our_imports():
        if package_of(module):
            graph.setdefault(package_of(module), set()).add(package_of(imported) or "coterie")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a cycle between packages: " + " is imported by ".join(error.args[1]))


def test_at_most_six_modules_stand_at_the_top():
    assert len([path for path in ROOT.glob("*.py") if path.name != "__init__.py"]) <= 6


OUTSIDE = {"pathlib", "os", "socket", "requests", "urllib", "http", "flwr", "matplotlib", "subprocess", "shutil"}


@pytest.mark.parametrize("package", ["core", "tiers", "learners"])
def test_values_tiers_and_learners_use_no_file_network_or_plot(package):
    odd = {
        f"{module} imports {imported}"
        for module in in_packages(package)
        for imported in imports_of(module)
        if imported.split(".")[0] in OUTSIDE or imported == "coterie.files"
    }
    assert odd == set()


@pytest.mark.parametrize("package", ["core", "tiers", "learners", "privacy", "client", "server", "methods"])
def test_algorithms_open_no_file(package):
    doors = ("open", "torch.save", "torch.load", "np.save", "np.load")
    calls = {
        f"{module}:{node.lineno}"
        for module in in_packages(package)
        for node, name in calls_in(source_of(module))
        if name in doors
    }
    assert calls == set()


def importers_of(*libraries: str) -> set[str]:
    """Return our modules that import one of these libraries anywhere."""
    return {module for module in MODULES if {name.split(".")[0] for name in imports_of(module)} & set(libraries)}


def test_flower_is_imported_only_in_its_own_package():
    users = importers_of("flwr")
    assert users
    assert {module for module in users if package_of(module) != "flower"} == set()


def test_trackers_are_imported_only_by_callbacks():
    users = importers_of("mlflow", "tensorboard", "tensorboardX", "wandb")
    users |= {module for module in MODULES if any("utils.tensorboard" in name for name in imports_of(module))}
    assert {module for module in users if not module.startswith("coterie.training.callbacks")} == set()


def test_only_the_export_to_joblib_pickles_and_nothing_unpickles():
    assert importers_of("pickle", "cloudpickle", "dill", "joblib", "shelve") == {"coterie.training.export"}
    assert "load" not in {
        node.attr for node in nodes_of(source_of("coterie.training.export")) if isinstance(node, ast.Attribute)
    }


def test_no_global_seed_is_set():
    """`torch.manual_seed` is allowed only inside a fork of the random state; NumPy's global generator never."""
    odd = set()
    for module in MODULES:
        for node, name in calls_in(source_of(module)):
            if name in ("np.random.seed", "random.seed") or name.startswith(("np.random.rand", "np.random.normal")):
                odd.add(f"{module}:{node.lineno} {name}")
            if name == "torch.manual_seed" and "fork_rng" not in source_of(module):
                odd.add(f"{module}:{node.lineno} {name}")
    assert odd == set()


def test_every_package_and_module_says_what_it_is_for():
    for folder in {p.parent for p in FILES}:
        assert (folder / "__init__.py").is_file(), folder
    silent = {module for module in MODULES if not ast.get_docstring(nodes_of(source_of(module))[0])}
    assert silent == set()


TIERS = ("objective", "assignment", "procedure", "distance")


@pytest.mark.parametrize("tier", TIERS)
def test_tier_methods_start_with_their_side(tier):
    """A tier is a module or a package; what its classes do publicly is done by a client or by the server."""
    name = f"coterie.tiers.{tier}"
    odd, seen = set(), 0
    for module in [m for m in MODULES if m == name or m.startswith(f"{name}.")]:
        for node in nodes_of(source_of(module))[0].body:
            for method in node.body if isinstance(node, ast.ClassDef) else []:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
                    continue
                if any(ast.unparse(d).endswith(("property", "classmethod")) for d in method.decorator_list):
                    continue
                seen += 1
                if not method.name.startswith(("client_", "server_")):
                    odd.add(f"{module}.{node.name}.{method.name}")
    assert odd == set()
    assert seen > 0


KINDS = {"golden", "fuzz", "dist", "faults"}
"""Folders of tests that are about the whole package: results that must not change, random input, killed
processes, and what is distributed."""


def test_tests_stand_where_the_code_stands():
    tests = ROOT.parent / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    ours = {folder for folder in folders if folder.parts[0] not in KINDS}
    next_to = {folder for folder in ours if folder.parts[0] in ("papers", "benchmarks")}
    assert {folder for folder in ours - next_to if not (ROOT / folder).is_dir()} == set()
    assert {folder for folder in next_to if not (ROOT.parent / folder).is_dir()} == set()
    assert {folder for folder in folders if not (tests / folder / "__init__.py").is_file()} == set()
