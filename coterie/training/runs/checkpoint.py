"""Checkpoints: tensors as safetensors, and a JSON header with their digest and its own checksum.

The header is written last, so a checkpoint counts only if both files are complete. It contains the declared axes and
the regroup rule of every array of the state, so any array is restored as it was declared, whatever added it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as safetensors_load
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.plain import Plain, from_plain, to_plain
from coterie.core.state import ServerState
from coterie.core.state_array import RegroupRule, StateArray
from coterie.files import write_atomically
from coterie.training.runs.files import read_checked_json, reason_of, sha256, tensor_bytes, write_checked_json

ARRAYS = "arrays/"
"""Prefix of the names of the state's arrays among the tensors."""
KEEP = 3
"""Number of checkpoints that are kept, so that there is an earlier one if one is damaged."""

Facts = Mapping[str, Any]
"""Content of a header."""


def save_checkpoint(folder: Path, state: ServerState, facts: Facts | None = None) -> str:
    """Write a checkpoint of the state, remove unnecessary ones, and return the digest of the arrays.

    Args:
        folder: Folder of the checkpoints.
        state: The state after its round.
        facts: Further content of the header.
    """
    folder.mkdir(exist_ok=True)
    data = tensor_bytes(_tensors(state))
    digest = sha256(data)
    header = folder / f"{_stem(state)}.json"
    write_atomically(header.with_suffix(".safetensors"), data)
    own: Facts = {
        "round": state.round,
        "K": state.clusters.K,
        "restarts": state.clusters.restarts,
        "arrays": {name: _declaration(array) for name, array in state.arrays.items()},
        "sha256": digest,
    }
    write_checked_json(header, {**own, **(facts or {})})
    drop_others(folder, state)
    return digest


def _tensors(state: ServerState) -> Params:
    """Return all tensors of a state by their names in a checkpoint."""
    clusters = state.clusters
    parts = {
        "params/": clusters.params,
        "body/": clusters.shared,
        "overall/": clusters.overall or {},
        ARRAYS: state.under(""),
        "clients/": state.clients,
    }
    return {f"{prefix}{name}": tensor for prefix, tensors in parts.items() for name, tensor in tensors.items()}


def _declaration(array: StateArray) -> dict[str, Plain]:
    """Return the axes and the regroup rule of an array as plain values."""
    return {"axes": list(array.axes), "rule": to_plain(array.rule)}


def _declared(tensor: Tensor, declaration: Mapping[str, Any]) -> StateArray:
    """Return the array with this declaration, as written by `_declaration`."""
    return StateArray(tensor, tuple(declaration["axes"]), from_plain(RegroupRule, declaration["rule"], "regroup rule"))


def headers_in(folder: Path) -> list[Path]:
    """Return the headers of all checkpoints in a folder, the oldest first."""
    return sorted(folder.glob("round-*.json"))


def drop_others(folder: Path, newest: ServerState | None) -> None:
    """Remove all checkpoints except the newest and a few before it; later ones belong to discarded rounds.

    Files that cannot be removed are harmless: their header is damaged, or their records do not match.
    """
    last = "" if newest is None else _stem(newest)
    kept = {header.stem for header in [h for h in headers_in(folder) if h.stem <= last][-KEEP:]}
    for path in (*headers_in(folder), *sorted(folder.glob("round-*.safetensors"))):
        if path.stem not in kept:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _stem(state: ServerState) -> str:
    return f"round-{state.round:06d}"


def accepted_in_oldest(folder: Path) -> Tensor | None:
    """Return `ServerState.accepted` of the oldest readable checkpoint, without reading its models; None without one."""
    for path in sorted(folder.glob("round-*.safetensors")):
        try:
            with safe_open(path, "pt") as arrays:
                accepted: Tensor = arrays.get_tensor(f"{ARRAYS}accepted")
                return accepted
        except (OSError, SafetensorError):
            continue  # a damaged checkpoint will not be used for resuming
    return None


def newest_checkpoint(
    folder: Path, warn: Callable[[str], None], check: Callable[[Facts], None] = lambda facts: None
) -> tuple[ServerState, Facts] | None:
    """Return the newest complete checkpoint with its header, and warn about damaged ones.

    Args:
        folder: Folder of the checkpoints.
        warn: Called with a sentence about each damaged checkpoint.
        check: Raises a ValueError with the reason if a header does not fit the rest of the run folder.
    """
    for header in reversed(headers_in(folder)):
        try:
            facts = read_checked_json(header)
            check(facts)
            return read_state(header, facts), facts
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn(f"checkpoint {header.stem} is damaged ({reason_of(error)}); using the one before it")
    return None


def read_state(header: Path, facts: Facts) -> ServerState:
    """Return the state of a checkpoint.

    Raises:
        ValueError: if its tensors do not match the header.
    """
    data = header.with_suffix(".safetensors").read_bytes()
    if sha256(data) != facts["sha256"]:
        raise ValueError("its arrays do not match their digest")
    tensors = safetensors_load(data)
    params, body, overall = (_under(f"{part}/", tensors) for part in ("params", "body", "overall"))
    clusters = Clusters(params, int(facts["K"]), int(facts["restarts"]), body or None, overall or None)
    declarations: Mapping[str, Any] = facts["arrays"]
    arrays = {name: _declared(tensors[f"{ARRAYS}{name}"], declared) for name, declared in declarations.items()}
    return ServerState(int(facts["round"]), clusters, arrays, _under("clients/", tensors))


def _under(prefix: str, arrays: Params) -> Params:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
