"""ResNet-18 and MobileNet-V2: shapes and counts by hand, steps against a plain loop, stored weights, features."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie import ConfigError, fit, load
from coterie.core.dataset import Profile
from coterie.files import read_tensors
from coterie.learners import make_learner
from coterie.learners.base import has_features
from coterie.learners.local_training import FullBatch
from coterie.learners.module import ModuleLearner
from coterie.learners.networks.norms import NORMS, FrozenBatchNorm, scaled
from coterie.testing.checks import LEARNERS, Case, check_engines, small_federation, small_module
from tests.core.make import class_data, make_block

CIFAR = Profile((3, 32, 32), 10)
SMALL = Profile((3, 8, 8), 4)
NARROW = {"resnet18": "resnet18:width=0.125", "mobilenet-v2": "mobilenet-v2:width=0.125"}


def built(spec: str, profile: Profile = SMALL) -> ModuleLearner:
    learner = make_learner(spec, profile, read_tensors)
    assert isinstance(learner, ModuleLearner)
    return learner


def meta(spec: str, profile: Profile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all arrays of a learner's module by name."""
    return {name: tuple(a.shape) for name, a in built(spec, profile).module.state_dict().items()}


def random_arrays(spec: str, profile: Profile, seed: int = 0) -> dict[str, Tensor]:
    """Return random values for all arrays of a learner's module, with positive variances."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=random) / 4 + (0.5 if name.endswith("running_var") else -0.1)
        for name, shape in meta(spec, profile).items()
    }


# ---- the networks themselves ---------------------------------------------------------------------------------


def test_resnet18_has_the_known_number_of_parameters():
    convolutions = 64 * 3 * 9  # the stem
    convolutions += 4 * 64 * 64 * 9  # two blocks of two, as many channels out as in
    for before, after in ((64, 128), (128, 256), (256, 512)):
        convolutions += before * after * 9 + 3 * after * after * 9 + before * after  # the last is the short cut
    norms = 2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512)  # scale and shift; stem or short cut and four of two blocks
    expected = convolutions + norms + 512 * 10 + 10
    assert expected == 11_173_962
    assert sum(p.numel() for p in built("resnet18", CIFAR).module.parameters()) == expected


def test_mobilenet_v2_has_the_known_number_of_parameters():
    expected, before = 32 * 3 * 9 + 2 * 32, 32
    for expansion, after, blocks in (
        (1, 16, 1),
        (6, 24, 2),
        (6, 32, 3),
        (6, 64, 4),
        (6, 96, 3),
        (6, 160, 3),
        (6, 320, 1),
    ):
        for _ in range(blocks):
            many = before * expansion
            expected += (before * many + 2 * many) * (expansion > 1)  # to many channels
            expected += many * 9 + 2 * many + many * after + 2 * after  # each by itself, back to few
            before = after
    expected += 320 * 1280 + 2 * 1280 + 1280 * 10 + 10
    assert expected == 2_236_682
    assert sum(p.numel() for p in built("mobilenet-v2", CIFAR).module.parameters()) == expected


def test_the_imagenet_form_has_the_number_of_parameters_of_torchvision():
    """11 689 512 and 3 504 872 parameters, some of which are buffers of frozen normalisation."""
    imagenet = Profile((3, 32, 32), 1000)
    assert sum(p.numel() for p in built("resnet18:stem=7", imagenet).module.parameters()) == 11_689_512
    assert sum(p.numel() for p in built("mobilenet-v2", imagenet).module.parameters()) == 3_504_872


def norm_names(name: str) -> list[str]:
    return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]


def torchvision_resnet18() -> set[str]:
    names = ["conv1.weight", *norm_names("bn1"), "fc.weight", "fc.bias"]
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            for part in (1, 2):
                names += [f"layer{layer}.{block}.conv{part}.weight", *norm_names(f"layer{layer}.{block}.bn{part}")]
        if layer > 1:
            names += [f"layer{layer}.0.downsample.0.weight", *norm_names(f"layer{layer}.0.downsample.1")]
    return set(names)


def torchvision_mobilenet_v2() -> set[str]:
    names = ["classifier.1.weight", "classifier.1.bias"]
    for layer in (0, 18):
        names += [f"features.{layer}.0.weight", *norm_names(f"features.{layer}.1")]
    for layer in range(1, 18):
        first = 1 if layer == 1 else 2  # the first block does not expand
        for part in range(first):
            names += [f"features.{layer}.conv.{part}.0.weight", *norm_names(f"features.{layer}.conv.{part}.1")]
        names += [f"features.{layer}.conv.{first}.weight", *norm_names(f"features.{layer}.conv.{first + 1}")]
    return set(names)


def frozen(name: str, path: Path, profile: Profile = SMALL, more: str = "") -> str:
    """Return the spec of a network with frozen batch normalisation, and a file with its arrays."""
    plain = meta(f"{NARROW[name]}{more}", profile)
    random = torch.Generator().manual_seed(4)
    arrays = {n: torch.rand(shape, generator=random) / 4 - 0.1 for n, shape in plain.items()}
    for bias in [n for n, shape in plain.items() if n.endswith(".bias") and not n.startswith(("fc", "classifier"))]:
        stem = bias.removesuffix("bias")
        arrays[f"{stem}running_mean"] = torch.randn(plain[bias], generator=random) / 4
        arrays[f"{stem}running_var"] = torch.rand(plain[bias], generator=random) + 0.5
    save_file(arrays, path)
    return f"{NARROW[name]}{more},norm=frozen-batch,weights={path}"


@pytest.mark.parametrize(
    ("name", "names"), [("resnet18", torchvision_resnet18()), ("mobilenet-v2", torchvision_mobilenet_v2())]
)
def test_arrays_have_the_names_of_torchvision(name, names, tmp_path):
    found = built(frozen(name, tmp_path / "w.safetensors")).module.state_dict()
    assert set(found) == names
    assert len(names) == {"resnet18": 102, "mobilenet-v2": 262}[name]


@pytest.mark.parametrize("spec", NARROW.values())
@pytest.mark.parametrize("shape", [(32, 32), (3, 32, 32), (3, 9, 7), (1, 1)])
def test_outputs_have_their_shape(spec, shape):
    learner = make_learner(spec, Profile(shape, 4))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, *shape)))
    out = learner.outputs(learner.start([1, 2], torch.float64), x)
    assert out.shape == (2, 3, 4)
    assert bool(out.isfinite().all())


def test_images_shrink_eightfold_by_strides():
    """32x32 images leave the last stage of both networks as 4x4, as usual for CIFAR."""
    seen = {}
    for spec, last in (("resnet18:width=0.125", "layer4"), ("mobilenet-v2:width=0.125", "features")):
        module = built(spec, CIFAR).module
        module.get_submodule(last).register_forward_hook(lambda part, x, out, spec=spec: seen.update({spec: out.shape}))
        module(torch.zeros(2, 3, 32, 32))
    assert {shape[2:] for shape in seen.values()} == {(4, 4)}
    assert len(seen) == 2


def test_numbers_have_one_output():
    learner = make_learner(NARROW["resnet18"], Profile((4, 4), None))
    assert learner.outputs(learner.start([1], torch.float64), torch.zeros(1, 3, 4, 4, dtype=torch.float64)).shape == (
        1,
        3,
    )


@pytest.mark.parametrize(
    ("channels", "width", "expected"),
    [(64, 1.0, 64), (64, 0.125, 8), (24, 0.5, 16), (16, 0.1, 8), (32, 1.4, 48), (96, 0.75, 72)],
)
def test_channels_are_multiples_of_eight(channels, width, expected):
    """24 x 0.5 = 12 is as near to 8 as to 16, 32 x 1.4 = 44.8 is nearest to 48; 16 x 0.1 = 1.6 becomes the least."""
    assert scaled(channels, width) == expected


def test_channels_never_lose_more_than_a_tenth():
    # 80 x 0.145 = 11.6 is nearest to 8, a third less: 16 it is
    assert scaled(80, 0.145) == 16


# ---- normalisations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
def test_a_normalisation_equals_its_definition(name):
    random = torch.Generator().manual_seed(1)
    layer = NORMS[name](16).double()
    for a in layer.state_dict().values():
        a.copy_(torch.rand(a.shape, generator=random, dtype=torch.float64) + 0.5)
    x = torch.randn(3, 16, 4, 5, generator=random, dtype=torch.float64)
    expected = torch.zeros_like(x)
    size = {"group": 8, "layer": 16, "frozen-batch": 1}[name]
    for sample in range(3):
        for channel in range(16):
            first = channel // size * size
            group = x[sample, first : first + size]
            mean, var = group.mean(), ((group - group.mean()) ** 2).mean()
            if isinstance(layer, FrozenBatchNorm):
                mean, var = layer.running_mean[channel], layer.running_var[channel]
            normal = (x[sample, channel] - mean) / (var + 1e-5) ** 0.5
            expected[sample, channel] = normal * layer.weight[channel] + layer.bias[channel]
    for memory in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(layer(x.contiguous(memory_format=memory)), expected, rtol=1e-9, atol=1e-9)


def test_frozen_normalisation_equals_torch_in_evaluation():
    random = torch.Generator().manual_seed(2)
    ours, theirs = FrozenBatchNorm(8).double(), nn.BatchNorm2d(8).double().eval()
    for a in ours.state_dict().values():
        a.copy_(torch.rand(a.shape, generator=random, dtype=torch.float64) + 0.5)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(2, 8, 3, 3, generator=random, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", ["resnet18:width=0.125", "mobilenet-v2:width=0.125,norm=layer"])
def test_a_sample_does_not_see_the_others(spec):
    learner = make_learner(spec, SMALL)
    theta = learner.start([1], torch.float64)
    x = make_block(class_data([5], (3, 8, 8), 4)).x
    torch.testing.assert_close(
        learner.outputs(theta, x[:, 2:3]), learner.outputs(theta, x)[:, 2:3], rtol=1e-9, atol=1e-9
    )


# ---- many clients against one at a time ----------------------------------------------------------------------


def specs(tmp_path: Path) -> dict[str, str]:
    return {
        "resnet18": NARROW["resnet18"],
        "mobilenet-v2": NARROW["mobilenet-v2"],
        "layer": "resnet18:width=0.125,norm=layer,stem=5",
        "frozen": frozen("mobilenet-v2", tmp_path / "w.safetensors"),
    }


KINDS = ("resnet18", "mobilenet-v2", "layer", "frozen")


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_after_the_other_equals_vmap(kind, tmp_path):
    learner = built(specs(tmp_path)[kind])
    block = make_block(class_data([3, 3], (3, 8, 8), 4))
    theta = {name: torch.cat([p, 1.1 * p]) for name, p in learner.start([1], torch.float64).items()}
    module = copy.deepcopy(learner.module).double()
    at_once = vmap(lambda params, batch: functional_call(module, params, (batch,)))(theta, block.x)
    torch.testing.assert_close(learner.outputs(theta, block.x), at_once, rtol=1e-9, atol=1e-9)


def plain_steps(net: nn.Module, x: np.ndarray, y: np.ndarray, steps: int, lr: float) -> dict[str, Tensor]:
    """Return the change of one model by full-batch gradient descent in plain torch, by parameter name."""
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return {n: p.detach() - before[n] for n, p in net.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_equals_a_plain_loop_over_clients(kind, tmp_path):
    """Clients of 3, 5 and 4 samples; two train model 0, one model 1; sums weighted by 3, 5, 4."""
    learner = built(specs(tmp_path)[kind])
    data = class_data([3, 5, 4], (3, 8, 8), 4)
    models, rows = learner.start([1, 2], torch.float64), torch.tensor([[0], [1], [0]])
    mass = torch.tensor([[3.0], [5.0], [4.0]], dtype=torch.float64)
    given = learner.contribute(models, rows, make_block(data), FullBatch(steps=2), 0.05, mass, None)
    expected = {name: torch.zeros_like(p) for name, p in models.items()}
    for (x, y), (row,), (weight,) in zip(data, rows.tolist(), mass.tolist(), strict=True):
        net = copy.deepcopy(learner.module).double()
        net.load_state_dict({name: p[row] for name, p in models.items()}, strict=False)
        for name, change in plain_steps(net, x, y, 2, 0.05).items():
            expected[name][row] += weight * change
    assert given.path == "one-by-one"
    assert bool(given.finite.all())
    for name, value in expected.items():
        torch.testing.assert_close(given.sums[name], value, rtol=1e-9, atol=1e-9)


def test_a_client_that_is_not_finite_does_not_contribute_to_the_sums():
    learner = make_learner(NARROW["resnet18"], SMALL)
    data = class_data([3, 3], (3, 8, 8), 4)
    models, work = learner.start([1], torch.float64), FullBatch(steps=1)
    rows, mass = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.float64)
    alone = learner.contribute(models, rows[:1], make_block(data[:1]), work, 0.05, mass[:1], None)
    data[1][0][0, 0, 0, 0] = np.nan
    both = learner.contribute(models, rows, make_block(data), work, 0.05, mass, None)
    assert both.finite.tolist() == [[True], [False]]
    for name, value in alone.sums.items():
        torch.testing.assert_close(both.sums[name], value, rtol=1e-9, atol=1e-9)


def test_frozen_normalisation_is_no_parameter(tmp_path):
    learner = built(frozen("resnet18", tmp_path / "w.safetensors"))
    assert {name for name in learner.start([1], torch.float32) if "bn" in name or "downsample.1" in name} == set()


# ---- features and heads --------------------------------------------------------------------------------------


FEATURES = {
    "mlp": ("mlp:hidden=5", 5),
    "deep mlp": ("mlp:hidden=6-5-3", 3),
    "cnn": ("cnn:channels=2,hidden=7", 7),
    "resnet18": (NARROW["resnet18"], 64),
    "mobilenet-v2": (NARROW["mobilenet-v2"], 1280),
}


@pytest.mark.parametrize("classes", [4, None])
@pytest.mark.parametrize(("spec", "width"), FEATURES.values(), ids=FEATURES)
def test_outputs_are_the_head_of_the_features(spec, width, classes):
    learner = make_learner(spec, Profile((3, 8, 8), classes))
    assert has_features(learner)
    theta = learner.start([1, 2], torch.float64)
    x = make_block(class_data([3, 3], (3, 8, 8), 4)).x
    features = learner.features(theta, x)
    assert features.shape == (2, 3, width)
    weight, bias = theta[f"{learner.head}.weight"], theta[f"{learner.head}.bias"]
    for b in range(2):
        expected = features[b] @ weight[b].T + bias[b]
        if classes is None:
            expected = expected[:, 0]
        torch.testing.assert_close(learner.outputs(theta, x)[b], expected, rtol=1e-9, atol=1e-9)


def test_a_single_feature_keeps_its_axis():
    learner = make_learner("cnn:channels=1,hidden=1", Profile((4, 4), None))
    assert has_features(learner)
    x = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    assert learner.features(learner.start([1, 2], torch.float64), x).shape == (2, 3, 1)


def test_only_learners_with_a_head_have_features():
    assert has_features(make_learner(small_module, Profile((4, 4), 3)))
    assert not has_features(make_learner(lambda: nn.Linear(4, 3), Profile((4,), 3)))
    assert not has_features(make_learner("logistic", Profile((4, 4), 3)))


BODIES = {"resnet18": "conv1,bn1,layer1,layer2,layer3,layer4", "mobilenet-v2": "features"}


@pytest.mark.parametrize("name", BODIES)
def test_scores_with_a_shared_body_equal_those_of_each_model(name, monkeypatch):
    learner = make_learner(NARROW[name], SMALL)
    assert has_features(learner)
    block = make_block(class_data([3, 2], (3, 8, 8), 4))
    models = learner.start([1, 2, 3], torch.float64)
    models = {n: p if n.startswith(learner.head) else p[:1].expand_as(p).clone() for n, p in models.items()}
    seen: list[int] = []
    real = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: (seen.append(1), real(self, x))[1])
    table = learner.score(models, block).losses
    assert len(seen) == {"resnet18": 20, "mobilenet-v2": 52}[name]  # every convolution once for all three models
    for s in range(3):
        one = {n: p[s : s + 1].expand(2, *p.shape[1:]) for n, p in models.items()}
        torch.testing.assert_close(table[..., s], learner.losses(one, block.x, block.y), rtol=1e-9, atol=1e-9)


# ---- federated -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "method"), [("resnet18", "fedavg"), ("mobilenet-v2", "ifca")])
def test_engines_agree(name, method, monkeypatch):
    monkeypatch.setitem(LEARNERS, name, NARROW[name])
    options = {"rounds": 1, "local_steps": 1} | ({"shared": BODIES[name]} if method == "ifca" else {})
    check_engines(Case(method, name, options, sizes=(3, 5, 2)))


@pytest.mark.parametrize("name", NARROW)
def test_a_shared_body_is_one_and_heads_are_many(name):
    data = small_federation(name, sizes=(4, 6, 5))
    result = fit(data, "ifca", learner=NARROW[name], clusters=2, rounds=1, local_steps=1, lr=0.05, shared=BODIES[name])
    head = "fc" if name == "resnet18" else "classifier.1"
    one, other = result.models
    same = {n for n in one if np.array_equal(one[n], other[n])}
    assert same == {n for n in one if not n.startswith(f"{head}.")}


# ---- stored weights ------------------------------------------------------------------------------------------


def stored(path: Path, arrays: Mapping[str, Tensor]) -> Path:
    save_file(dict(arrays), path)
    return path


@pytest.mark.parametrize("name", NARROW)
def test_initial_weights_from_a_file_are_those_of_the_file(name, tmp_path):
    arrays = random_arrays(NARROW[name], SMALL)
    learner = built(f"{NARROW[name]},weights={stored(tmp_path / 'w.safetensors', arrays)}")
    start = learner.start([1, 2], torch.float32)
    assert set(start) == set(arrays)
    for key, value in arrays.items():
        assert torch.equal(start[key], torch.stack([value, value]))
    again = built(learner.spec).start([1], torch.float32)
    assert all(torch.equal(again[key][0], value) for key, value in arrays.items())


def test_frozen_statistics_come_from_the_file(tmp_path):
    """The whole network equals one with torch's BatchNorm2d in evaluation; the counters of its batches are ignored."""
    spec = frozen("resnet18", tmp_path / "w.safetensors")
    arrays = read_tensors(str(tmp_path / "w.safetensors"))
    learner = built(spec)
    reference = copy.deepcopy(learner.module)
    for name, part in list(reference.named_modules()):
        if isinstance(part, FrozenBatchNorm):
            parent, _, leaf = name.rpartition(".")
            setattr(reference.get_submodule(parent), leaf, nn.BatchNorm2d(len(part.weight)))
    reference = reference.double().eval()
    reference.load_state_dict(arrays, strict=False)
    save_file(reference.float().state_dict(), tmp_path / "w.safetensors")
    assert any(name.endswith("num_batches_tracked") for name in read_tensors(str(tmp_path / "w.safetensors")))
    learner, x = built(spec), make_block(class_data([3], (3, 8, 8), 4)).x
    found = learner.outputs(learner.start([1], torch.float64), x)[0]
    torch.testing.assert_close(found, reference.double()(x[0]), rtol=1e-9, atol=1e-9)
    assert float(found.std()) > 1e-3  # or nothing would be compared


