"""Methods as typed values: the same runs as by name and options, checked by their constructors, easy to vary."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.errors import ConfigError
from coterie.methods import (
    CFL,
    IFCA,
    ODCL,
    PACFL,
    SGD,
    Adam,
    Averaging,
    Cosine,
    FedAvg,
    FedEM,
    FedProx,
    FeSEM,
    FullBatch,
    GaussianInit,
    Local,
    Method,
    MiniBatch,
    OneShot,
    RandomInit,
    ServerAdam,
    ServerSGD,
    StoCFL,
    Tiered,
    find_method,
)
from coterie.methods.tiered import Tiered as TieredKind
from coterie.options import from_options
from coterie.server.combine import Median
from coterie.testing.checks import LEARNERS, Case, learners_of, small_federation
from coterie.tiers import Assigned, EMMixture, RemoveUnclaimed, SplitByGap, SplitByNorm, UpdateCosine
from coterie.training.planning import prepare
from coterie.training.result import Result

RUN = {"rounds": 2, "dtype": "float64", "seed": 3}


def assert_equal(one: Result, other: Result) -> None:
    assert one.assignments == other.assignments
    assert one.config == other.config
    for a, b in zip(one.models, other.models, strict=True):
        for name in b:
            np.testing.assert_array_equal(a[name], b[name])


# ---- a typed method is the same as its name with options -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:moment descent", "ignore:one-shot")
@pytest.mark.parametrize("name", Method.members)
def test_every_method_runs_alike_by_value_and_by_name(name: str):
    case = Case(name, learners_of(name)[0])
    kind = find_method(name)
    own = {key: value for key, value in case.settings.items() if key in kind.own_names()}
    rest = {key: value for key, value in case.settings.items() if key not in own}
    typed = from_options(kind, own)
    assert isinstance(typed, kind)
    learner = LEARNERS[case.learner]
    by_value = coterie.fit(case.data(), typed, learner=learner, **rest)
    assert_equal(by_value, coterie.fit(case.data(), name, learner=learner, **case.settings))


PAIRS: list[tuple[Method, dict[str, Any]]] = [
    (
        IFCA(clusters=3, local=FullBatch(steps=4, lr=0.2), init=RandomInit(restarts=2), race=1),
        {"clusters": 3, "local_steps": 4, "lr": 0.2, "restarts": 2, "race": 1},
    ),
    (
        IFCA(
            local=MiniBatch(batch_size=4, epochs=2, optimizer=SGD(momentum=0.9), schedule=Cosine()),
            averaging=Averaging(over="all", client_weight="samples"),
            server=ServerAdam(lr=0.1),
        ),
        {
            "batch_size": 4,
            "local_epochs": 2,
            "optimizer": "sgd:momentum=0.9",
            "schedule": "cosine",
            "averaging": "all",
            "client_weight": "samples",
            "server_optimizer": "adam:lr=0.1",
        },
    ),
    (IFCA(init=GaussianInit(sd=2.0)), {"init": "gaussian:sd=2"}),
    (IFCA(init=ODCL(clustering="spectral")), {"init": "odcl:clustering=spectral"}),
    (FedAvg(server=ServerSGD(lr=0.5, momentum=0.5)), {"server_optimizer": "sgd:lr=0.5,momentum=0.5"}),
    (FedProx(mu=0.5, local=FullBatch(steps=2)), {"mu": 0.5, "local_steps": 2}),
    (FeSEM(averaging=Averaging(combine=Median())), {"combine": "median"}),
    (OneShot(init=ODCL(clustering="spectral"), then="fedprox"), {"clustering": "spectral", "then": "fedprox"}),
    (PACFL(beta=30.0, linkage="complete"), {"beta": 30.0, "linkage": "complete"}),
    (CFL(eps1=10.0, eps2=0.0, warmup=1), {"eps1": 10.0, "eps2": 0.0, "warmup": 1}),
    (
        Tiered(assignment=EMMixture(mu=0.4), clusters=2, local=FullBatch(steps=2)),
        {"assignment": "em-mixture:mu=0.4", "clusters": 2, "local_steps": 2},
    ),
    (
        Tiered(
            assignment=Assigned(),
            procedure=(SplitByNorm(eps1=10.0, eps2=0.0, warmup=1), RemoveUnclaimed()),
            distance=UpdateCosine(),
        ),
        {
            "assignment": "assigned",
            "procedure": "split-by-norm:eps1=10,eps2=0,warmup=1 + remove-unclaimed",
            "distance": "update-cosine",
        },
    ),
]


@pytest.mark.filterwarnings("ignore:one-shot")
@pytest.mark.parametrize(("typed", "options"), PAIRS, ids=lambda value: getattr(value, "name", ""))
def test_fields_are_options(typed: Method, options: dict[str, Any]):
    assert from_options(type(typed), options) == typed
    data = small_federation("logistic", sizes=(12,) * 9)
    by_value = coterie.fit(data, typed, learner="logistic", **RUN)
    assert_equal(by_value, coterie.fit(data, typed.name, learner="logistic", **options, **RUN))


@pytest.mark.parametrize("engine", ["simulated", "sequential"])
def test_both_engines_take_typed_methods(engine: str):
    data = small_federation("logistic")
    mine = IFCA(clusters=2, local=MiniBatch(batch_size=4, optimizer=Adam()))
    found = coterie.fit(data, mine, learner="logistic", engine=engine, **RUN)
    assert found.config["engine"] == engine
    assert found.config["optimizer"] == "adam"


# ---- varying a method ------------------------------------------------------------------------------------------------


def test_options_replace_fields_of_a_typed_method():
    data = small_federation("logistic")
    mine = IFCA(clusters=3, local=FullBatch(steps=4, lr=0.2))
    changed = prepare(data, mine, "logistic", {"clusters": 2, "lr": 0.5, "rounds": 2}).method
    decided = {"init": RandomInit(restarts=1), "race": 0}  # two rounds are too few for a race
    assert changed == replace(mine, clusters=2, local=FullBatch(steps=4, lr=0.5), **decided)
    assert mine == IFCA(clusters=3, local=FullBatch(steps=4, lr=0.2)), "the value itself does not change"
    assert mine.with_options({"batch_size": 5}).local == MiniBatch(batch_size=5, steps=4, lr=0.2)
    assert mine.with_options({}) == mine


def test_an_option_that_the_method_does_not_have_is_refused():
    data = small_federation("logistic")
    with pytest.raises(ConfigError, match="mu has no meaning for method ifca"):
        coterie.fit(data, IFCA(), mu=1.0)
    with pytest.raises(ConfigError, match="unknown option 'cluster' of method ifca: did you mean 'clusters'"):
        coterie.fit(data, IFCA(), cluster=2)
    with pytest.raises(ConfigError, match="clusters has no meaning for method local"):
        coterie.fit(data, Local(), clusters=2)


def test_recommendations_for_a_method_do_not_apply_to_a_typed_one():
    """Its fields are set; only recommendations for runs, such as the number of rounds, apply."""
    data = coterie.scenario("mixed-regression", clients=8)
    assert {"restarts", "lr", "rounds"} <= data.recommended.keys()
    typed, named = prepare(data, IFCA(), None, {}), prepare(data, "ifca", None, {})
    decided = {"init": RandomInit(restarts=5), "race": 5, "race_share": 1.0}
    assert typed.method == IFCA(local=FullBatch(steps=10), **decided)
    assert named.method.init == RandomInit(restarts=data.recommended["restarts"])
    assert typed.rounds == named.rounds == data.recommended["rounds"]


def test_a_typed_method_is_resumed_as_it_was_whatever_the_scenario_recommends(tmp_path):
    """Full batches have no batch size; the scenario recommends one, which must not come back with the run."""
    data = coterie.scenario("diverse-shift", clients=6)
    assert "batch_size" in data.recommended
    mine, options = IFCA(clusters=2, local=FullBatch(steps=2, lr=0.1)), {"rounds": 3, "checkpoint_every": 1}

    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, mine, out=tmp_path / "run", callbacks=[stop], **options)
    whole, resumed = coterie.fit(data, mine, **options), coterie.resume(tmp_path / "run")
    assert_equal(resumed, whole)
    assert "batch_size" not in resumed.config


def test_a_given_schedule_overrides_a_recommended_decay():
    data = replace(small_federation("logistic"), recommended={"lr_decay": 0.9})
    plan = prepare(data, "fedavg", "logistic", {"schedule": "cosine"})
    assert plan.tiers.local.schedule == Cosine()
    assert prepare(data, "fedavg", "logistic", {}).config["lr_decay"] == 0.9
    scheduled = replace(data, recommended={"schedule": "cosine"})
    assert prepare(scheduled, "fedavg", "logistic", {"lr_decay": 0.5}).config["lr_decay"] == 0.5


@pytest.mark.parametrize("name", Method.members)
def test_methods_are_values(name: str):
    kind = find_method(name)
    one = kind()
    assert one == kind()
    assert hash(one) == hash(kind())
    assert eval(repr(one), _names_in(one)) == one
    own = [each for each in fields(one) if each.init]
    assert replace(one, **{each.name: getattr(one, each.name) for each in own}) == one
    for each in own[:1]:
        with pytest.raises(FrozenInstanceError):
            setattr(one, each.name, None)


def _names_in(value: object) -> dict[str, type]:
    """The classes of a value and of its fields by name, as far as they are dataclasses."""
    found = {type(value).__name__: type(value)}
    for each in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, each.name)
        if hasattr(inner, "__dataclass_fields__"):
            found |= _names_in(inner)
    return found


# ---- facts and help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", Method.members)
def test_every_method_says_what_it_is(name: str):
    kind = find_method(name)
    assert kind.name == name
    assert kind.summary
    assert kind.citation
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "a class without a docstring gets its signature"
    assert kind.equals().startswith(("Equals", "No twin"))
    assert kind.twin is None or kind.twin in Method.members
    assert kind.own_names() <= {each.name for each in kind.options()}
    assert not kind.refuses & {each.name for each in kind.options()}
    assert set(kind.preferred({})) <= {each.name for each in kind.options()}


def test_the_help_of_an_option_is_that_of_its_field():
    helps = {each.name: each.help for each in IFCA.options()}
    assert helps["race_share"] == (
        "share of clients asked in each round of a race; auto: 0.25, or more if needed for 10 clients per cluster"
    )
    assert helps["local_steps"].startswith("number of gradient steps")
    assert helps["rounds"].startswith("number of communication rounds (T); auto: until the training loss settles")
    defaults = {each.name: each.default for each in OneShot.options()}
    assert (defaults["local_steps"], defaults["lr"]) == (None, "auto"), "the length depends on the learner"
    assert defaults["clustering"] == ODCL().clustering


# ---- constructors refuse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (IFCA, {"clusters": 0}, "clusters must be a whole number at least 1, or auto, got 0"),
        (IFCA, {"clusters": 2.5}, "clusters must be a whole number at least 1, or auto, got 2.5"),
        (IFCA, {"clusters": "many"}, "clusters must be a whole number at least 1, or auto, got 'many'"),
        (IFCA, {"clusters": True}, "clusters must be a whole number"),
        (IFCA, {"race_share": 0}, "race_share must be a number above 0 and at most 1, or auto, got 0"),
        (IFCA, {"race_share": float("nan")}, "race_share must be a number"),
        (IFCA, {"stable_after": 1}, "stable_after must be a whole number at least 2, got 1"),
        (IFCA, {"resample": "yes"}, "resample must be true or false, got 'yes'"),
        (IFCA, {"exchange": "models"}, "unknown exchange 'models': did you mean 'model'"),
        (FedProx, {"mu": -1}, "mu must be a number at least 0, got -1"),
        (ODCL, {"clustering": "spectrum"}, "unknown clustering 'spectrum': did you mean 'spectral'"),
        (StoCFL, {"tau": "high"}, "tau must be a number"),
        (FedEM, {"clusters": -3}, "clusters must be a whole number at least 1"),
        (TieredKind, {"assignment": "em-mixtur"}, "unknown assignment 'em-mixtur': did you mean 'em-mixture'"),
        (TieredKind, {"procedure": SplitByGap}, "procedure"),
        (Averaging, {"over": "member"}, "unknown averaging 'member': did you mean 'members'"),
        (FullBatch, {"steps": 0}, "steps must be at least 1, got 0"),
        (MiniBatch, {"epochs": 1, "steps": 1}, "give one of them"),
        (ServerSGD, {"lr": 0}, "lr of a server optimizer must be positive"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_constructor(kind: Any, values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        kind(**values)


def test_numpy_numbers_become_plain_ones():
    mine = IFCA(clusters=np.int64(3), race_share=np.float32(0.5))
    assert mine == IFCA(clusters=3, race_share=0.5)
    assert type(mine.clusters) is int
    assert type(mine.race_share) is float


def test_members_may_be_given_as_texts():
    assert Tiered(assignment="em-mixture:mu=0.4") == Tiered(assignment=EMMixture(mu=0.4))
    assert Tiered(procedure="remove-unclaimed") == Tiered(procedure=(RemoveUnclaimed(),))
    assert IFCA(local="full-batch:steps=3", init="odcl") == IFCA(local=FullBatch(steps=3), init=ODCL())
    assert Averaging(combine="median") == Averaging(combine=Median())


@pytest.mark.parametrize("method", [IFCA, 3, None, ["ifca"]])
def test_other_values_than_methods_are_refused(method: Any):
    with pytest.raises(ConfigError, match="method must be a name or a value such as"):
        coterie.fit(small_federation("logistic"), method)


@pytest.mark.parametrize(
    ("field", "value"),
    [("local", 5), ("local", "full-bach"), ("averaging", "members"), ("server", 0.5), ("init", "odlc"), ("init", 3)],
)
def test_a_group_of_another_type_is_refused(field: str, value: Any):
    with pytest.raises(ConfigError, match=field):
        IFCA(**{field: value})


def test_a_method_without_its_parts_says_what_to_write():
    with pytest.raises(ConfigError, match=r"Method defines no tiers\(\)"):
        Method().tiers()
    with pytest.raises(ConfigError, match="Method has no initializer"):
        _ = Method().initializer
