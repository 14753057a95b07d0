"""The page of the scoreboard, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.scoreboard.entries import Entry, Knows
from benchmarks.scoreboard.files import how_to_get
from benchmarks.scoreboard.scenarios import FAMILIES
from benchmarks.scoreboard.standing import NEARLY_ALL, Standing, mean
from coterie.experiments.reproduction import Table

DASH = "-"
SUMMARY = ("method", "K", "rank", "cases", "gain", "95 %", "new", "K error", "split", "CPU s", "MB")

HEAD = """<!-- Written by `make scoreboard` from benchmarks/scoreboard/results.jsonl; do not edit. -->

# Scoreboard

Every method with its defaults over many scenarios. `coterie scoreboard --page docs/scoreboard.md` writes this page from
`benchmarks/scoreboard/results.jsonl`, after it has run the cells that the file does not hold, and `coterie scoreboard
--small` shows a small version in about two minutes. Both need a checkout of the repository.
"""

READING = """## How to read it

- Nothing is set but the seed, the learner `mlp` for images (`representation` for `linear-heads` and
  `linear-heads-found`), and the true number of clusters for methods that need one (*given*; 2 where all clients are
  alike). Where the groups are unknown these methods use their default. *Finds* means that a method finds K
  itself, *truth* that it knows the group of every client: such rows are baselines and have no rank. `auto` diagnoses
  the clients and follows the recommendation. `ifca-auto` is `ifca` with `clusters=auto`, for drawn clients only, since
  its trial runs take long.
- *Rank*: methods are ranked in each scenario by the mean over seeds of the accuracy, or RMSE, of the clients that
  train; equal methods share a rank, and a method that diverges is last. The mean is over the scenarios in which a
  method can be used (*cases*), so compare it only among methods with about as many.
- *Gain*: share of the difference between `fedavg` (0 %) and `oracle` (100 %) that a method gains, in the mean over the
  scenarios where the oracle gains at least two points of accuracy or 5 % of the RMSE. A scenario counts at least
  -100 %. *95 %*: number of these scenarios in which a method gains at least 95 %.
- *New*: the same for clients that did not train, every fifth one. A newcomer shows ten labelled samples
  (`result.predict(x, support=...)`) and is scored on others. A dash: the method cannot serve new clients.
- *K error*: mean of |K - true K| where there are groups. *Split*: runs with more than one cluster on clients
  that are all alike, of all such runs.
- *CPU s* (processor seconds of a run) and *MB* (sent and received by all clients) are means over all runs.
- In the tables of a family: accuracy in per cent, or RMSE, of the clients / of newcomers, and in brackets the mean
  number of clusters and the adjusted Rand index.
