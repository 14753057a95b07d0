"""Columns of texts as categories: which levels are features, which are pooled, and which columns are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.core.readings import odd_spelling
from coterie.core.schema import OTHER, Category
from coterie.data.presence import fit_presence
from coterie.data.remarks import FEW_ROWS, NEARLY_ALL, ONE_KIND, RARE_ROWS, alike_remarks, all_levels, listed, mixture
from coterie.data.scales import is_of_clients, share_scale, training_missing, with_indicator
from coterie.data.settings import DroppedError, FittedColumn
from coterie.data.summary import MOST_LEVELS, ColumnSummary, Level, TableSummary
from coterie.errors import shown

MOST_FEATURES = 20
"""Number of levels of a category that are kept; the others are pooled."""
RARE_SHARE, RARE_SHARE_OF_FEW = 0.01, 0.05
"""A level is rare in fewer than 1 % of the rows or fewer than 10 rows; below 200 rows, in fewer than 5 % of them."""


@dataclass(frozen=True)
class _Texts:
    """Facts about a column of texts."""

    column: ColumnSummary
    summary: TableSummary
    named: bool
    """Whether the user has named the column as a feature."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels that are listed, sorted."""
        return all_levels(self.column)

    @property
    def trained(self) -> list[Level]:
        """Levels of training rows."""
        return [level for level in self.levels if level.training]

    @property
    def count(self) -> int:
        """Number of levels, those that parties do not name included."""
        return len(self.levels) + self.column.unnamed.levels

    @property
    def spelled(self) -> str:
        """Kind of numbers or dates that all texts look like; empty if they do not."""
        return odd_spelling([level.text for level in self.levels])

    @property
    def rare(self) -> float:
        """Number of rows below which a level is rare."""
        rows = self.column.present
        return max(RARE_SHARE * rows, min(RARE_ROWS, RARE_SHARE_OF_FEW * rows))

    @property
    def known(self) -> int:
        """Number of training rows with a level."""
        return sum(level.training for level in self.trained) + self.column.unnamed.training


# ---- columns that are left out ---------------------------------------------------------------------------------------


def _drop_mixed(texts: _Texts) -> None:
    column = texts.column
    numbers = column.numbers.rows and (column.codes is None or len(column.codes) > MOST_FEATURES)
    if column.dates.rows or column.infinite or numbers:
        raise DroppedError(f"holds {mixture(column)}: {ONE_KIND}, or leave cells empty that are missing")


def _drop_too_many(texts: _Texts) -> None:
    if texts.column.texts is None or texts.column.marks is None:
        raise DroppedError(
            f"text with more than {MOST_LEVELS} different values, which looks like an identifier or a note"
        )


REFUSALS: tuple[Callable[[_Texts], None], ...] = (_drop_mixed, _drop_too_many)


def _drop_odd_spelling(texts: _Texts) -> None:
    if texts.spelled and texts.count > MOST_FEATURES:
        raise DroppedError(f"texts such as {shown(texts.levels[0].text)}, which look like {texts.spelled}")


def _drop_identifier(texts: _Texts) -> None:
    rows = texts.column.present
    if not texts.named and rows >= FEW_ROWS and texts.count >= NEARLY_ALL * rows:
        raise DroppedError(
            "nearly every row has another text, so it looks like an identifier; name it among the features to use it"
        )


def _drop_name_of_client(texts: _Texts) -> None:
    clients = texts.summary.clients
    same = not texts.named and is_of_clients(texts.column, texts.summary)
    if same and clients > 2 and texts.count >= NEARLY_ALL * clients:
        raise DroppedError(
            "nearly every client has a text that no other has, so it is another name of the client; name it among the "
            "features to use it"
        )


CATEGORY_REFUSALS: tuple[Callable[[_Texts], None], ...] = (_drop_odd_spelling, _drop_identifier, _drop_name_of_client)

# ---- levels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """The levels of a category that are named, the most frequent one first."""

    levels: Sequence[Level]
    pooled: bool
    """Whether all other levels are pooled."""

    @property
    def training(self) -> int:
        """Number of training rows that hold one of them."""
        return sum(level.training for level in self.levels)


def _kept_levels(texts: _Texts) -> _Kept:
    """Return the frequent levels; at least one training row stays in the pool if there is one.

    Raises:
        DroppedError: if no level is frequent.
    """
    frequent = [level for level in texts.trained if level.rows >= texts.rare]
    frequent = sorted(frequent, key=lambda level: (-level.training, level.text))[:MOST_FEATURES]
    pooled = texts.count > len(frequent)
    if pooled:
        frequent = [level for level in frequent if level.text != OTHER]
    while pooled and len(frequent) > 1 and _Kept(frequent, pooled).training == texts.known:
        frequent.pop()  # no training row would be in the pool
    kept = _Kept(frequent, pooled)
    if not frequent or (pooled and len(frequent) == 1 and kept.training == texts.known):
        example = f", such as {shown(texts.levels[0].text)}," if texts.levels else ""
        raise DroppedError(
            f"text with {texts.count} different values{example} of which none is in {texts.rare:.0f} rows or more"
        )
    return kept


def fit_category(column: ColumnSummary, summary: TableSummary, named: bool) -> FittedColumn:
    """Return a column of texts with a feature for each level but the most frequent one.

    Args:
        column: Summary of the column.
        summary: Summary of the table.
        named: Whether the user has named the column as a feature.

    Raises:
        DroppedError: if the column is left out.
    """
    texts = _Texts(column, summary, named)
    for refuse in REFUSALS:
        refuse(texts)
    every, trained = texts.levels, texts.trained
    if not column.unnamed.levels and (len(every) == 1 or len(trained) < 2):
        return fit_presence(column, (trained or list(every))[0].text, marks=False, everywhere=len(every) == 1)
    for refuse in CATEGORY_REFUSALS:
        refuse(texts)
    return _category(texts, _kept_levels(texts))


def _category(texts: _Texts, kept: _Kept) -> FittedColumn:
    column = texts.column
    reference, *others = kept.levels
    ordered = sorted(others, key=lambda level: level.text)
    names = tuple(level.text for level in ordered)
    counts = [level.training for level in ordered] + [texts.known - kept.training] * kept.pooled
    missing = training_missing(column, marks=False)
    scales = with_indicator(tuple(share_scale(n, column.training) for n in counts), missing, column.training)
    made = Category(column.name, missing > 0, reference.text, names, kept.pooled)
    features = listed([*names, *[OTHER] * kept.pooled])
    remarks = [f"category: reference {shown(reference.text)}, features for {features}"]
    if kept.pooled:
        remarks.append(f"{texts.count - len(kept.levels)} rare values pooled as {OTHER!r}")
    if texts.spelled:
        remarks.append(f"the texts look like {texts.spelled}")
    return FittedColumn(made, scales, remarks + alike_remarks(level.text for level in texts.levels))
