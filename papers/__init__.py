"""Reproductions of the four papers: their figures and tables beside ours. Run by `coterie reproduce` in a checkout."""

from __future__ import annotations

from coterie.experiments.reproduction import Reproduction
from papers import (
    grouped_regression,
    hcfl_ablations,
    hcfl_appendix_b,
    hcfl_clusters,
    hcfl_comparisons,
    hcfl_full,
    hcfl_knobs,
    hcfl_reference,
    ifca_figure3,
    ifca_figure4,
    ifca_table1,
    ifca_table2,
    odcl_few_shot,
    odcl_rounds,
    odcl_synthetic,
    odcl_table2,
    su_mixed,
)

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for reproduction in (
        ifca_figure3.REDUCED_SIZE,
        ifca_figure3.PAPER_SIZE,
        ifca_table1.REPRODUCTION,
        ifca_figure4.REPRODUCTION,
        ifca_table2.REPRODUCTION,
        *su_mixed.REPRODUCTIONS,
        *odcl_synthetic.REPRODUCTIONS,
        odcl_table2.REPRODUCTION,
        *odcl_rounds.REPRODUCTIONS,
        odcl_few_shot.REPRODUCTION,
        hcfl_reference.REPRODUCTION,
        hcfl_knobs.REPRODUCTION,
        hcfl_appendix_b.REPRODUCTION,
        *hcfl_full.REPRODUCTIONS,
        *hcfl_comparisons.REPRODUCTIONS,
        *hcfl_ablations.REPRODUCTIONS,
        *hcfl_clusters.REPRODUCTIONS,
        grouped_regression.REPRODUCTION,
    )
}
