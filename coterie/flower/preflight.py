"""Checks of the settings of a run before any client is asked, so that a typo is found before the federation starts.

The clients are still unknown, so the run is prepared for several kinds of data. Settings that suit none of them are
refused; settings that depend on the real data are checked again after the first onboarding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.core.dataset import Profile
from coterie.core.federation import Federation, Replies
from coterie.core.keys import Words, hash_ids
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task
from coterie.engines.remote import RemoteClients
from coterie.errors import CoterieError
from coterie.files import read_tensors
from coterie.learners import make_learner
from coterie.methods.settings import RunSettings
from coterie.options import AUTO
from coterie.tiers.composition import Tiers
from coterie.training.planning import MethodChoice, check_before_diagnosis, prepare

PROFILES = (
    Profile((3, 64, 64), 10),
    Profile((1, 28, 28), 10),
    Profile((1024,), 10),
    Profile((1024,), 2),
    Profile((1024,), None),
    Profile((3, 64, 64), None),
)
"""Kinds of data that nodes may have."""
LEARNERS = (None, "mlp", "cnn", "representation")
"""Learners to check with if the run config names none, since the server app may define its own."""
CLIENTS = 100
"""Number of clients to check with, unless the settings ask for more clusters than that."""
MOST_CLIENTS = 100_000
"""Largest number of clients to check with."""
SAMPLES = 1_000_000
"""Number of training samples of each client, which is enough for any setting."""


def check_run_options(method: MethodChoice, options: Mapping[str, Any]) -> None:
    """Raise the error that a run with these options would raise for every kind of data.

    With method="auto" only the names of the options are checked, since the diagnosis needs the clients.
    """
    if method == AUTO:
        check_before_diagnosis(options)
        return
    wanted = options.get("clusters")
    count = min(max(CLIENTS, wanted), MOST_CLIENTS) if isinstance(wanted, int) else CLIENTS
    refusals: list[CoterieError] = []
    for profile, learner in _kinds(options.get("learner")):
        given = {name: value for name, value in options.items() if name != "learner"}
        try:
            prepare(UnseenClients("flower", profile, count), method, learner, given)
        except CoterieError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0] from None


def _kinds(learner: object) -> Iterator[tuple[Profile, str | None]]:
    """Yield the pairs of data and learner to check with: the data for which the learner can be built, or all."""
    if learner is None or "weights=" in str(learner):  # stored weights fit one shape of data, which is not known yet
        yield from ((profile, choice) for choice in LEARNERS for profile in PROFILES)
        return
    named, built = str(learner), False
    for profile in PROFILES:
        if _can_be_built(named, profile):
            built = True
            yield profile, named
    if not built:
        yield PROFILES[0], named


def _can_be_built(learner: str, profile: Profile) -> bool:
    try:
        make_learner(learner, profile, read_tensors)
    except CoterieError:
        return False
    return True


@dataclass(frozen=True)
class UnseenClients(RemoteClients):
    """Clients that are not known yet, with an assumed kind of data; they cannot be asked."""

    kind: Profile = field(default=PROFILES[0])
    count: int = CLIENTS

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(map(str, range(self.count)))

    @property
    def hashes(self) -> Words:
        return hash_ids(self.clients)

    @property
    def profile(self) -> Profile:
        return self.kind

    @property
    def sizes(self) -> Positions:
        return np.full(self.count, SAMPLES, dtype=np.int64)

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        return np.ones(self.count, dtype=np.bool_)

    @property
    def store(self) -> None:
        """None: no state is stored."""
        return

    def pooled(self, groups: Positions) -> None:
        """None: the data of remote clients cannot be pooled."""
        return

    def fingerprint(self) -> str:
        return ""

    def training_only(self) -> UnseenClients:
        return self

    def connect(self, settings: RunSettings, tiers: Tiers) -> Federation:
        return self

    def save(self, folder: Path) -> None:
        """Write nothing: no facts about the clients are known."""

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        raise NotImplementedError("settings are checked without asking clients")

    def release(self, accepted: Tensor) -> None:
        """Do nothing: no state is stored."""
