"""The pairs of a diagnosis against loops over samples, with and without random signs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from coterie.client.aspects import (
    ASPECTS,
    MOST_TOGETHER,
    Aspect,
    Conditional,
    Profiled,
    Samples,
    aspect_of,
    given_their_number,
    parts_of,
    sample_blocks,
    samples_of,
    signed,
)
from coterie.core.blocks import cut
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.data import from_arrays


def data(classes: int | None, sizes=(1, 2, 3, 5)):
    random = np.random.default_rng(0)

    def targets(n):
        return random.standard_normal(n) if classes is None else np.arange(n) % classes

    return from_arrays([(random.standard_normal((n, 2)), targets(n)) for n in sizes])


def broadcast(classes: int | None) -> Broadcast:
    random = np.random.default_rng(1)
    c = 1 if classes is None else classes - 1

    def drawn(*shape):
        return torch.from_numpy(random.standard_normal(shape))

    common = {"center": drawn(2), "basis": drawn(2, 2), "model": drawn(3, c) / 2, "slopes": drawn(2, c) / 2}
    common |= {"moment_mean": drawn(4), "moment_map": drawn(4, 4)}
    if classes is None:
        common |= {"edges": torch.tensor([0.0]).double(), "label_rows": drawn(2, 1), "conditional": drawn(4, 4)}
    else:
        common |= {"contrast": drawn(c, classes), "absent": torch.zeros(classes).double()}
        common |= {"label_rows": drawn(classes, c), "conditional": drawn(classes, 4)}
    scalars = {"y_center": 0.1, "y_scale": 0.8, "y_spread": 1.0, "moment_features": 2.0}
    return Broadcast(-1, Clusters({}, K=1), common=common, scalars=scalars)


def one_block(classes: int | None) -> tuple[Samples, Broadcast]:
    shard, sent = data(classes).train, broadcast(classes)
    (block,) = cut(shard, shard.hashes, 0)
    return samples_of(block, sent), sent


def pairs_by_loops(aspect: Aspect, client: int, size: int, signs, refit) -> float:
    """The sum over pairs of different samples of the products of their scores, each score computed alone."""
    scores = []
    for j in range(size):
        design, residual = aspect.design[client, j], aspect.residual[client, j]
        spread = torch.eye(len(residual)).double() if aspect.spread is None else aspect.spread[client, j]
        moved = signs[j] * residual - spread @ (design @ refit)
        scores.append(torch.outer(design, moved))
    return sum(float((scores[j] * scores[k]).sum()) for j in range(size) for k in range(size) if j != k)


@pytest.mark.parametrize("classes", [None, 2, 3])
@pytest.mark.parametrize("name", ["model", "features", "labels", "conditional"])
def test_pairs_against_loops(name, classes):
    samples, sent = one_block(classes)
    aspect = aspect_of(name, samples, sent)
    random = np.random.default_rng(2)
    b, n, k = aspect.design.shape
    c = aspect.residual.shape[2]
    signs = torch.from_numpy(random.choice([-1.0, 1.0], (b, 3, n)))
    refit = torch.from_numpy(random.standard_normal((3, k * c)))
    fast = aspect.pairs(signs, refit)
    both = aspect.square_and_diagonal()
    for client, size in enumerate(samples.block.sizes.tolist()):
        for draw in range(3):
            slow = pairs_by_loops(aspect, client, size, signs[client, draw], refit[draw].reshape(k, c))
            assert float(fast[client, draw]) == pytest.approx(slow, abs=1e-9)
        still = pairs_by_loops(aspect, client, size, torch.ones(n), torch.zeros(k, c).double())
        assert float(both[client, 0] - both[client, 1]) == pytest.approx(still, abs=1e-9)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_a_client_of_one_sample_has_no_pairs(classes):
    samples, sent = one_block(classes)
    alone = int((samples.block.sizes == 1).nonzero()[0])
    for name in ASPECTS:
        both = aspect_of(name, samples, sent).square_and_diagonal()[alone]
        assert float(both[0]) == pytest.approx(float(both[1]), abs=1e-9)


def test_slopes_with_own_intercepts_against_least_squares():
    """r = y - z b - a with a the client's mean; two samples leave the slopes open, so that U is 0 for every sign."""
    samples, sent = one_block(None)
    aspect = aspect_of("relation", samples, sent)
    assert isinstance(aspect, Profiled)
    y = (samples.block.y - 0.1) / 0.8
    for client, size in enumerate(samples.block.sizes.tolist()):
        z = samples.z[client, :size]
        r = y[client, :size] - z @ sent.common["slopes"][:, 0]
        score = (z - z.mean(dim=0)).T @ (r - r.mean())
        assert torch.allclose(aspect.scores[client].sum(dim=0), score)
        if size == 2:
            signs = torch.tensor([[[1.0, 1], [1, -1]]]).double()
            padded = torch.zeros(len(samples.z), 2, samples.z.shape[1]).double()
            padded[client, :, :2] = signs
            found = aspect.pairs(padded, torch.zeros(2, 2).double())[client]
            assert torch.allclose(found, torch.zeros(2).double(), atol=1e-6)