@pytest.mark.parametrize(("name", "head"), [("resnet18", "fc"), ("mobilenet-v2", "classifier.1")])
def test_a_last_layer_of_another_shape_is_initialised_at_random_with_a_warning(name, head, tmp_path):
    arrays = random_arrays(NARROW[name], Profile((3, 8, 8), 7))
    path = stored(tmp_path / "w.safetensors", arrays)
    with pytest.warns(UserWarning, match=r"the last layer is initialised at random") as reported:
        learner = built(f"{NARROW[name]},weights={path}")
    assert len(reported) == 1
    assert f"'{head}.bias': (7,)" in str(reported[0].message)
    assert f"'{head}.bias': (4,)" in str(reported[0].message)
    start = learner.start([1, 2], torch.float32)
    fresh = built(NARROW[name]).start([1, 2], torch.float32)
    for key, value in start.items():
        wanted = fresh[key] if key.startswith(f"{head}.") else torch.stack([arrays[key]] * 2)
        assert torch.equal(value, wanted)
    assert not torch.equal(start[f"{head}.weight"][0], start[f"{head}.weight"][1])


def test_a_last_layer_that_the_file_lacks_is_initialised_by_the_key(tmp_path):
    arrays = {n: a for n, a in random_arrays(NARROW["resnet18"], SMALL).items() if not n.startswith("fc.")}
    with pytest.warns(UserWarning, match="the file has no fc"):
        learner = built(f"{NARROW['resnet18']},weights={stored(tmp_path / 'w.safetensors', arrays)}")
    start = learner.start([1, 2], torch.float32)
    assert not torch.equal(start["fc.weight"][0], start["fc.weight"][1])


