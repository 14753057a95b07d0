"""Oracle: the true groups are known, each trains its own model. The ceiling that any clustering can reach."""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def oracle(options: Options) -> Method:
    """IFCA whose cluster choice is replaced by the truth."""
    return Method(
        "oracle", Conditional(), Assigned(), Fixed(options.clusters), groups=Groups("truth"), **parts(options)
    )


ENTRY = Entry(
    name="oracle",
    summary="the true groups are known: one model for each",
    paper="a baseline wherever the truth is known",
    compose=oracle,
    refuses=frozenset({"clusters", "restarts", "start"}),
    defaults=lambda given: {
        "client_weight": "uniform",
        "averaging": "all" if given.get("exchange") == "gradient" else "members",
    },
    twin="fedavg",
    reveals={"cluster": "its true group, which the server knew before"},
    groups="truth",
)
