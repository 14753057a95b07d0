"""A Tiny-ImageNet folder, with a decoder that needs no JPEG: the files here hold one byte, the colour."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.data.loaders.tiny_imagenet import pillow, read_tiny_imagenet
from coterie.errors import InputError


def decode(path: Path) -> np.ndarray:
    return np.full((64, 64, 3), [path.read_bytes()[0], 1, 2], np.uint8)


@pytest.fixture
def tiny(tmp_path):
    for wnid, colours in (("n02", [20, 21]), ("n01", [10])):
        (tmp_path / "train" / wnid / "images").mkdir(parents=True)
        for index, colour in enumerate(colours):
            (tmp_path / "train" / wnid / "images" / f"{wnid}_{index}.JPEG").write_bytes(bytes([colour]))
    (tmp_path / "val" / "images").mkdir(parents=True)
    (tmp_path / "val" / "images" / "val_0.JPEG").write_bytes(bytes([90]))
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t62\n")
    return tmp_path


def test_classes_are_numbered_by_their_sorted_names(tiny):
    found = read_tiny_imagenet("tiny-imagenet", tiny, decode)
    assert found.x_train.shape == (3, 3, 64, 64)
    assert found.x_train[:, :, 0, 0].tolist() == [[10, 1, 2], [20, 1, 2], [21, 1, 2]]
    assert found.y_train.tolist() == [0, 1, 1]
    assert (found.x_test[0, 0, 0, 0], found.y_test.tolist()) == (90, [1])


def test_an_unknown_class_a_wrong_size_and_a_broken_file_are_refused(tiny):
    with pytest.raises(InputError, match="64 x 64 pixels in colour"):
        read_tiny_imagenet("t", tiny, lambda path: np.zeros((64, 64), np.uint8))
    (tiny / "val" / "images" / "val_0.JPEG").unlink()
    with pytest.raises(InputError, match=r"val_0\.JPEG cannot be read"):
        read_tiny_imagenet("t", tiny, decode)
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\n")
    with pytest.raises(InputError, match=r"class 'n77' of 'val_0\.JPEG' has no folder in train"):
        read_tiny_imagenet("t", tiny, decode)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must hold train/<class>/images/\*\.JPEG"):
        read_tiny_imagenet("t", tmp_path, decode)


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match="need Pillow: 'pip install pillow'"):
        pillow()