def test_clusters_start_from_one_body_and_a_finished_run_reads_the_file_again(tmp_path):
    arrays = {n: a for n, a in random_arrays(NARROW["resnet18"], Profile((4, 4), 3)).items() if not n.startswith("fc.")}
    spec = f"{NARROW['resnet18']},weights={stored(tmp_path / 'w.safetensors', arrays)}"
    data = small_federation("resnet18", sizes=(4, 6, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(data, "ifca", learner=spec, clusters=2, rounds=1, lr=1e-30, out=tmp_path / "run")
        back = load(tmp_path / "run")
    for model in result.models:
        np.testing.assert_array_equal(model["conv1.weight"], arrays["conv1.weight"].numpy())
    assert back.config["learner"].endswith("w.safetensors")
    np.testing.assert_array_equal(back.models[1]["fc.weight"], result.models[1]["fc.weight"])


def test_equal_initial_models_of_all_clusters_are_refused(tmp_path):
    path = stored(tmp_path / "w.safetensors", random_arrays(NARROW["resnet18"], Profile((4, 4), 3)))
    data = small_federation("resnet18", sizes=(4, 6, 5))
    with pytest.raises(ConfigError, match="all initial models of this learner are equal"):
        fit(data, "ifca", learner=f"{NARROW['resnet18']},weights={path}", clusters=2, rounds=1)


def refusal(spec: str, profile: Profile = SMALL) -> str:
    with pytest.raises(ConfigError) as caught:
        make_learner(spec, profile, read_tensors)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_does_not_fit_is_refused_in_a_sentence(tmp_path):
    narrow = NARROW["resnet18"]
    arrays, path = random_arrays(narrow, SMALL), tmp_path / "w.safetensors"
    spec = f"{narrow},weights={path}"
    kind = "resnet18:width=0.125,norm=group,stem=3"

    stored(path, arrays | {"conv1.weight": torch.zeros(8, 3, 7, 7)})
    assert f"conv1.weight has shape (8, 3, 7, 7), but {kind} needs (8, 3, 3, 3): use the settings" in refusal(spec)

    stored(path, arrays | {"conv1.weight": torch.zeros(8, 3, 7, 7), "fc.bias": torch.zeros(9)})
    assert "conv1.weight has shape" in refusal(spec)  # and no warning about the last layer

    stored(path, {name: a for name, a in arrays.items() if name != "layer1.0.bn1.bias"})
    assert "but lack layer1.0.bn1.bias: save the state_dict of such a network" in refusal(spec)

    stored(path, arrays | {"extra": torch.zeros(2), "spare": torch.zeros(1)})
    assert "but also have extra and 1 more: save the state_dict" in refusal(spec)

    stored(path, arrays | {"bn1.running_mean": torch.zeros(8)})
    assert refusal(spec).endswith(f"with batch normalisation, but this is {kind}: set norm=frozen-batch")

    stored(path, arrays)
    assert "have no statistics of batch normalisation" in refusal(f"{narrow},norm=frozen-batch,weights={path}")

    stored(path, arrays | {"bn1.weight": torch.full((8,), torch.inf)})
    assert "bn1.weight has values that are not finite" in refusal(spec)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"", "header"), (b"PK\x03\x04 not this format", "header")]
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(content, reason, tmp_path):
    path = tmp_path / "w.pth"
    if content is not None:
        path.write_bytes(content)
    reported = refusal(f"{NARROW['resnet18']},weights={path}")
    assert reported.startswith(f"'{path}' must be a safetensors file, but it cannot be read (")
    assert reason.lower() in reported.lower()
    assert reported.endswith("write one with safetensors.torch.save_file(model.state_dict(), path)")


def test_a_learner_reads_no_file_without_a_reader(tmp_path):
    path = stored(tmp_path / "w.safetensors", random_arrays(NARROW["resnet18"], SMALL))
    with pytest.raises(ConfigError, match="no file can be read here"):
        make_learner(f"{NARROW['resnet18']},weights={path}", SMALL)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("resnet18:width=0", "width must be a positive number that multiplies all channels, got 0.0"),
        ("mobilenet-v2:width=nan", "width must be a positive number that multiplies all channels, got nan"),
        ("resnet18:stem=4", "stem must be an odd number of pixels such as 3 or 7, got 4"),
        ("resnet18:norm=batch", "unknown norm 'batch': did you mean 'frozen-batch'?"),
        ("mobilenet-v2:norm=frozen-batch", "needs stored statistics: give weights=FILE, or set norm=group"),
    ],
)
def test_an_invalid_setting_is_refused_in_a_sentence(spec, words):
    assert words in refusal(spec)


@pytest.mark.parametrize("name", NARROW)
def test_samples_that_are_not_images_are_refused(name):
    assert refusal(NARROW[name], Profile((5,), 3)).startswith(
        f"{name} needs images of shape (H, W) or (channels, H, W)"
    )
