"""Result of a comparison: figures of every run, means over seeds, paired differences, tables and plots."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError, unknown_name
from coterie.report.comparison import MethodRuns, Spread
from coterie.report.comparison import compare as by_method
from coterie.report.reading import RunData, read_runs
from coterie.report.tables import MethodColumn, cell, method_columns
from coterie.training.measures import MEASURES
from coterie.training.predicting import data_frame
from coterie.training.runs.outputs import check_output, write_binary_output, write_output

LEVEL = 0.95
"""Confidence level of the intervals of differences."""
FEW_SEEDS = 6
"""Smallest number of pairs with which the two-sided Wilcoxon test can reach p = 0.05; its least value is 2 / 2^n."""
FIGURES = (".svg", ".pdf")
"""File formats of plots."""
LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
LATEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


@dataclass(frozen=True)
class Difference:
    """Difference between two methods in one figure, over the seeds of both methods."""

    method: str
    """Name of the method."""
    against: str
    """Name of the method that it is compared with."""
    measure: str
    """Name of the figure."""
    seeds: int
    """Number of pairs of runs with the same seed and finite figures."""
    mean: float | None
    """Mean of (method - against); None without a pair."""
    low: float | None
    """Lower end of the paired 95 % t interval; None with fewer than two seeds."""
    high: float | None
    """Upper end of the interval; None with fewer than two seeds."""
    t_p_value: float | None
    """Two-sided p-value of the paired t test; None with fewer than two seeds."""
    wilcoxon_p_value: float | None
    """Two-sided p-value of the Wilcoxon signed-rank test; None with fewer than two seeds."""
    better: bool | None
    """Whether the interval lies on the better (True) or the worse side (False) of zero; None if it contains zero."""
    note: str = ""
    """Limitation of the comparison, such as too few seeds."""

    def __str__(self) -> str:
        if self.mean is None:
            return f"{self.method} against {self.against}: no common seed with a finite {self.measure}"
        interval = "" if self.low is None else f", 95 % interval {self.low:.4g} to {self.high:.4g}"
        p = "" if self.t_p_value is None else f", t test p = {self.t_p_value:.3g}"
        rank = "" if self.wilcoxon_p_value is None else f", Wilcoxon p = {self.wilcoxon_p_value:.3g}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.method} against {self.against}: {self.measure} {self.mean:+.4g}{interval}{p}{rank}{note}"


@dataclass(frozen=True)
class Differences(Sequence[Difference]):
    """Differences of all other methods from one method."""

    rows: tuple[Difference, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))

    def to_frame(self) -> Any:
        """Return the differences as a pandas DataFrame, one row for each method."""
        return data_frame({name: [getattr(row, name) for row in self.rows] for name in Difference.__annotations__})


@dataclass(frozen=True)
class Comparison:
    """Finished runs of several methods over several seeds.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> data = coterie.scenario("mixed-regression", clients=6)
        >>> out = tempfile.mkdtemp() + "/comparison"
        >>> comparison = coterie.compare(data, ["fedavg", "ifca"], seeds=2, out=out, rounds=2)
        >>> [method.name for method in comparison.methods]
        ['fedavg', 'ifca']
    """

    folder: Path
    """Folder of the runs; `coterie report FOLDER` writes their report."""
    runs: tuple[RunData, ...]
    """All finished runs."""

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """Return the comparison in a folder that `compare` has written.

        Args:
            folder: Folder of a comparison; unfinished runs are left out.

        Raises:
            RunError: if the folder has no finished run.
        """
        return cls(Path(folder), tuple(read_runs(Path(folder))))

    @cached_property
    def methods(self) -> tuple[MethodRuns, ...]:
        """Runs of each method: local models, one global model, methods that find groups, and known groups."""
        return by_method(self.runs).methods

    @property
    def score_name(self) -> str:
        """Name of the score: `accuracy` or `rmse`."""
        return by_method(self.runs).score_name

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of all numeric figures, the score first."""
        found = [name for run in self.runs for name, value in run.metrics.items() if _is_number(value)]
        return tuple(dict.fromkeys([self.score_name, *found]))

    # ---- tables ----------------------------------------------------------------------------------------------

    def columns(self, each_seed: bool = False) -> dict[str, list[Any]]:
        """Return the figures as a dict of columns.

        Args:
            each_seed: As in `to_frame`.
        """
        if each_seed:
            rows = [run for method in self.methods for run in method.runs]
            return {
                "method": [run.name for run in rows],
                "seed": [run.seed for run in rows],
                **{name: [_number(run.metrics.get(name)) for run in rows] for name in self.measures},
            }
        table: dict[str, list[Any]] = {
            "method": [method.name for method in self.methods],
            "seeds": [len(method.runs) for method in self.methods],
            "diverged": [len(method.diverged) for method in self.methods],
        }
        for name in self.measures:
            spreads = [method.over_seeds(name) for method in self.methods]
            table[name] = [None if spread is None else spread.mean for spread in spreads]
            table[f"{name} sd"] = [None if spread is None else spread.sd for spread in spreads]
        return table

    def to_frame(self, each_seed: bool = False) -> Any:
        """Return the figures as a pandas DataFrame.

        Args:
            each_seed: Whether the frame has one row for each run. By default it has one row for each method, with means
                over seeds, sample standard deviations ("NAME sd"), and the number of runs that diverged.

        Returns:
            A pandas DataFrame.

        Raises:
            InputError: if pandas is not installed.
        """
        return data_frame(self.columns(each_seed))

    def to_csv(self, path: str | Path | None = None, each_seed: bool = False) -> str:
        """Return the figures as CSV.

        Args:
            path: File to write as well; by default none.
            each_seed: As in `to_frame`.
        """
        table = self.columns(each_seed)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
        return _written(path, text.getvalue())

    def to_latex(self, path: str | Path | None = None) -> str:
        """Return a LaTeX table (package booktabs) of the means and standard deviations over seeds.

        The best mean score is bold, among methods that neither diverged nor know the true groups.

        Args:
            path: File to write as well; by default none.
        """
        found = by_method(self.runs)
        columns = [column for column in method_columns(found) if any(column.figures(m) for m in self.methods)]
        best = self._best()
        lines = [
            r"\begin{tabular}{l" + "r" * len(columns) + "}",
            r"\toprule",
            " & ".join(["method", *(_latex(column.title) for column in columns)]) + r" \\",
            r"\midrule",
        ]
        for method in self.methods:
            cells = [_latex_cell(method, column, method is best and column.key == "score") for column in columns]
            name = _latex(method.name) + (" (diverged)" if method.diverged else "")
            lines.append(" & ".join([name, *cells]) + r" \\")
        return _written(path, "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]))

    def _best(self) -> MethodRuns | None:
        sign = 1 if by_method(self.runs).higher_is_better else -1
        fair = [(m.over_seeds(self.score_name), m) for m in self.methods if not m.diverged and m.groups != "truth"]
        scored = [(sign * spread.mean, method) for spread, method in fair if spread is not None]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    # ---- differences -----------------------------------------------------------------------------------------

    def differences(self, against: str = "fedavg", measure: str | None = None) -> Differences:
        """Return the differences of all other methods from one method, over common seeds.

        Runs with the same seed have the same data, so that they are compared in pairs. The intervals describe the
        variation over seeds. All seeds of one table or data set share its rows, so that the intervals do not describe
        the variation over other rows.

        Args:
            against: Name of the method that the others are compared with.
            measure: Name of a figure; by default the score (accuracy or RMSE).

        Returns:
            Mean difference, paired 95 % t interval, and p-values of the paired t test and the Wilcoxon signed-rank test
            for each method; with few seeds a note explains their limits.

        Raises:
            ConfigError: if there is no such method or figure.
        """
        known = {method.name: method for method in self.methods}
        if against not in known:
            raise unknown_name("method of the comparison", against, known)
        name = measure or self.score_name
        if name not in self.measures:
            raise unknown_name("figure of the comparison", name, self.measures)
        others = [method for method in self.methods if method.name != against]
        return Differences(tuple(_difference(method, known[against], name) for method in others))

    # ---- figures ---------------------------------------------------------------------------------------------

    def figure(self, path: str | Path, measure: str | None = None) -> Path:
        """Plot a figure for every method: one dot for each seed, and the mean with its 95 % t interval.

        Args:
            path: File to write; its suffix, .svg or .pdf, determines the format.
            measure: Name of a figure of the runs; by default the score (accuracy or RMSE).

        Returns:
            The path.

        Raises:
            ConfigError: if the format or the figure is unknown, or matplotlib is not installed.
            StorageError: if the file cannot be written.
        """
        file = Path(path)
        check_figure(file)
        name = measure or self.score_name
        if name not in self.measures:
            raise unknown_name("figure of the comparison", name, self.measures)
        write_binary_output(file, _drawn(self.methods, name, file.suffix[1:].lower()))
        return file

    def __str__(self) -> str:
        lines = [f"{self.score_name} over seeds, in {self.folder}"]
        for method in self.methods:
            spread = method.over_seeds(self.score_name)
            text = "none" if spread is None else f"{spread.mean:.4g}" + _plus_minus(spread)
            lines.append(f"{method.name}: {text} ({len(method.runs)} seeds{', diverged' if method.diverged else ''})")
        return "\n".join(lines)


def check_figure(path: Path) -> None:
    """Check before anything runs that a plot can be drawn and written.

    Raises:
        ConfigError: if the suffix is unknown, or matplotlib is not installed.
        StorageError: if the file cannot be written.
    """
    if path.suffix.lower() not in FIGURES:
        raise ConfigError(f"the file name of a figure must end in {' or '.join(FIGURES)}, got {path.name!r}")
    _matplotlib()
    check_output(path)


def _matplotlib() -> Any:
    try:
        return import_module("matplotlib.figure")
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install 'coterie[plots]'") from None


def _drawn(methods: Sequence[MethodRuns], name: str, form: str) -> bytes:
    figure = _matplotlib().Figure(figsize=(6.4, 0.8 + 0.42 * len(methods)), layout="constrained")
    axes = figure.subplots()
    for row, method in enumerate(methods):
        spread = method.over_seeds(name)
        if spread is None:
            continue
        axes.plot(spread.values, [row] * len(spread.values), "o", color="#8aa4c8", markersize=4, zorder=1)
        half = _half_width(spread.values)
        axes.errorbar(spread.mean, row, xerr=half, fmt="D", color="#1f3b63", capsize=3, markersize=5, zorder=2)
    axes.set_yticks(range(len(methods)), [method.name for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)
    measure = MEASURES.get(name)
    better = f" ({measure.better} is better)" if measure is not None and measure.better else ""
    axes.set_xlabel(f"{name}{better}")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    file = io.BytesIO()
    undated = {"Date": None} if form == "svg" else {"CreationDate": None}  # so that the same runs give the same file
    figure.savefig(file, format=form, metadata=undated)
    return file.getvalue()


def _difference(method: MethodRuns, base: MethodRuns, name: str) -> Difference:
    others = {run.seed: _number(run.metrics.get(name)) for run in base.runs}
    pairs = [(_number(run.metrics.get(name)), others.get(run.seed)) for run in method.runs]
    values = np.array([mine - other for mine, other in pairs if mine is not None and other is not None])
    n, mean = len(values), float(values.mean()) if len(values) else None
    if mean is None or n < 2:
        note = "" if mean is None else "a single seed does not show the variation over seeds"
        return Difference(method.name, base.name, name, n, mean, None, None, None, None, None, note)
    half = _half_width(values)
    assert half is not None, "there are two values or more"
    low, high = mean - half, mean + half
    return Difference(
        method.name,
        base.name,
        name,
        n,
        mean,
        low,
        high,
        _t_test(values),
        _wilcoxon(values),
        _better(name, low, high),
        _small_sample_note(n),
    )


def _small_sample_note(seeds: int) -> str:
    if seeds >= FEW_SEEDS:
        return ""
    least = 2 / 2**seeds
    return f"with {seeds} seeds the Wilcoxon test gives at least p = {least:.3g}, and the t interval is wide"


def _half_width(values: Iterable[float]) -> float | None:
    """Return half the width of the t interval of a mean; None for fewer than two values."""
    found = np.fromiter(values, dtype=np.float64)
    if len(found) < 2:
        return None
    from scipy.special import stdtrit  # slow to import

    quantile = stdtrit(len(found) - 1, (1 + LEVEL) / 2)
    return float(quantile * found.std(ddof=1) / math.sqrt(len(found)))


def _t_test(values: np.ndarray) -> float:
    """Return the two-sided p-value of the one-sample t test of the differences."""
    deviation = float(values.std(ddof=1))
    if deviation == 0:
        return 1.0 if float(values.mean()) == 0 else 0.0
    t = float(values.mean()) / (deviation / math.sqrt(len(values)))
    from scipy.special import stdtr  # slow to import

    return float(2 * stdtr(len(values) - 1, -abs(t)))


def _wilcoxon(values: np.ndarray) -> float:
    """Return the two-sided p-value of the signed-rank test; differences of zero are left out."""
    from scipy.stats import wilcoxon  # slow to import

    kept = values[values != 0]
    return float(wilcoxon(kept).pvalue) if len(kept) else 1.0


def _better(name: str, low: float, high: float) -> bool | None:
    measure = MEASURES.get(name)
    direction = "lower" if name == "loss" else None if measure is None else measure.better
    if direction is None or low <= 0 <= high:
        return None
    return (low > 0) == (direction == "higher")


def _latex_cell(method: MethodRuns, column: MethodColumn, bold: bool) -> str:
    found = cell(column.figures(method), column.form)
    text = _latex(f"{found.text} {found.spread}".strip()).replace("±", r"$\pm$")
    return rf"\textbf{{{text}}}" if bold else text


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _plus_minus(spread: Spread) -> str:
    return "" if spread.sd is None else f" ± {spread.sd:.2g}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) and math.isfinite(value) else None


def _written(path: str | Path | None, text: str) -> str:
    if path is not None:
        write_output(Path(path), text)
    return text
