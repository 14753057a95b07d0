"""Corruptions and the filters below them: plain slow oracles, hand-computed images, and what must hold for all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import fft, ndimage

from coterie import ConfigError
from coterie.core.keys import generator
from coterie.data.scenarios.shifts import filters
from coterie.data.scenarios.shifts.corruptions import COLOUR_QUANTA, CORRUPTIONS, LUMINANCE, QUANTA, corrupt

SHAPES = {"digits": (8, 8), "grey": (28, 28), "colour": (3, 32, 32)}


def natural(shape: tuple[int, ...], count: int = 12) -> np.ndarray:
    """Bright, smooth blobs on a dark ground, as photographs and digits have, in all of [0, 1]."""
    random = np.random.default_rng(3)
    noise = random.normal(size=(count, *shape))
    sigma = (0, *[0] * (len(shape) - 2), shape[-1] / 10, shape[-1] / 10)
    smooth = ndimage.gaussian_filter(noise, sigma)
    smooth -= smooth.mean()
    return np.clip(smooth / smooth.std() * 0.4 + 0.3, 0, 1).astype(np.float32)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).random(shape)


# ---- filters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 3.0])
def test_blur_is_that_of_scipy(sigma):
    images = noise(3, 2, 9, 7)
    expected = ndimage.gaussian_filter(images, (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert np.abs(filters.blurred(images, sigma) - expected).max() < 1e-9


def test_convolution_takes_each_image_with_its_own_kernel():
    images, kernels = noise(3, 2, 8, 6), noise(5, 3, 3)[:3]
    found = filters.convolved(images, kernels)
    for n in range(3):
        for channel in range(2):
            expected = ndimage.convolve(images[n, channel], kernels[n], mode="nearest")
            assert np.abs(found[n, channel] - expected).max() < 1e-9


def test_sampling_between_pixels_is_that_of_scipy():
    images, random = noise(2, 3, 6, 5), np.random.default_rng(1)
    rows, columns = random.uniform(-8, 12, (2, 6, 5)), random.uniform(-8, 12, (2, 6, 5))
    found = filters.sampled(images, rows, columns)
    for n in range(2):
        for channel in range(3):
            expected = ndimage.map_coordinates(images[n, channel], [rows[n], columns[n]], order=1, mode="mirror")
            assert np.abs(found[n, channel] - expected).max() < 1e-9


def test_zoom_takes_the_middle():
    # side 5, middle 2, factor 2: places 2 + (-2, -1, 0, 1, 2) / 2 = 1, 1.5, 2, 2.5, 3
    expected = [[0, 1, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0.5, 0.5, 0], [0, 0, 0, 1, 0]]
    assert filters.zoom_matrix(5, 2.0).tolist() == expected
    assert filters.zoom_matrix(5, 1.0).tolist() == np.eye(5).tolist()


def test_areas_count_pixels_by_their_parts():
    # 3 pixels to 2: the middle one belongs half to either stretch of 1.5
    assert np.allclose(filters.area_matrix(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], atol=1e-12)


def test_a_streak_goes_from_the_centre_to_one_side():
    weights = np.exp([0, -0.5, -2])  # steps 0, 1, 2 at sigma 1
    weights /= weights.sum()
    right, down = filters.streak_kernels(np.array([0.0, 90.0]), 2, 1.0)
    assert np.allclose(right[2], [0, 0, *weights], atol=1e-12)
    assert np.allclose(down[:, 2], [0, 0, *weights], atol=1e-12)
    assert np.allclose([right.sum(), down.sum(), right[2].sum()], 1, atol=1e-12)


def test_a_streak_between_pixels_is_shared_out():
    (kernel,) = filters.streak_kernels(np.array([45.0]), 1, 1.0)
    weight = np.exp(-0.5) / (1 + np.exp(-0.5))
    far = np.sqrt(0.5)  # the step lies at (0.707, 0.707)
    assert kernel[2, 2] == pytest.approx(weight * far**2, abs=1e-12)
    assert kernel[1, 2] == pytest.approx(weight * far * (1 - far), abs=1e-12)


def test_a_disk_holds_the_pixels_within_its_radius():
    (sharp,) = filters.disk_kernel(1.0, 0.01)
    assert np.allclose(sharp[1:4, 1:4], np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5, atol=1e-12)
    assert sharp.sum() == pytest.approx(1)


def slow_plasma(side: int, decay: float, random: np.random.Generator) -> np.ndarray:
    """Diamond-square for one texture, pixel by pixel."""
    t, step, amount = np.zeros((side, side)), side, 1.0
    while step > 1:
        half, cells = step // 2, range(0, side, step)
        at = lambda r, c: t[r % side, c % side]  # noqa: E731
        lots = random.uniform(-amount, amount, (1, side // step, side // step))[0]
        for i, r in enumerate(cells):
            for j, c in enumerate(cells):
                corners = at(r, c) + at(r + step, c) + at(r, c + step) + at(r + step, c + step)
                t[r + half, c + half] = corners / 4 + lots[i, j]
        for down, across in ((0, half), (half, 0)):
            lots = random.uniform(-amount, amount, (1, side // step, side // step))[0]
            for i, r in enumerate(cells):
                for j, c in enumerate(cells):
                    y, x = r + down, c + across
                    around = at(y - half, x) + at(y + half, x) + at(y, x - half) + at(y, x + half)
                    t[y, x] = around / 4 + lots[i, j]
        step, amount = half, amount / decay**2
    return (t - t.min()) / (t.max() - t.min())


def test_plasma_is_diamond_square():
    found = filters.plasma(1, 16, 1.7, generator(5))
    assert np.abs(found[0, 0] - slow_plasma(16, 1.7, generator(5))).max() < 1e-9


def test_plasma_of_any_side_fills_the_range():
    found = filters.plasma(3, 28, 2.0, generator(1))
    assert found.shape == (3, 1, 28, 28)
    assert np.allclose(found.min((1, 2, 3)), 0)
    assert np.allclose(found.max((1, 2, 3)), 1)
    assert not np.allclose(found[0], found[1])


# ---- what must hold for all ----------------------------------------------------------------------------------


def test_there_are_twenty():
    assert len(CORRUPTIONS) == 20


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("dataset", SHAPES)
def test_shape_type_and_range_are_kept_and_the_input_is_not_touched(kind, dataset):
    for dtype in (np.float32, np.float64):
        images = natural(SHAPES[dataset], 3).astype(dtype)
        images[0] = 0  # black all over
        before = images.copy()
        for severity in range(1, 6):
            found = corrupt(images, kind, severity, generator(9))
            assert (found.shape, found.dtype) == (images.shape, images.dtype)
            assert found.min() >= 0
            assert found.max() <= 1
            assert np.isfinite(found).all()
        assert np.array_equal(images, before)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_same_key_gives_the_same_images(kind):
    images = natural(SHAPES["colour"], 4)
    one, again, other = (corrupt(images, kind, 4, generator(key)) for key in (1, 1, 2))
    assert np.array_equal(one, again)
    by_chance = not np.array_equal(one, other)
    fixed = "original gaussian-blur defocus-blur zoom-blur brightness contrast saturate pixelate jpeg"
    assert by_chance == (kind not in fixed.split())


@pytest.mark.parametrize("kind", [kind for kind in CORRUPTIONS if kind != "original"])
@pytest.mark.parametrize("dataset", SHAPES)
def test_every_corruption_changes_images_at_severity_five(kind, dataset):
    images = natural(SHAPES[dataset])
    change = np.abs(corrupt(images, kind, 5, generator(2)) - images).mean()
    if kind == "saturate" and dataset != "colour":
        assert change == 0
    else:
        assert change > 0.002


NOT_MONOTONE = {"original", "saturate", "elastic", "glass-blur", "spatter", "pixelate", "plasma-frost"}
"""As published: paler, then stronger colours; less bending with more waves; more blur after fewer swaps; water, then
mud; boxes that meet the pixels by chance; a darker image behind the frost."""


@pytest.mark.parametrize("kind", [kind for kind in CORRUPTIONS if kind not in NOT_MONOTONE])
@pytest.mark.parametrize("dataset", ["grey", "colour"])
def test_the_change_grows_with_the_severity(kind, dataset):
    images = natural(SHAPES[dataset], 40)
    changes = [float(((corrupt(images, kind, s, generator(6)) - images) ** 2).mean()) for s in range(1, 6)]
    assert np.all(np.diff(changes) > -0.01 * np.array(changes[1:]))
    assert changes[4] > 1.5 * changes[0]


def test_the_images_of_a_client_are_changed_each_in_its_own_way():
    images = np.repeat(natural(SHAPES["grey"], 1), 4, axis=0)
    for kind in ("gaussian-noise", "glass-blur", "motion-blur", "snow", "fog", "spatter", "elastic"):
        found = corrupt(images, kind, 4, generator(3))
        assert not np.allclose(found[0], found[1]), kind


@pytest.mark.parametrize(
    ("kind", "severity", "words"),
    [
        ("fogg", 1, "unknown corruption 'fogg': did you mean 'fog'"),
        ("fog", 0, "severity must be a whole number from 1 to 5, got 0"),
        ("fog", 6, "severity must be a whole number from 1 to 5, got 6"),
    ],
)
def test_what_cannot_be_is_refused(kind, severity, words):
    with pytest.raises(ConfigError, match=words):
        corrupt(natural((8, 8), 1), kind, severity, generator(0))


# ---- one by one ----------------------------------------------------------------------------------------------


def once(images: list, kind: str, severity: int) -> np.ndarray:
    return corrupt(np.array(images, dtype=np.float64), kind, severity, generator(0))


def test_original_is_the_image_itself():
    images = natural((28, 28))
    assert np.array_equal(corrupt(images, "original", 5, generator(0)), images)


def test_contrast_shrinks_towards_the_mean():
    # mean 0.4, factor 0.5 at severity 2
    assert np.allclose(once([[[0.0, 0.8], [0.4, 0.4]]], "contrast", 2), [[[0.2, 0.6], [0.4, 0.4]]], atol=1e-12)


def test_contrast_has_a_mean_for_every_colour():
    colour = [[[[0.0, 1.0]], [[0.2, 0.2]], [[0.4, 0.8]]]]
    # means 0.5, 0.2, 0.6; factor 0.75
    expected = [[[[0.125, 0.875]], [[0.2, 0.2]], [[0.45, 0.75]]]]
    assert np.allclose(once(colour, "contrast", 1), expected, atol=1e-12)


def test_brightness_of_grey_is_added_and_cut():
    assert np.allclose(once([[[0.0, 0.5], [0.8, 1.0]]], "brightness", 5), [[[0.3, 0.8], [1.0, 1.0]]], atol=1e-12)


def test_brightness_of_colour_keeps_the_hue():
    # value 0.4 becomes 0.5, a factor of 1.25; black becomes grey
    colour = np.array([[0.4, 0.2, 0.0], [0.0, 0.0, 0.0]]).T.reshape(1, 3, 1, 2)
    expected = np.array([[0.5, 0.25, 0.0], [0.1, 0.1, 0.1]]).T.reshape(1, 3, 1, 2)
    assert np.allclose(once(colour, "brightness", 2), expected, atol=1e-12)


def test_saturate_makes_colours_paler_or_stronger_and_leaves_grey():
    # value 0.8, saturation (0.8 - 0.4) / 0.8 = 0.5; the middle colour lies half way
    colour = np.array([[0.8, 0.6, 0.4], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 1, 2)
    paler = np.array([[0.8, 0.74, 0.68], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 1, 2)  # saturation 0.3 * 0.5 = 0.15
    stronger = np.array([[0.8, 0.5, 0.2], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 1, 2)  # 1.5 * 0.5 = 0.75
    assert np.allclose(once(colour, "saturate", 1), paler, atol=1e-12)
    assert np.allclose(once(colour, "saturate", 3), stronger, atol=1e-12)
    assert np.allclose(once(colour, "saturate", 5)[0, :, 0, 0], [0.8, 0.4, 0.0], atol=1e-12)  # 2.5 * 0.5 + 0.2 -> 1


def test_pixelate_shows_means_over_fewer_pixels():
    # severity 4 keeps three quarters: 4 pixels become 3 stretches of 4/3, shown at the nearest
    row = np.array([0.0, 0.3, 0.6, 0.9])
    means = [(0.0 + 0.3 / 3) * 3 / 4, (0.3 * 2 / 3 + 0.6 * 2 / 3) * 3 / 4, (0.6 / 3 + 0.9) * 3 / 4]
    # centres 0.5, 1.5, 2.5, 3.5 of 4 lie in stretches 0, 1, 1, 2
    expected = [means[0], means[1], means[1], means[2]]
    found = once([np.tile(row, (4, 1))], "pixelate", 4)
    assert np.allclose(found[0], np.tile(expected, (4, 1)), atol=1e-12)


def test_impulse_noise_is_half_black_and_half_white():
    found = corrupt(np.full((50, 28, 28), 0.5), "impulse-noise", 5, generator(0))
    pixels = found.size
    # a share of 0.035 each, standard error sqrt(0.035 / 39200) = 0.00094
    assert (found == 0).sum() / pixels == pytest.approx(0.035, abs=5 * 0.00094)
    assert (found == 1).sum() / pixels == pytest.approx(0.035, abs=5 * 0.00094)


@pytest.mark.parametrize(
    ("kind", "deviation"), [("gaussian-noise", 0.1), ("speckle-noise", 0.2 * 0.5), ("shot-noise", (0.5 / 50) ** 0.5)]
)
def test_noise_has_its_deviation(kind, deviation):
    found = corrupt(np.full((50, 28, 28), 0.5), kind, 5, generator(0)) - 0.5
    # 39200 pixels: the deviation is known to 1 / sqrt(2 * 39200) = 0.4 %
    assert found.std() == pytest.approx(deviation, rel=0.02)
    assert abs(found.mean()) < 5 * deviation / found.size**0.5


def test_glass_blur_swaps_one_pixel_after_the_other():
    images, random = noise(3, 1, 20, 20), generator(8)
    expected = filters.blurred(images, 0.25)
    for _ in range(2):
        shifts = random.integers(-1, 2, (2, 20, 20, 3))
        random.random((20, 20, 3))
        for n in range(3):
            for row in range(18, 0, -1):
                for column in range(18, 0, -1):
                    there = row + shifts[0, row, column, n], column + shifts[1, row, column, n]
                    here = expected[n, 0, row, column]
                    expected[n, 0, row, column] = expected[n, 0][there]
                    expected[n, 0][there] = here
    found = corrupt(images[:, 0], "glass-blur", 4, generator(8))
    assert np.abs(found - filters.blurred(expected, 0.25)[:, 0]).max() < 1e-9


def test_glass_blur_swaps_a_quarter_in_small_images():
    images = np.arange(300 * 64, dtype=np.float64).reshape(300, 8, 8) / (300 * 64)  # all pixels differ
    small = corrupt(images, "glass-blur", 1, generator(8)) != images
    # a quarter of 36 pixels is swapped, 8 of 9 of these with another one, each moving two: at most 16 of 64 move
    assert 0.1 < small.mean() < 16 / 64


def test_motion_blur_draws_bright_points_into_lines_to_one_side():
    images = np.zeros((40, 32, 32))
    images[:, 16, 10] = 1
    found = corrupt(images, "motion-blur", 5, generator(0))
    assert np.allclose(found.sum((1, 2)), 1, atol=1e-9)  # light is moved, not lost
    assert found[:, :, :10].max() < 1e-9  # angles of 45 degrees at most: never to the left
    assert found[:, 16, 10].max() < 0.5


def test_zoom_blur_is_the_mean_of_enlargements():
    images = noise(2, 1, 9, 9)
    zooms = [z @ images @ z.T for z in (filters.zoom_matrix(9, 1 + percent / 100) for percent in range(6))]
    assert np.abs(corrupt(images[:, 0], "zoom-blur", 1, generator(0)) - sum(zooms)[:, 0] / 6).max() < 1e-9


def test_fog_of_black_images_is_black():
    # x max / (max + strength): without light there is nothing to scatter
    assert corrupt(np.zeros((2, 28, 28)), "fog", 3, generator(0)).max() == 0


def test_frost_of_black_images_is_the_texture():
    found = corrupt(np.zeros((2, 28, 28)), "plasma-frost", 2, generator(0))
    assert np.allclose(found.max((1, 2)), 0.3)
    assert np.allclose(found.min((1, 2)), 0)


def test_mud_is_brown_and_opaque():
    white = np.ones((30, 3, 32, 32))
    found = corrupt(white, "spatter", 5, generator(0))
    darkest = found[:, 0].argmin()
    pixel = np.moveaxis(found, 1, -1).reshape(-1, 3)[darkest]
    # between white and (63, 42, 20) / 255, at least 0.8 of it
    share = (1 - pixel) / (1 - np.array([63, 42, 20]) / 255)
    assert np.allclose(share, share[0], atol=1e-9)
    assert share[0] > 0.8
    grey = corrupt(np.ones((30, 32, 32)), "spatter", 5, generator(0))
    mud = LUMINANCE @ np.array([63, 42, 20]) / 255
    assert grey.min() == pytest.approx(1 - share[0] * (1 - mud), abs=1e-9)


def slow_jpeg(plane: np.ndarray, table: np.ndarray, quality: int, middle: float) -> np.ndarray:
    """One plane with sides that are multiples of 8, block by block."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = np.clip(np.floor((table * scale + 50) / 100), 1, 255)
    out = np.empty_like(plane)
    for row in range(0, len(plane), 8):
        for column in range(0, plane.shape[1], 8):
            where = slice(row, row + 8), slice(column, column + 8)
            coefficients = fft.dctn(255 * plane[where] - middle, norm="ortho")
            out[where] = (fft.idctn(np.round(coefficients / steps) * steps, norm="ortho") + middle) / 255
    return out


