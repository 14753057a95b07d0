"""One file a published method. A method is listed here only if the check suite passes for it."""

from __future__ import annotations

from coterie.errors import unknown_name
from coterie.methods import (
    cfl,
    composed,
    fedavg,
    fedem,
    fedgmm,
    fedgroup,
    fedprox,
    fedrc,
    fedsoft,
    fesem,
    hcfl,
    hcfl_plus,
    icfl,
    ifca,
    linear_heads,
    local,
    moment_descent,
    odcl,
    one_shot,
    one_shot_yardsticks,
    oracle,
    pacfl,
    stocfl,
    two_phase,
)
from coterie.methods.base import Entry

FILES = (
    *(local, fedavg, fedprox, ifca, oracle, two_phase, moment_descent, odcl, one_shot, pacfl, fedgroup),
    *(fesem, fedem, fedgmm, fedrc, fedsoft, cfl, icfl, stocfl, hcfl_plus, composed),
)
SEVERAL = (one_shot_yardsticks, hcfl, linear_heads)
METHODS: dict[str, Entry] = {
    entry.name: entry
    for entry in (*(file.ENTRY for file in FILES), *(entry for file in SEVERAL for entry in file.ENTRIES))
}


def find_method(name: str) -> Entry:
    """The entry of this name, or an error with the nearest one."""
    if not isinstance(name, str) or name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
