"""ODCL, one-shot clustering of local solutions: Armacki, Bajovic, Jakovetic, Kar 2022."""

from __future__ import annotations

from papers.odcl import few_shot, inexact, rounds, synthetic, table2

REPRODUCTIONS = (
    *synthetic.REPRODUCTIONS,
    table2.REPRODUCTION,
    *rounds.REPRODUCTIONS,
    inexact.REPRODUCTION,
    few_shot.REPRODUCTION,
)
