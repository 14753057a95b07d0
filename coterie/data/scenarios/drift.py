"""Rotated digits at two times: clients join, leave, or change their rotation.

Phase 0 is a federation of rotated digits. In phase 1 some clients have left, some are new, and some see their digits
turned by another angle. All clients have fresh samples in every phase.
"""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import group_tests, stack_shard
from coterie.data.scenarios.rotated_digits import RECOMMENDED, upright_digits
from coterie.data.scenarios.rotated_images import QUARTERS
from coterie.errors import ConfigError

__all__ = ["RECOMMENDED", "drift"]


def drift(
    *,
    clients: int = 60,
    phase: int = 0,
    change: float = 0.1,
    leave: float = 0.1,
    join: float = 0.1,
    samples: int = 60,
    seed: int = 0,
) -> FederatedDataset:
    """There are `clients` in phase 0; in phase 1 a share `leave` has left, `join` is new, `change` has another angle.

    A client has `samples` of the 1440 training digits, drawn anew in every phase; all of a rotation share 357 test
    digits. `client_notes` describe each client.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    upright = upright_digits(random)
    group, stays, turned = _history(clients, change, leave, join, random)
    now = np.where(turned, (group + 1 + random.integers(0, 3, len(group))) % len(QUARTERS), group) if phase else group
    here = np.flatnonzero(stays if phase else np.arange(len(group)) < clients)
    if len(here) < 1:
        raise ConfigError(f"leave={leave:g} and join={join:g} leave no client in phase 1")
    draw = generator(key_for(seed, Purpose.SCENARIO, 1 + phase))
    rows = np.concatenate([draw.choice(len(upright.y_train), samples, replace=False) for _ in here])
    angle = np.repeat(now[here], samples)
    ids = [f"site-{index:03d}" for index in here]
    tests = np.concatenate([np.rot90(upright.x_test, quarter, axes=(1, 2)) for quarter in range(len(QUARTERS))])
    return FederatedDataset(
        "drift",
        stack_shard(ids, _turned(upright.x_train[rows], angle), upright.y_train[rows], [samples] * len(here)),
        test=group_tests(ids, tests, np.tile(upright.y_test, len(QUARTERS)), now[here], len(upright.y_test)),
        truth=now[here].astype(np.int64),
        options={
            "clients": clients,
            "phase": phase,
            "change": change,
            "leave": leave,
            "join": join,
            "samples": samples,
        },
        group_names=tuple(f"{turn} degrees" for turn in QUARTERS),
        client_notes=tuple(_note(index, clients, phase, bool(turned[index])) for index in here.tolist()),
    )


def _history(
    clients: int, change: float, leave: float, join: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first group of all clients, whether they are in phase 1, and whether they have another group then."""
    new = round(join * clients)
    group = np.arange(clients + new) % len(QUARTERS)
    order = random.permutation(clients)
    gone = round(leave * clients)
    stays = np.ones(clients + new, dtype=bool)
    stays[order[:gone]] = False
    turned = np.zeros(clients + new, dtype=bool)
    turned[order[gone : gone + round(change * clients)]] = True
    return group, stays, turned


def _turned(images: np.ndarray, quarters: np.ndarray) -> np.ndarray:
    """Return images (n, H, W), each turned by a separate number of quarter turns."""
    out = images.copy()
    for quarter in range(1, len(QUARTERS)):
        chosen = quarters == quarter
        out[chosen] = np.rot90(images[chosen], quarter, axes=(1, 2))
    return out


def _note(index: int, clients: int, phase: int, turned: bool) -> str:
    if not phase:
        return "phase 0"
    return "new" if index >= clients else "turned" if turned else "as before"
