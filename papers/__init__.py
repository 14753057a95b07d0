"""Reproductions of the papers' figures and tables, one folder for each paper.

Every folder lists its own in REPRODUCTIONS; `coterie reproduce` runs them and adds the results to reproductions.jsonl.
"""

from __future__ import annotations

from coterie.experiments.reproduction import Paper, Reproduction
from coterie.methods import IFCA, ODCL, HCFLPlus, TwoPhase
from papers import deviations, grouped_regression, hcfl, ifca, odcl, rounding, su_xu_yang

PAPERS = (
    Paper(
        "ifca",
        "IFCA",
        f"{IFCA.citation}.",
        ifca.REPRODUCTIONS,
    ),
    Paper(
        "two-phase",
        "Two phases",
        f"{TwoPhase.citation}.",
        su_xu_yang.REPRODUCTIONS,
    ),
    Paper(
        "odcl",
        "ODCL",
        f"{ODCL.citation}.",
        odcl.REPRODUCTIONS,
    ),
    Paper("hcfl", "HCFL", f"{HCFLPlus.citation}.", hcfl.REPRODUCTIONS),
    Paper(
        "grouped-regression",
        "Clusters and mixed models",
        "No paper: clustered models compared with a linear mixed model on two real data sets.",
        (grouped_regression.REPRODUCTION,),
    ),
    Paper(
        "deviations",
        "Deviations from the papers",
        "Defaults of Coterie that differ from the papers, each measured by switching it.",
        (deviations.REPRODUCTION,),
    ),
    Paper(
        "rounding",
        "Rounding",
        "No paper: how far results move if sums are added in another order.",
        (rounding.REPRODUCTION,),
    ),
)

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction for paper in PAPERS for reproduction in paper.reproductions
}
