"""The check suite that every built-in and user-defined method must pass.

    from coterie.testing.checks import check_method
    check_method("ifca")                       # all checks with all suitable learners
    check_method("ifca", {"restarts": 3})      # the same with options

Each check is a function of a `Case` that raises AssertionError with a sentence if it fails. Results are compared in
float64 over at most 5 rounds, with a relative tolerance of 1e-9.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.client.group import ClientGroup
from coterie.core import blocks
from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.federation import Federation, Replies
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.data.arrays import from_arrays
from coterie.engines.in_process import InProcess
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError, InputError
from coterie.learners import LearnerChoice
from coterie.learners.minimum import GeneralisedLinear
from coterie.methods import find_method
from coterie.methods.odcl import Solving
from coterie.methods.run import BEFORE
from coterie.training.fitting import execute, fit, initialize, initialize_run, resume
from coterie.training.planning import Plan, prepare
from coterie.training.result import Result
from coterie.training.runs.folder import RunFolder

ROUNDS = 3
"""Number of rounds of the runs."""
RAGGED = (1, 2, 5, 8, 13, 21, 9, 30, 4)
"""Number of training samples n_i of the clients; one client has a single sample."""


def small_module() -> nn.Module:
    """Return a user-defined module, which is trained by the generic code path."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


LEARNERS: Mapping[str, LearnerChoice] = {
    "linear": "linear",
    "logistic": "logistic:l2=0.01",
    "representation": "representation:width=2",
    "mlp": "mlp:hidden=6",
    "cnn": "cnn:channels=2,hidden=4",
    "module": small_module,
}


NETWORKS = ("mlp", "cnn", "module")
"""Learners without a closed-form solution, which clients approximate by gradient steps."""
NUMBERS = ("linear", "representation")
"""Learners for regression."""


def small_federation(
    learner: str, sizes: Sequence[int] = RAGGED, order: Sequence[int] | None = None
) -> FederatedDataset:
    """Return clients in two groups, with different numbers of samples, 4x4 features and a target for the learner.

    Args:
        learner: Name of a learner of the checks, which determines the target: three classes, or numbers.
        sizes: Number of training samples n_i of each client.
        order: Order in which the clients are listed; by default that of `sizes`.

    Returns:
        The clients with test samples and their true groups.

    Example:
        >>> from coterie.testing import small_federation
        >>> data = small_federation("linear")
        >>> len(data.clients), data.profile.features
        (9, (4, 4))
    """
    random = np.random.default_rng(5)
    clients, tests, truth = {}, {}, {}
    teachers = random.standard_normal((2, 16, 3))
    for index, size in enumerate(sizes):
        x = random.standard_normal((size + 7, 4, 4))
        scores = x.reshape(len(x), 16) @ teachers[index % 2]
        y = scores[:, 0] + 0.1 * random.standard_normal(len(x)) if learner in NUMBERS else scores.argmax(axis=1)
        name = f"site-{index}"
        clients[name], tests[name] = (x[:size], y[:size]), (x[size:], y[size:])
        truth[name] = "even" if index % 2 == 0 else "odd"
    if order is not None:
        names = [f"site-{index}" for index in order]
        clients = {name: clients[name] for name in names}
    return from_arrays(
        clients, test={name: tests[name] for name in clients}, truth={name: truth[name] for name in clients}
    )


