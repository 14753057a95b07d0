"""Diverse shifts: labels, looks and concepts of every client, its held-out samples, and newcomers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, InputError, fit, scenario
from coterie.core.keys import Purpose, generator, hash_ids, keys_for_clients
from coterie.data.loaders import store
from coterie.data.scenarios.rotated_images import CIFAR_MEAN, CIFAR_SD
from coterie.data.scenarios.shifts.corruptions import CORRUPTIONS, corrupt
from coterie.data.scenarios.shifts.pictures import mean_pooled, principal_axes
from tests.data.loaders.make import images
from tests.data.scenarios.shifted import all_images, classes_of, digit_classes, samples

CLEAN = {"corruptions": False}
MAPS = np.array([[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]])
"""What the three concepts make of the first four labels (beta = 0.4)."""


@cache
def digits(**options) -> FederatedDataset:
    return scenario("diverse-shift", **options)


def mapped(y: np.ndarray, concept: int) -> np.ndarray:
    return np.where(y < 4, MAPS[concept][np.minimum(y, 3)], y)


def test_sizes_on_digits():
    found = digits()
    assert found.train.sizes.tolist() == [36] * 30
    assert found.test.sizes.tolist() == [12] * 30
    assert found.truth.tolist() == [0, 1, 2] * 10
    assert found.group_names == ("concept 0", "concept 1", "concept 2")
    assert (found.train.x.dtype, found.train.x.shape) == (found.test.x.dtype, (1080, 8, 8))
    assert found.profile.classes == 10
    assert found.newcomers.support.ids == found.newcomers.query.ids == ("concept-0", "concept-1", "concept-2")


@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_are_those_of_the_clients_concept(part):
    found, known = digits(**CLEAN), digit_classes()
    for client, concept in enumerate(found.truth):
        x, y = samples(getattr(found, part), client)
        assert np.array_equal(y, mapped(classes_of(x, known), concept))


@pytest.mark.parametrize("part", ["support", "query"])
def test_newcomers_hold_clean_images_of_all_classes_with_the_labels_of_their_concept(part):
    known, shard = digit_classes(), getattr(digits().newcomers, part)
    first = samples(shard, 0)[0]
    for concept in range(3):
        x, y = samples(shard, concept)
        assert np.array_equal(x, first)
        assert np.array_equal(y, mapped(classes_of(x, known), concept))
        assert len(set(np.bincount(y))) == 1  # as many of each class


def test_a_quarter_of_what_a_newcomer_holds_is_support():
    new = digits().newcomers
    assert new.support.sizes[0] / 10 == (new.support.sizes[0] + new.query.sizes[0]) / 10 * 100 // 400


def test_no_image_is_used_twice():
    seen = all_images(digits(**CLEAN))
    assert len(set(seen)) == len(seen)


def test_corruptions_change_pixels_and_nothing_else():
    clean, seen = digits(**CLEAN), digits()
    for part in ("train", "test"):
        assert np.array_equal(getattr(clean, part).y, getattr(seen, part).y)
        assert not np.array_equal(getattr(clean, part).x, getattr(seen, part).x)
    assert np.array_equal(clean.newcomers.query.x, seen.newcomers.query.x)
    assert set(clean.client_notes) == {"original"}


def test_a_client_sees_all_its_images_under_one_corruption_drawn_from_its_key():
    clean, seen = digits(**CLEAN), digits()
    kinds = list(CORRUPTIONS)
    keys = keys_for_clients(0, Purpose.SCENARIO, 0, hash_ids(seen.clients))
    for client, key in enumerate(keys):
        random = generator(int(key))
        kind, severity = kinds[random.integers(20)], int(random.integers(1, 6))
        x = np.concatenate([samples(part, client)[0] for part in (clean.train, clean.test)])
        found = np.concatenate([samples(part, client)[0] for part in (seen.train, seen.test)])
        assert np.array_equal(found, corrupt(x, kind, severity, random))
        assert seen.client_notes[client] == (kind if kind == "original" else f"{kind} {severity}")
    assert len(set(seen.client_notes)) > 15


def test_the_prior_leaves_few_classes_and_the_symmetric_draw_most():
    def held(**options) -> float:
        found = digits(clients=12, samples=40, test_samples=40, **CLEAN, **options)
        return np.mean([len(set(samples(found.train, client)[1])) for client in range(12)])

    assert held() < 5
    assert held(label_shift="dirichlet_symmetric") > 6
    assert held(label_shift="none") > 9


def test_reverse_is_a_concept_too():
    found, known = digits(concept_shift="label_reverse", concepts=2, **CLEAN), digit_classes()
    for client, concept in enumerate(found.truth):
        x, y = samples(found.train, client)
        digit = classes_of(x, known)
        assert np.array_equal(y, 9 - digit if concept else digit)


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    again = scenario("diverse-shift", **digits().options)
    assert again.fingerprint() == digits().fingerprint()
    assert again.client_notes == digits().client_notes
    assert digits(seed=1).fingerprint() != digits().fingerprint()


def test_newcomers_are_part_of_the_fingerprint():
    found = digits()
    new = found.newcomers
    assert replace(found, newcomers=None).fingerprint() != found.fingerprint()
    turned = replace(new, query=replace(new.query, y=new.query.y.flip(0)))
    assert replace(found, newcomers=turned).fingerprint() != found.fingerprint()


def test_train_images_takes_the_first_so_many():
    found = digits(train_images=960, **CLEAN)
    assert found.train.sizes.tolist() == [24] * 30
    assert found.options["train_images"] == 960
    whole = {image.tobytes() for part in (digits(**CLEAN).train, digits(**CLEAN).test) for image in part.x.numpy()}
    cut = {image.tobytes() for part in (found.train, found.test) for image in part.x.numpy()}
    assert len(cut) == 960
    assert cut < whole


def test_pooling_gives_means_over_squares():
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    assert mean_pooled(x, 2).tolist() == [[[2.5, 4.5], [10.5, 12.5]]]
    assert digits(pool=2).train.x.shape == (1080, 4, 4)
    assert np.allclose(digits(pool=2).test.x, digits().test.x.reshape(-1, 4, 2, 4, 2).mean((2, 4)), atol=1e-6)


def test_principal_axes_are_those_of_the_singular_vectors():
    flat = np.random.default_rng(2).normal(size=(50, 6)) * [5, 1, 3, 1, 1, 2]
    axes = principal_axes(flat, 3)
    centred = flat - flat.mean(axis=0)
    expected = np.linalg.svd(centred)[2][:3].T
    scaled = axes.columns / np.linalg.norm(axes.columns, axis=0)
    assert np.abs(np.abs(scaled.T @ expected) - np.eye(3)).max() < 1e-9
    projected = (flat - axes.mean) @ axes.columns
    assert projected.std() == pytest.approx(1, abs=1e-12)
    assert np.abs(projected.mean(axis=0)).max() < 1e-12
    # one factor for all axes: variances keep their ratios
    ratios = projected.var(axis=0) / (centred @ expected).var(axis=0)
    assert np.allclose(ratios, ratios[0], atol=1e-9)


def test_axes_are_fitted_to_clean_images_and_used_for_all():
    seen, features = digits(), digits(pca=16)
    assert features.train.x.shape == (1080, 16)
    clean = digits(**CLEAN)
    pixels = np.concatenate([part.x.numpy() for part in (clean.train, clean.test)]).reshape(-1, 64).astype(np.float64)
    axes = principal_axes(pixels, 16)  # all 1440 training images, in another order
    for one, other in ((seen.train, features.train), (seen.newcomers.query, features.newcomers.query)):
        expected = (one.x.numpy().reshape(-1, 64) - axes.mean) @ axes.columns
        assert np.abs(other.x.numpy() - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0.2}, "beta=0.2 moves 2 of 10 labels, which makes 2 different concepts, not 3: choose a beta of at"),
        ({"concept_shift": "label_reverse"}, "label_reverse makes 2 concepts, but concepts=3: set concepts=2"),
        ({"clients": 2}, "2 clients cannot follow 3 concepts: every one needs a client"),
        ({"clients": 1000}, "1440 images give 1 for each of 1000 clients, too few with 1 held out: use fewer clients"),
        ({"samples": 60}, "30 clients with 80 samples each need 2400, but there are 1440: use fewer clients"),
        ({"train_images": 1441}, "train_images=1441, but there are 1440: choose at most 1440"),
        ({"pool": 3}, "pool must divide the side of the images, 8 pixels; got 3"),
        ({"pca": 65}, "pca must be at most 64, the images and pixels there are; got 65"),
        ({"label_shift": "dirichlet"}, "unknown label_shift 'dirichlet': did you mean"),
        ({"alpha": 0}, "alpha must be a number above 0, got 0"),
        ({"dataset": "minst"}, "did you mean 'mnist'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        scenario("diverse-shift", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recommended_run_with_known_concepts_beats_one_model_for_all():
    found = digits()
    known, one = fit(found, method="oracle"), fit(found, method="fedavg")
    assert known.config["learner"] == "mlp:hidden=64,l2=0.0"
    assert known.metrics["ari"] == 1
    assert known.metrics["accuracy"] > one.metrics["accuracy"] + 0.1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("options", "lr"), [({}, 0.1), ({"pca": 4}, 0.3)])
def test_pixels_of_larger_images_get_smaller_steps(folder, options, lr):
    store.save(images("mnist", 60, 20), "test")
    assert scenario("diverse-shift", dataset="mnist", clients=3, **options).recommended["lr"] == lr


def test_missing_data_names_the_command(folder):
    with pytest.raises(InputError, match="get it with 'coterie data get fashion-mnist'"):
        scenario("diverse-shift-a")


def test_colours_are_standardised_after_the_corruption(folder):
    source = images("cifar10", 60, 20, (3, 32, 32))
    store.save(source, "test")
    found = scenario("diverse-shift", dataset="cifar10", clients=3, label_shift="none", **CLEAN)
    assert found.train.x.shape == (54, 3, 32, 32)
    assert found.test.sizes.tolist() == [2] * 3
    assert found.newcomers.support.sizes.tolist() == [10] * 3
    mean, sd = (np.array(v).reshape(3, 1, 1) for v in (CIFAR_MEAN, CIFAR_SD))
    known = {image.tobytes() for image in source.x_train}
    for image in found.train.x.numpy():
        assert np.rint(255 * (image * sd + mean)).astype(np.uint8).tobytes() in known
    assert found.recommended["learner"] == "cnn:channels=16,hidden=64"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("a", {"label_shift": "dirichlet_prior", "train_images": 48 * 220}),
        ("b", {"label_shift": "dirichlet_symmetric"}),
    ],
)
def test_the_small_recipes_are_diverse_shift_with_fixed_options(folder, name, own):
    store.save(images("fashion-mnist", 48 * 220 + 500, 100), "test")
    found = scenario(f"diverse-shift-{name}")
    assert (found.name, found.options) == (f"diverse-shift-{name}", {})
    options = {"clients": 48, "samples": 120, "test_samples": 100, "pool": 2, "pca": 64, **own}
    assert found.fingerprint() == scenario("diverse-shift", dataset="fashion-mnist", **options).fingerprint()
    assert found.train.x.shape == (48 * 120, 64)
    assert found.recommended["learner"] == "mlp:hidden=64-32"
    assert found.recommended["clusters"] == 3


def test_the_few_classes_of_the_first_recipe_are_even_over_all_clients(folder):
    store.save(images("fashion-mnist", 48 * 220 + 500, 100), "test")
    found = scenario("diverse-shift-a")
    assert np.mean([len(set(samples(found.train, client)[1])) for client in range(48)]) < 5
    # labels 4 to 9 mean the same in every concept; all 10,560 images are used, so each has its tenth
    labels = np.concatenate([found.train.y, found.test.y])
    assert np.bincount(labels)[4:].tolist() == [48 * 22] * 6
