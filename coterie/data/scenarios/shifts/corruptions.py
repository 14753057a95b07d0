"""Twenty versions of the same images, in five severities: the corruptions of CIFAR-10-C and the untouched original.

Hendrycks, Dietterich: Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, 2019; parameters
for images of 32x32 pixels. The package imagecorruptions has those for large photographs, refuses images below 32
pixels, draws from NumPy's global generator and does not run with NumPy 2; so they are written out here.

Not equal to the published ones: motion blur and snow draw a line of Gaussian weights themselves; jpeg rounds the cosine
coefficients of 8x8 blocks and keeps colours at full resolution; the photographs of frost are replaced by a plasma
texture; the water drops of spatter are brightest in the middle and not at the rim; saturate leaves grey pixels grey;
glass blur swaps pixels in all directions.

Lengths of blurs are in pixels, as published, for 28x28 and 32x32; images with a side below 16 get half of them, and
glass blur swaps a quarter of their pixels. The defocus kernel, the drops of spatter and the 8x8 blocks of jpeg are the
same for every size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coterie.data.scenarios.shifts.filters import (
    Floats,
    along_both,
    area_matrix,
    blurred,
    convolved,
    disk_kernel,
    plasma,
    sampled,
    streak_kernels,
    zoom_matrix,
)
from coterie.errors import ConfigError, unknown_name

Images = npt.NDArray[np.float32]
Corruption = Callable[[Floats, int, np.random.Generator], Floats]
"""Function of images (n, channels, H, W) in [0, 1], the severity (index 0 to 4) and a random generator; the caller
cuts the outcome to [0, 1]."""

SEVERITIES = 5
SMALL = 16
"""Side of images below which all lengths in pixels are halved."""
LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue."""
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255


def corrupt(images: Images, kind: str, severity: int, random: np.random.Generator) -> Images:
    """Return images (n, H, W) or (n, 3, H, W) in [0, 1] with one corruption, with the same shape, type and range."""
    if kind not in CORRUPTIONS:
        raise unknown_name("corruption", kind, CORRUPTIONS)
    if not 1 <= severity <= SEVERITIES:
        raise ConfigError(f"severity must be a whole number from 1 to {SEVERITIES}, got {severity}")
    if kind == "original":
        return images
    full = images.astype(np.float64)
    seen = CORRUPTIONS[kind](full if images.ndim == 4 else full[:, None], severity - 1, random)
    return np.clip(seen, 0, 1).reshape(images.shape).astype(images.dtype)


def _pixels(images: Floats) -> float:
    """Return the factor for lengths in pixels."""
    return 0.5 if min(images.shape[-2:]) < SMALL else 1.0


def _in_colour(colour: Floats, images: Floats) -> Floats:
    """Return a colour for these images, (channels, 1, 1): its luminance if they are grey."""
    return (colour if images.shape[1] == 3 else colour @ LUMINANCE).reshape(-1, 1, 1)


def _masks(images: Floats) -> tuple[int, ...]:
    """Return values that all channels of a pixel share, (n, 1, H, W)."""
    return (len(images), 1, *images.shape[-2:])


# ---- noise ---------------------------------------------------------------------------------------------------


def _original(images: Floats, level: int, random: np.random.Generator) -> Floats:
    return images


def _gaussian_noise(images: Floats, level: int, random: np.random.Generator) -> Floats:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[level]
    return images + random.normal(0, deviation, images.shape)


def _shot_noise(images: Floats, level: int, random: np.random.Generator) -> Floats:
    photons = (500, 250, 100, 75, 50)[level]
    return random.poisson(images * photons) / photons


def _impulse_noise(images: Floats, level: int, random: np.random.Generator) -> Floats:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    lots = random.random(images.shape)
    return np.where(lots < share / 2, 0.0, np.where(lots < share, 1.0, images))


def _speckle_noise(images: Floats, level: int, random: np.random.Generator) -> Floats:
    deviation = (0.06, 0.10, 0.12, 0.16, 0.20)[level]
    return images * (1 + random.normal(0, deviation, images.shape))


# ---- blur ----------------------------------------------------------------------------------------------------


def _gaussian_blur(images: Floats, level: int, random: np.random.Generator) -> Floats:
    return blurred(images, _pixels(images) * (0.4, 0.6, 0.7, 0.8, 1.0)[level])


def _defocus_blur(images: Floats, level: int, random: np.random.Generator) -> Floats:
    radius, sigma = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    return convolved(images, disk_kernel(radius, sigma))


