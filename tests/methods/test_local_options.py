"""The local training that the options of a method describe."""

import pytest

from coterie.errors import ConfigError
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch, ProximalStep
from coterie.learners.optimizers import SGD, Adam
from coterie.learners.schedules import Constant, Cosine, ExponentialDecay, StepDecay
from coterie.methods import FedAvg

SEVEN = FullBatch(steps=7, lr=0.2)
BATCHES = MiniBatch(batch_size=10, epochs=3)


@pytest.mark.parametrize(
    ("default", "options", "expected"),
    [
        (FullBatch(), {"local_steps": 7}, FullBatch(steps=7)),
        (FullBatch(), {"local_epochs": 3}, FullBatch(steps=3)),  # a pass over a full batch is one step
        (FullBatch(), {"local_steps": 7, "batch_size": 10}, MiniBatch(batch_size=10, steps=7)),
        (FullBatch(), {"local_epochs": 3, "batch_size": 10}, MiniBatch(batch_size=10, epochs=3)),
        (FullBatch(), {"local_epochs": 3, "augment": "flip"}, FullBatch(steps=3, augment="flip")),
        (
            FullBatch(),
            {"local_epochs": 3, "batch_size": 10, "augment": "flip"},
            MiniBatch(batch_size=10, epochs=3, augment="flip"),
        ),
        (SEVEN, {}, SEVEN),
        (SEVEN, {"batch_size": 5}, MiniBatch(batch_size=5, steps=7, lr=0.2)),
        (SEVEN, {"lr": 0.5}, FullBatch(steps=7, lr=0.5)),
        (BATCHES, {"lr": 0.5}, MiniBatch(batch_size=10, epochs=3, lr=0.5)),
        (BATCHES, {"local_steps": 4}, MiniBatch(batch_size=10, steps=4)),
        (BATCHES, {"batch_size": 5}, MiniBatch(batch_size=5, epochs=3)),
        (ProximalStep(lr=0.5), {"local_steps": 4, "lr": 0.25}, ProximalStep(lr=0.25)),
        (FullBatch(), {"lr_decay": 0.5}, FullBatch(schedule=ExponentialDecay(0.5))),
        (FullBatch(schedule=Cosine()), {"lr_decay": 1.0}, FullBatch(schedule=Constant())),
        (
            FullBatch(),
            {"schedule": "step-decay:every=5,factor=0.5"},
            FullBatch(schedule=StepDecay(every=5, factor=0.5)),
        ),
        (FullBatch(), {"optimizer": "sgd:momentum=0.9"}, FullBatch(optimizer=SGD(momentum=0.9))),
        (FullBatch(prox=0.5), {"optimizer": Adam()}, FullBatch(prox=0.5, optimizer=Adam())),
    ],
)
def test_options_become_local_training(default, options, expected):
    assert LocalTraining.from_group(options, default) == expected
    assert LocalTraining.from_group(expected.to_group(default), default) == expected
    assert FedAvg(local=default).with_options(options).local == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 3, "local_epochs": 2, "batch_size": 4}, "epochs and steps both set the length"),
        ({"lr_decay": 0.5, "schedule": "cosine"}, "lr_decay and schedule both change the learning rate of the rounds"),
        ({"local_steps": 0}, "local_steps must be a whole number at least 1, got 0"),
        ({"lr": "fast"}, "lr must be a number above 0, or auto, got 'fast'"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg': did you mean 'sgd'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        LocalTraining.from_group(options, FullBatch())
