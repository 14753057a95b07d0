"""Images that are shifted, and features from their pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coterie.data.loaders import load
from coterie.data.scenarios.rotated_digits import upright_digits
from coterie.data.scenarios.rotated_images import CIFAR_MEAN, CIFAR_SD
from coterie.errors import ConfigError

Ints = npt.NDArray[np.int64]
Images = npt.NDArray[np.float32]

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
FITTED = 5000
"""Number of first clean training images, whose principal axes are used."""


@dataclass(frozen=True)
class Pictures:
    """A data set of images, of which only those in use are converted to floating-point numbers."""

    x_train: npt.NDArray[np.generic]
    """Numbers from 0 to `white`, (n, H, W) or (n, 3, H, W)."""
    y_train: Ints
    x_test: npt.NDArray[np.generic]
    y_test: Ints
    white: int

    @property
    def classes(self) -> int:
        return int(self.y_train.max()) + 1

    def train(self, rows: Ints | slice) -> Images:
        """Return some of the training images, in [0, 1]."""
        return self.x_train[rows].astype(np.float32) / np.float32(self.white)

    def first(self, count: int | None) -> Pictures:
        """Return the images with the first training images only."""
        there = len(self.y_train)
        if count is not None and count > there:
            raise ConfigError(f"train_images={count}, but there are {there}: choose at most {there}")
        return replace(self, x_train=self.x_train[:count], y_train=self.y_train[:count])

    def test(self, rows: Ints) -> Images:
        """Return some of the test images, in [0, 1]."""
        return self.x_test[rows].astype(np.float32) / np.float32(self.white)


def pictures(dataset: str, random: np.random.Generator) -> Pictures:
    """Return a stored data set; scikit-learn's digits are divided at random into 1440 and 357."""
    if dataset == "digits":
        digits = upright_digits(random)
        return Pictures(digits.x_train, digits.y_train, digits.x_test, digits.y_test, 1)
    found = load(dataset)
    return Pictures(found.x_train, found.y_train.astype(np.int64), found.x_test, found.y_test.astype(np.int64), 255)


@dataclass(frozen=True)
class Axes:
    """Projection on principal axes, scaled so that the projected images have the standard deviation 1."""

    mean: npt.NDArray[np.float64]
    """Mean image, (pixels,)."""
    columns: npt.NDArray[np.float64]
    """Scaled axes, (pixels, d)."""


@dataclass(frozen=True)
class View:
    """Features of images: means over squares, then principal axes, or else standardised colours."""

    pool: int = 1
    axes: Axes | None = None

    def __call__(self, images: Images) -> Images:
        """Return features (n, H/pool, W/pool), (n, 3, H/pool, W/pool) or (n, d) of images (n, H, W) or (n, 3, H, W)."""
        pooled = mean_pooled(images, self.pool)
        if self.axes is not None:
            flat = pooled.reshape(len(pooled), -1)
            return ((flat - self.axes.mean) @ self.axes.columns).astype(np.float32)
        return pooled if pooled.ndim == 3 else standard_colours(pooled)


def view_of(source: Pictures, pool: int, pca: int | None = None) -> View:
    """Return the view with these options; principal axes are fitted to clean training images."""
    side = source.x_train.shape[-1]
    if side % pool:
        raise ConfigError(f"pool must divide the side of the images, {side} pixels; got {pool}")
    if pca is None:
        return View(pool)
    flat = mean_pooled(source.train(slice(FITTED)), pool).astype(np.float64)
    return View(pool, principal_axes(flat.reshape(len(flat), -1), pca))


def mean_pooled(images: Images, pool: int) -> Images:
    """Return means over squares of pool x pool pixels."""
    *front, height, width = images.shape
    squares = images.reshape(*front, height // pool, pool, width // pool, pool)
    return images if pool == 1 else squares.mean((-3, -1), dtype=images.dtype)


def principal_axes(flat: npt.NDArray[np.float64], count: int) -> Axes:
    """Return the leading axes of samples (n, pixels), each turned so that its largest entry is positive."""
    most = min(flat.shape)
    if count > most:
        raise ConfigError(f"pca must be at most {most}, the images and pixels there are; got {count}")
    mean = flat.mean(axis=0)
    centred = flat - mean
    columns = np.linalg.eigh(centred.T @ centred)[1][:, : -count - 1 : -1]
    largest = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], 0)
    columns = columns * np.sign(largest)
    return Axes(mean, columns / (centred @ columns).std())


def standard_colours(images: Images) -> Images:
    """Return each colour with mean 0 and deviation 1 over the training pixels of CIFAR-10."""
    mean, sd = (np.array(v, np.float32).reshape(3, 1, 1) for v in (CIFAR_MEAN, CIFAR_SD))
    return (images - mean) / sd
