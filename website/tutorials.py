"""Tutorials: scripts in docs/tutorials whose cells start with `# %%`, run while the site is built.

A cell that starts with `# %% [markdown]` is text, each line behind `# `. Every script becomes a page with what its
cells print and draw, and a notebook with the same.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
TUTORIALS = tuple(sorted(FOLDER.glob("*.py")))
MARK = re.compile(r"^# %%(.*)\n", re.MULTILINE)


@dataclass
class Cell:
    """A cell, and what came out of it: printed text, and the HTML or text of its last expression."""

    kind: str
    text: str
    printed: str = ""
    shown: dict[str, str] = field(default_factory=dict)


def cells_of(script: str) -> list[Cell]:
    """Return the cells of a script."""
    parts = MARK.split(script)[1:]
    found = []
    for mark, text in zip(parts[::2], parts[1::2], strict=True):
        is_text = "[markdown]" in mark
        lines = [line.removeprefix("#").removeprefix(" ") if is_text else line for line in text.strip().splitlines()]
        found.append(Cell("markdown" if is_text else "code", "\n".join(lines)))
    return found


def run_cells(cells: list[Cell]) -> None:
    """Run the code cells one after the other in one namespace, and keep their output.

    A line that starts with `!` is a command of the shell.
    """
    module = sys.modules["__main__"] = types.ModuleType("__main__")  # where classes of cells look for names
    names = vars(module)
    for number, cell in enumerate(cells):
        if cell.kind != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if cell.text.startswith("!"):
                for line in cell.text.splitlines():
                    print(_command(line.removeprefix("!")), end="")
            else:
                cell.shown = _value(cell.text, f"<cell {number}>", names)
        cell.printed = printed.getvalue()


def _command(line: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "84"}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{line!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.replace(f"{Path.cwd()}{os.sep}", "")


def _value(code: str, name: str, names: dict[str, Any]) -> dict[str, str]:
    """Run the statements of a cell; return how its last expression shows itself."""
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    if not isinstance(last, ast.Expr):
        return {}
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
    if value is None:
        return {}
    shown = {"text/plain": repr(value)}
    html = getattr(value, "_repr_html_", None)
    return shown | ({"text/html": html()} if html is not None else {})


def page(cells: list[Cell], name: str) -> str:
    """Return a tutorial as Markdown."""
    title, _, rest = cells[0].text.partition("\n")
    note = f"[Download this page as a notebook]({name}.ipynb){{ .md-button }}"
    parts = [title, note, rest.strip()]
    for cell in cells[1:]:
        if cell.kind == "markdown":
            parts.append(cell.text)
            continue
        is_command = cell.text.startswith("!")
        code = "\n".join(line.removeprefix("!") for line in cell.text.splitlines()) if is_command else cell.text
        parts.append(f"```{'sh' if is_command else 'python'}\n{code}\n```")
        if cell.printed.strip():
            parts.append(f"```text {{ .output }}\n{cell.printed.rstrip()}\n```")
        if "text/html" in cell.shown:
            html = re.sub(r"\n\s*\n", "\n", cell.shown["text/html"])
            parts.append(f'<div class="output" markdown="0">\n{html}\n</div>')
        elif cell.shown:
            parts.append(f"```text {{ .output }}\n{cell.shown['text/plain']}\n```")
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """Return a tutorial as a Jupyter notebook."""
    written = []
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
        entry["source"] = cell.text.splitlines(keepends=True)
        if cell.kind == "code":
            outputs: list[dict[str, Any]] = []
            if cell.printed:
                lines = cell.printed.splitlines(keepends=True)
                outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
            if cell.shown:
                data = {kind: text.splitlines(keepends=True) for kind, text in cell.shown.items()}
                shown = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}}
                outputs.append(shown)
            entry |= {"execution_count": number, "outputs": outputs}
        written.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def page_and_notebook(script: Path, run: bool) -> tuple[str, str]:
    """Return a tutorial as Markdown and as a notebook, with the output of its cells if they are run.

    The cells run in a separate process and a separate folder.
    """
    if not run:
        cells = cells_of(script.read_text())
        return page(cells, script.stem), notebook(cells)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), str(script)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{textwrap.indent(done.stderr, '    ')}")
    both = json.loads(done.stdout)
    return both["page"], both["notebook"]


def main() -> None:
    """Run the script that is the only argument in the current folder; print page and notebook as JSON."""
    script = Path(sys.argv[1])
    cells = cells_of(script.read_text())
    run_cells(cells)
    print(json.dumps({"page": page(cells, script.stem), "notebook": notebook(cells)}))


if __name__ == "__main__":
    main()
