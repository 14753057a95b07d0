"""Frozen features of images in HCFL's tables."""

import pytest
import torch

from coterie.core.shard import Shard
from coterie.data import scenario
from coterie.data.loaders import store
from papers.hcfl.features import AXES, CENTRES, extractor, k_means, normalised, patches_of, with_features
from tests.data.loaders.make import images


@pytest.fixture
def stored(tmp_path, monkeypatch):
    extractor.cache_clear()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    store.save(images("cifar10", 800, 100, (3, 32, 32)), "test")
    yield
    extractor.cache_clear()


def test_patches_are_squares_with_all_colours_in_steps_of_two():
    image = torch.arange(2 * 8 * 8).reshape(1, 2, 8, 8).float()
    patches = patches_of(image)
    assert patches.shape == (1, 4, 2 * 36)
    assert patches[0, 3].tolist() == image[0, :, 2:8, 2:8].flatten().tolist()
    rows = normalised(patches)
    assert rows.mean(dim=-1).abs().max() < 1e-6


def test_k_means_finds_separated_groups():
    truth = torch.arange(CENTRES).float().repeat(3)[:, None] * 10
    centres = k_means(truth, torch.Generator().manual_seed(0))
    assert torch.cdist(truth, centres).min(dim=1).values.median() == 0


def test_clients_and_newcomers_get_features_of_their_images(stored):
    data = scenario("diverse-shift", dataset="cifar10", clients=4, samples=10, test_samples=5, seed=0)
    made = with_features(data, "cifar10")
    fitted = extractor("cifar10")
    assert made.train.x.shape == (40, AXES)
    assert torch.allclose(made.train.x, fitted(data.train.x), atol=1e-4)
    assert torch.equal(made.train.y, data.train.y)
    whole = fitted(data.newcomers.query.x)  # not assuming that newcomers hold the same images
    assert torch.allclose(made.newcomers.query.x, whole, atol=1e-4)
    assert isinstance(made.newcomers.support, Shard)
