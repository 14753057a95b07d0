"""Local training: refused settings, conversions, and support by learners."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.dataset import Profile
from coterie.core.plain import from_plain, from_text, to_plain, to_text
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.descent import batches
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch, PooledHeads, ProximalStep
from coterie.learners.optimizers import SGD, Adam, AdamW
from coterie.learners.schedules import Constant, Cosine, ExponentialDecay
from tests.core.make import class_data, make_block, regression_data


def test_mini_batches_take_one_epoch_by_default():
    assert MiniBatch() == MiniBatch(epochs=1)
    assert MiniBatch(steps=3).epochs is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FullBatch(steps=0), "full-batch: steps must be at least 1, got 0"),
        (lambda: FullBatch(lr=0.0), "full-batch: lr must be a finite number above 0, got 0.0"),
        (lambda: FullBatch(lr=float("inf")), "lr must be a finite number above 0, got inf"),
        (lambda: FullBatch(prox=-1.0), "full-batch: prox must be a finite number of at least 0, got -1.0"),
        (lambda: FullBatch(prox=float("nan")), "prox must be a finite number of at least 0, got nan"),
        (lambda: FullBatch(order="solved-heads"), "unknown order 'solved-heads' of full-batch"),
        (lambda: FullBatch(augment="flop"), "unknown augmentation 'flop': did you mean 'flip'"),
        (lambda: MiniBatch(batch_size=0), "mini-batch: batch_size must be at least 1, got 0"),
        (lambda: MiniBatch(epochs=0), "mini-batch: epochs must be at least 1, got 0"),
        (lambda: MiniBatch(steps=0), "mini-batch: steps must be at least 1, got 0"),
        (lambda: MiniBatch(epochs=1, steps=1), "epochs and steps both set the length of local training: give one"),
        (lambda: replace(MiniBatch(), steps=4), "epochs and steps both set the length of local training: give one"),
        (lambda: ProximalStep(lr=-1.0), "proximal-step: lr must be a finite number above 0, got -1.0"),
        (lambda: ProximalStep(prox=0.1), "proximal-step takes no gradient steps, so prox has no effect: leave it out"),
        (lambda: ProximalStep(optimizer=Adam()), "proximal-step takes no gradient steps, so optimizer has no effect"),
        (lambda: PooledHeads(augment="flip"), "pooled-heads takes no gradient steps, so augment has no effect"),
        (lambda: PooledHeads(order="heads-first"), "pooled-heads takes no gradient steps, so order has no effect"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


TRAININGS = st.one_of(
    st.builds(FullBatch, steps=st.integers(1, 9), optimizer=st.sampled_from([SGD(), Adam(), AdamW(beta1=0.5)])),
    st.builds(MiniBatch, batch_size=st.integers(1, 9), epochs=st.integers(1, 3), schedule=st.just(Cosine(floor=0.2))),
    st.builds(MiniBatch, steps=st.integers(1, 9), prox=st.floats(0, 9), augment=st.sampled_from(["none", "flip,crop"])),
    st.builds(ProximalStep, lr=st.floats(0.01, 9), schedule=st.just(ExponentialDecay(0.5))),
    st.builds(PooledHeads, lr=st.floats(0.01, 9)),
)


@given(TRAININGS)
def test_local_training_survives_json(training):
    assert from_plain(LocalTraining, json.loads(json.dumps(to_plain(training)))) == training


@pytest.mark.parametrize(
    "training",
    [
        FullBatch(),
        FullBatch(steps=3, lr=0.5, prox=0.25, order="heads-first"),
        MiniBatch(batch_size=8, steps=3, optimizer=Adam(), schedule=Cosine()),
        MiniBatch(optimizer=SGD(momentum=0.9)),
        ProximalStep(lr=0.5),
    ],
)
def test_local_training_survives_its_text(training):
    assert from_text(LocalTraining, to_text(training)) == training


def test_the_rate_of_a_round_follows_the_schedule():
    training = FullBatch(lr=0.5, schedule=ExponentialDecay(0.5))
    assert [training.rate(t, 3) for t in range(3)] == [0.5, 0.25, 0.125]
    assert replace(training, schedule=Constant()).rate(2, 3) == 0.5


@pytest.mark.parametrize(
    ("training", "kept", "with_seven"),
    [
        (FullBatch(steps=3, prox=0.1), FullBatch(steps=3), FullBatch(steps=7)),
        (MiniBatch(epochs=2, prox=0.1), MiniBatch(epochs=2), MiniBatch(steps=7)),
        (MiniBatch(steps=2, prox=0.1), MiniBatch(steps=2), MiniBatch(steps=7)),
        (ProximalStep(lr=0.3), FullBatch(steps=1, lr=0.3), FullBatch(steps=7, lr=0.3)),
        (PooledHeads(lr=0.3), FullBatch(steps=1, lr=0.3), FullBatch(steps=7, lr=0.3)),
    ],
)
def test_the_same_training_without_proximal_term(training, kept, with_seven):
    assert training.without_prox() == kept
    assert training.without_prox(7) == with_seven


def test_one_pass():
    assert FullBatch(steps=3).one_pass() == FullBatch(steps=1)
    assert MiniBatch(steps=3, batch_size=4).one_pass() == MiniBatch(epochs=1, batch_size=4)
    assert MiniBatch(epochs=3, batch_size=4).one_pass() == MiniBatch(epochs=1, batch_size=4)


def test_a_path_names_the_optimizer_unless_it_is_plain():
    assert FullBatch().path("autograd") == "autograd"
    assert FullBatch(optimizer=Adam()).path("autograd") == "autograd:adam"
    assert FullBatch(optimizer=SGD(momentum=0.9)).path("heads") == "heads:sgd"
    assert FullBatch(optimizer=SGD(weight_decay=0.1)).path("heads") == "heads:sgd"


@pytest.mark.parametrize("training", [ProximalStep(), PooledHeads()], ids=lambda t: t.name)
@pytest.mark.parametrize("spec", ["logistic", "mlp:hidden=4", "cnn:channels=1,hidden=3"])
def test_learners_that_only_take_gradient_steps_refuse_other_training(spec, training):
    learner = make_learner(spec, Profile((4, 4), 3))
    block, models = make_block(class_data([4, 4], (4, 4), 3)), learner.start([1], torch.float64)
    rows, mass = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1, dtype=torch.float64)
    theta = {name: p[:, None].expand(2, *p[:, None].shape[1:]) for name, p in models.items()}
    with pytest.raises(ConfigError, match=f"this learner trains by gradient steps, not by {training.name}"):
        learner.descend(theta, block, training, 0.1)
    with pytest.raises(ConfigError, match=f"this learner trains by gradient steps, not by {training.name}"):
        learner.contribute(models, rows, block, training, 0.1, mass, None)


def test_linear_models_pool_no_heads():
    learner = make_learner("linear", Profile((3,), None))
    theta = {name: p[:, None] for name, p in learner.start([1], torch.float64).items()}
    with pytest.raises(ConfigError, match="not by pooled-heads: use full-batch or mini-batch"):
        learner.descend(theta, make_block(regression_data([4], 3)), PooledHeads(), 0.1)


def test_a_training_without_gradient_steps_has_no_batches():
    with pytest.raises(ConfigError, match="not by proximal-step"):
        next(batches(make_block(regression_data([4], 3)), ProximalStep()))