"""


def summary(standing: Standing) -> Table:
    """Return the summary: one row for each method, yardsticks first."""
    return Table("", SUMMARY, [_summary_row(standing, entry) for entry in standing.entries])


def _summary_row(standing: Standing, entry: Entry) -> list[str]:
    name = entry.name
    shares = standing.shares(name)
    finds = entry.knows is Knows.FINDS
    split = standing.split_alike(name) if finds else None
    rank = standing.mean_rank(name)
    return [
        f"`{name}`",
        {Knows.ONE: DASH, Knows.FINDS: "finds", Knows.GIVEN: "given", Knows.TRUTH: "truth"}[entry.knows],
        _number(rank, 1),
        str(sum((scenario, name) in standing.runs for scenario in standing.names)),
        _percent(mean(shares)),
        f"{sum(share >= NEARLY_ALL for share in shares)}/{len(shares)}" if shares else DASH,
        _percent(mean(standing.shares(name, figure="newcomers"))),
        _number(standing.count_error(name), 2) if finds else DASH,
        f"{split[0]}/{split[1]}" if split else DASH,
        _number(standing.mean_over(name, "cpu"), 1),
        _number((standing.mean_over(name, "bytes") or 0) / 1e6, 1),
    ]


def page(standing: Standing, drawing: str) -> str:
    """Return the whole page; `drawing` is the file name of the picture of ranks."""
    parts = [HEAD, *_facts(standing), markdown(summary(standing)), f"![Ranks]({drawing})\n", *_good_for(standing)]
    parts.append(READING)
    for family, title in FAMILIES.items():
        parts += _family(standing, family, title)
    return "\n".join([*parts, *_missing(standing)])


def markdown(table: Table) -> str:
    """Return a table in Markdown, numbers at the right."""
    head = f"| {' | '.join(table.header)} |\n|{' --- |' + ' ---: |' * (len(table.header) - 1)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in table.rows), ""])


def _facts(standing: Standing) -> Iterator[str]:
    cells = sum(len(seeds) for seeds in standing.found.values())
    yield (
        f"{len(standing.names)} scenarios, {len(standing.entries)} methods, seeds {_listed(standing.seeds)}: "
        f"{cells} cells, of which {standing.refusals()} were refused because the method is not for such data.\n"
    )
    yield "Versions of the code that made the cells, and the rows that have cells of each:\n"
    made = standing.versions.items()
    yield "\n".join(f"- {version}: {', '.join(f'`{name}`' for name in names)}" for version, names in made) + "\n"


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) or DASH


def _good_for(standing: Standing) -> Iterator[str]:
    yield "## What each method is good for\n"
    yield "Derived from the numbers: where a method ranks best and worst, and how far it goes to the oracle.\n"
    yield "\n".join(f"- {good_for(standing, e)}" for e in standing.entries if e.knows is not Knows.TRUTH) + "\n"


def good_for(standing: Standing, entry: Entry) -> str:
    """Return one sentence about a method."""
    name = entry.name
    by_family = {family: standing.mean_rank(name, family) for family in FAMILIES}
    known = sorted((rank, family) for family, rank in by_family.items() if rank is not None)
    parts = []
    if known:
        (best, family), (worst, other) = known[0], known[-1]
        parts.append(f"best on {family} (mean rank {best:.1f})")
        if other != family:
            parts.append(f"worst on {other} ({worst:.1f})")
    shares = {n: s for n in standing.names if (s := standing.share(n, name)) is not None}
    if shares:
        reached = sum(share >= NEARLY_ALL for share in shares.values())
        parts.append(f"95 % of the oracle's gain in {reached} of {len(shares)} scenarios with clear groups")
        least = min(shares, key=lambda n: shares[n])
        if shares[least] < NEARLY_ALL:
            parts.append(f"least gain on {least} ({_percent(max(shares[least], -1.0))})")
    split = standing.split_alike(name) if entry.knows is Knows.FINDS else None
    if split is not None:
        often = f"splits alike clients in {split[0]} of {split[1]} runs"
        parts.append(often if split[0] else "never splits clients that are alike")
    return f"`{name}`: {'; '.join(parts)}."


def _family(standing: Standing, family: str, title: str) -> Iterator[str]:
    names = [name for name in standing.names if standing.scenarios[name].family == family]
    if not names:
        return
    yield f"## {title}\n"
    yield "\n".join(f"- *{name}*: {standing.scenarios[name].about}." for name in names) + "\n"
    entries = [entry for entry in standing.entries if any((name, entry.name) in standing.runs for name in names)]
    rows = [[f"`{e.name}`", *(_cell(standing, name, e.name) for name in names)] for e in entries]
    yield markdown(Table("", ["method", *names], rows))
    yield "Worst tenth of the clients, mean over seeds:\n"
    rows = [[f"`{e.name}`", *(_score(standing, name, e.name, "worst") for name in names)] for e in entries]
    yield markdown(Table("", ["method", *names], rows))


def _cell(standing: Standing, scenario: str, method: str) -> str:
    if (scenario, method) not in standing.runs:
        return ""
    if standing.diverged(scenario, method):
        return "diverged"
    text = f"{_score(standing, scenario, method, 'score')} / {_score(standing, scenario, method, 'newcomers')}"
    count, ari = (standing.mean_of(scenario, method, figure) for figure in ("clusters", "ari"))
    if count is None:
        return text
    return f"{text} ({count:.1f})" if ari is None else f"{text} ({count:.1f}, {ari:.2f})"


def _score(standing: Standing, scenario: str, method: str, figure: str) -> str:
    found = standing.mean_of(scenario, method, figure)
    if found is None:
        return DASH if (scenario, method) in standing.runs else ""
    if standing.runs[scenario, method][0]["unit"] == "accuracy":
        return f"{100 * found:.1f}"
    return f"{found:.3g}" if found < 1e4 else f"{found:.1e}"


def _missing(standing: Standing) -> Iterator[str]:
    absent = [scenario for name, scenario in standing.scenarios.items() if name not in standing.names]
    if absent:
        yield "## Scenarios that were not run\n"
        lines = [f"- {s.name}" + (f" (data: {how_to_get(s.needs)})" if s.needs else "") for s in absent]
        yield "\n".join(lines) + "\n"


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{round(100 * share)} %"
