"""Checkpoints: arrays as safetensors, the rest as a JSON header with a digest of the arrays and a checksum of its own.

The header is written last, so a checkpoint counts only when both files are whole.
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
from coterie.files import write_atomically
from coterie.server.loop import ServerState
from coterie.training.runs.files import read_checked_json, reason_of, sha256, tensor_bytes, write_checked_json

WHOLE = ("choice", "steady", "loss", "accepted", "flows", "portraits")
"""The parts of a state that are one array each."""
KEEP = 3
"""Checkpoints kept, so that a damaged one has a predecessor."""

Facts = Mapping[str, Any]
"""What a header holds."""


def save_checkpoint(folder: Path, state: ServerState, facts: Facts | None = None) -> str:
    """Write the state after its round, drop checkpoints that are not needed, and return the digest of the arrays.

    facts: what else the header holds.
    """
    folder.mkdir(exist_ok=True)
    data = tensor_bytes(_arrays(state))
    digest = sha256(data)
    header = folder / f"{_stem(state)}.json"
    write_atomically(header.with_suffix(".safetensors"), data)
    write_checked_json(
        header,
        {
            "round": state.round,
            "K": state.clusters.K,
            "restarts": state.clusters.restarts,
            "sha256": digest,
            **(facts or {}),
        },
    )
    drop_others(folder, state)
    return digest


def _arrays(state: ServerState) -> Params:
    arrays = {f"params/{name}": p for name, p in state.clusters.params.items()}
    arrays |= {f"body/{name}": p for name, p in state.clusters.shared.items()}
    arrays |= {f"overall/{name}": p for name, p in (state.clusters.overall or {}).items()}
    arrays |= {name: getattr(state, name) for name in WHOLE}
    arrays |= {f"tables/{name}": table for name, table in state.tables.items()}
    arrays |= {f"tree/{name}": rows for name, rows in state.tree.items()}
    return arrays | {f"clients/{name}": kept for name, kept in state.clients.items()}


def headers_in(folder: Path) -> list[Path]:
    """The headers of all checkpoints in a folder, the oldest first."""
    return sorted(folder.glob("round-*.json"))


def drop_others(folder: Path, newest: ServerState | None) -> None:
    """Remove all checkpoints but the newest and the few before it; later ones are of a past that was given up.

    Files that cannot be removed do no harm: their header is damaged, or their records do not match.
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
    """`ServerState.accepted` of the oldest checkpoint that can be read, without its models; None: there is none."""
    for path in sorted(folder.glob("round-*.safetensors")):
        try:
            with safe_open(path, "pt") as arrays:
                accepted: Tensor = arrays.get_tensor("accepted")
                return accepted
        except (OSError, SafetensorError):
            continue  # nobody will go on from a damaged one
    return None


def newest_checkpoint(
    folder: Path, warn: Callable[[str], None], check: Callable[[Facts], None] = lambda facts: None
) -> tuple[ServerState, Facts] | None:
    """The newest whole checkpoint with its header; damaged ones are named and passed over.

    check: Raises a ValueError, with what is wrong, for a header that does not fit the rest of the folder.
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
    """The state of a checkpoint; a ValueError where its arrays do not match the header."""
    data = header.with_suffix(".safetensors").read_bytes()
    if sha256(data) != facts["sha256"]:
        raise ValueError("its arrays do not match their digest")
    arrays = safetensors_load(data)
    params, body = _under("params/", arrays), _under("body/", arrays)
    overall = _under("overall/", arrays)
    clusters = Clusters(params, int(facts["K"]), int(facts["restarts"]), body or None, overall or None)
    whole = {name: arrays[name] for name in WHOLE}
    tables, tree, clients = (_under(f"{part}/", arrays) for part in ("tables", "tree", "clients"))
    return ServerState(int(facts["round"]), clusters, tables=tables, tree=tree, clients=clients, **whole)


def _under(prefix: str, arrays: Params) -> Params:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
