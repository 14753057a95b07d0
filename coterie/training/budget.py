"""Private runs: which methods support them, how much noise they need, and how much of the budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.client.private_round import why_not_private
from coterie.core.keys import Words, hash_ids
from coterie.core.sampling import choose
from coterie.core.shard import ClientId, Positions
from coterie.errors import ConfigError
from coterie.methods.base import Method
from coterie.methods.initializers import GivenModels
from coterie.methods.settings import PRIVACY_OPTIONS, RunSettings
from coterie.options import AUTO
from coterie.privacy.accountant import Answer, choice_for, epsilon, noise_for
from coterie.privacy.mechanism import SENSITIVITY, Privacy
from coterie.tiers.composition import Tiers

if TYPE_CHECKING:
    from coterie.training.planning import Plan

DELTA, CLIP = 1e-5, 1.0
"""Default delta of the guarantee, and default norm to which updates are clipped."""
ROUNDING = 1e-9
"""Relative excess of the budget that counts as rounding."""


def calibrated(
    settings: RunSettings, method: Method, tiers: Tiers, rounds: int, clients: Sequence[ClientId]
) -> RunSettings:
    """Return the settings with all values that a private run needs.

    Args:
        settings: Settings of the run.
        method: The method.
        tiers: The method's composition of tiers, without privacy.
        rounds: Number of rounds.
        clients: Ids of all clients.

    Raises:
        ConfigError: if the method does not support this form of privacy, or the budget does not suffice.
    """
    if settings.privacy is None:
        _check_not_private(settings)
        return settings
    check_private(method, tiers, settings)
    sends_choice = settings.privacy == "local" and tiers.sends_choice
    _check_amounts(settings, method.name, sends_choice)
    budget, noise, choice = settings.privacy_epsilon, settings.privacy_noise, settings.privacy_choice
    delta = DELTA if settings.privacy_delta is None else settings.privacy_delta
    visits = int(_visits(hash_ids(clients), settings, range(rounds)).max())
    if budget is not None:
        choice = choice_for(budget, delta, visits) if sends_choice and choice is None else choice
        noise = SENSITIVITY * noise_for(budget, delta, visits, choice) if noise is None else noise
    filled = replace(
        settings,
        privacy_delta=delta,
        privacy_clip=CLIP if settings.privacy_clip is None else settings.privacy_clip,
        privacy_noise=noise,
        privacy_choice=choice,
    )
    spending = Spending(filled, hash_ids(clients))
    if not spending.allows(0):
        raise ConfigError(
            f"one round would spend epsilon {spending.after(0):.3g}, but privacy_epsilon={budget:g}: set more noise, "
            "or leave privacy_noise and privacy_choice out"
        )
    return filled


def _check_not_private(settings: RunSettings) -> None:
    """Check that a run without privacy has no options of private runs."""
    misplaced = next((name for name in sorted(PRIVACY_OPTIONS) if getattr(settings, name) is not None), None)
    if misplaced is not None:
        raise ConfigError(f"{misplaced} applies to private runs, but privacy is not set: set privacy=local or central")


def _check_amounts(settings: RunSettings, method: str, sends_choice: bool) -> None:
    """Check that the budget or the amounts of noise are given, and none that has no meaning."""
    if settings.privacy_choice is not None and not sends_choice:
        raise ConfigError(
            f"privacy_choice has no meaning for {method} with privacy={settings.privacy}, because clients do not "
            "report a chosen cluster: leave it out"
        )
    noise, choice = settings.privacy_noise, settings.privacy_choice
    if settings.privacy_epsilon is None and (noise is None or (sends_choice and choice is None)):
        missing = "privacy_noise" if noise is None else "privacy_choice"
        raise ConfigError(f"a private run needs a budget: set privacy_epsilon (such as 8), or {missing} itself")


def privacy_of(settings: RunSettings) -> Privacy | None:
    """Return the protection of single clients, from calibrated settings; None for a run without privacy."""
    if settings.privacy is None:
        return None
    assert settings.privacy_clip is not None
    assert settings.privacy_noise is not None
    return Privacy(settings.privacy, settings.privacy_clip, settings.privacy_noise, settings.privacy_choice)


def check_private(method: Method, tiers: Tiers, settings: RunSettings) -> None:
    """Check that all data that clients send in a private run is protected.

    Raises:
        ConfigError: if something is not; the message says what to change.
    """
    _check_initialization(method, tiers, settings)
    why = why_not(tiers, str(settings.privacy))
    if why is None and settings.privacy == "central" and tiers.averaging.client_weight == "samples":
        why = "noise for one client does not hide a client that counts n_i times: set client_weight=uniform"
    if why is None and settings.patience is not None:
        why = "patience stops by losses without noise: leave it out"
    if why is not None:
        raise ConfigError(f"{method.name} cannot run with privacy={settings.privacy}: {why}")


def _check_initialization(method: Method, tiers: Tiers, settings: RunSettings) -> None:
    """Check that a private run asks clients nothing before its first round."""
    undecided = [name for name, left in (("clusters", tiers.K is None), ("lr", tiers.local.lr == AUTO)) if left]
    if undecided:
        raise ConfigError(
            f"privacy={settings.privacy}: {' and '.join(f'{name}=auto' for name in undecided)} would ask clients for "
            "values without noise: set values instead"
        )
    init = method.initializer
    given = isinstance(init, GivenModels) and init.source == GivenModels.name
    if not init.any_count and not given:
        raise ConfigError(
            f"privacy={settings.privacy}: init={init.name} would ask clients for values without noise: use init=random "
            "or gaussian, or give the models"
        )


def why_not(tiers: Tiers, where: str) -> str | None:
    """Return the reason why a composition does not support this form of privacy; None if it does."""
    why = why_not_private(tiers.objective, tiers.assignment, tiers.distance)
    if why is not None:
        return why
    for step in tiers.procedure.steps:
        if step.not_private:
            return step.not_private
    if tiers.onboards:
        return "its groups depend on rows that clients send before the first round without noise"
    if tiers.restarts > 1:
        return "the best of several restarts is chosen by losses without noise: leave restarts at 1"
    if tiers.shared or tiers.overall:
        return "updates of parameters that all clusters share are not protected: leave shared out"
    if where == "central" and tiers.averaging.robust:
        return f"noise protects a client in a sum, but not in a {tiers.averaging.combine.name}: leave combine out"
    if where == "central" and tiers.adapts:
        return "single clients' updates decide about splits, which would reveal them: use privacy=local"
    return None


@dataclass
class Spending:
    """How often each client was asked, and the budget that this spends; every request counts, answered or not."""

    settings: RunSettings
    hashes: Words
    visits: Positions = field(init=False)
    """Number of times that each client was asked, (m,)."""

    def __post_init__(self) -> None:
        self.visits = np.zeros(len(self.hashes), dtype=np.int64)

    @classmethod
    def of(cls, plan: Plan, asked: Iterable[int] = ()) -> Spending:
        """Return the spending after these rounds; a round that was asked again with new noise counts again."""
        spending = cls(plan.settings, hash_ids(plan.data.clients))
        spending.visits += _visits(spending.hashes, plan.settings, asked)
        return spending

    def ask(self, round_: int) -> None:
        """Count a round whose clients are about to be asked."""
        self.visits += _visits(self.hashes, self.settings, [round_])

    @property
    def epsilon(self) -> float:
        """Spent budget of the client that was asked most often."""
        return self._of(self.visits)

    def after(self, round_: int) -> float:
        """Return the spent budget including this round."""
        return self._of(self.visits + _visits(self.hashes, self.settings, [round_]))

    def allows(self, round_: int) -> bool:
        """Return whether the budget suffices for this round."""
        budget = self.settings.privacy_epsilon
        return budget is None or self.after(round_) <= budget * (1 + ROUNDING)

    def _of(self, visits: Positions) -> float:
        privacy, delta = privacy_of(self.settings), self.settings.privacy_delta
        assert privacy is not None
        assert delta is not None
        return epsilon(Answer(privacy.ratio, privacy.choice), int(visits.max()), delta)


def _visits(hashes: Words, settings: RunSettings, rounds: Iterable[int]) -> Positions:
    """Return the number of times that each client is asked in these rounds, (m,)."""
    visits = np.zeros(len(hashes), dtype=np.int64)
    for round_ in rounds:
        visits[choose(hashes, settings.participation, settings.seed, round_)] += 1
    return visits
