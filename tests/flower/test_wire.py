"""Messages survive the round trip through Flower's records and bytes; everything else is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.client.tasks import LocalRound, Score
from coterie.core.clusters import Clusters
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.errors import InputError
from coterie.flower.in_process import through_bytes
from coterie.flower.schema import DataSchema
from coterie.flower.terms import Terms
from coterie.flower.wire import (
    FEW_BYTES,
    Answer,
    HostedClients,
    Request,
    answer_content,
    hosted_content,
    read_answer,
    read_hosted,
    read_request,
    request_content,
)
from coterie.learners.local_training import MiniBatch
from coterie.privacy.mechanism import Privacy
from coterie.tiers.assignment import SoftmaxLoss
from coterie.tiers.distance import Prototypes
from coterie.tiers.objective import Joint

TERMS = Terms("r", "linear", (3,), None, "float64", 0.2, 2**63, True)
ODD = {
    "f64": torch.tensor([[0.1, -np.inf], [np.nan, 5e-324]], dtype=torch.float64),
    "f32": torch.tensor([1 / 3], dtype=torch.float32),
    "i64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "hollow": torch.zeros(2, 0, 4, dtype=torch.int64),
    "turned": torch.arange(6.0).reshape(2, 3).T,
}


def assert_equal(one: object, other: object) -> None:
    """Assert that values are equal field by field; tensors bit by bit, with their types and shapes."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif hasattr(one, "__dataclass_fields__"):
        assert type(one) is type(other)
        assert_equal(vars(one), vars(other))
    else:
        assert one == other


@pytest.fixture(params=[-1, 16, FEW_BYTES])
def few_bytes(request, monkeypatch):
    """Send all arrays separately, some of them, or none."""
    monkeypatch.setattr("coterie.flower.wire.FEW_BYTES", request.param)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("only", [None, torch.tensor([[1], [2]]), torch.tensor([[ALL], [2]])], ids=str)
def test_a_request_survives_the_round_trip(only):
    clusters = Clusters(
        {"w": torch.rand(3, 2, dtype=torch.float64), "b": torch.rand(3)},
        K=3,
        body={"deep": torch.rand(1, 2)},
        overall={"w": torch.rand(1, 2)},
    )
    each = {"accepted": torch.tensor([-1, 4]), "own": torch.tensor([0, 1])}
    broadcast = Broadcast(7, clusters, only, {"lr": 0.1}, each, common=ODD).to(np.array([0, 1]))
    task = LocalRound(
        objective=Joint("inputs", gaussians=2, seed=3),
        assignment=SoftmaxLoss(0.1),
        work=MiniBatch(batch_size=16, epochs=2, prox=0.25),
        client_weight="samples",
        seed=2**62,
        distance=Prototypes(reduce="mean", weighted=False),
        privacy=Privacy("local", 1.0, 2.0, None),
    )
    request = Request(TERMS, task, broadcast, ("a", "b/ü"), (-1, 3))
    found = read_request(through_bytes(request_content(request)))
    if only is not None and bool((only == ALL).any()):
        assert found.broadcast.clusters.slots is None
    assert_equal(request, found)


@pytest.mark.usefixtures("few_bytes")
def test_an_answer_survives_the_round_trip():
    slotted = {"clusters": Slotted(torch.tensor([1, 4]), {"change/w": torch.rand(2, 3)}, torch.tensor([2, 1]))}
    reply = Reply(("a", "b"), ODD, slotted, {"cluster": torch.tensor([[0], [1]])}, ("c",), ("gram",))
    assert_equal(Answer(reply, ("a",)), read_answer(through_bytes(answer_content("t", Answer(reply, ("a",)))), "t"))
    empty = Answer(Reply(()))
    assert_equal(empty, read_answer(through_bytes(answer_content("t", empty)), "t"))


def test_the_clients_of_a_node_survive_the_round_trip():
    hosted = HostedClients(("a", "b"), (3, 1), (0, 2), DataSchema((28, 28), 10))
    assert_equal(hosted, read_hosted(through_bytes(hosted_content(hosted))))


