"""Tables and verdicts as Markdown: docs/reproductions.md with a summary, and a page for each paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from coterie.experiments.estimates import OpenCell, in_words, open_cells_of
from coterie.experiments.reproduction import Claim, Explanation, Paper, Reproduction, Table, Verdict
from coterie.experiments.results import Finished, read, read_lines

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

The page of each paper opens with a summary: the claims that hold, those that depend on a reading of the text, those
that do not hold with a probable reason, and the time that unfinished cells take. `make papers` runs unfinished cells,
the cheapest first, and continues where it stopped.

The result of a figure or table is *holds* if all decided claims hold, *fails* if none does, and *depends* otherwise:
the page of the paper shows on what. A claim is *undecided* if the figures differ by no more than two runs of the same
method may. `make reproductions` writes these pages.
"""
PICTURES = "images/papers"
"""Folder of the pictures, next to the pages."""
READING = "The tables compare the paper's figures with Coterie's. In parentheses: the number of seeds."


@dataclass(frozen=True)
class Statement:
    """A statement of a paper, and the claims that are its readings; most statements have one."""

    text: str
    claims: list[Claim]
    reproduction: str
    reason: str

    @property
    def verdict(self) -> str:
        """Verdict of the claims, or `depends` if some readings hold and others do not."""
        verdicts = {claim.verdict for claim in self.claims}
        if {"holds", "does not hold"} <= verdicts:
            return "depends"
        return next(each for each in ("holds", "does not hold", "undecided", "not run") if each in verdicts)


@dataclass(frozen=True)
class Judged:
    """A reproduction with the results so far."""

    reproduction: Reproduction
    tables: Sequence[Table]
    claims: Sequence[Claim]
    picture: str | None = None
    """The picture as SVG."""

    def count(self, verdict: Verdict) -> int:
        return sum(claim.verdict == verdict for claim in self.claims)

    @property
    def result(self) -> str:
        """`holds`, `depends` or `fails`, by the decided claims; `undecided` or `not run` without any."""
        holding, failing = self.count("holds"), self.count("does not hold")
        if not holding and not failing:
            return "undecided" if self.count("undecided") else "not run"
        return "depends" if holding and failing else "holds" if holding else "fails"

    @property
    def statements(self) -> list[Statement]:
        """The claims, those that are readings of the same statement together."""
        made: dict[str, Statement] = {}
        for claim in self.claims:
            explained = self._explanation(claim)
            text = explained.statement or claim.text
            new = Statement(text, [], self.reproduction.name, explained.reason)
            made.setdefault(text, new).claims.append(claim)
        return list(made.values())

    def _explanation(self, claim: Claim) -> Explanation:
        fitting = (each for each in self.reproduction.explanations if each.fragment in claim.text)
        return next(fitting, Explanation(""))


