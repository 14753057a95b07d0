"""Local training: every client on its own, nothing is exchanged. The floor that any federation has to beat.

Each client is a cluster of one. In simulation its model is kept beside the others', but since nothing needs to
travel, no bytes are counted.
"""

from __future__ import annotations

from coterie.methods.base import Entry, parts
from coterie.options import PRIVATE, Options
from coterie.tiers.assignment import Assigned
from coterie.tiers.method import Groups, Method
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed


def local(options: Options) -> Method:
    """theta_i <- theta_i - lr * gradient of F_i, alone."""
    return Method(
        "local",
        Conditional(),
        Assigned(),
        Fixed(options.clusters),
        groups=Groups("self"),
        travels=False,
        **parts(options),
    )


ENTRY = Entry(
    name="local",
    summary="every client trains alone",
    paper="a baseline of every paper on personalisation",
    compose=local,
    refuses=frozenset(
        {"clusters", "averaging", "client_weight", "restarts", "shared", "server_lr", "exchange", "start", "finetune"}
        | {"combine"}
        | PRIVATE  # nothing leaves a client
    ),
    defaults=lambda given: {"client_weight": "uniform", "averaging": "members"},
    no_twin="K is the number of clients by definition",
    reveals={"cluster": "its own number; nothing leaves the client in a deployment"},
    groups="self",
)
