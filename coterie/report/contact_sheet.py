"""The images of each client with their labels in a row, as one SVG drawing."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from coterie.core.dataset import FederatedDataset
from coterie.errors import ConfigError
from coterie.report.figures.svg import WIDTH, tag, text

LEFT, GAP, LABEL, TOP = 130.0, 4.0, 12.0, 4.0
"""Space for the clients' names, between images, for a label below an image, above the first row."""
STYLE = "text{font:9px system-ui,sans-serif;fill:currentColor}image{image-rendering:pixelated}"
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Pixels = npt.NDArray[np.uint8]


def contact_sheet(dataset: FederatedDataset, *, clients: int = 12, images: int = 8) -> str:
    """Return an SVG file with one row for each of the first clients, with their first training images.

    Below each image is its label for this client; next to the row are the client, its true group and the changes of
    its data. Pixels are scaled to the range of those shown, every colour by itself.
    """
    shown = min(clients, len(dataset.clients))
    rows = [_first_images(dataset, client, images) for client in range(shown)]
    low, high = _ranges(np.concatenate(rows))
    side = (WIDTH - LEFT) / images - GAP
    height = side + LABEL + GAP
    parts = [
        _row(dataset, client, _bytes(row, low, high), TOP + client * height, side) for client, row in enumerate(rows)
    ]
    drawn = tag(
        "svg",
        tag("style", Markup(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {TOP + shown * height:.0f}",
        role="img",
        aria_label=f"images of {shown} clients of {dataset.name}, one client a row, labels below",
    )
    return str(drawn)


def _first_images(dataset: FederatedDataset, client: int, count: int) -> npt.NDArray[np.float64]:
    """Return the first images of a client, (count or fewer, 1 or 3, H, W)."""
    train = dataset.train
    shape = tuple(train.x.shape[1:])
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 3):
        raise ConfigError(
            f"a contact sheet needs images (H, W) or (3, H, W), but samples of {dataset.name} have shape {shape}: "
            "choose a scenario of images, without pca"
        )
    start = int(train.starts[client])
    x = train.x[start : min(start + count, int(train.stops[client]))].numpy().astype(np.float64)
    return x if x.ndim == 4 else x[:, None]


def _ranges(x: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the smallest and the largest value of every colour, (1 or 3, 1, 1)."""
    return x.min((0, 2, 3))[:, None, None], x.max((0, 2, 3))[:, None, None]


def _bytes(x: npt.NDArray[np.float64], low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Pixels:
    """Return the images as colours from 0 to 255, (n, H, W, 3)."""
    unit = (x - low) / np.where(high > low, high - low, 1)
    grey_or_colour = np.rint(255 * np.moveaxis(unit, 1, -1)).astype(np.uint8)
    return np.broadcast_to(grey_or_colour, (*grey_or_colour.shape[:3], 3))


def _row(dataset: FederatedDataset, client: int, pixels: Pixels, top: float, side: float) -> Markup:
    labels = dataset.train.y[int(dataset.train.starts[client]) :]
    cells = [
        tag(
            "g",
            tag("image", href=png_address(image), x=left, y=top, width=side, height=side),
            text(left + side / 2, top + side + LABEL - 3, f"{labels[index].item():g}", anchor="middle"),
        )
        for index, image in enumerate(pixels)
        for left in [LEFT + index * (side + GAP)]
    ]
    names = [text(0, top + 10 + 11 * line, words) for line, words in enumerate(_facts(dataset, client))]
    return tag("g", *names, *cells)


def _facts(dataset: FederatedDataset, client: int) -> list[str]:
    """Return the text next to a row."""
    facts = [dataset.clients[client]]
    if dataset.truth is not None and dataset.group_names:
        facts.append(dataset.group_names[dataset.truth[client]])
    if dataset.client_notes:
        facts += dataset.client_notes[client].split("; ")
    return list(dict.fromkeys(facts))


def png_address(pixels: Pixels) -> str:
    """Return an image (H, W, 3) as a data address."""
    return "data:image/png;base64," + base64.b64encode(write_png(pixels)).decode()


def write_png(pixels: Pixels) -> bytes:
    """Return an 8-bit RGB image (H, W, 3) as a PNG file without row filters."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes())) + _chunk(b"IEND", b"")


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
