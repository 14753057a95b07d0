"""The shared check suite over every registered method, every learner and the options that change the arithmetic."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

from coterie.client.group import ClientGroup
from coterie.core.federation import Federation
from coterie.methods import Method
from coterie.testing.checks import CHECKS, LAYOUTS, LEARNERS, TASKS, Case, check_task, learners_of
from coterie.training.planning import Plan
from coterie.training.result import Result
from tests.fuzz.cases import SCALE

METHODS: dict[str, type[Method]] = dict(Method.members)
VARIANTS = {
    "ifca": [
        {"exchange": "gradient"},
        {"restarts": 3},
        {"restarts": 3, "race": 2, "race_share": 0.7},
        {"averaging": "all", "client_weight": "samples"},
        {"client_weight": "samples", "server_lr": 0.7, "lr_decay": 0.9},
        {"batch_size": 4, "local_epochs": 2},
        {"batch_size": 4, "local_steps": 3},
        {"batch_size": 4, "local_epochs": 2, "augment": "flip,crop"},
        {"stable_after": 2, "rounds": 5},
    ],
    "fedavg": [{"batch_size": 3, "local_epochs": 1}, {"exchange": "gradient"}],
    "oracle": [{"exchange": "gradient"}],
    "fedprox": [{"mu": 0.5, "batch_size": 5, "local_epochs": 1}],
    "local": [{"batch_size": 5, "local_epochs": 1}],
    "two-phase": [
        {"phase2": "fedprox", "init": "random"},
        {"averaging": "members", "init": "random"},
        {"soft": 0.5, "init": "random"},
        {"soft": 0.5, "init": "random", "restarts": 2, "averaging": "members"},
        {"soft": 0.5, "init": "random", "batch_size": 4, "local_epochs": 2},
    ],
}
SHARED = [("mlp", {"shared": "layer0"}), ("cnn", {"shared": "conv1,conv2"}), ("module", {"shared": "1."})]

CASES = [
    Case(method, learner)
    for method in METHODS
    for learner in learners_of(method)
    if learner != "representation" or METHODS[method].learners is not None  # any other goes by autograd, as modules do
]
# options that change the arithmetic do so for every learner: linear models and networks take turns
CASES += [
    Case(m, "linear" if m == "two-phase" and "batch_size" not in options else ("mlp", "linear")[place % 2], options)
    for m, variants in VARIANTS.items()
    for place, options in enumerate(variants)
]
CASES += [Case("ifca", learner, options) for learner, options in SHARED]
CASES += [Case("ifca", "mlp", {"shared": "layer0", "restarts": 2})]
CASES += [
    Case("two-phase", "linear", {"phase2": "fedprox"}),
    Case("two-phase", "linear", {"clusters": "auto"}),
    Case("two-phase", "linear", {"lr": "auto", "start_norm": 2.0}),
    Case("moment-descent", "linear", {"private_anchors": 0.1}),
    Case("moment-descent", "linear", {"anchor_step": "line-search"}),
    Case("moment-descent", "linear", {"anchor_step": "paper"}),
    Case("moment-descent", "linear", {"clusters": "auto", "delta": 1.0, "anchors": 3}),
    Case("moment-descent", "linear", {"moments": "two-points", "iterations": 2, "anchors": 4}),
    Case("ifca", "linear", {"init": "moment-descent"}),
]
SGD = {"solver": "sgd", "sgd_steps": 50, "sgd_radius": 3.0, "sgd_mu": 0.5}
CASES += [
    Case("odcl", "linear", options)
    for options in (
        {"clustering": "spectral"},
        {"clustering": "gradient"},
        {"clustering": "convex", "clusters": "auto"},
        {"clustering": "convex", "clusters": "auto", "convex_weights": "knn", "lam": 0.1},  # the path is slow
        {"clusters": "auto"},
        {"client_weight": "samples", "clusters": "auto"},
        SGD,
        {"solver": "steps", "solve_steps": 3},
    )
]
CASES += [
    Case("odcl", "logistic", SGD | {"sgd_output": "average"}),
    Case("odcl", "mlp", {"batch_size": 4, "local_epochs": 2}),
    Case("one-shot", "linear", {"then": "fedprox", "mu": 0.3, "clustering": "spectral"}),
    Case("one-shot", "linear", {"participation": 0.6, "batch_size": 4, "local_epochs": 2}),
    Case("ifca", "linear", {"init": "odcl:clustering=gradient"}),
    Case("ifca", "mlp", {"init": "odcl"}),
    Case("ifca", "logistic", {"init": "odcl", "clusters": "auto"}),
    Case("ifca", "linear", {"init": "gaussian:sd=2", "restarts": 2}),
    Case("ifca", "logistic", {"init": "cluster-oracle:noise=0.5"}),
]
CASES += [Case("ifca", "linear", {"clusters": "auto", "max_clusters": 2, "choose_seeds": 2})]
CASES += [Case("ifca", learner, {"augment": "flip,crop"}) for learner in ("mlp", "cnn")]
# four rounds take eight subsets, so no client may have fewer samples
PLENTY = (8, 17, 9, 40, 13, 21, 8, 30, 25)
RESAMPLED = [{"exchange": "gradient"}, {"batch_size": 2, "local_steps": 3}, {"restarts": 2, "stable_after": 2}]
CASES += [
    Case("ifca", learner, options | {"resample": True}, PLENTY)
    for options, learner in zip(RESAMPLED, ("linear", "mlp", "linear"), strict=True)
]
# validation removes samples before any method sees them; these methods differ in what clients keep
CASES += [
    Case(method, learners_of(method)[0], {"validation": 0.3, "patience": 2})
    for method in ("local", "ifca", "one-shot", "fedsoft", "stocfl", "hcfl+")
]
EM = [{"averaging": "responsibility"}, {"batch_size": 4, "local_epochs": 2}, {"restarts": 2}, {"participation": 0.6}]
CASES += [Case("fedem", "mlp", options) for options in EM]
CASES += [Case("fedrc", "logistic", options) for options in (EM[0], EM[3])]
CASES += [Case("fesem", "linear", options) for options in (EM[1], EM[3])]
# a trial in every round, at a level that lets nine small clients be split
TESTED = {"test_every": 1, "false_splits": 0.5}
CASES += [
    Case("cfl", "linear", TESTED),
    Case("icfl", "logistic", TESTED | {"participation": 0.6}),
    Case("hcfl", "logistic", TESTED),
    Case("hcfl-split", "mlp", TESTED | EM[1]),
    Case("hcfl+", "mlp", TESTED | {"grace": 1}),
]
ALIKE = {"clusters": 3, "procedure": "merge-by-test:every=1", "shared": "body", "distance": "prototypes"}
PARTED = {"clusters": 2, "procedure": "own-bodies-by-test:every=2,rate=1000000", "shared": "body"}
CASES += [
    Case("tiered", "mlp", ALIKE | {"assignment": "em-mixture"}),
    Case("tiered", "mlp", PARTED | {"assignment": "em-mixture", "distance": "prototypes", "participation": 0.6}),
    Case("tiered", "mlp", PARTED | {"assignment": "nearest-parameters", "distance": "prototypes", "batch_size": 4}),
]
# one function combines the rows of clients for all methods
CASES += [Case("ifca", "linear", {"combine": "median", "restarts": 2})]
CASES += [Case("fesem", "linear", {"combine": "krum:attackers=1,keep=2"})]
CASES += [Case("fedgmm", "logistic", options) for options in ({"averaging": "all"}, EM[3] | {"gaussians": "tied"})]
CASES += [Case("fedgmm", "linear", {"gaussians": 3}), Case("fedgmm", "mlp", {"embedding": "start", "gaussians": 2})]
CASES += [Case("fedgmm", "logistic", {"embedding": "random", "gaussians": 2, "restarts": 2})]
CASES += [Case("fedsoft", "mlp", options) for options in (EM[1], EM[3], {"count_every": 2})]
CASES += [Case("fedsoft", "linear", {"count_every": 3, "participation": 0.6, "client_weight": "uniform"})]
CUT = {"warmup": 1, "eps1": 10.0, "eps2": 0.0, "least": 3}
CASES += [Case("cfl", learner, options | CUT) for learner in ("linear", "mlp") for options in ({}, {"batch_size": 4})]
CASES += [Case("cfl", "logistic", CUT | {"thresholds": "relative", "participation": 0.6, "max_clusters": 3})]
CASES += [
    Case("pacfl", "logistic", options)
    for options in (
        {"clusters": "auto", "beta": 30.0, "linkage": "complete"},
        {"per_class": True, "directions": 1},
        {"angle": "sum", "participation": 0.6},
        {"per_class": True, "angle": "sum", "then": "fedprox", "mu": 0.3},
    )
]
CASES += [
    Case("fedgroup", "logistic", options)
    for options in (
        {"measure": "madc", "pretrain_steps": 5},
        {"founders": 4, "batch_size": 4, "pretrain_steps": 6},
        {"then": "fedprox", "mu": 0.3, "participation": 0.6, "clusters": "auto"},
    )
]
CASES += [Case("ifca", "mlp", {"init": "fedgroup:pretrain_steps=3"})]


class Kept(Case):
    """A case whose plain run, which most checks compare with, is kept until the next case comes."""

    last: ClassVar[dict[str, Result]] = {}

    def run(self, plan: Plan | None = None, federation: Callable[[ClientGroup], Federation] | None = None) -> Result:
        if plan is not None or federation is not None:
            return super().run(plan, federation)
        if repr(self) not in self.last:
            self.last.clear()
            self.last[repr(self)] = super().run()
        return self.last[repr(self)]


CASES += [Case("hcfl", "logistic", CUT | options) for options in ({}, {"backbone": "fedem", "participation": 0.6})]
CASES += [Case("hcfl-split", "mlp", CUT | {"max_clusters": 4, "batch_size": 4})]
CASES += [Case("hcfl", "logistic", CUT | {"backbone": "fesem"})]
CASES += [Case("hcfl-split", "mlp", CUT | {"max_clusters": 4, "backbone": "fedsoft"})]
GAP = {"rho": 0.05, "max_clusters": 4, "clusters": 1}
CASES += [
    Case("hcfl+", "mlp", GAP | options)
    for options in (
        {"backbone": "fedem", "batch_size": 4},
        {"mu": 0.0, "split": "hard"},
        {"participation": 0.6, "averaging": "responsibility"},
        {"order": "together", "clusters": 2},
        {"backbone": "fesem", "clusters": 3, "order": "together"},
        {"backbone": "fesem", "clusters": 3, "batch_size": 4, "participation": 0.6},
        {"backbone": "fedsoft", "batch_size": 4},
        {"backbone": "fedsoft", "order": "together", "participation": 0.6},
    )
]
CASES += [Case("fedem", "mlp", {"shared": "body"}), Case("fedrc", "cnn", {"shared": "body", "order": "heads-first"})]

SPECTRUM = {"alpha0": 0.3, "max_clusters": 5}
CASES += [Case("icfl", "linear", SPECTRUM), Case("icfl", "mlp", SPECTRUM | {"batch_size": 4})]
CASES += [Case("icfl", "logistic", SPECTRUM | {"participation": 0.6, "least": 3, "warmup": 1})]
CASES += [
    Case("stocfl", "linear", {"tau": 0.6}),
    Case("stocfl", "mlp", {"tau": 0.9, "lam": 0.0}),
    Case("stocfl", "mlp", {"false_splits": 0.5, "participation": 0.6}),
    Case("stocfl", "mlp", {"tau": 0.6, "batch_size": 4, "local_epochs": 2}),
]
CASES += [Case("stocfl", "logistic", {"tau": 0.5, "participation": 0.6, "client_weight": "uniform", "server_lr": 0.7})]
GROWING = {"procedure": "split-by-norm:eps1=10,eps2=0,warmup=1", "distance": "update-cosine", "clusters": 1}
HALVED = GROWING | {"procedure": "split-by-norm:eps1=10,eps2=0,warmup=1,hard=false + remove-unclaimed"}
CASES += [
    Case("tiered", "logistic", HALVED | {"objective": "joint", "max_clusters": 4}),
    Case("tiered", "module", HALVED | {"objective": "ratio", "assignment": "em-mixture:mu=0.3", "max_clusters": 3}),
    Case("tiered", "mlp", HALVED | {"shared": "body", "objective": "joint", "max_clusters": 3}),
    Case("tiered", "mlp", {"assignment": "count-shares"}),
]
# local optimizers, schedules and server optimizers, with methods that keep, split, merge and select what they belong to
CASES += [
    Case("ifca", "mlp", {"optimizer": "sgd:momentum=0.9,nesterov=true", "schedule": "cosine:warmup=1", "restarts": 2}),
    Case("ifca", "linear", {"server_optimizer": "adam:lr=0.1", "restarts": 3, "race": 2}),
    Case("ifca", "cnn", {"shared": "conv1,conv2", "server_optimizer": "sgd:momentum=0.5", "batch_size": 4}),
    Case("fedavg", "logistic", {"optimizer": "adamw", "server_optimizer": "yogi"}),
    Case("fedem", "mlp", {"optimizer": "adam", "server_optimizer": "sgd:momentum=0.9", "batch_size": 4}),
    Case("fedsoft", "logistic", {"optimizer": "sgd:momentum=0.5", "server_optimizer": "adam"}),
    Case("cfl", "logistic", CUT | {"server_optimizer": "yogi", "optimizer": "sgd:weight_decay=0.1"}),
    Case("stocfl", "logistic", {"tau": 0.5, "server_optimizer": "sgd:momentum=0.9", "participation": 0.6}),
    Case("hcfl+", "mlp", GAP | {"server_optimizer": "adam:lr=0.05", "optimizer": "sgd:momentum=0.9"}),
    Case("local", "mlp", {"optimizer": "adam", "schedule": "step-decay:every=2,factor=0.5"}),
    Case("ifca", "linear", {"refit": True, "restarts": 2, "participation": 0.6}),
]


def label(case: Case) -> str:
    return "-".join([case.method, case.learner, *(f"{k}={v}" for k, v in case.options.items())])


CHEAP = ("finite", "weights", "config")
"""Checks that need no run, or only the plain run; every case runs them."""
ROTATING = ("seed", "client_order", "shards", "engines", "twin", "silent_client", "replies", "resume")
"""Checks of which a case with options runs two, in turn: every option meets some, and every check some options."""


def due(place: int, case: Case) -> list[str]:
    """Return the checks of the case at this place of the list; `make fuzz` runs all checks of all cases.

    A check that needs another run meets one learner of each method, and other learners with the next method. All
    triples of method, learner and check would take long, and a fault that shows in one triple only is rare. All pairs
    are covered: every method meets every check and every learner, and every learner meets every check.
    """
    if SCALE > 1:
        return list(CHECKS)
    return _due_with_options(place) if case.options else _due_without_options(case)


def _due_without_options(case: Case) -> list[str]:
    learners = [other.learner for other in CASES if other.method == case.method and not other.options]
    shift = list(METHODS).index(case.method) + learners.index(case.learner)
    found = []
    for number, check in enumerate(CHECKS):
        period = 1 if check in CHEAP else len(learners)
        if (number + shift) % period == 0:
            found.append(check)
    return found


def _due_with_options(place: int) -> list[str]:
    turn = {ROTATING[(place + step) % len(ROTATING)] for step in (0, 4)}
    return [check for check in CHECKS if check not in ROTATING or check in turn]


DUE = [(case, check) for place, case in enumerate(CASES) for check in due(place, case)]


def test_all_pairs_of_method_learner_and_check_are_covered():
    plain = [(case.method, case.learner, check) for case, check in DUE if not case.options]
    checked = {(method, check) for method, _, check in plain}
    assert checked == {(method, check) for method in METHODS for check in CHECKS}
    met = {(learner, check) for _, learner, check in plain}
    assert met == {(learner, check) for learner in LEARNERS for check in CHECKS}
    tried = {(method, learner) for method, learner, _ in plain}
    others = {(method, learner) for method in METHODS for learner in learners_of(method)} - tried
    assert {learner for _, learner in others} == {"representation"}


def test_every_check_meets_options_of_every_method_that_has_five_cases_with_options():
    met: dict[str, set[str]] = {}
    many = Counter(case.method for case in CASES if case.options)
    for case, check in DUE:
        if case.options:
            met.setdefault(case.method, set()).add(check)
    assert all(met[method] == set(CHECKS) for method, count in many.items() if count >= 5)


# nine small clients rarely show their groups
@pytest.mark.filterwarnings("ignore:moment descent", "ignore:one-shot", "ignore:clusters=auto")
# the suite asks some of the clients of methods that would rather see all
@pytest.mark.filterwarnings("ignore:.*it may split by chance")
@pytest.mark.parametrize(
    ("case", "check"), [pytest.param(case, check, id=f"{label(case)}-{check}") for case, check in DUE]
)
def test_check_suite(case: Case, check: str) -> None:
    CHECKS[check](Kept(case.method, case.learner, case.options, case.sizes))


NUMBERS_ONLY = {"moment-descent", "linear-heads", "linear-heads-found"}
CLASSES_ONLY = {"fedrc", "hcfl+"}


def layouts_of(method: str, task: str) -> list[str]:
    """Return the layouts of arrays that a method is checked with for one kind of data.

    They are dealt out over the kinds of data that it takes, in another way for every method: so every method and every
    kind of data meet every layout.
    """
    names = list(LAYOUTS)
    if SCALE > 1:
        return names
    kinds = kinds_of(method)
    place = list(METHODS).index(method)
    return [name for n, name in enumerate(names) if kinds[(n + place) % len(kinds)] == task]


def kinds_of(method: str) -> list[str]:
    """Return the kinds of data that a method accepts."""
    if method in NUMBERS_ONLY:
        return ["regression"]
    return [task for task in TASKS if method not in CLASSES_ONLY or task != "regression"]


def test_every_method_and_every_kind_of_data_meet_every_layout():
    met = [(method, task, layout) for method in METHODS for task in TASKS for layout in layouts_of(method, task)]
    assert {(method, layout) for method, _, layout in met} == {(method, lay) for method in METHODS for lay in LAYOUTS}
    assert {(task, layout) for _, task, layout in met} == {(task, layout) for task in TASKS for layout in LAYOUTS}
    assert all(task in kinds_of(method) for method, task, _ in met) or SCALE > 1


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_every_kind_of_data_in_every_layout(method: str, task: str) -> None:
    refusal = check_task(method, task, layouts=layouts_of(method, task))
    assert (refusal is None) == (task in kinds_of(method)), refusal


OTHER_LEARNERS = {
    "binary": ("mlp:hidden=3", "logistic:bias=false"),
    "three classes": ("mlp:hidden=3", "logistic:bias=false"),
    "regression": ("mlp:hidden=3", "linear:bias=true"),
}
"""Learners for a kind of data whose parameters have other shapes: single numbers, vectors or matrices."""


def with_other_learners() -> list[tuple[str, str, str]]:
    """Return methods, kinds of data and learners: every method is checked with every kind, with one of the learners.

    It meets both learners, and every kind of data meets both.
    """
    found = []
    for method, task in product(METHODS, TASKS):
        turn = list(METHODS).index(method) + TASKS.index(task)
        learners = OTHER_LEARNERS[task]
        found += [(method, task, each) for n, each in enumerate(learners) if SCALE > 1 or (n + turn) % 2 == 0]
    return found


@pytest.mark.parametrize(("method", "task", "learner"), with_other_learners())
def test_every_method_takes_every_kind_of_data_with_other_learners(method: str, task: str, learner: str) -> None:
    check_task(method, task, {"learner": learner}, layouts=())


def test_a_method_that_depends_on_the_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check compares numbers: a layout that changes one of them fails."""
    monkeypatch.setitem(LAYOUTS, "broken", lambda a: np.where(a == a.max(), a - 1, a))
    with pytest.raises(AssertionError, match="three classes, broken: other models than with a plain array"):
        check_task("fedavg", "three classes", layouts=["broken"])
