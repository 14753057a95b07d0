"""PNG: every row filter by hand, and against a slow filter written the other way round."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.loaders.png import parse_png
from coterie.errors import InputError
from tests.data.loaders.make import png_bytes


@pytest.mark.parametrize(
    ("kind", "second", "expected"),
    [
        # first row: pixels (10, 20, 30) (40, 50, 60)
        (0, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
        # sub: adds the pixel to the left; 1+4 2+5 250+6=256 -> 0
        (1, [1, 2, 250, 4, 5, 6], [1, 2, 250, 5, 7, 0]),
        # up: adds the byte above
        (2, [1, 2, 3, 4, 5, 250], [11, 22, 33, 44, 55, 54]),
        # average: (0+10)//2=5, 10, 15; then (6+40)//2=23, (12+50)//2=31, (18+60)//2=39
        (3, [1, 2, 3, 1, 1, 1], [6, 12, 18, 24, 32, 40]),
        # Paeth: the first pixel takes up (the others are 0): 11 22 33; then 11 + 40 - 10 = 41 is nearest to up: 41, ...
        (4, [1, 2, 3, 1, 1, 1], [11, 22, 33, 41, 51, 61]),
    ],
)
def test_each_filter_by_hand(kind, second, expected):
    first = [10, 20, 30, 40, 50, 60]
    data = png_bytes([(0, bytes(first)), (kind, bytes(second))], width=2)
    assert parse_png(data, "p").reshape(2, 6).tolist() == [first, expected]


def filtered(pixels: np.ndarray, kinds: list[int]) -> list[tuple[int, bytes]]:
    """Rows as an encoder writes them, one byte at a time."""
    rows = []
    flat = pixels.reshape(len(pixels), -1).astype(int)
    for r, kind in enumerate(kinds):
        row = []
        for i in range(flat.shape[1]):
            a = flat[r, i - 3] if i >= 3 else 0
            b = flat[r - 1, i] if r else 0
            c = flat[r - 1, i - 3] if r and i >= 3 else 0
            p = a + b - c
            nearest = sorted([(abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c)])[0][2]
            guess = [0, a, b, (a + b) // 2, nearest][kind]
            row.append((flat[r, i] - guess) % 256)
        rows.append((kind, bytes(row)))
    return rows


def test_a_random_picture_with_all_filters_comes_back():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (40, 7, 3), dtype=np.uint8)
    kinds = [*range(5), *random.integers(0, 5, 35).tolist()]
    assert np.array_equal(parse_png(png_bytes(filtered(pixels, kinds), 7), "p"), pixels)


GOOD = png_bytes([(0, bytes(6))], width=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "wrong signature"),
        (GOOD[:20], "is no whole PNG"),
        (GOOD[:-14], "is no whole PNG"),
        (GOOD[:45] + bytes([GOOD[45] ^ 1]) + GOOD[46:], "wrong check value"),
        (png_bytes([(0, bytes(6))], 2, (8, 6, 0, 0, 0)), "must be an 8-bit RGB image"),
        (png_bytes([(0, bytes(6))], 3), "promises 3 x 1 pixels but holds 7 bytes"),
        (png_bytes([(9, bytes(6))], 2), "row 0 names the unknown filter 9"),
    ],
)
def test_damaged_pictures_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        parse_png(data, "p")
