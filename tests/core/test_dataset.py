"""Facts about a federation, and the fingerprint of its data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core.dataset import FederatedDataset, torch_dtype
from coterie.core.keys import hash_ids
from tests.core.make import class_data, make_shard, regression_data

DATA = regression_data([2, 3], 2)


def population(data=DATA, ids=("a", "b")) -> FederatedDataset:
    return FederatedDataset("p", make_shard(data, ids))


def changed(client: int, part: int, index: object) -> list[tuple[np.ndarray, np.ndarray]]:
    data = [(x.copy(), y.copy()) for x, y in DATA]
    array = data[client][part]
    array[index] = np.nextafter(array[index], np.inf)
    return data


def test_the_same_data_has_the_same_fingerprint():
    again = [(x.copy(), y.copy()) for x, y in DATA]
    assert population().fingerprint() == population(again).fingerprint()


@pytest.mark.parametrize("where", [(0, 0, (0, 0)), (1, 0, (2, 1)), (0, 1, 1), (1, 1, 2)])
def test_the_last_bit_of_any_value_changes_the_fingerprint(where):
    assert population(changed(*where)).fingerprint() != population().fingerprint()


def test_the_order_of_clients_changes_the_fingerprint():
    assert population(DATA[::-1], ("b", "a")).fingerprint() != population().fingerprint()


def test_the_order_of_samples_changes_the_fingerprint():
    turned = [(x[::-1].copy(), y[::-1].copy()) for x, y in DATA]
    assert population(turned).fingerprint() != population().fingerprint()


def test_ids_change_the_fingerprint():
    assert population(ids=("a", "c")).fingerprint() != population().fingerprint()


def test_ids_with_line_breaks_do_not_run_together():
    one, other = population(ids=("a\nb", "c")), population(ids=("a", "b\nc"))
    assert one.fingerprint() != other.fingerprint()


def test_the_division_into_clients_changes_the_fingerprint():
    x, y = np.concatenate([x for x, _ in DATA]), np.concatenate([y for _, y in DATA])
    other = population([(x[:3], y[:3]), (x[3:], y[3:])])
    assert other.fingerprint() != population().fingerprint()


def test_the_type_and_shape_of_samples_change_the_fingerprint():
    single = population([(x.astype(np.float32), y) for x, y in DATA])
    narrow = population([(x.reshape(len(x), 2, 1), y) for x, y in DATA])
    assert len({population().fingerprint(), single.fingerprint(), narrow.fingerprint()}) == 3


def test_profile_of_numbers_has_no_classes():
    profile = population().profile
    assert (profile.features, profile.classes) == ((2,), None)


def test_profile_counts_classes_of_training_and_test():
    train = make_shard([(np.zeros((2, 4, 3)), np.array([0, 1]))])
    test = make_shard([(np.zeros((1, 4, 3)), np.array([5]))])
    assert FederatedDataset("p", train).profile.classes == 2
    assert FederatedDataset("p", train, test).profile.classes == 6
    assert FederatedDataset("p", train).profile.features == (4, 3)


def test_clients_are_the_ids_in_order():
    assert population(ids=("z", "y")).clients == ("z", "y")


def test_repr_shows_clients_samples_and_groups():
    known = replace(population(), truth=np.array([0, 1]))
    assert repr(known) == "FederatedDataset('p', clients=2, samples=5 (2 to 3 each), features=(2,), true groups: 2)"
    assert "true groups: unknown" in repr(population())


def test_repr_of_labels_does_not_read_them():
    assert "samples=4" in repr(FederatedDataset("q", make_shard(class_data([4], (2,), 3))))


def test_torch_dtype_knows_both_names():
    assert torch_dtype("float32") is torch.float32
    assert torch_dtype("float64") is torch.float64


def test_hashes_of_a_shard_belong_to_its_ids():
    assert np.array_equal(population().train.hashes, hash_ids(["a", "b"]))
