"""IFCA, clusters by the lowest loss: Ghosh, Chung, Yin, Ramchandran 2020."""

from __future__ import annotations

from papers.ifca import collapse, figure3, figure4, table1, table2

REPRODUCTIONS = (
    figure3.REDUCED_SIZE,
    figure3.PAPER_SIZE,
    table1.REPRODUCTION,
    figure4.REPRODUCTION,
    table2.REPRODUCTION,
    collapse.REPRODUCTION,
)