def test_no_array_is_ever_pickled():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        Array(np.array([{}], dtype=object))
    content = answer_content("t", Answer(Reply(("a",), {"long": torch.zeros(FEW_BYTES), "loss": torch.zeros(1)})))
    assert set(content["arrays"]) == {"sums/long", "small"}
    for name, kind in (("sums/long", b"'<f4'"), ("small", b"'|u1'")):
        good = content["arrays"][name]
        text = good.data.replace(kind, b"'|O' ")
        content["arrays"][name] = Array(good.dtype, good.shape, "numpy.ndarray", text)
        with pytest.raises(InputError, match=rf"array '{name}' must be one of .* got \|O"):
            read_answer(content, "t")
        content["arrays"][name] = good
    assert len(read_answer(content, "t").reply.sums["long"]) == FEW_BYTES


def answer_with(**config: object) -> RecordDict:
    content = answer_content("t", Answer(Reply(("a",), {"loss": torch.zeros(1)})))
    return RecordDict({"arrays": content["arrays"], "config": ConfigRecord({**content["config"], **config})})


def without(*names: str) -> str:
    header = json.loads(answer_with()["config"]["header"])
    return json.dumps({name: value for name, value in header.items() if name not in names})


GOOD = np.zeros(1)
MALFORMED = {
    "nothing": (RecordDict(), "must have a ConfigRecord named 'config', but this one has nothing"),
    "another record": (RecordDict({"config": MetricRecord({"a": 1})}), r"has 'config' \(MetricRecord\)"),
    "no arrays": (RecordDict({"config": answer_with()["config"]}), "must have an ArrayRecord named 'arrays'"),
    "format": (answer_with(format=1), "have format 7, but this one has 1: install the same version"),
    "task": (answer_with(task="u"), "for task 't' was expected, but one for 'u' was sent"),
    "no text": (answer_with(header=3), "must name its task and have a header"),
    "no JSON": (answer_with(header="{"), "cannot be read: Expecting property name"),
    "a list": (answer_with(header="[]"), "must be a JSON object, got list"),
    "no clients": (answer_with(header=without("clients")), "answer to task t was expected, but 'clients' is missing"),
    "odd ids": (
        answer_with(header=json.dumps(json.loads(answer_with()["config"]["header"]) | {"clients": [["a"]]})),
        "client ids must be texts of 1 to 200 printable characters, got list",
    ),
    "dtype": (
        RecordDict({**answer_with(), "arrays": ArrayRecord({"sums/loss": Array(GOOD.astype(">f8"))})}),
        "'sums/loss' must be one of float64, float32, int64, bool, got >f8",
    ),
    "cut": (
        RecordDict(
            {**answer_with(), "arrays": ArrayRecord({"x": Array("float64", (1,), "numpy.ndarray", b"\x93NUM")})}
        ),
        "array 'x' does not start like numpy's format 1.0",
    ),
    "small arrays cut": (
        RecordDict({**answer_with(), "arrays": ArrayRecord({"small": Array(np.zeros(9, np.uint8))})}),
        "array 'small' has 9 bytes, but its header claims to end at 8",
    ),
    "a small array's dtype": (
        answer_content("t", Answer(Reply(("a",), {"loss": torch.zeros(1, dtype=torch.float16)}))),
        "'sums/loss' must be one of float64, float32, int64, bool, got 'F16'",
    ),
    "an array is missing": (
        answer_with(header=json.dumps(json.loads(answer_with()["config"]["header"]) | {"arrays": ["sums/x"]})),
        "'sums/x' is missing",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_an_invalid_message_is_refused_with_one_sentence(name):
    content, why = MALFORMED[name]
    with pytest.raises(InputError, match=why):
        read_answer(content, "t")


@pytest.mark.parametrize(
    "change",
    [{"clients": ("a", "a")}, {"train": (3,)}, {"train": (3, 0)}, {"test": (-1, 0)}, {"train": (True, 2)}],
    ids=str,
)
def test_impossible_clients_of_a_node_are_refused(change):
    hosted = HostedClients(("a", "b"), (3, 1), (0, 2), DataSchema((4,), None))
    with pytest.raises(InputError, match="the data of a node's clients was expected"):
        read_hosted(hosted_content(replace(hosted, **change)))


def test_a_model_for_many_nodes_is_packed_once():
    clusters = Clusters({"w": torch.zeros(2, FEW_BYTES)}, K=2)
    packed = {}
    requests = [
        Request(TERMS, Score(), Broadcast(0, part), ("a",), (-1,))
        for part in (clusters, clusters, replace(clusters, params={"w": torch.ones(2, FEW_BYTES)}))
    ]
    one, two, other = (request_content(request, packed) for request in requests)
    assert one["arrays"]["params/w"] is two["arrays"]["params/w"]
    assert_equal(requests[2], read_request(other))
