"""Checkpoints: arrays as safetensors, the rest as JSON with a digest of the arrays.

The JSON file is written last and names the digest, so a checkpoint counts only when both files are whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as safetensors_load
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.runs.files import tensor_bytes, write_atomically, write_json
from coterie.server.loop import ServerState

WHOLE = ("choice", "steady", "loss", "accepted", "flows", "portraits")
"""The parts of a state that are one array each."""
KEEP = 3
"""Checkpoints kept, so that a damaged one has a predecessor."""


def save_checkpoint(folder: Path, state: ServerState) -> None:
    """Write the state after its round and drop the oldest checkpoints."""
    folder.mkdir(exist_ok=True)
    arrays = {f"params/{name}": p for name, p in state.clusters.params.items()}
    arrays |= {f"body/{name}": p for name, p in state.clusters.shared.items()}
    arrays |= {f"overall/{name}": p for name, p in (state.clusters.overall or {}).items()}
    arrays |= {name: getattr(state, name) for name in WHOLE}
    arrays |= {f"tables/{name}": table for name, table in state.tables.items()}
    arrays |= {f"tree/{name}": rows for name, rows in state.tree.items()}
    arrays |= {f"clients/{name}": kept for name, kept in state.clients.items()}
    data = tensor_bytes(arrays)
    stem = f"round-{state.round:06d}"
    write_atomically(folder / f"{stem}.safetensors", data)
    write_json(
        folder / f"{stem}.json",
        {
            "round": state.round,
            "K": state.clusters.K,
            "lanes": state.clusters.lanes,
            "sha256": hashlib.sha256(data).hexdigest(),
        },
    )
    headers = sorted(folder.glob("round-*.json"))
    now = headers.index(folder / f"{stem}.json")
    for old in headers[: max(0, now + 1 - KEEP)] + headers[now + 1 :]:  # later ones are of a past that was given up
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


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


def newest_checkpoint(folder: Path, warn: Callable[[str], None], before: int) -> ServerState | None:
    """The newest whole checkpoint of at most `before` rounds; damaged ones are named and passed over."""
    for header in sorted(folder.glob("round-*.json"), reverse=True):
        try:
            state = _read(header)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn(f"checkpoint {header.stem} is damaged ({error}); using the one before it")
            continue
        if state.round <= before:
            return state
    return None


def _read(header: Path) -> ServerState:
    facts = json.loads(header.read_bytes())
    data = header.with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise ValueError("its arrays do not match their digest")
    arrays = safetensors_load(data)
    params, body = _under("params/", arrays), _under("body/", arrays)
    overall = _under("overall/", arrays)
    clusters = Clusters(params, int(facts["K"]), int(facts["lanes"]), body or None, overall or None)
    whole = {name: arrays[name] for name in WHOLE}
    tables, tree, clients = (_under(f"{part}/", arrays) for part in ("tables", "tree", "clients"))
    return ServerState(int(facts["round"]), clusters, tables=tables, tree=tree, clients=clients, **whole)


def _under(prefix: str, arrays: Params) -> Params:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
