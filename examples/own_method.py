"""A method of your own in one file: IFCA that starts with few clients.

Run `python examples/own_method.py`, or use the file as a plugin:
`coterie run rotated-digits --method gentle-ifca --plugin examples/own_method.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import coterie
from coterie.extend import ServerState, option
from coterie.methods import IFCA, Run, Step


@coterie.register("gentle-ifca")
@dataclass(frozen=True, kw_only=True)
class GentleIFCA(IFCA):
    """IFCA in which only a share of the clients takes part in the first rounds, so that clusters form slowly."""

    slow_rounds: int = option(3, "number of first rounds with few clients", low=0)
    slow_share: float = option(0.5, "share of clients that take part in these rounds", above=0, high=1)

    summary: ClassVar[str] = "IFCA with few clients in the first rounds"
    citation: ClassVar[str] = "an example"
    no_twin: ClassVar[str] = "with slow_rounds=0"

    def step(self, run: Run, state: ServerState) -> Step:
        """One round of IFCA; in the first rounds with a share of the clients."""
        if state.round < self.slow_rounds:
            run = replace(run, settings=replace(run.settings, participation=self.slow_share))
        return super().step(run, state)


def main() -> None:
    """Train on a small federation and print how many clients took part in each round."""
    data = coterie.scenario("rotated-digits", clients=16)
    result = coterie.fit(data, GentleIFCA(clusters=4), learner="logistic", rounds=5)
    print([record["answered"] for record in result.records])


if __name__ == "__main__":
    main()
