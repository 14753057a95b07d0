"""The check suite for every method, with a server without data and clients behind a grid.

test_every_method.py and test_faults.py compare shards, engines, missing clients and resumed runs with simulations, so
that the twin of a simulation is also the twin of a run over a grid.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coterie.client.group import ClientGroup
from coterie.core.dataset import ClientDirectory
from coterie.core.federation import Federation
from coterie.testing.checks import CHECKS, Case
from coterie.training.planning import Plan
from coterie.training.result import Result
from tests.flower.make import TWO, clients_behind_a_grid
from tests.flower.test_every_method import CASES, label, quick

GRID_CHECKS = ("finite", "seed", "client_order", "weights", "config")


@dataclass(frozen=True)
class GridCase(Case):
    """A case with clients behind a grid, which makes its plan and its run once for all checks."""

    folder: Path = field(default_factory=Path)
    """Folder for the states of clients."""
    planned: list[Plan] = field(default_factory=list)
    done: list[Result] = field(default_factory=list)

    def plan(self, data: ClientDirectory | None = None, **more: Any) -> Plan:
        if data is not None or more:
            return self._plan_behind_a_grid(data, **more)
        if not self.planned:
            self.planned.append(self._plan_behind_a_grid())
        return self.planned[0]

    def _plan_behind_a_grid(self, data: ClientDirectory | None = None, **more: Any) -> Plan:
        known = super().plan(data, **more)
        return super().plan(clients_behind_a_grid(known, self.folder, nodes=TWO), **more)

    def run(self, plan: Plan | None = None, federation: Callable[[ClientGroup], Federation] | None = None) -> Result:
        if plan is not None:
            return super().run(plan, federation)
        if not self.done:
            self.done.append(super().run())
        return self.done[0]


@pytest.mark.filterwarnings("ignore:moment descent", "ignore:one-shot", "ignore:.*it may split by chance")
@pytest.mark.parametrize("case", CASES, ids=label)
def test_check_suite_over_a_grid(case, tmp_path):
    case = quick(case, rounds=3 if case.plan().tiers.adapts else 2)
    behind = GridCase(case.method, case.learner, case.options, case.sizes, tmp_path)
    for check in GRID_CHECKS:
        CHECKS[check](behind)