def _glass_blur(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Blur, swap pixels (in small images a quarter of them) with neighbours one by one, and blur again."""
    sigma, times = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    sigma *= _pixels(images)
    glass = blurred(images, sigma)
    height, width = images.shape[-2:]
    n = np.arange(len(images))
    for _ in range(times):
        shifts = random.integers(-1, 2, (2, height, width, len(images)))
        shifts *= random.random(shifts.shape[1:]) < _pixels(images) ** 2
        for row in range(height - 2, 0, -1):
            for column in range(width - 2, 0, -1):
                other = row + shifts[0, row, column], column + shifts[1, row, column]
                here = glass[:, :, row, column].copy()
                glass[:, :, row, column] = glass[n, :, *other]
                glass[n, :, *other] = here
    return blurred(glass, sigma)


def _motion_blur(images: Floats, level: int, random: np.random.Generator) -> Floats:
    length, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[level]
    return _streaked(images, random.uniform(-45, 45, len(images)), length, sigma)


def _streaked(images: Floats, degrees: Floats, length: int, sigma: float) -> Floats:
    pixels = _pixels(images)
    return convolved(images, streak_kernels(degrees, int(np.ceil(pixels * length)), pixels * sigma))


def _zoom_blur(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Return the mean of the image and of enlargements by 1 %, 2 %, ..."""
    factors = 1 + np.arange((6, 11, 16, 21, 26)[level]) / 100
    return np.asarray(np.mean([_zoomed(images, factor) for factor in factors], axis=0))


def _zoomed(images: Floats, factor: float) -> Floats:
    return along_both(images, lambda side: zoom_matrix(side, factor))


# ---- weather -------------------------------------------------------------------------------------------------


def _snow(images: Floats, level: int, random: np.random.Generator) -> Floats:
    mean, deviation, zoom, threshold, length, sigma, mix = (
        (0.10, 0.2, 1.00, 0.60, 8, 3.0, 0.95),
        (0.10, 0.2, 1.00, 0.50, 10, 4.0, 0.90),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.90),
        (0.25, 0.3, 2.25, 0.60, 12, 6.0, 0.85),
        (0.30, 0.3, 1.25, 0.65, 14, 12.0, 0.80),
    )[level]
    flakes = np.clip(_zoomed(random.normal(mean, deviation, _masks(images)), zoom), 0, 1)
    flakes[flakes < threshold] = 0
    flakes = _streaked(flakes, random.uniform(45, 135, len(images)), length, sigma)
    bleak = np.maximum(images, 1.5 * _grey(images) + 0.5)
    return mix * images + (1 - mix) * bleak + flakes + flakes[..., ::-1, ::-1]


def _grey(images: Floats) -> Floats:
    """Return the luminance, (n, 1, H, W)."""
    return images if images.shape[1] == 1 else np.tensordot(LUMINANCE, images, (0, 1))[:, None]


def _plasma_frost(images: Floats, level: int, random: np.random.Generator) -> Floats:
    through, frost = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    return through * images + frost * plasma(len(images), images.shape[-1], 1.5, random)


def _fog(images: Floats, level: int, random: np.random.Generator) -> Floats:
    strength, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    brightest = images.max((1, 2, 3), keepdims=True)
    foggy = images + strength * plasma(len(images), images.shape[-1], decay, random)
    return np.asarray(foggy * brightest / (brightest + strength))


