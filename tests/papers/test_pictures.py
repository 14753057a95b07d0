"""Pictures of the reproductions: axes by hand, and bars only for what is there."""

import re
from xml.etree import ElementTree

import pytest

from papers.pictures import Axis, Pair, Panel, bars, curves, nice_step


@pytest.mark.parametrize(("length", "step"), [(1.0, 0.2), (0.6, 0.1), (10, 2), (400, 100), (5, 1)])
def test_steps_divide_a_length_into_four_to_ten_parts(length, step):
    assert nice_step(length) == pytest.approx(step)


def test_values_are_placed_linearly_or_by_their_logarithms():
    linear = Axis.over([1.0, 9.0], False, 0, 100)
    assert (linear.low, linear.high, linear(5.0)) == (0.0, 10.0, 50.0)
    logarithmic = Axis.over([0.002, 0.5], True, 100, 0)
    assert logarithmic.ticks == pytest.approx([0.001, 0.01, 0.1, 1])
    assert logarithmic(0.001) == 100
    assert logarithmic(1.0) == 0
    assert Axis.over([3.0, 3.0], False, 0, 1).ticks


def test_bars_are_of_rows_that_have_been_run():
    picture = bars("Test", "%", [Pair("a", 40.0, 50.0), Pair("b", 30.0, None), Pair("c <d>", None, 20.0)])
    ElementTree.fromstring(picture)
    assert "c &lt;d&gt;" in picture
    assert ">b<" not in picture
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="8" fill="#3f51b5"', picture)]
    assert widths[1] / widths[2] == pytest.approx(2.5, rel=0.01)  # 50 and 20; the first is the legend's


def test_panels_without_points_are_left_out_and_paper_curves_are_dashed():
    line = {"one": [(1.0, 2.0), (2.0, 3.0)]}
    picture = curves([Panel("first", "x", "y", line, paper=line), Panel("second", "x", "y", {"two": []})])
    ElementTree.fromstring(picture)
    assert "second" not in picture
    assert picture.count("stroke-dasharray") == 1
    assert picture.count("<polyline") == 2
