"""Sums and curvatures of clients against a plain loop over clients and samples."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.client.regression import THETA
from coterie.client.tasks import Curvature, RegressionMeats, RegressionMoments
from coterie.core.blocks import cut
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import Broadcast, Reply
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError
from coterie.learners import make_learner
from tests.core.make import make_shard, regression_data

SIZES = (1, 7, 23, 1, 20, 9, 21, 5, 40)
OWN = (0, 2, 2, 3, 0, 2, 0, 3, 2)  # cluster 1 of the four is empty
SPECS = ("linear", "linear:bias=true", "linear:bias=true,degree=2,half=false")
D = 3
NO_MODELS = Broadcast(0, Clusters({}, K=1))
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def learner_of(spec: str):
    return make_learner(spec, Profile((D,), None))


def models(spec: str) -> Clusters:
    random = np.random.default_rng(5)
    start = learner_of(spec).start([1, 2, 3, 4], torch.float64)
    return Clusters({name: torch.from_numpy(random.standard_normal(value.shape)) for name, value in start.items()}, 4)


def features(x: np.ndarray, spec: str) -> np.ndarray:
    """Return the features of one sample."""
    terms = list(x)
    if "degree=2" in spec:
        terms += [x[a] * x[b] for a, b in combinations_with_replacement(range(len(x)), 2)]
    return np.array([*terms, 1.0] if "bias=true" in spec else terms)


def coefficients(spec: str, clusters: Clusters) -> Clusters:
    """Return the models in the form in which tasks receive them."""
    return Clusters({THETA: learner_of(spec).to_coefficients(clusters.params)}, clusters.K)


def by_loop(data: list, clusters: Clusters, spec: str) -> dict[int, dict[str, np.ndarray]]:
    """Return all sums, computed sample by sample."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for (x, y), k in zip(data, OWN, strict=True):
        theta = clusters.params["weight"][k].numpy()
        if "bias" in clusters.params:
            theta = np.append(theta, float(clusters.params["bias"][k]))
        zero = {"gram": 0, "score": 0, "loss": 0, "by_client": 0, "by_sample": 0, "rss": 0, "samples": 0}
        sums = found.setdefault(k, zero)
        pull = np.zeros(len(theta))
        for row, target in zip(x, y, strict=True):
            phi = features(row, spec)
            residual = target - phi @ theta
            pull = pull + residual * phi
            sums["gram"] = sums["gram"] + np.outer(phi, phi)
            sums["by_sample"] = sums["by_sample"] + residual**2 * np.outer(phi, phi)
            sums["rss"] += residual**2
            sums["loss"] += residual**2 / 2
            sums["samples"] += 1
        sums["score"] = sums["score"] + pull
        sums["by_client"] = sums["by_client"] + np.outer(pull, pull)
    return found


def broadcast(spec: str) -> Broadcast:
    own = torch.tensor(OWN)
    return Broadcast(0, coefficients(spec, models(spec)), only=own[:, None], each={"own": own})


def both(reply_of) -> dict[str, np.ndarray]:
    merged = {}
    for task in (RegressionMoments(), RegressionMeats()):
        reply: Reply = reply_of(task)
        found = reply.slotted["clusters"]
        assert reply.sums == reply.rows == {}
        assert found.slots.tolist() == [0, 2, 3]
        assert found.counts.tolist() == [3, 4, 2]
        merged |= {name: value.numpy() for name, value in found.arrays.items()}
    return merged


