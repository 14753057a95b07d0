"""Three answers: cluster, one model is as good, cannot tell."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.plain import from_plain, to_plain
from coterie.errors import TrainingError
from coterie.training.verdict import CannotTell, Cluster, HeldOut, OneModel, Verdict, judge

SHARE = 0.2


def data_of(losses, sizes=None, one=None) -> HeldOut:
    losses = np.asarray(losses, dtype=np.float64)
    sizes = np.full(losses.shape[2], 50) if sizes is None else np.asarray(sizes)
    return HeldOut.of(losses, sizes, SHARE, one)


def noisy(means, noise: float, clients: int = 30, seed: int = 0):
    """Losses (K, 3, clients) around these means, with noise that does not depend on K and a tenth of it that does."""
    random = np.random.default_rng(seed)
    common = random.standard_normal((3, clients))
    own = random.standard_normal((len(means), 3, clients))
    return np.asarray(means)[:, None, None] + noise * (common + 0.1 * own)


def test_the_smallest_number_that_is_not_clearly_beaten():
    found = judge(data_of(noisy([2.0, 1.0, 0.999], 0.5)))
    assert isinstance(found.verdict, Cluster)
    assert found.verdict.trained == 2
    assert found.loss.argmin() == 2
    assert (found.behind[2], found.error[2]) == (0, 0)


def test_one_model_is_as_good_only_with_a_bound():
    verdict = judge(data_of(noisy([1.0, 1.01, 1.02], 0.1))).verdict
    assert isinstance(verdict, OneModel)
    assert verdict.gain is not None
    assert verdict.gain.bound < 0.05
    assert "as good" in verdict.sentence
    assert "with 95 % confidence" in verdict.sentence
    assert verdict.warning is None


def test_a_difference_that_is_not_significant_does_not_mean_equality():
    """Losses of 4554 against 2013 whose difference is not significant: the decision is open."""
    random = np.random.default_rng(0)
    noise = 9000 * random.standard_normal((2, 3, 12))
    losses = np.array([4554.0, 2013.0])[:, None, None] + noise - noise.mean(axis=(1, 2), keepdims=True)
    verdict = judge(data_of(losses)).verdict
    assert isinstance(verdict, CannotTell)
    assert verdict.trained == 1
    assert verdict.preferred == 2
    assert verdict.samples_needed is not None
    assert verdict.samples_needed > verdict.samples == 50
    assert verdict.sentence.startswith("Cannot tell: too few samples. By the point estimate K = 2 is best")
    assert "clusters=2 trains the best guess" in (verdict.warning or "")


def test_enough_samples_show_the_gain():
    """With as many samples as a verdict asks for, the same gain is found in most draws."""
    random = np.random.default_rng(5)

    def drawn(samples: int) -> Verdict:
        gaps = 0.2 + random.standard_normal((3, 40)) * 3 / np.sqrt(0.2 * samples)
        return judge(data_of(np.stack([1 + gaps, np.ones((3, 40))]), np.full(40, samples))).verdict

    asked = [v.samples_needed for v in (drawn(20) for _ in range(40)) if isinstance(v, CannotTell) and v.preferred == 2]
    needed = int(np.median([each for each in asked if each is not None]))
    assert 20 < needed < 2000
    assert np.mean([isinstance(drawn(needed), Cluster) for _ in range(40)]) > 0.6


def test_a_gain_in_the_units_of_the_target():
    # a mean loss of (1/2) error^2: 8 is an RMSE of 4, 2 one of 2; every client and run alike
    losses = np.stack([np.full((2, 4), 8.0), np.full((2, 4), 2.0)])
    verdict = judge(data_of(losses, one=0.5)).verdict
    assert isinstance(verdict, Cluster)
    assert verdict.gain is not None
    assert (verdict.gain.base, verdict.gain.gain, verdict.gain.low) == (4, 2, 2)
    assert verdict.sentence == (
        "Cluster, K = 2: the RMSE on held-out samples falls from 4 with one model to 2 (gain 2, 95 % interval 2 to 2)."
    )


def test_clients_without_held_out_samples_do_not_count():
    losses = np.array([[[2.0, 1.0, np.nan]], [[1.0, 3.0, np.nan]]])
    data = data_of(losses, [50, 150, 1])
    assert data.mean == pytest.approx([(10 * 2 + 30 * 1) / 40, (10 * 1 + 30 * 3) / 40])  # a fifth is held out
    assert judge(data).verdict.trained == 1


def test_equal_losses_are_one_model():
    verdict = judge(data_of(np.ones((4, 3, 5)))).verdict
    assert isinstance(verdict, OneModel)
    assert "do not lower the log loss on held-out samples (1 with one model), with 95 % confidence" in verdict.sentence


def test_a_single_client_cannot_tell():
    verdict = judge(data_of(np.array([[[9.0]], [[1.0]]]))).verdict
    assert isinstance(verdict, CannotTell)
    assert verdict.gain is None
    assert "only one client" in verdict.sentence


def test_no_other_number_was_tried():
    assert judge(data_of(np.ones((1, 2, 3)))).verdict == OneModel(None)


def test_a_number_that_diverges_is_never_chosen():
    losses = np.ones((3, 2, 4))
    losses[0, 1, 2] = np.inf
    found = judge(data_of(losses))
    assert found.verdict == Cluster(2, None)
    assert found.behind[0] == np.inf
    assert np.isnan(found.error[0])
    with pytest.raises(TrainingError, match="held-out loss is infinite in all trial runs: lower lr"):
        judge(data_of(np.full((2, 2, 3), np.inf)))


@pytest.mark.parametrize("means", [(2.0, 1.0), (1.0, 1.0), (1.0, 0.9)])
def test_a_verdict_survives_its_plain_form(means):
    verdict = judge(data_of(noisy(means, 1.0, clients=8))).verdict
    assert from_plain(Verdict, to_plain(verdict)) == verdict
