"""Mutated messages of all tasks, which are read and checked as on the server and on nodes.

A mutated answer is refused with a reason, or honest clients with other data could have sent it. Then all its arrays
have the requested form and range, so that sums stay finite.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="messages through Flower need coterie[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from safetensors.torch import load, save

from coterie.core.messages import Reply, merge
from coterie.core.task import Task
from coterie.diagnosis.diagnose import diagnose_clients
from coterie.evaluate.groups import ask_profiles
from coterie.evaluate.regression import Labels
from coterie.flower.admission import Admission
from coterie.flower.checks import CheckHistory, SentRequest, check_answers
from coterie.flower.in_process import Deliver, at_once
from coterie.flower.limits import Limits
from coterie.flower.wire import ARRAYS, CONFIG, ONBOARDING, SMALL, read_hosted, read_request, task_of
from coterie.testing.checks import Case
from coterie.training.planning import Plan
from tests.flower.make import TWO, clients_behind_a_grid, federation_of
from tests.fuzz.cases import cases, refusal

RUNS = (
    Case("ifca", "linear", {"init": "random", "rounds": 1}),
    Case("ifca", "logistic", {"restarts": 2, "rounds": 1}),
    Case("ifca", "logistic", {"combine": "median", "rounds": 1, "finetune": 1}),
    Case("fedem", "linear", {"rounds": 1}),
    Case("fedavg", "mlp", {"rounds": 1, "lr": "auto"}),
    Case("fedgmm", "linear", {"rounds": 1}),
    Case("fedrc", "logistic", {"rounds": 1}),
    Case("fedsoft", "linear", {"rounds": 1}),
    Case("linear-heads", "representation", {"rounds": 1}),
    Case("moment-descent", "linear", {"iterations": 1, "anchors": 3}),
    Case("moment-descent", "linear", {"iterations": 1, "anchors": 3, "clusters": "auto"}),
    Case("odcl", "linear"),
    Case("pacfl", "logistic", {"rounds": 1}),
    Case("stocfl", "logistic", {"rounds": 1}),
    Case("fedavg", "linear", {"lr": "auto", "rounds": 1}),
    Case("cfl", "logistic", {"test_every": 1, "rounds": 1}),
    Case("pacfl", "logistic", {"clusters": "auto", "rounds": 1}),
    Case("stocfl", "logistic", {"tau": 0.1, "rounds": 1}),
    Case("one-shot", "logistic", {"clusters": "auto", "count_groups": "held-out", "rounds": 1}),
)
"""Runs that use all tasks together."""
COMPARED = (RUNS[0], RUNS[10])
"""Runs of a server with the data, which also asks for models of single clients and for coefficients."""
FEW_THERE = {11: (0, 3, 4, 5, 6, 7, 8), 5: (1, 2)}
"""Node 5 has few clients, so that the other clients are enough for every run."""


@dataclass(frozen=True)
class Received:
    """One recorded exchange."""

    contents: dict[int, RecordDict]
    asked: dict[int, SentRequest]

    @property
    def task(self) -> str:
        return next(iter(self.asked.values())).task

    @cached_property
    def clean(self) -> Reply:
        """Return all original answers, merged."""
        return merge([answer.reply for answer in check_answers(self.contents, self.asked)[0].values()])


def remote(case: Case, folder: Path, deliver: Deliver, nodes: Mapping[int, Sequence[int]] = TWO) -> Plan:
    """Return the plan of a server without data."""
    return case.plan(clients_behind_a_grid(case.plan(), folder, deliver, nodes))


@cache
def exchanges(folder: Path) -> tuple[list[Received], list[RecordDict], list[RecordDict]]:
    """Return real exchanges of all runs, one of each form, their requests, and answers to the first onboarding."""
    found: dict[tuple[str, ...], Received] = {}
    requests: dict[str, RecordDict] = {}
    onboarding: list[RecordDict] = []

    def listen(message: Message, answer: Message) -> Sequence[tuple[float, Message]]:
        if task_of(message.content) == ONBOARDING:
            onboarding.append(answer.content)
        else:
            requests.setdefault(task_of(message.content), message.content)
        return at_once(message, answer)

    def remember(contents, asked, history=None):
        received = Received(dict(contents), dict(asked))
        if contents:
            form = next(iter(asked.values())).expected
            names = (*form.sums, *form.rows, *form.slotted) if form is not None else ()
            found.setdefault((received.task, *names), received)
        return check_answers(contents, asked, history)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("coterie.flower.engine.check_answers", remember)
        for case in RUNS:
            case.run(remote(case, folder, listen))
        for case in COMPARED:
            plan = case.plan()
            case.run(plan, lambda side, plan=plan: federation_of(plan, folder, listen, nodes=TWO))
        for learner in ("linear", "logistic"):
            plan = Case("fedavg", learner).plan()
            federation = federation_of(plan, folder, listen, nodes=TWO)
            diagnose_clients(federation, plan.data, seed=0)
            names = Labels(features=tuple(f"x{j}" for j in range(16)), scales=((0.0, 1.0),) * 16)
            own = torch.zeros(len(plan.data.clients), dtype=torch.int64)
            ask_profiles(federation, own, 1, plan.learner.classes, names)
    return list(found.values()), list(requests.values()), onboarding[:3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return exchanges(tmp_path_factory.mktemp("states"))


def test_the_runs_ask_for_every_task(recorded):
    tasks = {one.task for one in recorded[0]}
    own = {
        name for name, task in Task.members.items() if task.__module__.startswith("coterie.")
    }  # without tasks of other tests
    assert own == tasks


# ---- mutations -------------------------------------------------------------------------------------------------------

ODD_VALUES = (
    None, True, False, 0, -1, 7, 2**31, 2**63, 10**30, 0.5, -1.5, 1e308, float("nan"), float("inf"), "", "x", "\ud800",
    "site-1", "x" * 5000, [], [[]], ["site-1"], [1, 2], {}, {"a": 1},
)  # fmt: skip
ODD_NUMBERS = (0.0, -1.0, 1e-300, 1e-30, 1e30, 1e99, 1e200, 1e308, float("nan"), float("inf"), -float("inf"))
DTYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8)


def mutated(content: RecordDict, random: np.random.Generator) -> RecordDict:
    """Return a message with one to three changes."""
    config = dict(content[CONFIG])
    records = {name: value for name, value in content.items() if name not in (ARRAYS, CONFIG)}
    arrays = {name: Array(a.dtype, a.shape, a.stype, a.data) for name, a in content[ARRAYS].items()}
    for _ in range(int(random.integers(1, 4))):
        kind = random.choice(["header", "values", "bytes", "array", "config"], p=[0.35, 0.35, 0.15, 0.1, 0.05])
        if kind == "header":
            config["header"] = _other_header(str(config["header"]), random)
        elif kind == "values" and SMALL in arrays:
            arrays[SMALL] = _other_values(arrays[SMALL], random)
        elif kind == "bytes" and arrays:
            name = str(random.choice(list(arrays)))
            arrays[name] = replace_bytes(arrays[name], random)
        elif kind == "array" and arrays:
            name = str(random.choice(list(arrays)))
            if random.random() < 0.5:
                del arrays[name]
            else:
                arrays[str(random.choice(["sums/x", "rows/x", "x", name + "x"]))] = arrays[name]
        elif kind == "config":
            config[str(random.choice(["format", "task", "header"]))] = str(
                random.choice(["", "list-clients", "3", "[]"])
            )
    return RecordDict({**records, ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(config)})


def replace_bytes(array: Array, random: np.random.Generator) -> Array:
    """Return an array with some bytes changed, removed or added."""
    data = bytearray(array.data)
    choice = random.integers(0, 4)
    if choice == 0:
        data = data[: int(random.integers(0, len(data) + 1))]
    elif choice == 1:
        data += bytes(random.integers(0, 256, 8, dtype=np.uint8))
    else:
        high = len(data) if choice == 2 else min(len(data), 200)
        for at in random.integers(0, max(1, high), int(random.integers(1, 6))):
            if at < len(data):
                data[at] ^= int(random.integers(1, 256))
    return Array(array.dtype, array.shape, array.stype, bytes(data))


def _other_header(text: str, random: np.random.Generator) -> str:
    """Return a header with a changed or missing value, or with changed characters."""
    if random.random() < 0.15:
        at = int(random.integers(0, len(text) + 1))
        return text[:at] + str(random.choice(["", "{", "]", '"', "\\", "NaN", "9" * 50])) + text[at + 1 :]
    try:
        header = json.loads(text)
    except ValueError:
        return text
    place = header
    while isinstance(place, dict | list) and len(place):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(random.integers(0, len(keys)))]
        if isinstance(place[key], dict | list) and len(place[key]) and random.random() < 0.6:
            place = place[key]
            continue
        action = random.random()
        if action < 0.2:
            del place[key]
        elif action < 0.35 and isinstance(place, list):
            place.append(place[key])
        else:
            place[key] = ODD_VALUES[int(random.integers(0, len(ODD_VALUES)))]
        break
    return json.dumps(header)


def _other_values(array: Array, random: np.random.Generator) -> Array:
    """Return small arrays with a changed value, type or shape in one of them."""
    try:
        arrays = load(array.numpy().tobytes())
    except Exception:
        return array
    if not arrays:
        return array
    name = sorted(arrays)[int(random.integers(0, len(arrays)))]
    value, action = arrays[name], random.random()
    if action < 0.6 and value.numel():
        flat = value.flatten().clone()
        at = slice(None) if random.random() < 0.4 else int(random.integers(0, len(flat)))
        if value.is_floating_point():
            flat[at] = torch.tensor(float(random.choice(ODD_NUMBERS)), dtype=torch.float64).to(value.dtype)
        elif value.dtype == torch.int64:
            flat[at] = int(random.choice([-1, 0, 1, 2, 100, 2**40, 2**62, -(2**62)]))
        arrays[name] = flat.reshape(value.shape)
    elif action < 0.75:
        arrays[name] = value.nan_to_num(posinf=0.0).to(DTYPES[int(random.integers(0, len(DTYPES)))])
    elif action < 0.9:
        shapes = (value[None], value.flatten(), value.flatten()[:0], value.flatten()[:-1], value[..., None])
        arrays[name] = shapes[int(random.integers(0, len(shapes)))]
    elif action < 0.95:
        del arrays[name]
    else:
        arrays[name + "x"] = value
    kept = {key: each.contiguous().clone() for key, each in arrays.items()}
    return Array(np.frombuffer(save(kept), np.uint8))


# ---- the rule --------------------------------------------------------------------------------------------------------


def _is_ambiguous(refused, nodes) -> bool:
    """Whether the answers of two nodes have different types, so that nothing tells which of them is the usual one."""
    return len(nodes) == 2 and len(refused) == 1 and all("in another form than most" in why for why in refused.values())


def test_a_mutated_answer_is_refused_or_leaves_finite_sums(recorded):
    known, refusals = recorded[0], 0
    for label, random in cases("answers", 1000):
        exchange = known[int(random.integers(0, len(known)))]
        nodes = list(exchange.contents)
        victim = nodes[int(random.integers(0, len(nodes)))]
        contents = {**exchange.contents, victim: mutated(exchange.contents[victim], random)}
        (sound, refused), error = refusal(
            label, lambda c=contents, e=exchange: check_answers(c, e.asked, CheckHistory())
        )
        assert error is None, label
        if not _is_ambiguous(refused, nodes):
            assert set(refused) <= {victim}, f"{label}: an honest node was refused: {refused}"
        assert set(sound) | set(refused) == set(nodes), label
        refusals += len(refused)
        for why in refused.values():
            assert why.isprintable(), label
            assert len(why) < 700, label
        clean = exchange.clean
        total = merge([answer.reply for answer in sound.values()])
        assert total.nbytes >= 0, label
        for arrays, honest in ((total.sums, clean.sums), (total.rows, clean.rows)):
            for name, value in arrays.items():
                assert bool(value.isfinite().all()) or not bool(honest[name].isfinite().all()), f"{label}: {name}"
        for name, part in total.slotted.items():
            for key, value in part.arrays.items():
                assert bool(value.isfinite().all()), f"{label}: {name}/{key}"
    assert refusals > 500


def test_a_mutated_answer_to_onboarding_is_refused_or_admitted_within_the_limits(recorded):
    limits = Admission(most_clients=50, most_samples=10**6)
    for label, random in cases("list-clients", 300):
        content = mutated(recorded[2][int(random.integers(0, len(recorded[2])))], random)
        hosted, error = refusal(label, lambda c=content: read_hosted(c, limits.most_clients, limits.most_samples))
        if error is None:
            assert len(hosted.clients) <= 50, label
            assert all(1 <= n <= 10**6 for n in hosted.train), label
            assert all(client.isprintable() for client in hosted.clients), label


def test_a_mutated_request_is_refused_or_within_the_limits(recorded):
    limits = Limits(clusters=1000, restarts=100, values=10**7)

    def read(content):
        request = read_request(content)
        limits.check(request)
        return request

    for label, random in cases("requests", 300):
        content = mutated(recorded[1][int(random.integers(0, len(recorded[1])))], random)
        request, error = refusal(label, lambda c=content: read(c))
        if error is None:
            assert 0 <= request.broadcast.clusters.K <= 1000, label
            assert len(set(request.clients)) == len(request.clients), label


WHOLE = [RUNS[0], RUNS[1], RUNS[3], RUNS[4], RUNS[5], RUNS[7], RUNS[8], RUNS[10]]


def test_a_run_with_a_node_that_mutates_its_answers_ends_with_finite_models(tmp_path):
    for number, (label, random) in enumerate(cases("runs", 32, few=2 * len(WHOLE))):
        case = WHOLE[number % len(WHOLE)]

        def deliver(message: Message, answer: Message, random=random) -> Sequence[tuple[float, Message]]:
            if message.metadata.dst_node_id != 5 or task_of(message.content) == ONBOARDING or answer.has_error():
                return at_once(message, answer)
            return at_once(message, Message(mutated(answer.content, random), reply_to=message))

        def run(case=case, deliver=deliver, number=number):
            return case.run(remote(case, tmp_path / str(number), deliver, FEW_THERE))

        result, error = refusal(label, run)
        assert error is None, f"{label}: the run was ended by one node: {error}"
        for model in result.models:
            for name, value in model.items():
                assert np.isfinite(value).all(), f"{label}: {name}"