@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (4, 50), (5, 40)])
def test_jpeg_rounds_cosine_coefficients(severity, quality):
    images = natural((32, 24), 2).astype(np.float64)
    found = corrupt(images, "jpeg", severity, generator(0))
    for image, seen in zip(images, found, strict=True):
        assert np.abs(seen - np.clip(slow_jpeg(image, QUANTA, quality, 128), 0, 1)).max() < 1e-9


def test_jpeg_of_colour_rounds_luminance_and_differences():
    image = natural((3, 16, 16), 1).astype(np.float64)[0]
    to = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
    planes = np.einsum("ij,jhw->ihw", to, image)
    tables = (QUANTA, 128), (COLOUR_QUANTA, 0), (COLOUR_QUANTA, 0)
    kept = [slow_jpeg(plane, table, 50, middle) for plane, (table, middle) in zip(planes, tables, strict=True)]
    expected = np.clip(np.einsum("ij,jhw->ihw", np.linalg.inv(to), np.stack(kept)), 0, 1)
    assert np.abs(corrupt(image[None], "jpeg", 4, generator(0))[0] - expected).max() < 1e-9


def test_jpeg_of_other_sides_repeats_the_border():
    image = natural((28, 28), 1).astype(np.float64)
    padded = np.pad(image, ((0, 0), (0, 4), (0, 4)), mode="edge")
    found, whole = (corrupt(x, "jpeg", 3, generator(0)) for x in (image, padded))
    assert np.abs(found - whole[:, :28, :28]).max() < 1e-12


