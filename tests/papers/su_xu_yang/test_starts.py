"""Anchors and starts of mixed regression: the training loss by hand, verdicts that can fail."""

import numpy as np
import pytest

from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import stack_shard
from papers.su_xu_yang.starts import anchor_claims, start_claims, training_loss


def test_the_training_loss_takes_the_best_model_of_each_client():
    """Client a fits model 1 exactly, client b has squares 1 + 4 with model 0 and 16 + 1 with model 1."""
    x = np.array([[1.0], [2.0], [1.0], [1.0]])
    data = FederatedDataset("toy", stack_shard(["a", "b"], x, np.array([3.0, 6.0, -1.0, 2.0]), [2, 2]))
    assert training_loss(data, np.array([[0.0], [3.0]])) == pytest.approx(5.0)


def test_verdicts_on_anchors_and_starts():
    seeds = {seed: {"covered": 1.0, "coarse": 0.3, "two-phase": 1.0, "oracle": 1.0} for seed in range(10)}
    found = {"C.3, 20 anchors": seeds, "C.3, 29 anchors": {**seeds, 0: {**seeds[0], "covered": 0.0, "two-phase": 9.0}}}
    assert [claim.holds for claim in anchor_claims(found, False)] == [True] * 4
    found["C.3, 29 anchors"][1] = found["C.3, 29 anchors"][0]
    assert [claim.holds for claim in anchor_claims(found, False)] == [True, True, False, False]
    assert all(claim.holds is None for claim in anchor_claims({}, False))
    one = {"share": 0.6, "best by loss": 1.1, "oracle": 1.0, "median": 3.0}
    stuck, best, *others = start_claims({"su-c1, 100 starts": {0: one}}, False)
    assert (stuck.holds, best.holds) == (False, True)
    assert all(claim.holds is None for claim in others)
