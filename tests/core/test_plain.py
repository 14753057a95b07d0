"""Typed values as JSON, TOML and texts, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.plain import from_plain, from_text, short_plain, to_plain, to_text
from coterie.core.registry import Registered, register
from coterie.errors import ConfigError


class Shape(Registered, family="shape"):
    pass


@register("dot")
@dataclass(frozen=True)
class Dot(Shape):
    pass


@register("box")
@dataclass(frozen=True)
class Box(Shape):
    width: float
    sides: int = 4
    filled: bool = False
    style: Literal["solid", "dashed"] = "solid"
    label: str | None = None
    limit: int | Literal["auto"] = "auto"
    inside: Shape = field(default_factory=Dot)


@dataclass(frozen=True)
class Picture:
    title: str
    shapes: tuple[Shape, ...] = ()
    frame: Shape | None = None


WORDS = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1).filter(lambda word: word != "none")
FLAT = st.builds(
    Box,
    width=st.floats(allow_nan=False, allow_infinity=False),
    sides=st.integers(-(10**9), 10**9),
    filled=st.booleans(),
    style=st.sampled_from(["solid", "dashed"]),
    label=st.none() | WORDS,
    limit=st.integers() | st.just("auto"),
)
SHAPES = st.recursive(
    st.just(Dot()) | FLAT,
    lambda inner: st.builds(Box, width=st.floats(allow_nan=False, allow_infinity=False), inside=inner),
    max_leaves=4,
)
PICTURES = st.builds(Picture, title=st.text(), shapes=st.lists(SHAPES).map(tuple), frame=st.none() | SHAPES)


@given(PICTURES)
def test_values_survive_json(picture):
    assert from_plain(Picture, json.loads(json.dumps(to_plain(picture)))) == picture


@given(SHAPES)
def test_members_survive_the_short_form(shape):
    assert from_plain(Shape, json.loads(json.dumps(short_plain(shape)))) == shape


@given(FLAT)
def test_members_survive_their_text(shape):
    assert from_text(Shape, to_text(shape)) == shape


def test_plain_forms_by_hand():
    box = Box(2.0, filled=True)
    assert to_plain(box) == {
        "name": "box",
        "width": 2.0,
        "sides": 4,
        "filled": True,
        "style": "solid",
        "label": None,
        "limit": "auto",
        "inside": {"name": "dot"},
    }
    assert short_plain(box) == {"name": "box", "width": 2.0, "filled": True}
    assert short_plain(Dot()) == "dot"
    assert to_plain(Picture("p", (Dot(),))) == {"title": "p", "shapes": [{"name": "dot"}], "frame": None}
    assert to_text(Box(0.5, 3, label="x")) == "box:width=0.5,sides=3,label=x"
    assert to_text(Dot()) == "dot"


def test_names_alone_and_integers_for_floats_are_accepted():
    assert from_plain(Shape, "dot") == Dot()
    assert from_plain(Shape, {"name": "box", "width": 2}) == Box(2.0)
    assert type(from_plain(Shape, {"name": "box", "width": 2}).width) is float


def test_texts_of_every_kind_are_read():
    assert from_text(Shape, " box: width=1e-3 , sides=6, filled=TRUE, style=dashed, label=none, limit=auto ") == Box(
        1e-3, 6, True, "dashed", None, "auto"
    )
    assert from_text(Shape, "box:width=1,limit=7,inside=dot").limit == 7


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ("cube", "unknown shape 'cube'"),
        ("bax", "unknown shape 'bax': did you mean 'box'"),
        ({"width": 1}, "value must be a shape with a name, got None"),
        (3, "value must be a shape with its name and settings, got 3"),
        (None, "value must be a shape with its name and settings"),
        ({"name": "box"}, r"box needs width: write box:width=\.\.\."),
        ({"name": "box", "width": 1, "widht": 2}, "unknown setting 'widht' of box: did you mean 'width'"),
        ({"name": "dot", "width": 1}, "dot has no settings, got 'width': leave it out"),
        ({"name": "box", "width": "wide"}, "box: width must be a number, got 'wide'"),
        ({"name": "box", "width": True}, "box: width must be a number, got True"),
        ({"name": "box", "width": 1, "sides": 1.5}, "box: sides must be a whole number, got 1.5"),
        ({"name": "box", "width": 1, "sides": True}, "box: sides must be a whole number, got True"),
        ({"name": "box", "width": 1, "filled": 1}, "box: filled must be true or false, got 1"),
        ({"name": "box", "width": 1, "style": "wavy"}, "box: style must be one of solid, dashed, got 'wavy'"),
        ({"name": "box", "width": 1, "label": 5}, "box: label must be a text, got 5"),
        ({"name": "box", "width": 1, "limit": "many"}, "box: limit must be a whole number, got 'many'"),
        ({"name": "box", "width": 1, "inside": {"name": "cube"}}, "unknown shape 'cube'"),
    ],
)
def test_plain_forms_that_do_not_fit_are_refused_in_a_sentence(plain, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_plain(Shape, plain)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "value must be a mapping of settings"),
        ({"title": "t", "shapes": "dot"}, "value: shapes must be a list, got 'dot'"),
        ({"title": "t", "shapes": [1]}, "value: shapes must be a shape with its name and settings, got 1"),
        ({"title": None}, "value: title must be a text, got None"),
    ],
)
def test_nested_values_that_do_not_fit_are_refused(plain, message):
    with pytest.raises(ConfigError, match=message):
        from_plain(Picture, plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown shape ''"),
        ("bax:width=1", "did you mean 'box'"),
        ("box", "box needs width"),
        ("box:height=1", "unknown setting 'height' of box"),
        ("box:width", "box: width must be a number, got ''"),
        ("box:width=1,sides=four", "box: sides must be a whole number, got 'four'"),
        ("box:width=1,filled=yes", "box: filled must be true or false, got 'yes'"),
        ("dot:x=1", "dot has no settings, got 'x=1': leave it out"),
    ],
)
def test_texts_that_do_not_fit_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        from_text(Shape, text)


@pytest.mark.parametrize("value", [object(), np.zeros(2), {"a": 1}, Dot])
def test_a_value_without_a_plain_form_is_a_type_error(value):
    with pytest.raises(TypeError, match="has no plain form"):
        to_plain(value)