@dataclass(frozen=True)
class Case:
    """A method with a learner and options, on the small data of the check suite.

    Example:
        >>> from coterie.testing import Case
        >>> from coterie.testing.checks import check_finite
        >>> check_finite(Case("fedavg", "linear"))
    """

    method: str
    """Name of a registered method."""
    learner: str
    """Name of a learner in `LEARNERS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method and of the run."""
    sizes: Sequence[int] = RAGGED
    """Number of training samples n_i of the nine clients."""

    @property
    def settings(self) -> dict[str, Any]:
        """Options for `fit` that the method has."""
        accepted = {option.name for option in find_method(self.method).options()}
        wanted: dict[str, Any] = {
            "clusters": 2,
            "rounds": ROUNDS,
            "local_steps": 2,
            "lr": 0.05,
            "dtype": "float64",
            "seed": 3,
            "evaluate_every": 2,
            "pretrain_steps": 5,
        }
        if "patience" in self.options:
            wanted["evaluate_every"] = 1
        if "local_epochs" in self.options or self.options.get("exchange") == "gradient":
            del wanted["local_steps"]
        if self.learner != "linear":
            wanted["init"] = "random"  # moment descent is for linear models
        if self.learner in NETWORKS:
            wanted["solve_steps"] = 10  # for methods whose clients train their own models first
        return {k: v for k, v in wanted.items() if k in accepted} | dict(self.options)

    def data(self, sizes: Sequence[int] | None = None, order: Sequence[int] | None = None) -> FederatedDataset:
        """Return the data, optionally with other sizes or another order of the clients."""
        return small_federation(self.learner, sizes or self.sizes, order)

    def plan(self, data: ClientDirectory | None = None, **more: Any) -> Plan:
        """Return the plan of a run, optionally on other data or with further options."""
        settings = self.settings | more
        return prepare(data or self.data(), self.method, LEARNERS[self.learner], settings)

    def run(self, plan: Plan | None = None, federation: Callable[[ClientGroup], Federation] | None = None) -> Result:
        """Carry out a plan and return the result.

        Args:
            plan: The plan; by default that of the case.
            federation: Function that returns the federation of the clients; by default the simulation of the plan.
        """
        plan = plan or self.plan()
        if federation is not None:
            assert isinstance(plan.federation, Simulated)
            plan = replace(plan, run=replace(plan.run, federation=federation(plan.federation.group)))
        return execute(initialize_run(plan), None)


def _flat(result: Result) -> np.ndarray:
    arrays = [value.ravel() for model in result.models for _, value in sorted(model.items())]
    return np.concatenate(arrays).astype(np.float64)


def _assert_same(one: Result, other: Result, what: str, tolerance: float = 1e-9) -> None:
    a, b = _flat(one), _flat(other)
    assert a.shape == b.shape, f"{what}: {a.size} parameters became {b.size}"
    difference = np.abs(a - b).max() / max(1e-12, np.abs(a).max())
    assert difference <= tolerance, f"{what}: parameters differ by {difference:.2e} relative, allowed {tolerance:.0e}"
    assert one.assignments == other.assignments, f"{what}: clients changed their clusters"


def check_finite(case: Case) -> None:
    """Check that all parameters and figures are finite, although one client has a single sample."""
    result = case.run()
    assert np.isfinite(_flat(result)).all(), "a parameter is not finite"
    for record in result.records:
        numbers = [v for v in record.values() if isinstance(v, int | float)]
        assert np.isfinite(numbers).all(), f"a figure of round {record['round']} is not finite: {record}"


def check_seed(case: Case) -> None:
    """Check that another seed gives other models, if the run is random; `check_resume` runs one seed twice."""
    if _is_deterministic(case.plan()):
        return
    other = case.run(case.plan(seed=4))
    assert not np.array_equal(_flat(case.run()), _flat(other)), (
        "another seed gave the same models: random numbers do not depend on the seed"
    )


def _is_deterministic(plan: Plan) -> bool:
    """Return whether the run starts from exact local solutions, and then uses all clients and samples in each step."""
    init = plan.method.initializer
    exact = isinstance(plan.learner, GeneralisedLinear) and isinstance(init, Solving) and init.solver in (None, "exact")
    noisy = getattr(init, "noise", 0.0) > 0
    steady = plan.settings.participation == 1 and plan.tiers.local.full_batch_steps is not None
    return exact and not noisy and (steady or plan.rounds == 0)


def _has_anchors(plan: Plan) -> bool:
    """Return whether the run starts with moment descent, which asks some clients more often than others."""
    return plan.method.initializer.name == "moment-descent"


def check_client_order(case: Case) -> None:
    """Check that the order in which clients are listed does not matter."""
    order = [4, 0, 8, 2, 6, 1, 7, 3, 5]
    plain, shuffled = case.run(), case.run(case.plan(case.data(order=order)))
    if find_method(case.method).groups.personal:  # one model for each client: compare by client
        by_id = dict(zip(shuffled.assignments, shuffled.models, strict=True))
        models = [by_id[c] for c in plain.assignments]
        parameters = [{name: torch.from_numpy(a) for name, a in model.items()} for model in models]
        shuffled = replace(shuffled, parameters=parameters, clients=plain.clients)
    _assert_same(plain, shuffled, "another order of the clients")


