"""HTML view of a result in a notebook: subject, decision and groups in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from coterie.evaluate.baselines import Baselines, number
from coterie.evaluate.groups import Groups
from coterie.training.records import ClientResult, Metrics

MOST_GROUPS = 12
"""Largest number of groups that are shown individually."""


@dataclass(frozen=True)
class NotebookView:
    """The parts of a result that a notebook shows."""

    title: str
    subject: str
    metrics: Metrics
    clients: Sequence[ClientResult]
    baselines: Baselines | None
    groups: Groups | None
    coefficients: Mapping[str, Any] | None

    def html(self) -> str:
        """Return the HTML with all texts escaped."""
        lines = [f"<p><strong>{escape(self.title)}</strong><br>{escape(self.subject)}</p>"]
        if self.metrics.why_diverged is not None:
            lines.append(f"<p><strong>{escape(self.metrics.why_diverged)}</strong></p>")
        elif self.baselines is not None and self.baselines.clustered:
            lines.append("".join(f"<p>{escape(line)}</p>" for line in self.baselines.sentences()))
        return f"<div>{''.join(lines)}{self._table()}</div>"

    def _table(self) -> str:
        clusters = sorted({client.cluster for client in self.clients})
        if not 1 < len(clusters) <= MOST_GROUPS:
            return ""
        words = self.groups.sentences(self.coefficients) if self.groups and self.coefficients else {}
        name = "accuracy" if "accuracy" in self.metrics else "RMSE"
        rows = "".join(self._row(cluster, words.get(cluster, "")) for cluster in clusters)
        heads = ("cluster", "clients", "training samples", f"mean {name}", *(("distinguished by",) if words else ()))
        head = "".join(f"<th>{title}</th>" for title in heads)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def _row(self, cluster: int, words: str) -> str:
        mine = [client for client in self.clients if client.cluster == cluster]
        scores = [client.score for client in mine if client.score is not None]
        score = number(float(np.mean(scores))) if scores else ""
        cells = [str(cluster), str(len(mine)), str(sum(client.n for client in mine)), score]
        text = f'<td style="text-align: left">{escape(words)}</td>' if words else ""
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}{text}</tr>"
