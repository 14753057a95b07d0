"""Storing a data set: from its package, or from a copy of the user."""

from __future__ import annotations

from pathlib import Path

from coterie.data.loaders import store
from coterie.data.loaders.catalogue import find_dataset
from coterie.data.loaders.packages import OnStep
from coterie.data.loaders.store import Content
from coterie.errors import ConfigError


def _silent(text: str) -> None:
    """Ignore a step."""


def get(name: str, on_step: OnStep = _silent) -> Path:
    """Download a data set, check it, store it and return its file; nothing is stored after a failure."""
    dataset = find_dataset(name)
    if dataset.fetch is None:
        raise ConfigError(f"{name} cannot be downloaded: import your own copy with {dataset.command}")
    content = dataset.checked(dataset.fetch(on_step), dataset.origin)
    on_step("writing")
    return store.save(content, dataset.origin)


def import_copy(name: str, path: str | Path, on_step: OnStep = _silent) -> tuple[Path, bool | None]:
    """Store a copy of the user; return its file, and whether it equals the published data (None: unknown)."""
    dataset = find_dataset(name)
    on_step(f"reading {path}")
    content = dataset.read_copy(Path(path))
    on_step("writing")
    return store.save(content, str(path)), _as_published(content, dataset.content)


def _as_published(content: Content, published: str | None) -> bool | None:
    return None if published is None else content.digest() == published