def check_shards(case: Case) -> None:
    """Check that the division of clients into shards and blocks does not matter."""
    with patch.object(blocks, "PADDING_BYTES", 0):
        cut = case.run(case.plan(), partial(InShards, shards=2))
    _assert_same(case.run(), cut, "2 shards, a block for every size")


def check_engines(case: Case) -> None:
    """Check that the sequential engine, with serialised messages, gives the same models and numbers of bytes.

    A case with options is run with partial participation. A case without options is run with full participation for
    every second learner and with partial participation for the others; with both if the method supports one learner.
    """
    some = case.options or list(LEARNERS).index(case.learner) % 2
    shares: tuple[float | None, ...] = (0.6,) if some else (1.0,)
    if len(learners_of(case.method)) == 1 and not case.options:
        shares = (1.0, 0.6)
    for share in shares if "participation" not in find_method(case.method).refuses else (None,):
        plan = case.plan(participation=share)
        fast = case.run() if plan.config == case.plan().config else case.run(plan)
        slow = case.run(plan, Sequential)
        _assert_same(fast, slow, f"the sequential engine (participation {share})")
        for name in ("bytes_up", "bytes_down"):
            assert fast.metrics[name] == slow.metrics[name], f"{name} differs between the engines"


def check_twin(case: Case) -> None:
    """Check that the method with one cluster equals the twin that it declares."""
    entry = find_method(case.method)
    if entry.twin is None:
        assert entry.no_twin, f"{case.method} declares neither a twin nor the reason why it has none"
        return
    data = replace(case.data(), truth=np.zeros(len(RAGGED), dtype=np.int64), group_names=("all",))
    plan = _with_one_cluster(case, data)
    if not _is_comparable_with_twin(plan, entry.twin):
        return
    if plan.tiers.averaging.over == "all" and plan.tiers.averaging.divide_by == "federation":
        assert plan.settings.participation == 1.0, "dividing by the federation equals the twin only if all answer"
    accepted = {option.name for option in find_method(entry.twin).options()}
    options = {k: v for k, v in plan.config.items() if k in accepted and k not in ("learner", "init")}
    if "init" in accepted:
        options["init"] = "random"
    twin = prepare(data, entry.twin, LEARNERS[case.learner], options)
    _assert_same(case.run(plan), case.run(twin), f"its twin {entry.twin}")


def _with_one_cluster(case: Case, data: FederatedDataset) -> Plan:
    """Return the plan of the case with one cluster, after its initialisation."""
    wanted: dict[str, Any] = {"clusters": 1, "init": "random"}
    if case.plan().tiers.adapts:
        wanted["max_clusters"] = 1
    taken = {option.name for option in find_method(case.method).options()}
    plan = case.plan(data, **{name: value for name, value in wanted.items() if name in taken})
    return initialize(plan).plan


def _is_comparable_with_twin(plan: Plan, twin: str) -> bool:
    """Return whether the plan with one cluster computes the same as the twin."""
    tiers, work = plan.tiers, plan.tiers.local
    if tiers.restarts > 1 or tiers.resample:
        return False  # the twin has one restart, and uses the same samples in every round
    if work.implicit or (work.prox and twin == "fedavg") or work.order == "heads-first":
        return False  # the twin takes other local steps
    # clients of personal methods continue from their own models, and the twin has no refit after the last round
    return not tiers.assignment.personal and not tiers.refit


def check_silent_client(case: Case) -> None:
    """Check that a client that never answers has no cluster, and changes nothing for the other clients."""
    silent = "site-3"
    log = dict.fromkeys(range(BEFORE, case.plan().rounds), (silent,))
    with_silent = case.run(federation=partial(Simulated, missing=log))
    assert silent not in with_silent.assignments, "a client that never answered was assigned to a cluster"
    plan = case.plan()
    method = plan.method
    some = method.race_rounds > 0 or plan.settings.participation < 1  # not all clients take part in every round
    asked = [record["missing"] for record in with_silent.records if not some or record["missing"]]
    assert asked or not with_silent.records, "the silent client was never asked"
    assert all(missing == [silent] for missing in asked), "records do not name the missing client"
    # participants of a race, anchors, divisors and pooled samples depend on the number of clients
    alone = find_method(case.method).groups.personal or plan.method.initializer.name == "cluster-oracle"
    counted = some or plan.tiers.averaging.divide_by == "federation"
    if alone or counted or _has_anchors(plan):
        assert np.isfinite(_flat(with_silent)).all(), "a client that never answered broke the models"
        return
    without = case.run(case.plan(case.data(order=[0, 1, 2, 4, 5, 6, 7, 8])))
    _assert_same(without, with_silent, "a federation with a client that never answers")