def test_own_intercepts_of_three_classes_leave_no_residual_on_average():
    samples, sent = one_block(3)
    aspect = aspect_of("relation", samples, sent)
    assert isinstance(aspect, Profiled)
    whole = samples.block.sizes >= 3  # such clients have every class
    assert float(aspect.inner.residual[whole].sum(dim=1).abs().max()) < 0.02


@pytest.mark.parametrize("offset", [[0.0, 0, 0, 0], [1.0, -2, 0.5, 3], [300.0, 299, -300, 0]])
def test_labels_given_their_number_against_all_orders(offset):
    """Every order of s first labels among the first n - 1 samples, with probability proportional to exp(sum of y o)."""
    o = torch.tensor(offset).double()
    either = torch.tensor([True, True, True, False])
    for s in range(4):
        first = torch.tensor([j < s for j in range(4)])
        orders = torch.tensor([[j in taken for j in range(4)] for taken in combinations(range(3), s)]).double()
        weights = torch.softmax(orders @ o, dim=0)
        mean = weights @ orders
        covariance = orders.T @ (orders * weights[:, None]) - torch.outer(mean, mean)
        left, found = given_their_number(o, first, either)
        assert torch.allclose(left, first.double() - mean, atol=1e-12)
        assert torch.allclose(found, covariance, atol=1e-12)


@pytest.mark.parametrize("n", [*range(1, 40), 1000])
def test_every_sample_is_in_one_part(n):
    place, real = parts_of(torch.tensor([float(n), 3.0]))
    assert sorted(place[0][real[0]].tolist()) == list(range(n))
    assert sorted(place[1][real[1]].tolist()) == [0, 1, 2]
    assert place.shape[2] <= max(2, MOST_TOGETHER)


def test_slopes_of_two_classes_do_not_depend_on_the_intercept():
    """Three samples with labels 1, 0, 0 in parts {0, 2} and {1}: only the first part has an order."""
    samples, sent = one_block(2)
    client = samples.block.sizes.tolist().index(3)
    samples.block.y[client, :3] = torch.tensor([1, 0, 0])
    aspect = aspect_of("relation", samples, sent)
    assert isinstance(aspect, Conditional)
    towards = float(sent.common["contrast"][0, 1] - sent.common["contrast"][0, 0])
    apart = samples.z[client, 0] - samples.z[client, 2]
    chance = torch.sigmoid(towards * apart @ sent.common["slopes"][:, 0])
    assert torch.allclose(aspect.scores[client].sum(dim=0), (1 - chance) * towards * apart)
    both = aspect.square_and_diagonal()[client]
    assert float(both[0]) == pytest.approx(float(both[1]))  # one part with a score: no pairs


def test_hessian_of_slopes_is_minus_the_derivative_of_their_scores():
    samples, sent = one_block(2)
    slopes, contrast = sent.common["slopes"], sent.common["contrast"][0]
    hessian = Conditional.of(samples, slopes, contrast).hessian
    for entry, step in enumerate(1e-6 * torch.eye(2).double()[..., None]):
        up = Conditional.of(samples, slopes + step, contrast).scores.sum(dim=1)
        down = Conditional.of(samples, slopes - step, contrast).scores.sum(dim=1)
        assert torch.allclose(hessian[:, entry], (down - up) / 2e-6, atol=1e-7)


