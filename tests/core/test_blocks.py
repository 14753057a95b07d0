"""Division of a shard into dense blocks: every sample occurs once, with little padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import blocks
from coterie.core.blocks import cut, like_sizes, size_class
from coterie.core.shard import Shard
from tests.core.make import make_block, make_shard

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def numbered(sizes: list[int]) -> Shard:
    """Sample j of the shard has the features (j, -j) and the label j."""
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return make_shard([(np.stack([r, -r], axis=1).astype(np.float64), r) for r in rows])


def real(block: blocks.Block, client: int) -> list[int]:
    keep = slice(None) if block.mask is None else block.mask[client]
    return block.y[client][keep].tolist()


def check_complete(shard: Shard, cuts: list[blocks.Block]) -> None:
    seen = np.concatenate([b.positions for b in cuts])
    assert sorted(seen) == list(range(len(shard)))
    for block in cuts:
        for row, position in enumerate(block.positions):
            assert real(block, row) == list(range(shard.starts[position], shard.stops[position]))
            assert int(block.sizes[row]) == shard.sizes[position]
        assert torch.equal(block.x[..., 0], block.y.double())
        assert torch.equal(block.x[..., 1], -block.y.double())


@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_every_sample_of_every_client_comes_exactly_once(sizes):
    shard = numbered(sizes)
    check_complete(shard, list(cut(shard, shard.hashes, 8)))


@settings(max_examples=20, deadline=None)
@given(SIZES, st.data())
def test_a_subset_of_clients_in_any_order_is_cut_completely(sizes, data):
    shard = numbered(sizes)
    chosen = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True))
    part = shard.take(np.array(chosen))
    check_complete(part, list(cut(part, part.hashes, 8)))


@settings(max_examples=20, deadline=None)
@given(SIZES, st.integers(0, 4000))
def test_cheap_padding_loses_nothing(sizes, padding):
    shard = numbered(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PADDING_BYTES", padding)
        check_complete(shard, list(cut(shard, shard.hashes, 8)))


@settings(max_examples=20, deadline=None)
@given(SIZES)
def test_small_blocks_are_complete_too(sizes):
    shard = numbered(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4096)  # 16 bytes a sample: 256 samples
        cuts = list(cut(shard, shard.hashes, 8))
    check_complete(shard, cuts)
    for block in cuts:
        assert len(block.positions) == 1 or block.y.numel() <= 256


def test_models_bound_the_number_of_clients_in_a_block(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    shard = numbered([2] * 10)
    # a client costs max(2 samples * 16 bytes, 1600 / 4 bytes) = 400, so 1000 // 400 = 2 clients a block
    assert [len(b.positions) for b in cut(shard, shard.hashes, 1600)] == [2] * 5


def test_padding_stays_under_a_quarter_for_every_size():
    sizes = np.arange(1, 5000)
    width = size_class(sizes)
    assert (width >= sizes).all()
    assert ((width - sizes) / sizes < 0.25).all()


def test_there_are_only_a_few_size_classes():
    # four for each power of two, and the first four sizes: at most 4 * 9 below 512
    assert len(np.unique(size_class(np.arange(1, 512)))) <= 36


def test_size_classes_by_hand():
    # up to 7 exact; 8..15 in steps of 2; 16..31 in steps of 4; 32..63 in steps of 8
    assert size_class(np.array([1, 3, 7, 8, 9, 15, 17, 20, 33, 64])).tolist() == [1, 3, 7, 8, 10, 16, 20, 20, 40, 64]


def test_size_classes_are_joined_while_padding_is_cheap(monkeypatch):
    monkeypatch.setattr(blocks, "PADDING_BYTES", 100)
    sizes = np.array([7, 1, 2, 30, 4])
    # a padded row costs max(10, 4) bytes; 1, 2 and 4 in one block: 3 + 2 rows; with 7: 6 + 5 + 3 = 14 rows, too many
    assert [group.tolist() for group in like_sizes(sizes, 10, 4)] == [[1, 2, 4], [0], [3]]
    # 20 bytes a padded row: 1, 2 and 4 need 100 bytes, which is just allowed; with 21 the third stays alone
    assert [group.tolist() for group in like_sizes(sizes, 10, 20)] == [[1, 2, 4], [0], [3]]
    assert [group.tolist() for group in like_sizes(sizes, 10, 21)] == [[1, 2], [0, 4], [3]]


def test_joined_classes_fit_in_one_block(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 130)
    # 3 clients of width 4 would take 120 bytes and fit, 4 of them 160 and do not
    assert [group.tolist() for group in like_sizes(np.array([4, 3, 3]), 10, 0)] == [[0, 1, 2]]
    assert [group.tolist() for group in like_sizes(np.array([4, 3, 3, 3]), 10, 0)] == [[1, 2, 3], [0]]


def test_neighbours_of_one_size_are_a_view(monkeypatch):
    monkeypatch.setattr(blocks, "PADDING_BYTES", 0)
    shard = numbered([4, 4, 4, 7])
    first, second = cut(shard, shard.hashes, 8)
    assert first.x.shape == (3, 4, 2)
    assert first.x.data_ptr() == shard.x.data_ptr()
    assert second.x.data_ptr() == shard.x[12:].data_ptr()
    assert first.mask is None


def test_clients_apart_are_copied_in_their_order(monkeypatch):
    monkeypatch.setattr(blocks, "PADDING_BYTES", 0)
    shard = numbered([4, 7, 4])
    first, _ = cut(shard, shard.hashes, 8)
    assert first.y.tolist() == [[0, 1, 2, 3], [11, 12, 13, 14]]
    assert first.mask is None


def test_padding_repeats_the_first_sample():
    shard = numbered([10, 9])
    (block,) = cut(shard, shard.hashes, 8)
    assert block.mask is not None
    assert block.mask.sum(dim=1).tolist() == [10, 9]
    assert int(block.y[1, 9]) == 10  # the second client's first sample


def test_keys_follow_their_clients():
    shard = numbered([3, 50, 3, 9])
    for block in cut(shard, shard.hashes, 8):
        assert np.array_equal(block.keys, shard.hashes[block.positions])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 4), st.sampled_from([(), (3,), (2, 2)]))
def test_mean_is_the_plain_mean_over_each_clients_own_samples(sizes, extra, tail):
    random = np.random.default_rng(sum(sizes))
    block = make_block([(np.zeros((n, 1)), np.zeros(n)) for n in sizes], width=max(sizes) + extra)
    values = random.standard_normal((*block.y.shape, *tail))
    expected = np.stack([values[i, :n].mean(axis=0) for i, n in enumerate(sizes)])
    np.testing.assert_allclose(block.mean(torch.from_numpy(values)).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_mean_ignores_what_is_not_finite_in_the_padding():
    block = make_block([(np.zeros((2, 1)), np.zeros(2)), (np.zeros((1, 1)), np.zeros(1))])
    values = torch.tensor([[1.0, 3.0], [5.0, torch.nan]])
    assert block.mean(values).tolist() == [2.0, 5.0]