def check_weights(case: Case) -> None:
    """Check that weights have shape (m, K), are not negative, and sum to one for every client."""
    result = case.run()
    weights = result.weights
    assert weights.shape == (len(RAGGED), len(result.models)), f"weights have shape {weights.shape}"
    assert (weights >= 0).all(), "a weight is negative"
    assert np.allclose(weights.sum(axis=1), 1), "weights do not sum to one"


@dataclass(frozen=True)
class _Recording(InProcess):
    """A simulated federation that records the replies of all tasks."""

    recorded: list[tuple[Task, Reply]] = field(default_factory=list)

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        replies = Simulated(self.group).ask(task, broadcast, asked)
        self.recorded.append((task, replies.reply))
        return replies


def _shapes(reply: Reply) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all arrays in a reply, without the axes of slots and clients."""
    found: dict[str, Tensor] = dict(reply.sums)
    found |= {f"row {name}": value[0] for name, value in reply.rows.items()}
    found |= {f"{group}/{name}": a[0] for group, s in reply.slotted.items() for name, a in s.arrays.items()}
    return {name: tuple(value.shape) for name, value in found.items()}


def check_replies(case: Case) -> None:
    """Check that no array of a reply has a sample axis, and that the method declares all rows."""
    shapes, counts = [], set()
    for size in (11, 22):
        recorded: list[tuple[Task, Reply]] = []
        result = case.run(case.plan(case.data([size] * 6)), partial(_Recording, recorded=recorded))
        shapes.append([(task.name, _shapes(reply)) for task, reply in recorded])
        counts.add(len(result.models))
        plan = case.plan()
        declared = set(plan.method.reveals())
        for task, reply in recorded:
            if plan.method.exchanges and not task.evaluates:  # otherwise replies are only simulated
                extra = set(reply.rows) - declared
                assert not extra, f"clients send rows that {case.method} does not declare: {sorted(extra)}"
        axes = {length for _, found in shapes[-1] for shape in found.values() for length in shape}
        assert not axes & {size, 6 * size}, "an array in a reply has a sample axis: its length is n_i"
    # replies grow with the number of active anchors, and with the number of clusters
    found = "clusters" in case.plan().open or case.plan().tiers.adapts or len(counts) > 1
    if not _has_anchors(case.plan()) and not found:
        assert shapes[0] == shapes[1], "an array in a reply has a sample axis: its shape depends on n_i"


def check_config(case: Case) -> None:
    """Check that the stored config gives the same run again."""
    with tempfile.TemporaryDirectory() as place:
        plan = case.plan()
        folder = RunFolder.create(Path(place) / "run", plan.config, plan.data.fingerprint())
        read = {k: v for k, v in folder.config.items() if k not in ("scenario", "method", "learner")}
        accepted = {option.name for option in type(plan.method).options()}
        known = {k: v for k, v in read.items() if k in accepted}
        again = prepare(plan.data, case.method, LEARNERS[case.learner], known)
    assert again.config == plan.config, f"options changed: {again.config} from {plan.config}"
    assert again.tiers == plan.tiers, "the same options gave another method"


class _KilledError(Exception):
    """Error that simulates a kill."""


def check_resume(case: Case) -> None:
    """Check that a run that is interrupted between checkpoints and resumed ends bit-identical, including records."""

    def kill(record: Mapping[str, Any]) -> None:
        if record["round"] == 2:
            raise _KilledError

    data = case.data()
    learner = LEARNERS[case.learner]
    settings = case.settings
    if "checkpoint_every" not in find_method(case.method).refuses:
        settings |= {"checkpoint_every": 2}
    with tempfile.TemporaryDirectory() as place:
        with suppress(_KilledError):
            fit(data, case.method, learner=learner, out=Path(place) / "cut", callbacks=[kill], **settings)
        cut = resume(Path(place) / "cut", data, learner=learner)
    whole = case.run()
    assert np.array_equal(_flat(whole), _flat(cut)), "the resumed run has other models"
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in run.records] for run in (whole, cut)]
    assert timeless[0] == timeless[1], "the resumed run has other records"


CHECKS: Mapping[str, Callable[[Case], None]] = {
    name.removeprefix("check_"): check
    for name, check in (
        ("check_finite", check_finite),
        ("check_seed", check_seed),
        ("check_client_order", check_client_order),
        ("check_shards", check_shards),
        ("check_engines", check_engines),
        ("check_twin", check_twin),
        ("check_silent_client", check_silent_client),
        ("check_weights", check_weights),
        ("check_replies", check_replies),
        ("check_config", check_config),
        ("check_resume", check_resume),
    )
}


# ---- kinds of data and layouts of arrays --------------------------------------------------------------------------

TASKS = ("binary", "three classes", "regression")
"""Kinds of data that every method is checked with; a method must run, or refuse the data with one sentence."""
GAPS = {"binary": (3, 7), "three classes": (-2, 0, 9)}
"""Labels that replace 0, 1, 2 in the check of labels with gaps."""

Array = npt.NDArray[Any]
Layout = Callable[[Array], Any]


def _strided(x: Array) -> Array:
    """Return the values as a view that is not contiguous in memory."""
    wide = np.full((2 * len(x), *(2 * n for n in x.shape[1:])), 7, dtype=x.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def _read_only(x: Array) -> Array:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: Mapping[str, Layout] = {
    "reversed strides": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "float16": lambda a: a.astype(np.float16) if a.dtype.kind == "f" else a.astype(np.int8),
    "Fortran order": np.asfortranarray,
    "read-only": _read_only,
    "not contiguous": _strided,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "integers": lambda a: a.astype(np.int32) if a.ndim > 1 else a,
    "lists": lambda a: a.tolist(),
}
"""Memory layouts and types of the same numbers, which must not change a result."""


def task_clients(task: str) -> dict[str, tuple[Array, Array]]:
    """Return {id: (x, y)} for six clients in two groups, with whole numbers, which all types can represent."""
    random = np.random.default_rng(11)
    clients = {}
    for index in range(6):
        x = random.integers(-3, 4, size=(14, 2)).astype(np.float64)
        score = (x @ [2, -1]) * (1 if index % 2 else -1) + random.integers(-4, 5, size=14)
        y = score if task == "regression" else np.digitize(score, [0] if task == "binary" else [-2, 2])
        clients[f"site-{index}"] = (x, y)
    return clients


@dataclass(frozen=True)
class _Trial:
    """A method on small data of one kind of task."""

    method: str
    task: str
    options: Mapping[str, Any]

    def fit(self, clients: Mapping[str, tuple[Any, Any]]) -> Result:
        """Fit with the method's defaults, or with random initial models and a supported learner if it refuses them."""
        entry = find_method(self.method)
        data = from_arrays(clients, truth=[str(index % 2) for index in range(len(clients))])
        accepted = {option.name for option in entry.options()}
        wanted = Case(self.method, "linear", {"rounds": 2, **self.options}).settings
        settings = {name: value for name, value in wanted.items() if name in accepted}
        learner = LEARNERS[entry.learners[0]] if entry.learners else "mlp:hidden=3"
        refusals: list[ConfigError] = []
        for instead in ({}, {"init": "random"}, {"learner": learner}, {"learner": learner, "init": "random"}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # so little data does not show groups clearly
                try:
                    return fit(data, self.method, **(settings | instead))
                except ConfigError as refusal:
                    refusals.append(refusal)
        raise refusals[0]

    def answers(self, result: Result, x: Any, y: Any) -> list[Any]:
        """Return predictions, cluster and weights of a result for these samples of site-1."""
        answers: list[Any] = [result.predict(x, client="site-1"), result.predict(x, cluster=0), result.assign(x, y)]
        if find_method(self.method).groups.personal:
            return answers
        return [*answers, result.predict(x, support=(x, y)), result.weigh(x, y)]


def check_task(
    method: str, task: str, options: Mapping[str, Any] | None = None, layouts: Iterable[str] = LAYOUTS
) -> str | None:
    """Check that a method gives the same result for every memory layout of one kind of data.

    Masked arrays must be refused. Labels with gaps must give the same models, and predictions with these labels.

    Args:
        method: Name of a registered method.
        task: Kind of data, one of `TASKS`.
        options: Options of the method and of the run.
        layouts: Names of the layouts to check; by default all in `LAYOUTS`.

    Returns:
        The error message if the method refuses this kind of data, otherwise None.

    Raises:
        AssertionError: if a check fails.

    Example:
        >>> from coterie.testing import check_task
        >>> check_task("fedavg", "binary", layouts=["read-only", "lists"])
    """
    trial, clients = _Trial(method, task, options or {}), task_clients(task)
    try:
        clean = trial.fit(clients)
    except (ConfigError, InputError) as refusal:
        return str(refusal)
    assert np.isfinite(_flat(clean)).all(), f"{task}: a parameter is not finite"
    expected = trial.answers(clean, *clients["site-1"])
    for name in layouts:
        lay = LAYOUTS[name]
        found = trial.fit({client: (lay(x), lay(y)) for client, (x, y) in clients.items()})
        answers = trial.answers(found, *map(lay, clients["site-1"]))
        _assert_equal(clean, found, expected, answers, f"{task}, {name}")
    if task != "regression":
        _check_labels(trial, clients, clean, expected)
    _check_masks(trial, clients, clean)
    return None


def _assert_equal(clean: Result, found: Result, expected: list[Any], answers: list[Any], what: str) -> None:
    assert np.array_equal(_flat(clean), _flat(found)), f"{what}: other models than with a plain array"
    assert clean.assignments == found.assignments, f"{what}: clients changed their clusters"
    same = all(np.array_equal(one, other) for one, other in zip(expected, answers, strict=True))
    assert same, f"{what}: other predictions than with a plain array"


def _check_labels(
    trial: _Trial, clients: Mapping[str, tuple[Array, Array]], clean: Result, expected: list[Any]
) -> None:
    """Check that labels with gaps, and true and false, give the same models, and predictions with these labels."""
    gaps = np.array(GAPS[trial.task])
    named = {client: (x, gaps[y]) for client, (x, y) in clients.items()}
    found = trial.fit(named)
    answers = [gaps[each] if np.asarray(each).dtype.kind == "i" and np.ndim(each) else each for each in expected]
    _assert_equal(clean, found, answers, trial.answers(found, *named["site-1"]), f"{trial.task}, label gaps")
    if trial.task == "binary":
        truths = {client: (x, y.astype(bool)) for client, (x, y) in clients.items()}
        found = trial.fit(truths)
        _assert_equal(clean, found, expected, trial.answers(found, *truths["site-1"]), "true and false as labels")


def _check_masks(trial: _Trial, clients: Mapping[str, tuple[Array, Array]], clean: Result) -> None:
    x, y = clients["site-1"]
    mask = np.arange(len(y)) == 1
    masked_x, masked_y = np.ma.array(x, mask=np.broadcast_to(mask[:, None], x.shape)), np.ma.array(y, mask=mask)
    uses: list[Callable[[], object]] = [
        lambda: from_arrays({**clients, "site-1": (masked_x, y)}),
        lambda: from_arrays({**clients, "site-1": (x, masked_y)}),
        lambda: clean.predict(masked_x, client="site-1"),
        lambda: clean.assign(x, masked_y),
    ]
    for use in uses:
        try:
            use()
        except InputError:
            continue
        raise AssertionError(f"{trial.task}: a masked array was accepted, so that its masked values are used")


def learners_of(method: str) -> tuple[str, ...]:
    """Return the learners of the checks that a method supports."""
    fits = find_method(method).learners
    return tuple(LEARNERS) if fits is None else fits


def check_method(method: str, options: Mapping[str, Any] | None = None, learners: Sequence[str] | None = None) -> None:
    """Run all checks on a registered method with all learners that it supports.

    The method is also run on every kind of data in every memory layout (`check_task`), and must support one kind.

    Args:
        method: Name of the method.
        options: Options of the method and of the run; by default none.
        learners: Learners of the checks, by name; by default all that the method supports.

    Raises:
        AssertionError: at the first check that fails.

    Example:
        >>> from coterie.testing import check_method
        >>> check_method("fedavg", learners=["linear"])
    """
    for learner in learners or learners_of(method):
        for name, check in CHECKS.items():
            try:
                check(Case(method, learner, options or {}))
            except AssertionError as error:
                raise AssertionError(f"{method} with {learner}, check {name}: {error}") from error
    refusals = [check_task(method, task, options) for task in TASKS]
    assert None in refusals, f"{method} refuses every kind of data: {refusals[0]}"