@pytest.mark.parametrize("severity", [1, 4])
def test_elastic_is_an_affine_map_and_waves(severity):
    """The same draws, one image after the other, with an affine map that is solved entry by entry."""
    images = natural((28, 28), 3).astype(np.float64)
    random = generator(4)
    field = random.uniform(-1, 1, (3, 2, 28, 28)) if severity == 4 else np.zeros((3, 2, 28, 28))
    moved = 28 * {1: 0.08, 4: 0.05}[severity]
    shifts = random.uniform(-moved, moved, (3, 3, 2))
    found = corrupt(images, "elastic", severity, generator(4))
    points = np.array([[14 + 9, 14 + 9], [14 + 9, 14 - 9], [14 - 9, 14 - 9]], dtype=np.float64)
    for n in range(3):
        waves = [2.8 * ndimage.gaussian_filter(f, 0.04 * 28, mode="nearest", truncate=4) for f in field[n]]
        grid = np.mgrid[0:28, 0:28] + np.array(waves)
        forth = np.linalg.solve(np.column_stack([points, np.ones(3)]), points + shifts[n])  # points to moved points
        linear = np.linalg.inv(forth[:2])
        origin = np.einsum("ihw,ij->jhw", grid - forth[2][:, None, None], linear)
        expected = ndimage.map_coordinates(images[n], origin, order=1, mode="mirror")
        assert np.abs(found[n] - expected).max() < 1e-9
