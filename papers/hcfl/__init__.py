"""HCFL, the four choices of clustered federated learning: Guo, Tang, Lin 2025."""

from __future__ import annotations

from papers.hcfl import ablations, appendix_b, clusters, comparisons, full, knobs, reference, rounding

REPRODUCTIONS = (
    reference.REPRODUCTION,
    knobs.REPRODUCTION,
    appendix_b.REPRODUCTION,
    *full.REPRODUCTIONS,
    *comparisons.REPRODUCTIONS,
    *ablations.REPRODUCTIONS,
    *clusters.REPRODUCTIONS,
    *rounding.REPRODUCTIONS,
)
