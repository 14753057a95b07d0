"""`coterie flower up` on damaged apps and random settings: refused with one sentence, or started."""

import shutil
from pathlib import Path

import click
import numpy as np
import pytest

pytest.importorskip("flwr")

from coterie.cli.flower import flower
from coterie.flower.local.app import write_app
from coterie.flower.local.child import Child
from tests.fuzz.cases import cases, refusal

NAMES = ("method", "clusters", "rounds", "lr", "learner", "seed", "quorum", "deadline", "wait", "expected", "init")
NAMES += (
    "most-change",
    "local_steps",
    "privacy",
    "validation",
    "",
    "a b",
    "näme",
    "-",
    "out",
    "nodes",
    "dtype",
    "plugins",
    "track",
)
VALUES = ("3", "0", "-1", "0.5", "1e400", "nan", "inf", "true", "ifca", "mlp:hidden=8", "''", '"', "[1]", "{a=1}", "")
VALUES += ("9" * 400, "\x1b[31m", "\udcff", "2026-01-01", "1_0", "auto", "cnn", "a\nb = 2", "[" * 2000, "99999999999")
LINES = (
    "x = 1",
    "[project]",
    "[tool.flwr.app]",
    "config = 3",
    "[tool.flwr]",
    "components = []",
    "name = 5",
    "=",
    "\x00",
)
FILES = ("pyproject.toml", "client_app.py", "server_app.py")


class StartedError(Exception):
    """Error in place of the start of the first process."""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Write an app, and prevent that any process of its federation is started."""

    def start(*_: object, **__: object) -> None:
        raise StartedError

    monkeypatch.setattr(Child, "__init__", start)
    write_app(tmp_path / "app")
    return tmp_path / "app"


def up(app: Path, *arguments: str) -> str:
    out = app.parent / "run"
    try:
        flower.main(["up", str(app), "--out", str(out), *arguments], standalone_mode=False)
    except StartedError:
        return "started"
    except click.ClickException:  # a flag that click refuses
        return "refused"
    finally:
        shutil.rmtree(app.parent / "run.flower", ignore_errors=True)
    raise AssertionError("the command ended without starting a process")


def test_random_settings(app):
    for label, rng in cases("settings of up", 60):
        flags = []
        for _ in range(rng.integers(1, 4)):
            flags += ["--set", f"{rng.choice(NAMES)}={rng.choice(VALUES)}"]
        refusal(f"{label}: {flags!r}", lambda flags=flags: up(app, *flags))


def test_damaged_apps(app):
    whole = {name: (app / name).read_bytes() for name in FILES}
    for label, rng in cases("apps of up", 40):
        name = str(rng.choice(FILES))
        (app / name).write_bytes(damaged(whole[name], rng))
        refusal(f"{label}: {name}", lambda: up(app))
        (app / name).write_bytes(whole[name])


def damaged(text: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with a missing, additional or repeated line, with its end cut off, or with a changed byte."""
    lines = text.split(b"\n")
    at = int(rng.integers(len(lines)))
    kind = rng.integers(5)
    if kind == 0:
        return b"\n".join(lines[:at] + lines[at + 1 :])
    if kind == 1:
        return b"\n".join([*lines[:at], str(rng.choice(LINES)).encode(), *lines[at:]])
    if kind == 2:
        return text[: int(rng.integers(len(text)))]
    if kind == 3:
        return b"\n".join([*lines[:at], lines[at], *lines[at:]])
    changed = bytearray(text)
    changed[int(rng.integers(len(text)))] = int(rng.integers(256))
    return bytes(changed)
