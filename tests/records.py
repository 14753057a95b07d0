"""Helpers for tests about records."""

from __future__ import annotations

from typing import TypeVar

from coterie.training.records import Figures

F = TypeVar("F", bound=Figures)


def without(record: F, *names: str) -> F:
    """Return the record as if it had been written without these figures."""
    return record.from_json({name: value for name, value in record.items() if name not in names})
