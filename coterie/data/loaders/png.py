"""A PNG reader for 8-bit RGB images that are not interlaced, with all five row filters."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from coterie.data.loaders.images import Bytes
from coterie.errors import InputError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SUPPORTED = (8, 2, 0, 0, 0)
"""Supported header: bits, colour type RGB, compression, filter method, no interlacing."""
STEP = 3
"""Number of bytes of a pixel, the distance to the left that filters use."""


def parse_png(data: bytes, where: str) -> Bytes:
    """Return the pixels, (height, width, 3)."""
    try:
        chunks = list(_chunks(data))
        width, height, *kind = struct.unpack(">IIBBBBB", chunks[0][1])
        raw = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise InputError(f"{where} is no whole PNG file ({error}): bring it again") from None
    if tuple(kind) != SUPPORTED:
        raise InputError(f"{where} must be an 8-bit RGB image without interlacing, got {kind}")
    if len(raw) != height * (1 + STEP * width):
        raise InputError(f"{where} promises {width} x {height} pixels but holds {len(raw)} bytes: bring it again")
    rows = np.frombuffer(raw, np.uint8).reshape(height, 1 + STEP * width)
    return _unfiltered(rows, where).reshape(height, width, STEP)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and body of every chunk; raise ValueError if the file is damaged."""
    if not data.startswith(SIGNATURE):
        raise ValueError("wrong signature")
    position, name = len(SIGNATURE), b""
    while name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        if checksum != zlib.crc32(name + body):
            raise ValueError(f"wrong check value in {name!r}")
        yield name, body
        position += 12 + length


def _unfiltered(rows: Bytes, where: str) -> Bytes:
    """Return the rows without their filters, (height, bytes); the first byte of a row is its filter."""
    out = np.zeros((len(rows) + 1, rows.shape[1] - 1), np.uint8)  # row 0 is the black row above the image
    for index, (kind, row) in enumerate(zip(rows[:, 0], rows[:, 1:], strict=True), 1):
        above = out[index - 1]
        if kind == 0:
            out[index] = row
        elif kind == 1:
            out[index] = np.cumsum(row.reshape(-1, STEP), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            out[index] = row + above
        elif kind in (3, 4):
            out[index] = _by_neighbours(int(kind), row.tolist(), above.tolist())
        else:
            raise InputError(f"{where}: row {index - 1} names the unknown filter {kind}: bring it again")
    return out[1:]


def _by_neighbours(kind: int, row: list[int], above: list[int]) -> list[int]:
    """Return a row without filter 3 (average) or 4 (Paeth), byte by byte."""
    left = [0] * STEP + row
    corner = [0] * STEP + above
    for place, up in enumerate(above):
        a, c = left[place], corner[place]
        guess = (a + up) // 2 if kind == 3 else _paeth(a, up, c)
        left[place + STEP] = (row[place] + guess) % 256
    return left[STEP:]


def _paeth(left: int, up: int, corner: int) -> int:
    """Return the one of the three that is nearest to left + up - corner; ties go to the first."""
    estimate = left + up - corner
    return min((left, up, corner), key=lambda value: abs(estimate - value))
