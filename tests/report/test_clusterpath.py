"""The picture of a path: what is drawn where, and for which points."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from coterie.clustering import ConvexClustering, path_picture
from coterie.errors import ConfigError
from coterie.report.clusterpath import clusterpath

TREE = np.array([[0, 2, 0.1, 2], [1, 3, 0.1, 2], [4, 5, 1.0, 4]])
SVG = "{http://www.w3.org/2000/svg}"


def drawn(tree=TREE, names=None, labels=(0, 1, 0, 1)):
    return clusterpath(tree, [0.1, 0.3, 1.0], [2, 2, 1], 1, labels, names)


def elements(svg: str, name: str, class_: str):
    return [e for e in ElementTree.fromstring(svg).iter(SVG + name) if class_ in (e.get("class") or "").split()]


def test_the_picture_is_a_file_of_its_own_for_light_and_dark():
    svg = drawn()
    assert svg.startswith("<svg")
    assert "prefers-color-scheme: dark" in svg
    assert ElementTree.fromstring(svg).get("aria-label") == "Clusterpath of 4 points: 2 clusters at λ = 0.300"


def test_branches_are_coloured_below_the_chosen_lambda_and_grey_above():
    """Two bars with their stems at 0.1, the rest of both stems up to 0.3, from there grey, and the bar at 1."""
    svg = drawn()
    assert len(elements(svg, "path", "c0")) == 2
    assert len(elements(svg, "path", "c1")) == 2
    assert len(elements(svg, "path", "rest")) == 3
    (chosen,) = elements(svg, "line", "chosen")
    tops = {re.search(r"V([\d.]+)$", e.get("d")).group(1) for e in elements(svg, "path", "c0")[:1]}
    assert tops == {f"{float(chosen.get('y1')):.1f}"}


def test_points_stand_in_the_order_of_the_tree_with_their_names():
    texts = [
        e.text for e in ElementTree.fromstring(drawn(names=["a", "b", "c", "a long name of a point"])).iter() if e.text
    ]
    assert [t for t in texts if t in ("a", "b", "c", "a long name…")] == ["a", "c", "b", "a long name…"]
    assert "points in the order" in " ".join(texts)


def test_names_are_escaped():
    assert "<script>" not in drawn(names=["<script>", "b", "c", "d"])


def test_many_points_have_no_names_but_sizes():
    m = 60
    tree = np.array([[0 if i == 0 else m + i - 1, i + 1, 0.1, i + 2] for i in range(m - 1)], dtype=float)
    svg = clusterpath(tree, [0.1, 1.0], [1, 1], 0, [0] * m)
    small = [e.text for e in elements(svg, "text", "small")]
    assert small == ["60"]
    assert len(elements(svg, "path", "branch")) == 1  # all fuse at one height: one bar with sixty stems
    assert elements(svg, "path", "branch")[0].get("d").count("V") == 60


def test_one_point():
    assert "1 points" not in clusterpath(np.empty((0, 4)), [1.0], [1], 0, [0]).replace("1 point ", "")


def test_the_picture_of_a_model():
    points = np.random.default_rng(0).standard_normal((20, 2))
    points[:10] += 9
    model = ConvexClustering().fit(points)
    assert f"{model.n_clusters_} clusters at" in path_picture(model)
    with pytest.raises(ConfigError, match="names must have one entry for each of the 20 points"):
        path_picture(model, ["a"])
    with pytest.raises(ConfigError, match="lam='path'"):
        path_picture(ConvexClustering(0.1).fit(points))
