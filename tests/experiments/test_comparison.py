"""Comparisons: means, paired differences by hand, CSV, LaTeX and figures."""

from __future__ import annotations

import csv
import importlib.util
import math
from pathlib import Path

import pytest
from scipy import stats

import coterie
from coterie.errors import ConfigError
from coterie.experiments.comparison import Comparison
from coterie.report.reading import run_from_parts
from tests.methods.test_ifca import population


def run(method: str, seed: int, rmse: float | None, **metrics):
    """Return a finished run with this RMSE."""
    figures = {"rmse": rmse, "clusters": 1, "rounds": 3, "bytes_up": 1000, "bytes_down": 0, "seconds": 1.0} | metrics
    config = {"method": method, "seed": seed, "scenario": "mixed-regression"}
    return run_from_parts(config, [], {"metrics": figures, "clients": [{"id": "a", "cluster": 0, "score": rmse}]})


def comparison(**scores) -> Comparison:
    runs = [run(name, seed, value) for name, values in scores.items() for seed, value in enumerate(values)]
    return Comparison(Path("nowhere"), tuple(runs))


def test_differences_are_paired_by_seed():
    """ifca - fedavg = -1, -2, -3: mean -2, sd 1, so t = -2 / (1 / sqrt 3) with two degrees of freedom."""
    found = comparison(fedavg=[5.0, 7.0, 6.0], ifca=[4.0, 5.0, 3.0])
    (row,) = found.differences(against="fedavg")
    assert (row.method, row.against, row.measure, row.seeds, row.mean) == ("ifca", "fedavg", "rmse", 3, -2.0)
    half = 4.302653 / math.sqrt(3)  # the 97.5 % quantile of t with two degrees of freedom
    assert (row.low, row.high) == pytest.approx((-2 - half, -2 + half), abs=1e-5)
    # for two degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2) with t = 2 sqrt 3
    assert row.t_p_value == pytest.approx(1 - math.sqrt(12 / 14))
    assert row.wilcoxon_p_value == pytest.approx(2 / 8)  # all signs equal: 2 of 2^3 cases
    assert row.better is None, "the interval holds zero"
    assert "with 3 seeds the Wilcoxon test gives at least p = 0.25" in row.note
    assert str(row).startswith("ifca against fedavg: rmse -2, 95 % interval -4.484 to 0.4841")


def test_many_seeds_need_no_note_and_agree_with_scipy():
    a, b = [1.0 + 0.1 * i for i in range(8)], [1.3 + 0.1 * i + 0.02 * (i % 3) for i in range(8)]
    (row,) = comparison(fedavg=b, ifca=a).differences()
    assert row.note == ""
    assert row.t_p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert row.wilcoxon_p_value == pytest.approx(stats.wilcoxon([x - y for x, y in zip(a, b, strict=True)]).pvalue)
    assert row.better is True, "a lower RMSE is better"
    (other,) = comparison(fedavg=b, ifca=a).differences(against="ifca")
    assert (other.method, other.better, other.mean) == ("fedavg", False, -row.mean)


def test_limits_of_the_comparison_are_noted():
    (row,) = comparison(fedavg=[1.0], ifca=[0.5]).differences()
    assert (row.mean, row.low, row.t_p_value) == (-0.5, None, None)
    assert "a single seed does not show" in str(row)
    (same,) = comparison(fedavg=[1.0, 2.0], ifca=[1.0, 2.0]).differences()
    assert (same.t_p_value, same.wilcoxon_p_value, same.better) == (1.0, 1.0, None)
    (none,) = comparison(fedavg=[None], ifca=[1.0]).differences()
    assert str(none) == "ifca against fedavg: no common seed with a finite rmse"


def test_unknown_names_are_refused():
    found = comparison(fedavg=[1.0], ifca=[0.5])
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        found.differences(against="fedag")
    with pytest.raises(ConfigError, match="did you mean 'rmse'"):
        found.differences(measure="rmsee")


def test_tables_have_means_and_standard_deviations():
    found = comparison(fedavg=[5.0, 7.0], ifca=[4.0, 4.0])
    frame = found.to_frame().set_index("method")
    assert frame.loc["fedavg", ["seeds", "rmse", "rmse sd"]].tolist() == [2, 6.0, pytest.approx(math.sqrt(2))]
    rows = list(csv.DictReader(found.to_csv(each_seed=True).splitlines()))
    assert [(row["method"], row["seed"], float(row["rmse"])) for row in rows] == [
        ("fedavg", "0", 5.0),
        ("fedavg", "1", 7.0),
        ("ifca", "0", 4.0),
        ("ifca", "1", 4.0),
    ]
    assert found.differences().to_frame()["mean"].tolist() == [-2.0]


def test_latex_escapes_names_and_marks_the_best(tmp_path):
    runs = [run("fedavg", 0, 5.0), run("ifca", 0, 4.0), run("oracle", 0, 3.0)]
    labelled = [runs[0], runs[1].__class__(**{**vars(runs[1]), "label": "ifca_2"}), runs[2]]
    text = Comparison(Path("nowhere"), tuple(labelled)).to_latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text() == text
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert any(line.startswith(r"ifca\_2 & \textbf{4") for line in lines), "the oracle knows the groups"
    assert text.count(r"\textbf") == 1


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize(("name", "begin"), [("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_figures_are_files(tmp_path, name, begin):
    found = comparison(fedavg=[5.0, 7.0], ifca=[4.0, 4.5])
    assert found.figure(tmp_path / name).read_bytes().startswith(begin)


def test_figures_of_other_formats_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the file name of a figure must end in .svg or .pdf, got 'a.png'"):
        comparison(fedavg=[1.0]).figure(tmp_path / "a.png")


def test_compare_returns_the_table_of_its_runs(tmp_path):
    found = coterie.compare(population(), ["fedavg", "ifca"], seeds=2, out=tmp_path / "c", learner="linear", rounds=2)
    assert found.folder == tmp_path / "c"
    assert [row.seeds for row in found.differences("fedavg")] == [2]
    assert Comparison.read(found.folder).to_csv() == found.to_csv()
    assert found.score_name in str(found)
