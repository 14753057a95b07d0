"""Private runs: which can be, how much noise they need, and what their clients have given away so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie.client.private_round import why_not_private
from coterie.core.keys import Words, hash_ids
from coterie.core.sampling import choose
from coterie.core.shard import ClientId, Positions
from coterie.errors import ConfigError
from coterie.options import PRIVATE, Options
from coterie.privacy.accountant import Answer, choice_for, epsilon, noise_for
from coterie.privacy.mechanism import SENSITIVITY, Privacy
from coterie.tiers.method import Method

DELTA, CLIP = 1e-5, 1.0
"""Unless given."""
ROUNDING = 1e-9


def calibrated(options: Options, method: Method, clients: Sequence[ClientId]) -> Options:
    """The options with everything settled that a private run needs; `method` is theirs, as it is without privacy."""
    if options.privacy is None:
        odd = next((name for name in sorted(PRIVATE) if getattr(options, name) is not None), None)
        if odd is not None:
            raise ConfigError(f"{odd} says how private a run is, but privacy is not set: give privacy=local or central")
        return options
    check_private(method, options)
    tells = options.privacy == "local" and method.tells_choice
    if options.privacy_choice is not None and not tells:
        raise ConfigError(
            f"privacy_choice means nothing to {method.name} with privacy={options.privacy}: clients do not say which "
            "cluster they chose, leave it out"
        )
    budget, noise, choice = options.privacy_epsilon, options.privacy_noise, options.privacy_choice
    if budget is None and (noise is None or (tells and choice is None)):
        missing = "privacy_noise" if noise is None else "privacy_choice"
        raise ConfigError(f"a private run needs a budget: give privacy_epsilon (such as 8), or {missing} itself")
    delta = DELTA if options.privacy_delta is None else options.privacy_delta
    visits = int(_visits(hash_ids(clients), options, range(options.rounds)).max())
    if budget is not None:
        choice = choice_for(budget, delta, visits) if tells and choice is None else choice
        noise = SENSITIVITY * noise_for(budget, delta, visits, choice) if noise is None else noise
    settled = replace(
        options,
        privacy_delta=delta,
        privacy_clip=CLIP if options.privacy_clip is None else options.privacy_clip,
        privacy_noise=noise,
        privacy_choice=choice,
    )
    spending = Spending.of(settled, clients)
    if not spending.allows(0):
        raise ConfigError(
            f"one round would take epsilon {spending.after(0):.3g}, but privacy_epsilon={budget:g}: give more noise, "
            "or leave privacy_noise and privacy_choice out"
        )
    return settled


def privacy_of(options: Options) -> Privacy | None:
    """As a method has it, from settled options."""
    if options.privacy is None:
        return None
    assert options.privacy_clip is not None
    assert options.privacy_noise is not None
    return Privacy(options.privacy, options.privacy_clip, options.privacy_noise, options.privacy_choice)


def check_private(method: Method, options: Options) -> None:
    """Refuse a run whose clients would tell something that is not made private."""
    why = why_not(method, str(options.privacy))
    if why is None and options.privacy == "central" and method.averaging.client_weight == "samples":
        why = "a client that counts n_i times is not hidden by noise for one: set client_weight=uniform"
    if why is None and options.patience is not None:
        why = "patience stops by losses that are not noised: leave it out"
    if why is not None:
        raise ConfigError(f"{method.name} cannot run with privacy={options.privacy}: {why}")


def why_not(method: Method, where: str) -> str | None:
    """What of a method stands against this form of privacy; None: nothing."""
    why = why_not_private(method.objective, method.weights, method.distance)
    if why is not None:
        return why
    if method.introduces or (method.groups is not None and method.groups.by == "start"):
        return "its groups come from what clients tell before the first round, for which there is no noise here"
    if method.restarts > 1:
        return "of several starts the best is chosen by losses that are not noised: leave restarts at 1"
    if method.shared or method.overall:
        return "what all clusters share is not hidden: leave shared out"
    if where == "central" and method.combines_robustly:
        return f"noise hides a client in sums, not in a {method.averaging.combine.name}: leave combine out"
    if where == "central" and method.adapts:
        return "its clusters are cut by single clients' updates, so that their number would tell: take privacy=local"
    return None


@dataclass
class Spending:
    """Who was asked how often, and what that gives away at most; being asked counts, whether the answer came or not."""

    options: Options
    hashes: Words
    visits: Positions = field(init=False)
    """(m,) how often each client was asked."""

    def __post_init__(self) -> None:
        self.visits = np.zeros(len(self.hashes), dtype=np.int64)

    @classmethod
    def of(cls, options: Options, clients: Sequence[ClientId], asked: Iterable[int] = ()) -> Spending:
        """After these rounds; one that was asked again with new noise counts again."""
        spending = cls(options, hash_ids(clients))
        spending.visits += _visits(spending.hashes, options, asked)
        return spending

    def ask(self, round_: int) -> None:
        """The clients of this round are asked now."""
        self.visits += _visits(self.hashes, self.options, [round_])

    @property
    def epsilon(self) -> float:
        """What the client has given away that was asked most often."""
        return self._of(self.visits)

    def after(self, round_: int) -> float:
        """The same once this round was asked, too."""
        return self._of(self.visits + _visits(self.hashes, self.options, [round_]))

    def allows(self, round_: int) -> bool:
        """Whether this round stays within the budget."""
        budget = self.options.privacy_epsilon
        return budget is None or self.after(round_) <= budget * (1 + ROUNDING)

    def _of(self, visits: Positions) -> float:
        privacy, delta = privacy_of(self.options), self.options.privacy_delta
        assert privacy is not None
        assert delta is not None
        return epsilon(Answer(privacy.ratio, privacy.choice), int(visits.max()), delta)


def _visits(hashes: Words, options: Options, rounds: Iterable[int]) -> Positions:
    """(m,) how often each client is asked in these rounds."""
    visits = np.zeros(len(hashes), dtype=np.int64)
    for round_ in rounds:
        visits[choose(hashes, options.participation, options.seed, round_)] += 1
    return visits
