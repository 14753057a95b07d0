"""Shards: flat arrays with ranges; taking clients copies no samples."""

from __future__ import annotations

import numpy as np
import torch

from coterie.core.shard import spans
from tests.core.make import class_data, make_shard, regression_data


def test_take_keeps_each_clients_samples_id_and_hash():
    shard = make_shard(regression_data([2, 5, 3], 2))
    part = shard.take(np.array([2, 0]))
    assert part.ids == ("c2", "c0")
    assert part.sizes.tolist() == [3, 2]
    assert part.hashes.tolist() == [shard.hashes[2], shard.hashes[0]]
    assert part.x.data_ptr() == shard.x.data_ptr()
    assert torch.equal(part.x[part.starts[0] : part.stops[0]], shard.x[7:10])


def test_to_changes_features_and_targets_but_not_labels():
    cpu = torch.device("cpu")
    numbers = make_shard(regression_data([3], 2)).to(torch.float32, cpu)
    assert (numbers.x.dtype, numbers.y.dtype) == (torch.float32, torch.float32)
    labels = make_shard(class_data([3], (2,), 2)).to(torch.float32, cpu)
    assert (labels.x.dtype, labels.y.dtype) == (torch.float32, torch.int64)


def test_to_the_same_type_shares_memory():
    shard = make_shard(regression_data([3], 2))
    assert shard.to(torch.float64, torch.device("cpu")).x.data_ptr() == shard.x.data_ptr()


def test_len_is_the_number_of_clients():
    assert len(make_shard(regression_data([4, 4], 1))) == 2


def test_gather_copies_rows_and_keeps_ids_and_hashes():
    shard = make_shard(regression_data([2, 5, 3], 2))
    part = shard.gather(np.array([1, 9, 7]), np.array([1, 0, 2]))
    assert part.ids == shard.ids
    assert part.hashes is shard.hashes
    assert part.sizes.tolist() == [1, 0, 2]
    assert torch.equal(part.x, shard.x[[1, 9, 7]])
    assert torch.equal(part.y[part.starts[2] : part.stops[2]], shard.y[[9, 7]])


def test_spans_are_concatenated_ranges():
    assert spans(np.array([5, 0, 20]), np.array([3, 0, 2])).tolist() == [5, 6, 7, 20, 21]
