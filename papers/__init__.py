"""Reproductions of the papers' figures and tables, one folder for each paper.

Every folder lists its own in REPRODUCTIONS; `coterie reproduce` runs them and adds the results to reproductions.jsonl.
"""

from __future__ import annotations

from coterie.experiments.reproduction import Reproduction
from papers import grouped_regression, hcfl, ifca, odcl, su_xu_yang

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for reproduction in (
        *ifca.REPRODUCTIONS,
        *su_xu_yang.REPRODUCTIONS,
        *odcl.REPRODUCTIONS,
        *hcfl.REPRODUCTIONS,
        grouped_regression.REPRODUCTION,
    )
}
