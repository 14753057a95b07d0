"""Every test here has a data folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that COTERIE_DATA names."""
    path = tmp_path / "kept"
    monkeypatch.setenv("COTERIE_DATA", str(path))
    return path
