"""Flips and crops by hand, their random keys, and their restriction to training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import coterie.learners.augment as augment_module
from coterie import ConfigError, fit, from_arrays
from coterie.core.dataset import Profile
from coterie.core.keys import fold
from coterie.learners import make_learner
from coterie.learners.augment import augment, changes, check_augmentation, crop, flip
from coterie.learners.descent import batches
from coterie.learners.local_training import FullBatch, MiniBatch
from tests.core.make import class_data, make_block, make_shard

KEYS = fold(3, np.arange(400, dtype=np.uint64).reshape(2, 200))


def test_flip_by_hand():
    image = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    swapped = torch.tensor([[3.0, 2.0, 1.0], [6.0, 5.0, 4.0]])
    seen = flip(image.expand(2, 200, 2, 3), KEYS).flatten(0, 1)
    kinds = [torch.equal(one, swapped) for one in seen]
    assert all(torch.equal(one, swapped if kind else image) for one, kind in zip(seen, kinds, strict=True))
    assert sum(kinds) == pytest.approx(200, abs=50)  # 400 coins: a standard deviation is 10


def test_crop_by_hand():
    """With a border of 1 a 2x3 image has 3 x 3 places: row d and column r of the framed 4x5 image come first.

    0 0 0 0 0      d=0 r=0: 0 0 0     d=1 r=1: 1 2 3     d=2 r=2: 5 6 0
    0 1 2 3 0               0 1 2              4 5 6              0 0 0
    0 4 5 6 0
    0 0 0 0 0
    """
    framed = [[0, 0, 0, 0, 0], [0, 1, 2, 3, 0], [0, 4, 5, 6, 0], [0, 0, 0, 0, 0]]
    expected = {str([row[r : r + 3] for row in framed[d : d + 2]]) for d in range(3) for r in range(3)}
    assert "[[0, 0, 0], [0, 1, 2]]" in expected
    assert "[[5, 6, 0], [0, 0, 0]]" in expected
    image = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment_module, "BORDER", 1)
        seen = crop(image.expand(2, 200, 2, 3), KEYS).flatten(0, 1)
    assert {str(one.tolist()) for one in seen} == expected


def test_crop_equals_a_plain_loop_with_the_border_of_four():
    x = torch.rand(2, 200, 3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    down, right = fold(KEYS, 2) % np.uint64(9), fold(KEYS, 3) % np.uint64(9)
    assert set(down.ravel()) == set(right.ravel()) == set(range(9))
    seen = crop(x, KEYS)
    for b, i in np.ndindex(2, 200):
        d, r = int(down[b, i]), int(right[b, i])
        assert torch.equal(seen[b, i], functional.pad(x[b, i], (4, 4, 4, 4))[:, d : d + 8, r : r + 6])


def test_grey_images_are_changed_as_one_colour_is():
    x = torch.rand(2, 200, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    whole = augment(x, "flip,crop", KEYS)
    assert torch.equal(augment(x[:, :, 1], "flip,crop", KEYS), whole[:, :, 1])
    assert torch.equal(augment(x, "none", KEYS), x)


def images(sizes: list[int]) -> list:
    return class_data(sizes, (6, 5), 3)


@pytest.mark.parametrize("work", [MiniBatch(batch_size=3, epochs=2), FullBatch(steps=2)], ids=["mini", "full"])
def test_the_images_of_a_step_do_not_depend_on_other_images(work):
    data, work = images([4, 7, 2]), replace(work, augment="flip,crop")
    together = list(batches(make_block(data), work))
    for client in range(3):
        own = make_block(data[client : client + 1], [f"c{client}"])
        for step, batch in enumerate(batches(own, work)):
            real = batch.share[0] > 0
            count = int(real.sum())
            assert torch.equal(together[step].x[client][together[step].share[client] > 0][:count], batch.x[0][real])


def test_every_step_of_a_sample_draws_anew_and_the_key_decides():
    block = make_block(images([1]))
    work = FullBatch(steps=6, augment="flip,crop")
    assert work.full_batch_steps is None
    first, again = ([b.x[0, 0] for b in batches(block, work)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({str(x.tolist()) for x in first}) > 3
    other = [b.x[0, 0] for b in batches(replace(block, keys=block.keys + np.uint64(1)), work)]
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_labels_stay_with_their_images():
    """Sample j is all j + 1 and has the label j; a flip or a crop leaves such an image constant, but for the border."""
    x = np.broadcast_to(np.arange(1.0, 8.0)[:, None, None], (7, 9, 9))
    block = make_block([(x, np.arange(7))])
    for batch in batches(block, MiniBatch(batch_size=3, epochs=2, augment="flip,crop")):
        real = batch.share[0] > 0
        assert torch.equal(batch.x[0, real].amax(dim=(1, 2)), batch.y[0, real].double() + 1)


@pytest.mark.parametrize("spec", ["mlp:hidden=4", "logistic", "cnn:channels=2,hidden=3"])
@pytest.mark.parametrize("work", [FullBatch(steps=3), MiniBatch(batch_size=2, epochs=2)], ids=["full", "mini"])
def test_steps_on_changed_images_equal_plain_steps_on_the_images_seen(spec, work):
    """Each batch of a client is passed as data for one full-batch step."""
    learner = make_learner(spec, Profile((6, 5), 3))
    block, work = make_block(images([5])), replace(work, augment="flip,crop")
    start = learner.start([1], torch.float64)
    theta = {name: p[:, None] for name, p in start.items()}
    for batch in batches(block, work):
        real = batch.share[0] > 0
        seen = make_block([(batch.x[0, real].numpy(), batch.y[0, real].numpy())])
        change = learner.descend(theta, seen, FullBatch(steps=1), 0.3)
        theta = {name: p + change[name] for name, p in theta.items()}
    found = learner.contribute(start, torch.tensor([[0]]), block, work, 0.3, torch.ones(1, 1), None)
    for name, p in theta.items():
        torch.testing.assert_close(found.sums[name][0], p[0, 0] - start[name][0], rtol=1e-9, atol=1e-12)
    plain = learner.descend({n: p[:, None] for n, p in start.items()}, block, replace(work, augment="none"), 0.3)
    assert any(not torch.allclose(plain[n][0, 0], found.sums[n][0]) for n in plain)


def test_only_training_sees_changed_images():
    """With a tiny learning rate, models, losses and scores do not change."""
    shard = make_shard(images([9, 12]))
    clients = {name: (shard.x[a:b].numpy(), shard.y[a:b].numpy()) for name, a, b in (("a", 0, 9), ("b", 9, 21))}
    data = from_arrays(clients, test=clients)
    runs = [
        fit(data, "ifca", learner="cnn:channels=2,hidden=3", dtype="float64", lr=1e-300, rounds=1, augment=how)
        for how in ("none", "flip,crop")
    ]
    assert runs[0].clients == runs[1].clients
    assert runs[0].metrics["accuracy"] == runs[1].metrics["accuracy"]


def test_names_are_read_in_their_order():
    assert changes("none") == ()
    assert changes("crop,flip") == ("crop", "flip")
    with pytest.raises(ConfigError, match="unknown augmentation 'flop': did you mean 'flip'"):
        changes("crop,flop")


@pytest.mark.parametrize("features", [(20,), (2, 3, 4, 5), ()])
def test_samples_that_are_not_images_are_refused(features):
    check_augmentation("none", Profile(features, 3))
    with pytest.raises(ConfigError, match=r"augment=flip needs images of shape .* leave it out"):
        check_augmentation("flip", Profile(features, 3))


def test_a_run_checks_the_augmentation_before_it_starts():
    data = from_arrays({"a": (np.zeros((4, 3)), np.arange(4) % 2), "b": (np.ones((4, 3)), np.arange(4) % 2)})
    with pytest.raises(ConfigError, match="needs images of shape"):
        fit(data, "fedavg", augment="crop")
    with pytest.raises(ConfigError, match="unknown augmentation 'rotate'"):
        fit(data, "fedavg", augment="rotate")