ENGINES = {"simulated": Simulated, "sequential": Sequential, "three-shards": lambda side: InShards(side, shards=3)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", SPECS)
def test_every_sum_is_that_of_a_plain_loop(engine, spec):
    data = regression_data(SIZES, D)
    shard = make_shard(data)
    assert any(block.mask is not None for block in cut(shard, shard.hashes, 0)), "sizes 20, 21 and 23 share a block"
    federation = ENGINES[engine](ClientGroup(learner_of(spec), shard, None))
    found = both(lambda task: federation.ask(task, broadcast(spec), np.arange(len(SIZES))).reply)
    expected = by_loop(data, models(spec), spec)
    for at, k in enumerate((0, 2, 3)):
        assert set(found) == set(expected[k])
        for name, value in expected[k].items():
            np.testing.assert_allclose(found[name][at], value, **EXACT, err_msg=f"{name} of cluster {k}")


def test_a_float32_run_has_float64_sums():
    shard = make_shard(regression_data(SIZES, D)).to(torch.float32, torch.device("cpu"))
    spec = "linear:bias=true,degree=2"
    narrow = models(spec)
    narrow = Clusters({name: value.float() for name, value in narrow.params.items()}, 4)
    own = torch.tensor(OWN)
    reply = RegressionMeats().run(
        ClientGroup(learner_of(spec), shard),
        Broadcast(0, coefficients(spec, narrow), only=own[:, None], each={"own": own}),
    )
    ranges = [slice(a, b) for a, b in zip(shard.starts, shard.stops, strict=True)]
    data = [(shard.x[rows].double().numpy(), shard.y[rows].double().numpy()) for rows in ranges]
    wide = Clusters({name: value.double() for name, value in narrow.params.items()}, 4)
    expected = by_loop(data, wide, spec)
    found = reply.slotted["clusters"].arrays
    for name in ("by_client", "by_sample", "rss"):
        np.testing.assert_allclose(found[name][0].numpy(), expected[0][name], **EXACT)


@pytest.mark.parametrize("spec", SPECS)
def test_curvature_is_the_squared_largest_singular_value_over_n(spec):
    data = regression_data(SIZES, D)
    reply = Curvature().run(ClientGroup(learner_of(spec), make_shard(data)), NO_MODELS)
    expected = [
        np.linalg.svd(np.stack([features(row, spec) for row in x]), compute_uv=False)[0] ** 2 / len(x) for x, _ in data
    ]
    assert reply.rows["curvature"].shape == (len(SIZES),)
    np.testing.assert_allclose(reply.rows["curvature"].numpy(), expected, **EXACT)


def test_curvature_by_hand():
    # one sample (3, 4): X X^T = 25, over 1. Two samples 1 and 2 of a feature: (1 + 4) / 2
    one, two = (np.array([[3.0, 4.0]]), np.zeros(1)), (np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros(2))
    line = make_learner("linear", Profile((2,), None))
    found = Curvature().run(ClientGroup(line, make_shard([one, two])), NO_MODELS)
    assert found.rows["curvature"].tolist() == pytest.approx([25, 2.5], rel=1e-12)


@pytest.mark.parametrize("work", [RegressionMoments(), RegressionMeats()])
def test_only_generalised_linear_models_have_them(work):
    shard = make_shard(regression_data((4,), D))
    other = make_learner("mlp", Profile((D,), None))
    sent = Broadcast(0, Clusters(other.start([1], torch.float32), 1), each={"own": torch.tensor([0])})
    with pytest.raises(ConfigError, match="need a linear or logistic model, but the learner is mlp"):
        work.run(ClientGroup(other, shard), sent)


@pytest.mark.parametrize("classes", [2, 3])
def test_sums_of_logistic_models_are_those_of_automatic_derivatives(classes):
    """Hessian and gradient of the log-loss, by class but the reference, and its outer products."""
    random = np.random.default_rng(1)
    data = [(random.standard_normal((n, D)), random.integers(0, classes, n)) for n in (3, 8, 5)]
    learner = make_learner("logistic", Profile((D,), classes))
    own = torch.zeros(3, dtype=torch.int64)
    theta = torch.from_numpy(random.standard_normal((1, D + 1, classes - 1)))
    sent = Broadcast(0, Clusters({THETA: theta}, 1), only=own[:, None], each={"own": own})
    group = ClientGroup(learner, make_shard(data))
    found = {}
    for task in (RegressionMoments(), RegressionMeats()):
        found |= {name: value[0] for name, value in task.run(group, sent).slotted["clusters"].arrays.items()}

    def loss(vector: torch.Tensor, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        phi = torch.from_numpy(np.column_stack([x, np.ones(len(x))]))
        logits = phi @ vector.reshape(classes - 1, D + 1).T
        whole = torch.cat([torch.zeros(len(x), 1, dtype=torch.float64), logits], dim=1)
        return torch.nn.functional.cross_entropy(whole, torch.from_numpy(y), reduction="sum")

    vector = theta[0].T.reshape(-1)

    def score(x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        return -torch.autograd.functional.jacobian(lambda v: loss(v, x, y), vector)

    gradients = [score(x, y) for x, y in data]
    each = [score(x[i : i + 1], y[i : i + 1]) for x, y in data for i in range(len(y))]
    bends = [torch.autograd.functional.hessian(lambda v, x=x, y=y: loss(v, x, y), vector) for x, y in data]
    torch.testing.assert_close(found["loss"], sum(loss(vector, x, y) for x, y in data))
    torch.testing.assert_close(found["gram"], sum(bends))
    torch.testing.assert_close(found["score"], sum(gradients))
    torch.testing.assert_close(found["by_client"], sum(torch.outer(g, g) for g in gradients))
    torch.testing.assert_close(found["by_sample"], sum(torch.outer(g, g) for g in each))