def _spatter(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Add drops of water, or of mud from severity 4 on."""
    mean, deviation, sigma, threshold, strength = (
        (0.62, 0.1, 0.7, 0.70, 0.5),
        (0.65, 0.1, 0.8, 0.70, 0.5),
        (0.65, 0.3, 1.0, 0.69, 0.5),
        (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[level]
    liquid = blurred(random.normal(mean, deviation, _masks(images)), sigma)
    if level < 3:
        drops = np.maximum(0, liquid - threshold)
        thickest = drops.max((1, 2, 3), keepdims=True)
        return images + strength * drops / np.where(thickest > 0, thickest, 1) * _in_colour(WATER, images)
    mud = blurred((liquid > threshold).astype(np.float64), strength)
    mud[mud < 0.8] = 0
    return images * (1 - mud) + mud * _in_colour(MUD, images)


# ---- light and colour ----------------------------------------------------------------------------------------


def _brightness(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Increase the brightest colour of each pixel, without changing hue and saturation."""
    value = images.max(1, keepdims=True)
    more = np.clip(value + (0.05, 0.10, 0.15, 0.20, 0.30)[level], 0, 1)
    return np.asarray(np.where(value > 0, images * (more / np.where(value > 0, value, 1)), more))


def _contrast(images: Floats, level: int, random: np.random.Generator) -> Floats:
    mean = images.mean((2, 3), keepdims=True)
    return np.asarray(mean + (0.75, 0.5, 0.4, 0.3, 0.15)[level] * (images - mean))


def _saturate(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Return paler colours for severities 1 and 2, else stronger colours; grey pixels do not change."""
    factor, added = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[level]
    value = images.max(1, keepdims=True)
    below = value - images
    saturation = below.max(1, keepdims=True) / np.where(value > 0, value, 1)
    changed = np.clip(factor * saturation + added, 0, 1)
    return np.asarray(value - below * (changed / np.where(saturation > 0, saturation, 1)))


# ---- shape and storage ---------------------------------------------------------------------------------------


def _elastic(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Apply a random affine map, then small waves."""
    waves, sigma, moved = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))[
        level
    ]
    height, width = images.shape[-2:]
    side = min(height, width)
    places = np.stack(np.broadcast_arrays(np.arange(height)[:, None], np.arange(width)), -1).astype(np.float64)
    wanted = np.broadcast_to(places, (len(images), height, width, 2))
    if waves:
        field = random.uniform(-1, 1, (len(images), 2, height, width))
        wanted = wanted + waves * side * np.moveaxis(blurred(field, sigma * side), 1, -1)
    centre, third = np.array([height // 2, width // 2]), side // 3
    points = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    targets = points + random.uniform(-moved * side, moved * side, (len(images), 3, 2))
    # the affine map that takes the moved points back: [row, column, 1] @ back = [row, column]
    back = np.linalg.solve(np.concatenate([targets, np.ones((len(images), 3, 1))], -1), points.astype(np.float64))
    origin = np.einsum("nhwi,nij->nhwj", wanted, back[:, :2]) + back[:, None, None, 2]
    return sampled(images, origin[..., 0], origin[..., 1])


def _pixelate(images: Floats, level: int, random: np.random.Generator) -> Floats:
    """Return images of fewer, larger pixels."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]

    def down_and_up(side: int) -> Floats:
        fewer = int(side * share)
        nearest = ((np.arange(side) + 0.5) * (fewer / side)).astype(np.int64)
        return area_matrix(side, fewer)[nearest]

    return along_both(images, down_and_up)


BLOCK = 8
# fmt: off
QUANTA = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])
COLOUR_QUANTA = np.array([
    [17, 18, 24, 47, 99, 99, 99, 99], [18, 21, 26, 66, 99, 99, 99, 99], [24, 26, 56, 99, 99, 99, 99, 99],
    [47, 66, 99, 99, 99, 99, 99, 99], *[[99] * 8] * 4,
])
# fmt: on
"""Tables of the standard for luminance and for colour differences, at quality 50."""
TO_DIFFERENCES = np.array([LUMINANCE, [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
"""Matrix from red, green and blue to luminance and two colour differences."""


def _jpeg(images: Floats, level: int, random: np.random.Generator) -> Floats:
    quality = (80, 65, 58, 50, 40)[level]
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    tables = [np.clip((table * scale + 50) // 100, 1, 255) for table in (QUANTA, COLOUR_QUANTA, COLOUR_QUANTA)]
    colour = images.shape[1] == 3
    planes = np.einsum("ij,njhw->nihw", TO_DIFFERENCES, images) if colour else images
    stored = _rounded(255 * planes, np.stack(tables[: images.shape[1]])) / 255
    return np.einsum("ij,njhw->nihw", np.linalg.inv(TO_DIFFERENCES), stored) if colour else stored


def _rounded(planes: Floats, tables: Floats) -> Floats:
    """Return whole multiples of `tables` (channels, 8, 8) for the cosine coefficients of every 8x8 block."""
    count, channels, height, width = planes.shape
    down, right = -height % BLOCK, -width % BLOCK
    padded = np.pad(planes, ((0, 0), (0, 0), (0, down), (0, right)), mode="edge")
    grid = padded.shape[-2] // BLOCK, padded.shape[-1] // BLOCK
    blocks = padded.reshape(count, channels, grid[0], BLOCK, grid[1], BLOCK).swapaxes(3, 4)
    cosines = _cosines()
    steps = tables[:, None, None]
    # the middle grey of luminance is taken off as the format does; that of the differences is 0 already
    middle = np.where(np.arange(channels) == 0, 128.0, 0.0).reshape(-1, 1, 1, 1, 1)
    coefficients = np.rint(cosines @ (blocks - middle) @ cosines.T / steps) * steps
    back = (cosines.T @ coefficients @ cosines + middle).swapaxes(3, 4).reshape(padded.shape)
    return back[..., :height, :width]


def _cosines() -> Floats:
    """Return the cosine transform (8, 8): row f is the orthonormal cosine of frequency f."""
    frequency, place = np.arange(BLOCK)[:, None], np.arange(BLOCK)
    length = np.where(frequency == 0, BLOCK, BLOCK / 2)
    return np.cos(np.pi * (2 * place + 1) * frequency / (2 * BLOCK)) / np.sqrt(length)


CORRUPTIONS: dict[str, Corruption] = {
    "original": _original,
    "gaussian-noise": _gaussian_noise,
    "shot-noise": _shot_noise,
    "impulse-noise": _impulse_noise,
    "speckle-noise": _speckle_noise,
    "gaussian-blur": _gaussian_blur,
    "defocus-blur": _defocus_blur,
    "glass-blur": _glass_blur,
    "motion-blur": _motion_blur,
    "zoom-blur": _zoom_blur,
    "snow": _snow,
    "plasma-frost": _plasma_frost,
    "fog": _fog,
    "spatter": _spatter,
    "brightness": _brightness,
    "contrast": _contrast,
    "saturate": _saturate,
    "elastic": _elastic,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
}
