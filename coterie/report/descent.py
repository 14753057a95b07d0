"""The section about changes of the number of clusters: descent, changes with their reasons, K over the rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.report.figures.family import Life, family_figure
from coterie.report.figures.growth import Change, growth_figure
from coterie.report.formats import listed, plural
from coterie.report.reading import RunData
from coterie.training.records import RoundRecord

COLUMNS = ("after round", "what", "clusters", "why")
MOST_LINES = 200
"""Largest number of clusters in a drawing of their descent; more could not be distinguished."""


def lives_of(records: Sequence[RoundRecord]) -> list[Life]:
    """Return every cluster of the run in the order of its first round."""
    changes = list(_changes(records))
    first = changes[0][1]["before"] if changes else records[-1]["K"]
    lives = [Life(0) for _ in range(first)]
    now = list(range(first))
    for round_, event in changes:
        now = _carried_over(lives, now, event["parents"], round_)
    sizes = records[-1].get("sizes")
    for number, life in enumerate(now):
        lives[life] = replace(lives[life], number=number, size=None if sizes is None else sizes[number])
    return lives


def _changes(records: Sequence[RoundRecord]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the events in their order, each as (round counted from one, event)."""
    return ((record.round + 1, event) for record in records for event in record.events)


def _carried_over(lives: list[Life], now: Sequence[int], parents: Sequence[Sequence[int]], round_: int) -> list[int]:
    """Return the life of each new cluster, given those of the old ones; `lives` receives new lives and ends."""
    taken: set[int] = set()
    after: list[int] = []
    for old in parents:
        free = [now[k] for k in old if now[k] not in taken]
        if not free:
            lives.append(Life(round_, parent=now[old[0]] if old else None))
            free = [len(lives) - 1]
        taken.add(free[0])
        after.append(free[0])
    heirs = {now[k]: new for old, new in zip(parents, after, strict=True) for k in old}
    for life in set(now) - taken:
        lives[life] = replace(lives[life], ends=round_, joins=heirs.get(life))
    return after


def section(run: RunData) -> dict[str, Any] | None:
    """Return the section about changes of K; None where the method never changes K."""
    if not changes_clusters(run.records):
        return None
    happened = list(_changes(run.records))
    lives = lives_of(run.records)
    drawn = bool(happened) and len(lives) <= MOST_LINES
    label = "Which cluster descends from which, round by round"
    return {
        "answer": f"{answer(run.records)}.",
        "columns": COLUMNS,
        "rows": [_row(round_, event) for round_, event in happened],
        "growth": _growth(run.records) if happened else None,
        "tree": family_figure(lives, len(run.records), label) if drawn else None,
        "many": len(lives) if happened and not drawn else None,
    }


def changes_clusters(records: Sequence[RoundRecord]) -> bool:
    """Return whether the method of these records may change K."""
    return bool(records) and "K" in records[-1]


def numbers_of_clusters(run: RunData) -> list[int]:
    """Return K after every round if the method may change it, else the given number once."""
    if changes_clusters(run.records):
        return [record["K"] for record in run.records]
    return [int(run.config.get("clusters", 2))]


def answer(records: Sequence[RoundRecord]) -> str:
    """Return text such as `from 1 to 4 clusters by 4 splits and 1 removal, the last after round 31`."""
    changes = list(_changes(records))
    happened = [(round_, event) for round_, event in changes if not _first_clients_in_one_cluster(event)]
    if not happened:
        unchanged = f"{plural(records[-1]['K'], 'cluster')} from the first round to the last"
        if changes:
            nearest = closest(records)
            return f"{unchanged}: all clients joined it" + (f"; closest {nearest}" if nearest else "")
        return f"{unchanged}: {why_unchanged(records) or 'no step changed that'}"
    kinds: Counter[str] = Counter()
    for _, event in happened:
        kinds.update(_what_happened(event))
    found = listed([plural(count, kind) for kind, count in kinds.items() if count])
    first, last = happened[0][1]["before"], records[-1]["K"]
    changed = f"from {first} to {plural(last, 'cluster')} by {found}, the last after round {happened[-1][0]}"
    later = closest([record for record in records if record.round + 1 > happened[-1][0]])
    return f"{changed}; since then closest {later}" if later else changed


def _first_clients_in_one_cluster(event: Mapping[str, Any]) -> bool:
    """Return whether clients only took the place of the single empty cluster that waited for the first of them."""
    return bool(event["kind"] == "arrival" and event["before"] == 1 and event["parents"] == [[]])


def why_unchanged(records: Sequence[RoundRecord]) -> str:
    """Return text such as `never split or merged; closest after round 17: gap 0.298, rho 0.3`, or empty text."""
    found = closest(records)
    return f"never split or merged; closest {found}" if found else ""


def closest(records: Sequence[RoundRecord]) -> str:
    """Return the figure nearest to its threshold, as `after round 17: gap 0.298, rho 0.3`; empty without any."""
    measured = [(record.round + 1, test) for record in records for test in record.tests]
    if not measured:
        return ""
    round_, test = max(measured, key=lambda one: closeness(one[1]))
    return f"after round {round_}: {test['text']}"


def closeness(test: Mapping[str, Any]) -> float:
    """Return the distance of a figure from its threshold as a ratio: 1 at the threshold, more beyond it."""
    value, threshold = test["value"], test["threshold"]
    if value is None or threshold is None:  # not finite
        return 0.0
    near, far = (value, threshold) if test["fires"] == "above" else (threshold, value)
    return near / far if far > 0 else math.inf if near > 0 else 0.0


def _what_happened(event: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of clusters that were split off, removed, merged into others or new, by event.

    What goes when clients arrive is only the empty cluster that held the place of the first ones.
    """
    parents = event["parents"]
    children = Counter(old for each in parents for old in each)
    return {
        "split": sum(count - 1 for count in children.values()),
        "removal": event["before"] - len(children) if event["kind"] != "arrival" else 0,
        "merger": sum(len(each) - 1 for each in parents if each),
        "newcomers' cluster": sum(not each for each in parents),
    }


def event_line(round_: int, event: Mapping[str, Any]) -> str:
    """Return one change in one line, for the terminal; rounds counted from one."""
    after = plural(len(event["parents"]), "cluster")
    return f"round {round_}: {event['kind']}, {event['before']} to {after} ({event['reason']})"


def _row(round_: int, event: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the texts under `COLUMNS`."""
    return str(round_), event["kind"], f"{event['before']} to {len(event['parents'])}", event["reason"]


def _growth(records: Sequence[RoundRecord]) -> object:
    changes = [
        Change(round_, event["kind"], len(event["parents"]), event["reason"]) for round_, event in _changes(records)
    ]
    return growth_figure([record["K"] for record in records], changes, "Number of clusters, by round")
