"""The local training that the options of a method describe."""

import pytest

from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.methods.base import local_training


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((7, None, None), FullBatch(steps=7)),
        ((None, 3, None), FullBatch(steps=3)),  # a pass over a full batch is one step
        ((7, None, 10), MiniBatch(batch_size=10, steps=7)),
        ((None, 3, 10), MiniBatch(batch_size=10, epochs=3)),
        ((None, 3, None, "flip"), FullBatch(steps=3, augment="flip")),
        ((None, 3, 10, "flip"), MiniBatch(batch_size=10, epochs=3, augment="flip")),
    ],
)
def test_options_become_local_training(options, expected):
    assert local_training(*options) == expected