def test_pairs_of_slopes_of_two_classes_against_loops():
    """The sum over pairs of different parts of the products of e S - H g, each part computed alone."""
    samples, sent = one_block(2)
    aspect = aspect_of("relation", samples, sent)
    assert isinstance(aspect, Conditional)
    random = np.random.default_rng(2)
    signs = torch.from_numpy(random.choice([-1.0, 1.0], (*samples.valid.shape, 2))).transpose(1, 2)
    refit = torch.from_numpy(random.standard_normal((2, 2)))
    fast = aspect.pairs(signs, refit)
    parts = [slice(part, part + 1) for part in range(aspect.design.shape[1])]
    alone = [Conditional(aspect.design[:, p], aspect.residual[:, p], aspect.spread[:, p]) for p in parts]
    for client in range(len(signs)):
        for draw in range(2):
            left = [
                signs[client, draw, j] * part.scores[client, 0] - part.hessian[client] @ refit[draw]
                for j, part in enumerate(alone)
            ]
            slow = sum(float(a @ b) for j, a in enumerate(left) for k, b in enumerate(left) if j != k)
            assert float(fast[client, draw]) == pytest.approx(slow, abs=1e-9)


def test_signs_depend_on_the_client_alone():
    shard, sent = data(None, sizes=(4, 7, 2, 30)).train, broadcast(None)

    def drawn(part):
        found = {}
        for samples, signs in signed(part, sent, seed=3, draws=5):
            for row, (place, size) in enumerate(zip(samples.block.positions, samples.block.sizes, strict=True)):
                found[part.ids[place]] = signs[row, :, : int(size)]
                assert set(found[part.ids[place]].flatten().tolist()) == {-1.0, 1.0}
        return found

    whole = drawn(shard)
    assert len(whole) == 4
    for client in range(4):
        for name, signs in drawn(shard.take(np.array([client]))).items():
            assert torch.equal(signs, whole[name])


def test_pairs_of_slopes_have_mean_zero_with_unequal_variances():
    """Clients of 3 to 6 samples whose noise grows with the feature: the mean of U is 0 within four standard errors."""
    random = np.random.default_rng(0)
    arrays = []
    for size in np.repeat([3, 4, 5, 6], 2000):
        x = random.standard_normal((size, 1))
        arrays.append((x, random.standard_normal(size) * (0.2 + x[:, 0] ** 2)))
    shard = from_arrays(arrays).train
    one, zero = torch.ones(1, 1).double(), torch.zeros(1).double()
    sent = broadcast(None)
    common = sent.common | {"center": zero, "basis": one, "slopes": 0 * one}
    sent = Broadcast(-1, sent.clusters, common=common, scalars=sent.scalars)
    found = []
    for samples in sample_blocks(shard, sent):
        both = aspect_of("relation", samples, sent).square_and_diagonal()
        found.append(both[:, 0] - both[:, 1])
    pairs = torch.cat(found)
    assert len(pairs) == 8000
    assert abs(float(pairs.mean())) < 4 * float(pairs.std()) / len(pairs) ** 0.5


@pytest.mark.parametrize("classes", [None, 3])
def test_pairs_of_slopes_against_loops(classes):
    """Residuals e r - V (a + z g) with the intercept a for which they add up to zero, each sample computed alone."""
    samples, sent = one_block(classes)
    aspect = aspect_of("relation", samples, sent)
    assert isinstance(aspect, Profiled)
    inner, random = aspect.inner, np.random.default_rng(2)
    assert inner.spread is not None
    b, n, k = inner.design.shape
    c = inner.residual.shape[2]
    signs = torch.from_numpy(random.choice([-1.0, 1.0], (b, 1, n)))
    refit = torch.from_numpy(random.standard_normal((1, k * c)))
    fast = aspect.pairs(signs, refit)[:, 0]
    for client, size in enumerate(samples.block.sizes.tolist()):
        if size < 3:
            continue
        z, r, spread = inner.design[client, :size], inner.residual[client, :size], inner.spread[client, :size]
        leverage = torch.stack([torch.trace(v @ torch.linalg.inv(spread.sum(dim=0))) / c for v in spread])
        stretched = r / (1 - leverage[:, None]).sqrt()
        moved = stretched * signs[client, 0, :size, None] - (spread @ (z @ refit.reshape(k, c))[..., None])[..., 0]
        intercept = torch.linalg.inv(spread.sum(dim=0) + 1e-6 * torch.eye(c)) @ moved.sum(dim=0)
        left = moved - spread @ intercept
        square = float((z.T @ left).pow(2).sum())
        lengths = (z - z.mean(dim=0)).pow(2).sum(dim=1)
        squares = left.pow(2).sum(dim=1)
        if classes is None:  # estimates of the variances of all samples that have the right means
            variances = size / (size - 2) * (squares - squares.sum() / (size * (size - 1)))
        else:
            variances = squares * size / (size - 1)
        diagonal = float(lengths @ variances)
        assert float(fast[client]) == pytest.approx(square - diagonal, rel=1e-4, abs=1e-6)
