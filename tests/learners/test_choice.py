"""Choice of learners by name or by factory: accepted and refused values, and error messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners import LEARNERS, learner_options, make_learner

NUMBERS, CLASSES = Profile((4, 4), None), Profile((4, 4), 3)


def profile_for(spec: str) -> Profile:
    return NUMBERS if spec.startswith("linear") else CLASSES


SPECS = [
    "linear",
    "linear:bias=true,degree=2,half=false,scale=0.5",
    "logistic",
    "logistic:l2=0.01,bias=false",
    "mlp",
    "mlp:hidden=20-10,l2=1e-05",
    "cnn",
    "cnn:channels=3,hidden=7",
    "resnet18:width=0.125",
    "resnet18:width=0.123456789,norm=layer,stem=5",
    "mobilenet-v2:width=0.125,norm=layer,weights=none",
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_builds_the_same_learner_again(spec):
    learner = make_learner(spec, profile_for(spec))
    again = make_learner(learner.spec, profile_for(spec))
    assert again.spec == learner.spec
    start = again.start([3], torch.float64)
    for name, value in learner.start([3], torch.float64).items():
        assert torch.equal(start[name], value)


@pytest.mark.parametrize(
    ("spec", "setting", "value"),
    [
        ("linear:scale=0.123456789", "scale", 0.123456789),
        ("logistic:l2=0.123456789", "l2", 0.123456789),
        ("mlp:l2=1.00000001", "l2", 1.00000001),
    ],
)
def test_a_spec_keeps_every_digit(spec, setting, value):
    learner = make_learner(spec, profile_for(spec))
    assert getattr(make_learner(learner.spec, profile_for(spec)), setting) == value


def test_settings_are_read_by_their_type():
    learner = make_learner("mlp:hidden=20-10", CLASSES)
    assert learner.spec.startswith("mlp:hidden=20-10,l2=0")
    shapes = {n: tuple(p.shape[1:]) for n, p in learner.start([0], torch.float32).items() if n.endswith("weight")}
    assert shapes == {"layer0.weight": (20, 16), "layer1.weight": (10, 20), "layer2.weight": (3, 10)}
    assert "bias" not in make_learner("logistic:bias=false", CLASSES).start([0], torch.float64)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mpl", "unknown learner 'mpl': did you mean 'mlp'?"),
        ("zzzzz", "choose one of cnn, linear, logistic, mlp, mobilenet-v2, representation, resnet18"),
        ("mlp:hiden=3", "unknown setting 'hiden' of learner mlp: did you mean 'hidden'?"),
        ("mlp:hidden=a", "learner mlp: hidden must be"),
        ("mlp:hidden", "learner mlp: hidden must be"),
        ("mlp:hidden=0", "hidden needs widths of at least 1"),
        ("cnn:channels=1.5", "channels must be a whole number, got '1.5'"),
        ("logistic:l2=big", "l2 must be a number, got 'big'"),
        ("logistic:bias=yes", "bias must be true or false, got 'yes'"),
        ("module:mine", "pass this function again as learner="),
    ],
)
def test_a_bad_spec_is_refused_in_a_sentence(spec, words):
    with pytest.raises(ConfigError) as caught:
        make_learner(spec, CLASSES)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "mlp:l2=-1",
        "mlp:l2=nan",
        "logistic:l2=nan",
        "logistic:l2=inf",
        "cnn:channels=0",
        "cnn:hidden=0",
        "cnn:hidden=-2",
    ],
)
def test_a_setting_out_of_range_is_refused(spec):
    with pytest.raises(ConfigError):
        make_learner(spec, CLASSES)


@pytest.mark.parametrize("scale", ["nan", "inf"])
def test_a_scale_that_is_not_finite_is_refused(scale):
    with pytest.raises(ConfigError):
        make_learner(f"linear:scale={scale}", NUMBERS)


@pytest.mark.parametrize("shape", [(16,), (3, 8), (2, 2, 8, 8), (8, 3)])
def test_cnn_refuses_samples_that_are_not_images(shape):
    with pytest.raises(ConfigError, match="cnn needs images"):
        make_learner("cnn", Profile(shape, 3))


def test_options_list_types_and_defaults():
    options = learner_options("mlp")
    assert list(options) == ["hidden", "l2"]
    assert (options["hidden"].default, options["l2"].annotation) == ((64,), float)
    assert set(LEARNERS) == {"linear", "logistic", "representation", "mlp", "cnn", "resnet18", "mobilenet-v2"}


# ---- starts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["linear", "logistic", "mlp", "cnn", "resnet18:width=0.1", "mobilenet-v2:width=0.1"])
def test_an_initial_model_depends_on_its_key_only(spec):
    learner = make_learner(spec, profile_for(spec))
    many, alone = learner.start([1, 2, 3], torch.float64), learner.start([2], torch.float64)
    for name, value in many.items():
        assert torch.equal(value[1], alone[name][0])
    first = next(iter(many.values()))
    assert not torch.equal(first[0], first[1])
    assert all(p.dtype == torch.float32 for p in learner.start([1], torch.float32).values())


@pytest.mark.parametrize("spec", ["linear", "logistic", "mlp", "cnn"])
def test_global_random_states_are_left_alone(spec):
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    make_learner(spec, profile_for(spec)).start([1, 2], torch.float64)
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_an_initial_model_does_not_depend_on_the_global_seed():
    learner = make_learner("cnn", CLASSES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = learner.start([9], torch.float64)
        torch.manual_seed(2)
        second = learner.start([9], torch.float64)
    assert all(torch.equal(first[n], second[n]) for n in first)


# ---- modules of one's own ------------------------------------------------------------------------------------


def head(*layers: nn.Module, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, outputs))


class Forwards(nn.Module):
    """Module with a functional dropout in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.dropout(x.flatten(1), 0.5, training=True))


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: head(nn.BatchNorm1d(16)), "BatchNorm1d (1) keeps running statistics: use GroupNorm"),
        (lambda: head(nn.BatchNorm1d(16, track_running_stats=False)), "BatchNorm1d (1)"),
        (lambda: head(nn.BatchNorm1d(16, track_running_stats=False)).eval(), "BatchNorm1d (1)"),
        (lambda: head(nn.Dropout(0.5)), "Dropout (1) uses random numbers without a seed: remove it"),
        (lambda: head(nn.RReLU()), "rrelu"),
        (Forwards, "randomness"),
        (lambda: head(outputs=2), "3 classes need 3 outputs for each sample, but the module returns shape (2,)"),
        (lambda: nn.Linear(5, 3), "does not accept a batch of samples of shape (4, 4)"),
        (lambda: nn.Flatten(), "no trainable parameters"),
        (lambda: "net", "returned str: return a torch.nn.Module"),
    ],
    ids=[
        "batchnorm",
        "batchnorm-without-statistics",
        "frozen-batchnorm-without-statistics",
        "dropout",
        "rrelu",
        "functional-dropout",
        "outputs",
        "inputs",
        "no-parameters",
        "no-module",
    ],
)
def test_an_unsound_module_is_refused_in_a_sentence(factory, words):
    with pytest.raises(ConfigError) as caught:
        make_learner(factory, CLASSES)
    assert words.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_running_statistics_of_other_norms_are_refused():
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    with pytest.raises(ConfigError, match="InstanceNorm1d"):
        make_learner(lambda: nn.Sequential(norm, nn.Flatten(), nn.Linear(16, 3)), CLASSES)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: head(nn.BatchNorm1d(16)).eval(),
        lambda: head(nn.Dropout(0.5)).eval(),
        lambda: head(nn.Dropout(0.0)),
        lambda: head(nn.LayerNorm(16)),
    ],
    ids=["frozen-batchnorm", "frozen-dropout", "no-dropout", "layernorm"],
)
def test_a_sound_module_is_accepted(factory):
    assert make_learner(factory, CLASSES).classes == 3


def test_numbers_need_one_output():
    with pytest.raises(ConfigError, match="regression needs one output for each sample, but the module returns shape"):
        make_learner(lambda: head(outputs=2), NUMBERS)
    assert make_learner(lambda: head(outputs=1), NUMBERS).classes is None


def test_a_finished_module_in_place_of_a_factory_is_refused():
    with pytest.raises(ConfigError, match=r"function that returns a torch\.nn\.Module"):
        make_learner(head(), CLASSES)


def test_a_factory_that_is_not_callable_is_refused():
    with pytest.raises(ConfigError, match=r"function that returns a torch\.nn\.Module; got int"):
        make_learner(3, CLASSES)


def test_a_factory_is_named_in_the_spec():
    assert make_learner(head, CLASSES).spec == "module:head"
