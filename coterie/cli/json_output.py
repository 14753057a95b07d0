"""The option `--json`: write a result as JSON to a file or to standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.cli.terminal import print_exactly
from coterie.training.runs.outputs import check_output, write_output

PRINTED = Path("-")


def check_json(path: Path | None) -> None:
    """Raise an error before anything runs if the file cannot be written."""
    if path is not None and path != PRINTED:
        check_output(path)


def write_json_output(path: Path | None, value: Mapping[str, Any]) -> bool:
    """Write the JSON if a path is given; return whether it was printed, and so replaces the output on the terminal."""
    if path is None:
        return False
    text = json.dumps(value, indent=1)
    if path == PRINTED:
        print_exactly(text)
        return True
    write_output(path, text + "\n")
    return False
