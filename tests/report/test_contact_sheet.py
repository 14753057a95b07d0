"""The contact sheet: whose images, which labels, the text about a client, and pixels that can be read back."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie import FederatedDataset, from_arrays
from coterie.data.loaders.png import parse_png
from coterie.errors import ConfigError
from coterie.report.contact_sheet import contact_sheet, png_address, write_png

SVG = "{http://www.w3.org/2000/svg}"


def population(shape=(4, 4), sizes=(3, 1)) -> FederatedDataset:
    random = np.random.default_rng(0)
    data = [(random.random((n, *shape)).astype(np.float32), np.arange(n) + 5) for n in sizes]
    data[0][0][0].flat[:2] = 0, 1  # the range of what is shown is 0 to 1
    return from_arrays(dict(zip(("ann", "<bob>"), data, strict=True)), name="p")


def parts(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(SVG + name))


def words(svg: str) -> list[str]:
    return [e.text for e in parts(svg, "text")]


def pixels(element: ElementTree.Element) -> np.ndarray:
    return parse_png(base64.b64decode(element.get("href").removeprefix("data:image/png;base64,")), "sheet")


def test_png_can_be_read_back():
    image = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(parse_png(write_png(image), "test"), image)
    assert png_address(image).startswith("data:image/png;base64,iVBOR")


def test_images_and_labels_of_every_client_are_shown():
    found = population()
    svg = contact_sheet(found)
    assert words(svg) == ["ann", "5", "6", "7", "<bob>", "5"]
    shown = np.stack([pixels(e) for e in parts(svg, "image")])
    expected = np.rint(255 * found.train.x.numpy().astype(np.float64)).astype(np.uint8)
    assert np.array_equal(shown, np.repeat(expected[..., None], 3, axis=-1))


def test_only_the_first_clients_and_images_are_shown():
    svg = contact_sheet(population(), clients=1, images=2)
    assert words(svg) == ["ann", "5", "6"]
    assert len(parts(svg, "image")) == 2


def test_groups_and_notes_are_written_once():
    known = replace(
        population(),
        truth=np.array([1, 0]),
        group_names=("concept 0", "concept 1"),
        client_notes=("fog 3; 2/1 by concept", "concept 0"),
    )
    reported = [word for word in words(contact_sheet(known)) if not word.isdigit()]
    assert reported == ["ann", "concept 1", "fog 3", "2/1 by concept", "<bob>", "concept 0"]


def test_colours_are_scaled_each_by_itself():
    found = population((3, 4, 4))
    stretch = torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    wide = replace(found, train=replace(found.train, x=found.train.x * stretch - 7))
    shown = np.stack([pixels(e) for e in parts(contact_sheet(wide), "image")])
    assert shown.min((0, 1, 2)).tolist() == [0, 0, 0]
    assert shown.max((0, 1, 2)).tolist() == [255, 255, 255]


def test_a_single_grey_level_is_black():
    found = population()
    flat = replace(found, train=replace(found.train, x=found.train.x * 0 + 0.5))
    assert pixels(parts(contact_sheet(flat), "image")[0]).max() == 0


@pytest.mark.parametrize("shape", [(64,), (2, 4, 4)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ConfigError, match=r"needs images \(H, W\) or \(3, H, W\), but samples of p have shape"):
        contact_sheet(population(shape))
