"""Linear filters, warps and textures for many small images at once; images have shape (n, channels, H, W)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REACH = 4.0
"""Number of standard deviations from its centre at which a Gaussian is cut off."""


def along_both(images: Floats, matrix: Callable[[int], Floats]) -> Floats:
    """Apply `matrix(side)`, (out, side), to the columns and to the rows of every image."""
    height, width = images.shape[-2:]
    return np.asarray(matrix(height) @ images @ matrix(width).T)


def gaussian_matrix(side: int, sigma: float) -> Floats:
    """Return a Gaussian blur (side, side); the value of the border continues beyond it."""
    reach = int(REACH * sigma + 0.5)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    return _placed(side, offsets, weights / weights.sum())


def _placed(side: int, offsets: npt.NDArray[np.int64], weights: Floats) -> Floats:
    """Return a matrix whose row i has `weights` at i + offsets; offsets outside are moved to the border."""
    matrix = np.zeros((side, side))
    places = np.clip(np.arange(side)[:, None] + offsets, 0, side - 1)
    np.add.at(matrix, (np.arange(side)[:, None], places), weights)
    return matrix


def zoom_matrix(side: int, factor: float) -> Floats:
    """Return the map (side, side) to the middle of the image, enlarged by `factor` >= 1 with linear interpolation."""
    middle = (side - 1) / 2
    place = middle + (np.arange(side) - middle) / factor
    return np.asarray(np.maximum(0, 1 - np.abs(place[:, None] - np.arange(side))))


def area_matrix(side: int, fewer: int) -> Floats:
    """Return means over equal stretches as a matrix (fewer, side); a pixel on a boundary counts by its parts."""
    edges = np.arange(fewer + 1) * (side / fewer)
    left = np.maximum(edges[:-1, None], np.arange(side))
    right = np.minimum(edges[1:, None], np.arange(1, side + 1))
    return np.asarray(np.maximum(0, right - left) * (fewer / side))


def blurred(images: Floats, sigma: float) -> Floats:
    """Return images with a Gaussian blur of `sigma` pixels."""
    return along_both(images, lambda side: gaussian_matrix(side, sigma))


def convolved(images: Floats, kernels: Floats) -> Floats:
    """Return images convolved with one kernel each, or all with one: (n or 1, k, k), k odd; the border is repeated."""
    half = kernels.shape[-1] // 2
    padded = np.pad(images, ((0, 0), (0, 0), (half, half), (half, half)), mode="edge")
    size = padded.shape[-2:]
    products = np.fft.rfft2(padded) * np.fft.rfft2(kernels, s=size)[:, None]
    height, width = images.shape[-2:]
    # the first 2 * half rows and columns wrap around
    return np.fft.irfft2(products, s=size)[..., 2 * half : 2 * half + height, 2 * half : 2 * half + width]


def streak_kernels(degrees: Floats, length: int, sigma: float) -> Floats:
    """Return Gaussian lines from the centre, (n, 2 length + 1, 2 length + 1); 0 degrees is right, 90 is down."""
    steps = np.arange(length + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    angle = np.deg2rad(degrees)[:, None]
    rows, columns = length + steps * np.sin(angle), length + steps * np.cos(angle)
    grid = np.arange(2 * length + 1)
    by_row = np.maximum(0, 1 - np.abs(rows[..., None] - grid))
    by_column = np.maximum(0, 1 - np.abs(columns[..., None] - grid))
    # every step is shared out among the four pixels around it
    return np.asarray(np.einsum("s,nsi,nsj->nij", weights / weights.sum(), by_row, by_column))


def disk_kernel(radius: float, sigma: float) -> Floats:
    """Return a kernel (1, k, k): a disk of whole pixels, its edge softened by a Gaussian of 3 by 3 pixels."""
    half = int(radius) + 1
    offsets = np.arange(-half, half + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float64)
    soft = np.exp(-0.5 * (np.arange(-1, 2) / sigma) ** 2)
    edge = np.stack([np.convolve(row, soft / soft.sum(), "same") for row in disk])
    both = np.stack([np.convolve(column, soft / soft.sum(), "same") for column in edge.T]).T
    return np.asarray((both / both.sum())[None])


def sampled(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return the images' values at places (n, H, W) between pixels, by linear interpolation; mirrored at the border."""
    height, width = images.shape[-2:]
    rows, columns = _mirrored(rows, height), _mirrored(columns, width)
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = (rows - top)[:, None], (columns - left)[:, None]
    n = np.arange(len(images))[:, None, None]
    last = np.moveaxis(images, 1, -1)  # so that a place picks all channels

    def at(row: npt.NDArray[np.int64], column: npt.NDArray[np.int64]) -> Floats:
        return np.moveaxis(last[n, row, column], -1, 1)

    upper = at(top, left) * (1 - across) + at(top, right) * across
    lower = at(below, left) * (1 - across) + at(below, right) * across
    return upper * (1 - down) + lower * down


def _mirrored(places: Floats, side: int) -> Floats:
    """Return places folded back into 0..side-1."""
    period = 2 * (side - 1)
    return (side - 1) - np.abs((places % period) - (side - 1))


def plasma(count: int, side: int, decay: float, random: np.random.Generator) -> Floats:
    """Return cloudy textures in [0, 1] by the diamond-square rule, (count, 1, side, side), smoother for a larger decay.

    The midpoints of a coarse grid are means of their four neighbours plus noise; the noise shrinks by decay^2 with
    every halving of the grid (the published corruptions square it). The left neighbours of the first column are in the
    last one.
    """
    size = 1 << (side - 1).bit_length()
    texture = np.zeros((count, size, size))
    step, noise = size, 1.0
    while step > 1:
        half = step // 2

        def jittered(total: Floats, noise: float = noise) -> Floats:
            return total / 4 + random.uniform(-noise, noise, total.shape)

        corners = texture[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        texture[:, half::step, half::step] = jittered(pairs + np.roll(pairs, -1, 2))
        centres = texture[:, half::step, half::step]
        sideways = corners + np.roll(corners, -1, 2) + centres + np.roll(centres, 1, 1)
        texture[:, ::step, half::step] = jittered(sideways)
        downwards = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 2)
        texture[:, half::step, ::step] = jittered(downwards)
        step, noise = half, noise / decay**2
    texture = texture[:, None, :side, :side]
    low, high = texture.min((2, 3), keepdims=True), texture.max((2, 3), keepdims=True)
    return np.asarray((texture - low) / (high - low))
