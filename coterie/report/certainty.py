"""The certainty of the assignment in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from coterie.evaluate.certainty import SURE
from coterie.report.formats import listed, plural
from coterie.training.records import ClientResult, Metrics


def sure_clients(runs: Sequence[Sequence[ClientResult]]) -> str:
    """Return how many clients are sure of their cluster, as `41 of 240 clients ...`; empty if that is unknown.

    Args:
        runs: The clients of each seed. Counts that differ between seeds are given as `41 to 43`.
    """
    if any(len({row.cluster for row in rows}) < 2 for rows in runs):
        return ""  # nothing is known of a cluster without clients, so that it is no alternative
    known = [[row.certainty for row in rows if row.certainty is not None] for rows in runs]
    if not all(known) or not known:
        return ""
    counts, m = [sum(p >= SURE for p in each) for each in known], max(map(len, known))
    least, most = min(counts), max(counts)
    number = str(least) if least == most else f"{least} to {most}"
    which = "belongs to its cluster" if m == 1 else "belong to their cluster"
    return f"{number} of {plural(m, 'client')} {which} rather than another with at least {100 * SURE:.0f} % probability"


def unsure_clients(rows: Sequence[ClientResult]) -> str:
    """Return why the other clients of a run are not sure of their group; empty if there are none.

    Args:
        rows: The clients of one run.
    """
    unsure = [row for row in rows if row.certainty is not None and row.certainty < SURE]
    elsewhere = [row for row in unsure if max(row.get("posterior", [0.0])) >= SURE]
    undecided = [row for row in unsure if row not in elsewhere]
    needed = [row["samples_needed"] for row in undecided if "samples_needed" in row]
    parts = []
    if undecided:
        enough = f"; about {round(median(needed)):,} would be needed" if needed else ""
        have = plural(median(row.n for row in undecided), "training sample")
        parts.append(f"{len(undecided)} cannot be placed with certainty (median {have}{enough})")
    if elsewhere:
        parts.append(f"{len(elsewhere)} {'fits' if len(elsewhere) == 1 else 'fit'} another cluster better")
    return "; ".join(parts)


def hidden_groups(metrics: Metrics) -> str:
    """Return the warning that clusters may hide more than one group; empty if there is none."""
    mixed = metrics.get("mixed")
    if not mixed:
        return ""
    one = len(mixed) == 1
    return (
        f"{'cluster' if one else 'clusters'} {listed([str(k) for k in mixed])} may hide more than one group: "
        f"{'its' if one else 'their'} clients differ by more than chance; compare with more clusters"
    )
