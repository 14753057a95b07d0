"""Each room imports only what it may, says what it is for, and the tiers name their side."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, package: str) -> set[str]:
    """Every module that is imported anywhere in the source, in full; `package` is where relative names start."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names if base == "coterie"}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("__import__", "import_module")):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def imports_of(path: Path) -> set[str]:
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imports(path.read_text(), package)


def in_room(*rooms: str) -> list[Path]:
    return [p for p in FILES if p.relative_to(ROOT).parts[0] in rooms]


def room_of(module: str) -> str:
    """The room of a module of ours, such as `core` or `errors`; the package itself is ``."""
    return module.split(".")[1] if "." in module else ""


def ours(modules: set[str]) -> set[str]:
    return {m for m in modules if m == "coterie" or m.startswith("coterie.")}


def test_the_reader_of_imports_sees_every_form():
    source = (
        "import os.path as p\nfrom coterie import fit\nfrom .a import b\nfrom ..c import d\ndef f():\n  import flwr.x"
    )
    expected = {"os.path", "coterie", "coterie.fit", "coterie.core.a", "coterie.c", "flwr.x"}
    assert imports(source, "coterie.core") == expected
    assert imports("import_module('pickle')", "coterie") == {"pickle"}


def test_there_is_something_to_check():
    for room in (
        "core",
        "tiers",
        "learners",
        "client",
        "server",
        "federation",
        "scenarios",
        "evaluate",
        "runs",
        "datasets",
    ):
        assert len(in_room(room)) > 1, room


MAY_IMPORT = {
    "core": {"core", "errors"},
    "learners": {"core", "learners", "errors"},
    "tiers": {"core", "learners", "tiers", "errors"},
    "datasets": {"datasets", "core", "config", "errors", "runs"},
}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room):
    odd = {
        f"{module_name(path)} imports {module}"
        for path in in_room(room)
        for module in ours(imports_of(path))
        if room_of(module) not in MAY_IMPORT[room]
    }
    assert odd == set()


ABOVE = {"federation", "runs", "report", "cli", "methods", "fitting", "measuring", "concluding", "result"}
MUST_NOT = {
    "client": {"server"} | ABOVE,
    "server": {"client"} | ABOVE,
    "evaluate": {"client", "server", "report"},
    "report": {"client", "server", "federation"},
    "methods": {"client", "server", "federation", "runs", "report", "cli"},
    "scenarios": {"client", "server", "federation", "runs", "report", "cli"},
}


@pytest.mark.parametrize("room", MUST_NOT)
def test_a_room_keeps_away_from_others(room):
    odd = {
        f"{module_name(path)} imports {module}"
        for path in in_room(room)
        for module in ours(imports_of(path))
        if room_of(module) in MUST_NOT[room] or module == "coterie"
    }
    assert odd == set()


OUTSIDE = {"pathlib", "os", "socket", "requests", "urllib", "http", "flwr", "matplotlib", "subprocess", "shutil"}


@pytest.mark.parametrize("room", ["core", "tiers", "learners"])
def test_values_tiers_and_learners_touch_no_file_network_or_plot(room):
    odd = {
        f"{module_name(path)} imports {module}"
        for path in in_room(room)
        for module in imports_of(path)
        if module.split(".")[0] in OUTSIDE or room_of(module) in {"runs", "report", "cli", "federation"}
    }
    assert odd == set()


@pytest.mark.parametrize("room", ["core", "tiers", "learners", "client", "server"])
def test_no_inner_room_opens_a_file(room):
    doors = ("open", "torch.save", "torch.load", "np.save", "np.load")
    calls = {
        f"{module_name(path)}:{node.lineno}"
        for path in in_room(room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in doors
    }
    assert calls == set()


def test_flower_is_imported_only_in_its_own_room():
    users = {module_name(p) for p in FILES if any(m.split(".")[0] == "flwr" for m in imports_of(p))}
    assert {name for name in users if not name.startswith("coterie.flower")} == set()


def test_nothing_is_ever_pickled():
    banned = {"pickle", "cloudpickle", "dill", "joblib", "shelve"}
    assert {module_name(p) for p in FILES if {m.split(".")[0] for m in imports_of(p)} & banned} == set()


def test_no_global_seed_is_set():
    """`torch.manual_seed` is allowed only inside a fork of the random state; NumPy's global generator never."""
    odd = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("np.random.seed", "random.seed") or name.startswith(("np.random.rand", "np.random.normal")):
                    odd.add(f"{module_name(path)}:{node.lineno} {name}")
                if name == "torch.manual_seed" and "fork_rng" not in path.read_text():
                    odd.add(f"{module_name(path)}:{node.lineno} {name}")
    assert odd == set()


def test_every_package_and_module_says_what_it_is_for():
    for folder in {p.parent for p in FILES}:
        assert (folder / "__init__.py").is_file(), folder
    silent = {module_name(p) for p in FILES if not ast.get_docstring(ast.parse(p.read_text()))}
    assert silent == set()


TIERS = [name for name in ("objective", "weights", "procedure", "distance") if (ROOT / f"tiers/{name}.py").exists()]


def test_the_tiers_are_there():
    assert TIERS[:3] == ["objective", "weights", "procedure"]


@pytest.mark.parametrize("tier", TIERS)
def test_tier_methods_start_with_their_side(tier):
    odd, seen = set(), 0
    for node in ast.parse((ROOT / f"tiers/{tier}.py").read_text()).body:
        for method in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
                continue
            if any(ast.unparse(d).endswith("property") for d in method.decorator_list):
                continue
            seen += 1
            if not method.name.startswith(("client_", "server_")):
                odd.add(f"{node.name}.{method.name}")
    assert odd == set()
    assert seen > 0
