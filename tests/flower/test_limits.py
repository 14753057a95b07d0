"""Requests that a node refuses, and errors of a guarded node, which reveal nothing about its data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from coterie import from_arrays
from coterie.client.group import ClientGroup
from coterie.client.tasks import Compare
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.flower.guard import FAILED, Guard
from coterie.flower.in_process import InProcessGrid
from coterie.flower.limits import Limits, RefusedError
from coterie.flower.node import make_client_app
from coterie.flower.terms import Terms
from coterie.flower.wire import Request, request_content
from coterie.learners.local_training import MiniBatch
from coterie.testing.checks import Case
from coterie.tiers.objective import Joint

GUARD = Guard(noise=1.0, answers=10**6, choice=10.0)
PLAN = Case("ifca", "logistic", {"privacy": "local", "privacy_noise": 2.0, "privacy_choice": 1.0, "rounds": 1}).plan()
TASK = PLAN.tiers.task(3, 1)
TERMS = Terms("r", "logistic:l2=0.01,bias=true", (4,), 3, "float64", None, 3, False)
MODELS = Clusters({"weight": torch.zeros(2, 3, 4).double(), "bias": torch.zeros(2, 3).double()}, K=2)
GOOD = Request(TERMS, TASK, Broadcast(0, MODELS, scalars={"lr": 0.1}), ("a", "b"), (-1, -1))


def data_with(labels, scale):
    random = np.random.default_rng(1)
    return from_arrays({name: (scale * random.normal(size=(6, 4)), np.array(labels)) for name in "ab"})


DATA = {
    "three classes": data_with([0, 1, 2, 0, 1, 2], 1.0),
    "many classes": data_with([0, 1, 2, 3, 7, 90], 1.0),
    "one class": data_with([0] * 6, 1.0),
    "huge values": data_with([0, 1, 2, 0, 1, 2], 1e150),
}


def settings(**changes):
    return replace(GOOD, task=replace(TASK, **changes))


def plain_settings(**changes):
    """Return the good request with other plain settings, which need not fit the task."""
    content = request_content(GOOD)
    header = json.loads(content["config"]["header"])
    header["settings"] |= changes
    content["config"]["header"] = json.dumps(header)
    return content


@register("counting-to")
@dataclass(frozen=True)
class CountingTo(Task):
    """A user-defined task with a list of numbers."""

    numbers: tuple[int, ...]

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        raise NotImplementedError


def models(**changes):
    return replace(GOOD, broadcast=replace(GOOD.broadcast, clusters=replace(MODELS, **changes)))


def work(**changes):
    return settings(work=replace(TASK.work, **changes))


REQUESTS = {
    "fewer classes": replace(GOOD, terms=replace(TERMS, classes=2)),
    "more classes than weights": replace(GOOD, terms=replace(TERMS, classes=9)),
    "another learner": replace(GOOD, terms=replace(TERMS, learner="linear")),
    "no learner": replace(GOOD, terms=replace(TERMS, learner="nonsense")),
    "a file": replace(GOOD, terms=replace(TERMS, learner="resnet18:weights=/etc/passwd")),
    "other features": replace(GOOD, terms=replace(TERMS, features=(5,))),
    "another dtype": replace(GOOD, terms=replace(TERMS, dtype="float16")),
    "weights of another shape": models(params={"weight": torch.zeros(2, 3, 5).double(), "bias": MODELS.params["bias"]}),
    "weights of another name": models(params={"w": torch.zeros(2, 3).double()}),
    "weights that are NaN": models(params={n: p * torch.nan for n, p in MODELS.params.items()}),
    "no weights": models(params={}),
    "a wrong K": models(K=3),
    "unknown clients": replace(GOOD, clients=("a", "somebody")),
    "an unknown objective": plain_settings(objective={"name": "nonsense"}),
    "an unknown setting": plain_settings(work={"nonsense": 3}),
    "a setting of another type": plain_settings(seed="three"),
    "an unknown task": plain_settings(name="local-rund"),
    "a resampled round": settings(resample=1000),
    "validation": replace(GOOD, terms=replace(TERMS, validation=7.0)),
    "states": replace(GOOD, terms=replace(TERMS, keeps=True)),
    "no step size": replace(GOOD, broadcast=replace(GOOD.broadcast, scalars={})),
    "another task": replace(GOOD, task=Compare()),
}


def error_of(data, request, folder, guard=GUARD, limits=None):
    """Return the text of the error that the server receives; None if the request is answered."""
    app = make_client_app(lambda context: data, state_folder=folder, guard=guard, limits=limits)
    content = request if isinstance(request, RecordDict) else request_content(request)
    grid = InProcessGrid({5: app})
    (answer,) = grid.pull_messages(grid.push_messages([Message(content, 5, "train")]))
    return answer.error.reason if answer.has_error() else None


def test_the_good_request_is_answered(tmp_path):
    assert error_of(DATA["three classes"], GOOD, tmp_path) is None


@pytest.mark.parametrize("name", REQUESTS)
def test_the_error_of_a_guarded_node_does_not_depend_on_data(name, tmp_path):
    texts = {error_of(data, REQUESTS[name], tmp_path) for data in DATA.values()} - {None}
    assert len(texts) <= 1, texts
    if name == "another task":
        assert "answers only requests with local differential privacy" in texts.pop()
    elif name == "an unknown objective":
        assert "this node does not know the objective 'nonsense'" in texts.pop()
    else:
        assert texts <= {f"TrainingError: {FAILED}"}


def test_a_guarded_node_does_not_reveal_why_its_data_cannot_be_loaded(tmp_path):
    def load(context: Context):
        raise ValueError("patient 7 has label 3")

    app = make_client_app(load, state_folder=tmp_path, guard=GUARD)
    grid = InProcessGrid({5: app})
    (answer,) = grid.pull_messages(grid.push_messages([Message(request_content(GOOD), 5, "train")]))
    assert answer.error.reason == f"TrainingError: {FAILED}"


SMALL = Limits(steps=50, clusters=4, restarts=3, values=1000, setting=100)
TOO_MUCH = {
    "steps": work(steps=51),
    "steps without end": work(steps=2**62),
    "epochs": settings(work=MiniBatch(batch_size=4, epochs=51)),
    "batches": settings(work=MiniBatch(batch_size=101)),
    "clusters": models(K=5),
    "negative clusters": models(K=-1),
    "restarts": models(restarts=4),
    "no restart": models(restarts=0),
    "values": models(params={"weight": torch.zeros(2, 3, 400)}),
    "a wide layer": replace(GOOD, terms=replace(TERMS, learner="mlp:hidden=9999")),
    "two wide layers": replace(GOOD, terms=replace(TERMS, learner="mlp:hidden=100-100")),
    "a long learner": replace(GOOD, terms=replace(TERMS, learner="x" * 501)),
    "gaussians": settings(objective=Joint(gaussians=101)),
    "many features": replace(GOOD, terms=replace(TERMS, features=(10**6, 10**6))),
    "a setting in a list": replace(GOOD, task=CountingTo((1, 2, 10**9))),
}


@pytest.mark.parametrize("guard", [None, GUARD], ids=["no guard", "guard"])
@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_request_beyond_the_limits_is_refused_before_data_is_loaded(name, guard, tmp_path):
    reason = error_of(None, TOO_MUCH[name], tmp_path, guard, SMALL)
    assert reason.startswith("RefusedError: "), reason
    assert not (tmp_path / "answers").exists()


def test_the_default_limits_refuse_huge_requests(tmp_path):
    for request in (work(steps=10**9), models(K=10**8), models(restarts=10**6)):
        with pytest.raises(RefusedError, match=r"this node accepts at most"):
            Limits().check(request)
    with pytest.raises(ConfigError, match="steps must be a whole number of at least 1, got 0"):
        Limits(steps=0)