def pages(papers: Iterable[Paper], results: Path, summary: str) -> dict[str, str]:
    """Return the text of each page and picture by its file name, which may contain a folder.

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
        texts[page] = _page_of(paper, found, summary, results)
        texts |= {_picture_of(each): each.picture for each in found if each.picture is not None}
    return {summary: "\n".join(parts)} | texts


def _judged(reproduction: Reproduction, results: Path) -> Judged:
    found = read(results, reproduction.kept_as)
    picture = reproduction.picture(found) if reproduction.picture and found else None
    return Judged(reproduction, reproduction.tables(found, False), reproduction.claims(found, False), picture)


def _picture_of(judged: Judged) -> str:
    return f"{PICTURES}/{judged.reproduction.name}.svg"


def _page_of(paper: Paper, found: Sequence[Judged], summary: str, results: Path) -> str:
    parts = [NOTE, f"# Reproduction: {paper.title}\n", f"{paper.citation}\n"]
    parts += [_opening(found, open_cells_of(paper.reproductions, results))]
    parts.append(f"{READING} [All papers]({summary}).\n")
    parts += [_summary(found, ""), _storage(paper, read_lines(results))]
    for each in found:
        reproduction = each.reproduction
        parts.append(f"## {reproduction.name}\n")
        parts.append(f"{reproduction.title} ({reproduction.paper}). {reproduction.notes}\n")
        parts.append(f"```sh\ncoterie reproduce {reproduction.name}\n```\n")
        if each.picture is not None:
            parts.append(f"![{reproduction.title}]({_picture_of(each)})\n")
        parts += [_markdown(table) for table in each.tables]
        parts.append(_verdicts(each.claims))
    return "\n".join(parts)


def _opening(found: Sequence[Judged], unfinished: Sequence[OpenCell]) -> str:
    """Return the summary at the head of a paper's page: what holds, what does not and why, what has not been run."""
    by_verdict: dict[str, list[Statement]] = {}
    for each in found:
        for statement in each.statements:
            by_verdict.setdefault(statement.verdict, []).append(statement)

    def of(verdict: str) -> list[Statement]:
        return by_verdict.get(verdict, [])

    total = sum(map(len, by_verdict.values()))
    parts = [f"Of {total} statements, readings of the same statement counted once, **{len(of('holds'))} hold**.\n"]
    if of("depends"):
        parts += [f"**{_counted(of('depends'), 'depends', 'depend')} on a reading of the text:**\n"]
        parts += ["\n".join(map(_readings, of("depends"))) + "\n"]
    if of("does not hold"):
        parts += [f"**{_counted(of('does not hold'), 'does', 'do')} not hold:**\n"]
        parts += ["\n".join(map(_failure, of("does not hold"))) + "\n"]
    if of("undecided"):
        where = ", ".join(dict.fromkeys(_link(each.reproduction) for each in of("undecided")))
        parts += [f"**{_counted(of('undecided'), 'is', 'are')} undecided:** {where}.\n"]
    if of("not run"):
        parts += [f"**{_counted(of('not run'), 'has', 'have')} not been run.**\n"]
    if unfinished:
        groups = groupby(unfinished, key=lambda each: each.reproduction.name)
        rows = [_cost(name, list(cells)) for name, cells in groups]
        parts += [_markdown(Table("Cells without a result", ["command", "cells", "estimated time, one core"], rows))]
    return "\n".join(parts)


def _counted(statements: Sequence[Statement], one: str, many: str) -> str:
    return f"{len(statements)} {one if len(statements) == 1 else many}"


def _link(reproduction: str) -> str:
    return f"[{reproduction}](#{reproduction})"


def _readings(statement: Statement) -> str:
    holding = sum(claim.verdict == "holds" for claim in statement.claims)
    decided = holding + sum(claim.verdict == "does not hold" for claim in statement.claims)
    reason = f" {statement.reason}" if statement.reason else ""
    return f"- {statement.text}: {holding} of {decided} readings hold ({_link(statement.reproduction)}).{reason}"


def _failure(statement: Statement) -> str:
    reason = f" {statement.reason}" if statement.reason else ""
    evidence = f" Found: {statement.claims[0].evidence}." if len(statement.claims) == 1 else ""
    return f"- {statement.text} ({_link(statement.reproduction)}).{evidence}{reason}"


def _cost(name: str, cells: Sequence[OpenCell]) -> list[str]:
    known = [each.seconds for each in cells if each.seconds is not None]
    time = in_words(sum(known)) if known else "not measured"
    return [f"`coterie reproduce {name}`", str(len(cells)), time]


def _storage(paper: Paper, lines: Iterable[Finished]) -> str:
    """Return what is known about the stored cells of a paper: those without a version, those that were resumed."""
    names = {each.kept_as for each in paper.reproductions}
    own = [line for line in lines if line.reproduction in names]
    without, resumed = sum(line.version is None for line in own), sum(line.resumed is True for line in own)
    return (
        f"{len(own)} cells are stored in papers/reproductions.jsonl; {without} of them are older than the record of "
        f"the code's version, and the seconds of {resumed} cover only the last part of a run that was resumed.\n"
    )


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
