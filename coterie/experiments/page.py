"""Tables and verdicts as Markdown: docs/reproductions.md with a summary, and a page for each paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.experiments.reproduction import Claim, Paper, Reproduction, Table, Verdict
from coterie.experiments.results import read

NOTE = "<!-- Written by `make reproductions` from papers/reproductions.jsonl; do not edit. -->\n"
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not run")
INTRODUCTION = """\
Figures and tables of papers, run again with Coterie. The pages state for each claim whether it
holds here. Claims are statements of the paper, and figures that independent prototypes of its experiments gave.

```sh
coterie reproduce                        # list all reproductions
coterie reproduce ifca-figure3 --quick   # a small version in a minute or two, which is not stored
coterie reproduce ifca-figure3           # run and store the missing cells
```

The result of a figure or table is *holds* if all decided claims hold, *fails* if none does, and *depends* otherwise:
the page of the paper shows on what. A claim is *undecided* if the figures differ by no more than two runs of the same
method may. `make reproductions` writes these pages.
"""
READING = "The tables compare the paper's figures with Coterie's. In parentheses: the number of seeds."


@dataclass(frozen=True)
class Judged:
    """A reproduction with the results so far."""

    reproduction: Reproduction
    tables: Sequence[Table]
    claims: Sequence[Claim]

    def count(self, verdict: Verdict) -> int:
        return sum(claim.verdict == verdict for claim in self.claims)

    @property
    def result(self) -> str:
        """`holds`, `depends` or `fails`, by the decided claims; `undecided` or `not run` without any."""
        holding, failing = self.count("holds"), self.count("does not hold")
        if not holding and not failing:
            return "undecided" if self.count("undecided") else "not run"
        return "depends" if holding and failing else "holds" if holding else "fails"


def pages(papers: Iterable[Paper], results: Path, summary: str) -> dict[str, str]:
    """Return the text of each page by its file name.

    Args:
        papers: The papers with their reproductions.
        results: File of the finished cells.
        summary: File name of the summary. The page of a paper is called, for example, `reproductions-ifca.md`.
    """
    name = Path(summary)
    parts, texts = [NOTE, "# Reproductions\n", INTRODUCTION], dict[str, str]()
    for paper in papers:
        found, page = [_judged(each, results) for each in paper.reproductions], f"{name.stem}-{paper.name}{name.suffix}"
        parts += [f"## {paper.title}\n", f"{paper.citation} {_score(found)} [Tables and evidence]({page}).\n"]
        parts.append(_summary(found, page))
        texts[page] = _page_of(paper, found, summary)
    return {summary: "\n".join(parts)} | texts


def _judged(reproduction: Reproduction, results: Path) -> Judged:
    found = read(results, reproduction.kept_as)
    return Judged(reproduction, reproduction.tables(found, False), reproduction.claims(found, False))


def _page_of(paper: Paper, found: Sequence[Judged], summary: str) -> str:
    parts = [NOTE, f"# Reproduction: {paper.title}\n", f"{paper.citation} {_score(found)}\n"]
    parts.append(f"{READING} [All papers]({summary}).\n")
    parts.append(_summary(found, ""))
    failing = [
        f"- {claim.text} ([{each.reproduction.name}](#{each.reproduction.name}))"
        for each in found
        for claim in each.claims
        if claim.verdict == "does not hold"
    ]
    if failing:
        parts += ["## Claims that do not hold\n", "\n".join(failing) + "\n"]
    for each in found:
        reproduction = each.reproduction
        parts.append(f"## {reproduction.name}\n")
        parts.append(f"{reproduction.title} ({reproduction.paper}). {reproduction.notes}\n")
        parts.append(f"```sh\ncoterie reproduce {reproduction.name}\n```\n")
        parts += [_markdown(table) for table in each.tables]
        parts.append(_verdicts(each.claims))
    return "\n".join(parts)


def _score(found: Sequence[Judged]) -> str:
    holding, failing, undecided, not_run = (sum(each.count(verdict) for each in found) for verdict in VERDICTS)
    open_claims = [
        *([f"{undecided} {_are(undecided)} undecided"] if undecided else []),
        *([f"{not_run} {_are(not_run)} not tested"] if not_run else []),
    ]
    return f"{holding} of {holding + failing} decided claims hold{''.join(f'; {text}' for text in open_claims)}."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _summary(found: Iterable[Judged], page: str) -> str:
    rows = [
        [
            f"[{each.reproduction.name}]({page}#{each.reproduction.name})",
            each.reproduction.paper,
            each.result,
            *(str(each.count(verdict)) for verdict in VERDICTS),
        ]
        for each in found
    ]
    header = ["reproduction", "figure or table", "result", *(f"{verdict} (claims)" for verdict in VERDICTS)]
    return "\n".join([_row(header), _row(["---"] * len(header)), *map(_row, rows), ""])


def _markdown(table: Table) -> str:
    lines = [f"{table.title}\n", _row(table.header), _row(["---"] * len(table.header)), *map(_row, table.rows), ""]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdicts(claims: Iterable[Claim]) -> str:
    rows = [[claim.text, claim.verdict, claim.evidence] for claim in claims]
    return _markdown(Table("Claims", ["claim", "verdict", "found"], rows))
