"""Options that have no effect given other options are refused in one sentence, for all methods."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import coterie
from coterie.core.registry import Registered
from coterie.errors import ConfigError
from coterie.experiments.variants import Variant
from coterie.methods import IFCA, ODCL, PACFL, Initializer, Method, RandomInit, TwoPhase
from coterie.options import AUTO, Option, from_options, options_of
from coterie.testing.checks import LEARNERS, Case, learners_of
from coterie.training.planning import prepare

METHODS = [name for name, kind in Method.members.items() if kind.__module__.startswith("coterie.")]


@pytest.fixture(scope="module")
def regression():
    return coterie.scenario("mixed-regression", clients=12, groups=2, dimension=3)


REFUSED = [
    ("two-phase", {"init": "random", "anchors": 5}, "two-phase: anchors has no effect unless init=moment-descent"),
    ("two-phase", {"init": "odcl", "subspace_rounds": 3}, "subspace_rounds has no effect unless init=moment-descent"),
    (TwoPhase(init=RandomInit()), {"iterations": 3}, "iterations has no effect unless init=moment-descent"),
    ("two-phase", {"epsilon": 0.5}, "epsilon has no effect unless delta is given"),
    ("pacfl", {"mu": 0.3}, "pacfl: mu has no effect unless then=fedprox: set that, or leave mu out"),
    (PACFL(mu=0.3), {}, "mu has no effect unless then=fedprox"),
    ("one-shot", {"convex_grid": "equidistant"}, "convex_grid has no effect unless clustering=convex"),
    ("one-shot", {"solver": "exact", "solve_steps": 3}, "solve_steps has no effect unless solver=steps:"),
    ("ifca", {"init": "odcl:gradient_step=0.5"}, "init=odcl: gradient_step has no effect unless clustering=gradient"),
    (IFCA(init=ODCL(spectral_parts=1)), {}, "init=odcl: spectral_parts has no effect unless clustering=spectral"),
    ("ifca", {"race_share": 0.5, "race": 0}, "race_share has no effect unless race is given"),
    ("ifca", {"race": 3, "restarts": 1}, "race=3 has no effect: .* set restarts to 2 or more, or leave race out"),
    ("ifca", {"divide_by": "federation"}, "divide_by has no effect unless averaging=all"),
    ("flexcfl", {"migrate_every": 0, "tau": 0.5}, "tau has no effect unless migrate_every is given"),
]


@pytest.mark.parametrize(("method", "given", "message"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_an_option_without_effect_is_refused(regression, method, given, message):
    with pytest.raises(ConfigError, match=message):
        prepare(regression, method, None, given)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("two-phase", {"anchors": 5}),
        ("two-phase", {"init": "moment-descent", "anchors": 5, "delta": 1.0, "epsilon": 0.5}),
        ("pacfl", {"then": "fedprox", "mu": 0.3}),
        ("ifca", {"averaging": "all", "divide_by": "federation"}),
        ("ifca", {"restarts": 3, "race": 2, "race_share": 0.5}),
        ("one-shot", {"solve_steps": 3}),
    ],
)
def test_an_option_whose_condition_is_met_is_taken(regression, method, given):
    options = prepare(regression, method, None, given).method.to_options()
    assert all(options[name] == value for name, value in given.items() if name != "init")


@pytest.mark.parametrize("name", METHODS)
def test_a_stored_configuration_is_never_refused(name):
    """It names every option with its value, also those that have no effect."""
    case = Case(name, learners_of(name)[0])
    config = case.plan().config
    given = {key: value for key, value in config.items() if key not in ("scenario", "method", "learner")}
    assert prepare(case.data(), name, LEARNERS[case.learner], given).config == config


@pytest.mark.parametrize("name", METHODS)
def test_every_condition_names_an_option_and_values_that_it_can_have(name):
    kind = Method.members[name]
    known = {each.name: each for each in options_of(kind)}
    for option in known.values():
        for condition in option.needs:
            other, _, accepted = condition.partition("=")
            assert other in known, f"{option.name} needs {condition}"
            for text in filter(None, accepted.split("|")):
                assert text == AUTO or known[other].read(text) is not None


def alternatives(option: Option) -> list[Any]:
    """Return values that exchange one part of a method for another."""
    if option.choices:
        return list(option.choices)
    if issubclass(option.kind, Registered) and not option.several:
        return [name for name in option.kind.members if option.kind is not Initializer or name != "given"]
    return [True, False] if option.kind is bool else []


def other_value(option: Option) -> Any:
    """Return a value that differs from the default, or None."""
    found: list[Any] = []
    if option.choices:
        found = list(option.choices)
    elif option.kind in (int, float):
        found = [option.kind(value) for value in (1, 2, 3, 0.5, 0.25, 4)]
    for value in found:
        try:
            if option.check(value) != option.default:
                return value
        except ConfigError:
            continue
    return None


@pytest.mark.parametrize("name", METHODS)
def test_no_option_is_lost_when_parts_are_exchanged(name):
    """If exchanging a part makes a method ignore an option, `without_effect` reports it.

    Every exchange of one part (an initializer, an optimizer, a choice) meets every other option. An option is forgotten
    if leaving it out gives the same method although its value is not the default.
    """
    kind, forgotten = Method.members[name], []
    options = [each for each in options_of(kind) if each.name not in kind.refuses]
    parts = [{part.name: value} for part in options for value in alternatives(part)]
    exchanged = [(part, method) for part in parts if (method := method_with(kind, part)) is not None]
    others = {option.name: value for option in options if (value := other_value(option)) is not None}
    for (part, method), (option, value) in product(exchanged, others.items()):
        given = {**part, option: value}
        if option in part or method_with(kind, given) != method:
            continue
        if method.field_options().get(option) != value and option not in method.without_effect(given):
            forgotten.append(given)
    assert forgotten == []


def method_with(kind: type[Method], options: dict[str, Any]) -> Method | None:
    """Return the method with these options, or None if it refuses them."""
    try:
        return from_options(kind, options)
    except ConfigError:
        return None


def test_a_comparison_gives_an_option_to_the_methods_on_which_it_has_an_effect(regression, tmp_path):
    assert Variant.of("pacfl").takes({"mu": 0.3, "rounds": 2}) == {"rounds": 2}
    assert Variant.of(replace(PACFL(), then="fedprox")).takes({"mu": 0.3}) == {"mu": 0.3}
    assert Variant.of("fedprox").takes({"mu": 0.3}) == {"mu": 0.3}
    with pytest.raises(ConfigError, match="mu has no effect on pacfl, fedgroup with these options: leave it out"):
        coterie.compare(regression, ["pacfl", "fedgroup"], seeds=1, out=tmp_path / "run", mu=0.3, rounds=1)
