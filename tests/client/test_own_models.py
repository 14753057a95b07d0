"""Models near the pooled model: derivatives by finite differences, modes by a search, folds by counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.client.own_models import FOLDS, NearbyModels, nearby_models
from coterie.core.messages import Broadcast
from coterie.data import from_arrays
from tests.client.test_aspects import broadcast, data


def sent(classes: int | None, r: int = 3) -> Broadcast:
    before = broadcast(classes)
    p = before.common["model"].numel()
    directions = torch.from_numpy(np.random.default_rng(3).standard_normal((p, r)))
    return Broadcast(-1, before.clusters, common=before.common | {"directions": directions}, scalars=before.scalars)


def one_block(classes: int | None) -> NearbyModels:
    (found,) = (models for models, _ in nearby_models(data(classes).train, sent(classes)))
    return found


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_losses_of_changed_models_by_hand(classes):
    """The loss of the pooled model with directions times change added to its coefficients."""
    models, given = one_block(classes), sent(classes)
    change = torch.tensor([0.3, -0.2, 0.5]).double()
    found = models.losses(change.expand(len(models.base), -1))
    common, samples = given.common, models.samples
    theta = common["model"] + (common["directions"] @ change).reshape(common["model"].shape)
    for client, size in enumerate(samples.block.sizes.tolist()):
        design = torch.cat([torch.ones(size, 1), samples.z[client, :size]], dim=1).double()
        y = samples.block.y[client, :size]
        if classes is None:
            wanted = ((y - 0.1) / 0.8 - (design @ theta)[:, 0]).pow(2) / 2
        else:
            wanted = torch.nn.functional.cross_entropy(design @ theta @ common["contrast"], y, reduction="none")
        assert torch.allclose(found[client, :size], wanted)
        assert not found[client, size:].any()


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_derivatives_are_those_of_the_losses(classes):
    models = one_block(classes)
    change = torch.tensor([0.3, -0.2, 0.5]).double().expand(len(models.base), -1)
    kept = models.samples.valid.clone()
    kept[:, 0] = 0
    score, hessian = models.derivatives(change, kept)
    assert not score[:, 0].any()
    for entry, step in enumerate(1e-5 * torch.eye(3).double()):
        up, down = models.losses(change + step) * kept, models.losses(change - step) * kept
        assert torch.allclose(score[..., entry], (down - up) / 2e-5, atol=1e-8)
        bent = models.derivatives(change - step, kept)[0] - models.derivatives(change + step, kept)[0]
        assert torch.allclose(hessian[:, entry], bent.sum(dim=1) / 2e-5, atol=1e-8)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_no_small_change_of_a_posterior_mode_is_better(classes):
    models = one_block(classes)
    precision = torch.tensor([0.1, 1.0, 1e-4]).double()  # clients of one sample are separable: the prior bounds them

    def objective(change):
        return models.losses(change).sum(dim=1) + (precision * change.pow(2)).sum(dim=1) / 2

    mode = models.posterior_modes(precision, models.samples.valid)
    for step in 1e-2 * torch.cat([torch.eye(3), -torch.eye(3)]).double():
        assert (objective(mode) < objective(mode + step)).all()


def test_every_fold_has_as_many_samples_as_the_others_and_small_blocks_change_nothing(monkeypatch):
    shard = from_arrays([(np.random.default_rng(i).standard_normal((n, 2)), np.arange(n) % 2) for i, n in
                         enumerate((3, 10, 27, 27, 30))]).train  # fmt: skip
    given = sent(2)

    def folds(at_once):
        monkeypatch.setattr("coterie.client.own_models.NUMBERS_AT_ONCE", at_once)
        found = {}
        for models, fold in nearby_models(shard, given, seed=4):
            for row, place in enumerate(models.samples.block.positions):
                found[shard.ids[place]] = fold[row][fold[row] >= 0].tolist()
        return found

    whole = folds(10**6)
    assert [len(found) for found in whole.values()] == [3, 10, 27, 27, 30]
    for found in whole.values():
        counts = np.bincount(found, minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert folds(1) == whole
    first, second = [found for found in whole.values() if len(found) == 27]
    assert first != second
