"""Options: derivation from fields, checks, groups, and conversions for every registered method."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.methods import HCFL, IFCA, ODCL, GaussianInit, Method, OneShot, RandomInit, find_method
from coterie.methods.run import own_options
from coterie.methods.settings import RUN_OPTIONS, RunSettings
from coterie.options import (
    AUTO,
    Auto,
    Option,
    OptionGroup,
    check_all,
    check_fields,
    check_seed,
    from_options,
    option,
    options_of,
    plain_options,
    to_options,
)
from coterie.tiers import RemoveUnclaimed, SplitByGap
from tests.fuzz.cases import SCALE


@dataclass(frozen=True, kw_only=True)
class Wheel(OptionGroup):
    spokes: int = option(12, "number of spokes", low=1)
    tyre: Literal["wide", "narrow"] | None = option(None, "kind of tyre", name="wheel_tyre")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Bicycle:
    gears: int | Auto = option(7, "number of gears", low=1, high=30)
    weight: float = option(12.5, "weight in kg", above=0)
    colour: str | None = option(None, "colour of the frame")
    bell: bool = option(False, "whether it has a bell")
    brake: Literal["disc", "rim"] = option("disc", "kind of brake")
    wheel: Wheel = Wheel(spokes=24)
    owner: str = "nobody"

    def __post_init__(self) -> None:
        check_fields(self)


# ---- one option ------------------------------------------------------------------------------------------------------


def test_options_follow_from_fields_and_groups():
    found = {each.name: each for each in options_of(Bicycle)}
    assert list(found) == ["gears", "weight", "colour", "bell", "brake", "spokes", "wheel_tyre"]
    assert [found[name].kind for name in found] == [int, float, str, bool, str, int, str]
    assert found["gears"].words == (AUTO,)
    assert found["brake"].choices == ("disc", "rim")
    assert found["wheel_tyre"].choices == ("wide", "narrow")
    assert found["spokes"].default == 24, "the default is that of the field that contains the group"
    assert found["wheel_tyre"].flag == "--wheel-tyre"
    assert options_of(Bicycle, Bicycle(gears=3))[0].default == 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gears", 3, 3),
        ("gears", "auto", "auto"),
        ("gears", np.int64(3), 3),
        ("weight", 9, 9.0),
        ("weight", np.float32(0.5), 0.5),
        ("colour", 7, "7"),
        ("bell", np.bool_(True), True),
        ("brake", "rim", "rim"),
    ],
)
def test_values_are_converted_to_their_type(name, value, expected):
    bicycle = Bicycle(**{name: value})
    assert getattr(bicycle, name) == expected
    assert type(getattr(bicycle, name)) is type(expected)
    assert from_options(Bicycle, {name: value}) == bicycle


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gears", 0, "gears must be a whole number at least 1 and at most 30, or auto, got 0"),
        ("gears", 31, "gears must be a whole number at least 1 and at most 30, or auto, got 31"),
        ("gears", 2.5, "gears must be a whole number .*, got 2.5"),
        ("gears", True, "gears must be a whole number .*, got True"),
        ("gears", "many", "gears must be a whole number .*, got 'many'"),
        ("gears", [1], "gears must be a whole number"),
        ("weight", 0, "weight must be a number above 0, got 0"),
        ("weight", float("nan"), "weight must be a number above 0, got nan"),
        ("weight", float("inf"), "weight must be a number above 0, got inf"),
        ("weight", 10**400, "weight must be a number above 0"),
        ("weight", "heavy", "weight must be a number above 0, got 'heavy'"),
        ("colour", b"red", "colour must be a text"),
        ("colour", "a\0b", "colour must be UTF-8 text without NUL characters"),
        ("colour", "\ud800", "colour must be UTF-8 text"),
        ("bell", 1, "bell must be true or false, got 1"),
        ("brake", "disk", "unknown brake 'disk': did you mean 'disc'"),
        ("brake", 1, "brake"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_constructor_and_as_options(name, value, message):
    with pytest.raises(ConfigError, match=message):
        Bicycle(**{name: value})
    with pytest.raises(ConfigError, match=message):
        from_options(Bicycle, {name: value})


def test_whole_numbers_beyond_64_bits_are_refused():
    assert Option("n", int, "").check(2**63 - 1) == 2**63 - 1
    with pytest.raises(ConfigError, match=r"n must be a whole number below 2\^63"):
        Option("n", int, "").check(2**63)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gears", "3", 3),
        ("gears", "auto", "auto"),
        ("weight", "1e1", 10.0),
        ("bell", "TRUE", True),
        ("colour", "3", "3"),
    ],
)
def test_texts_are_read(name, text, expected):
    found = {each.name: each for each in options_of(Bicycle)}
    assert found[name].read(text) == expected


@pytest.mark.parametrize(("name", "text"), [("gears", "3.5"), ("weight", "x"), ("bell", "yes"), ("brake", "x")])
def test_texts_that_do_not_fit_are_refused(name, text):
    found = {each.name: each for each in options_of(Bicycle)}
    with pytest.raises(ConfigError, match=name):
        found[name].read(text)


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match="unknown option 'gear' of bicycle: did you mean 'gears'"):
        check_all({"gear": 3}, options_of(Bicycle), "bicycle")
    assert check_all({"gears": 3, "colour": None}, options_of(Bicycle), "bicycle") == {"gears": 3}


def test_a_default_must_not_change():
    with pytest.raises(TypeError, match="must be immutable"):
        option([], "a list")


def test_seeds_are_whole_numbers_from_zero_on():
    assert check_seed(np.int32(5)) == 5
    for wrong in (-1, 1.5, "1", None, True, 2**63):
        with pytest.raises(ConfigError, match="seed must be a whole number"):
            check_seed(wrong)


# ---- groups and inverses ---------------------------------------------------------------------------------------------


def test_options_of_a_group_belong_to_the_containing_value():
    bicycle = from_options(Bicycle, {"spokes": 30, "wheel_tyre": "wide", "unknown": 1})
    assert bicycle == Bicycle(wheel=Wheel(spokes=30, tyre="wide"))
    assert to_options(bicycle) == {
        "gears": 7,
        "weight": 12.5,
        "bell": False,
        "brake": "disc",
        "spokes": 30,
        "wheel_tyre": "wide",
    }


def test_settings_without_an_option_are_those_of_the_default():
    mine = Bicycle(gears=3, owner="me", wheel=Wheel(tyre="wide"))
    assert from_options(Bicycle, {"weight": 9.0}, mine) == replace(mine, weight=9.0)
    assert from_options(Bicycle, {"spokes": 5}, mine).wheel == Wheel(spokes=5, tyre="wide")


BICYCLES = st.builds(
    Bicycle,
    gears=st.integers(1, 30) | st.just(AUTO),
    weight=st.floats(min_value=1e-300, allow_infinity=False),
    colour=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    bell=st.booleans(),
    brake=st.sampled_from(["disc", "rim"]),
    wheel=st.builds(Wheel, spokes=st.integers(1, 99), tyre=st.sampled_from([None, "wide", "narrow"])),
)


@given(BICYCLES)
def test_options_are_the_inverse_of_fields(bicycle):
    assert from_options(Bicycle, to_options(bicycle)) == bicycle
    # Option.check treats a text like `auto` of a number as the word, so that nothing is lost on the way through TOML
    assert from_options(Bicycle, tomllib.loads(tomli_w.dumps(plain_options(to_options(bicycle))))) == bicycle


# ---- families --------------------------------------------------------------------------------------------------------


def test_a_member_can_be_an_object_a_text_or_a_table():
    one = {each.name: each for each in find_method("tiered").options()}["distance"]
    parts = [one.check("prototypes:principle=ascp"), one.check({"name": "prototypes", "principle": "ascp"})]
    assert parts[0] == parts[1] == one.check(parts[0])


def test_several_members_are_joined_by_plus():
    steps = {each.name: each for each in find_method("tiered").options()}["procedure"]
    expected = (SplitByGap(rho=1e20), RemoveUnclaimed())
    assert steps.check("split-by-gap:rho=1e+20 + remove-unclaimed") == expected
    assert steps.check("split-by-gap:rho=1e+20+remove-unclaimed") == expected
    assert steps.check([{"name": "split-by-gap", "rho": 1e20}, "remove-unclaimed"]) == expected
    assert steps.check(RemoveUnclaimed()) == (RemoveUnclaimed(),)
    assert steps.check("") == ()


# ---- every registered method -----------------------------------------------------------------------------------------

TEXTS: dict[str, list[str]] = {
    "shared": ["body", "layer0"],
    "augment": ["none", "flip", "flip,crop"],
}
MEMBERS: dict[str, list[str]] = {
    "optimizer": ["sgd", "sgd:momentum=0.9,nesterov=true", "sgd:weight_decay=0.5", "adam", "adamw:weight_decay=0.25"],
    "schedule": ["constant", "constant:warmup=3", "cosine:warmup=2", "step-decay:every=3,factor=0.5"],
    "server_optimizer": ["sgd", "sgd:momentum=0.5", "adam:lr=0.5", "yogi:tau=0.25"],
    "combine": ["mean", "median", "trimmed:share=0.25", "krum:attackers=2,keep=3"],
    "init": ["random", "gaussian:sd=2", "odcl:clustering=spectral", "moment-descent:anchors=4", "fedgroup:founders=7"],
    "objective": ["conditional", "ratio", "joint:gaussians=3"],
    "assignment": ["em-mixture:mu=0.4", "lowest-loss", "softmax-loss:temperature=0.5", "count-shares", "assigned"],
    "distance": ["update-cosine", "prototypes:principle=ascp", "parameters"],
    "procedure": ["", "split-by-gap:rho=0.3 + remove-unclaimed", "split-by-norm:eps1=1,eps2=0.5,gate=0.1"],
}


def values_of(one: Option) -> st.SearchStrategy[Any]:
    """Draw allowed values of an option."""
    if one.name in MEMBERS:
        return st.sampled_from(MEMBERS[one.name])
    words = st.sampled_from(one.words) if one.words else st.nothing()
    if one.choices:
        return st.sampled_from(one.choices)
    if one.kind is bool:
        return st.booleans()
    if one.kind is int:
        return st.integers(int(max(one.low, -5)), int(min(one.high, 40))) | words
    if one.kind is float:
        low, high = max(one.low, one.above, -5.0), min(one.high, 50.0)
        return st.floats(low, high, exclude_min=low == one.above) | words
    assert one.kind is str, f"tell this test which texts {one.name} takes"
    return st.sampled_from(TEXTS[one.name])


@cache
def own_of(kind: type[Method]) -> list[Option]:
    names = kind.own_names()
    return [one for one in kind.options() if one.name in names]


def drawn(data: st.DataObject, kind: type[Method]) -> tuple[dict[str, Any], Method]:
    """Draw options of a method, and return them with the method."""
    own = own_of(kind)
    chosen = data.draw(st.lists(st.sampled_from(own), unique_by=lambda one: one.name)) if own else []
    options = {one.name: data.draw(values_of(one), one.name) for one in chosen}
    try:
        return options, from_options(kind, options)
    except ConfigError:
        assume(False)
        raise


@pytest.mark.parametrize("name", Method.members)
@settings(max_examples=round(15 * SCALE), suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_options_and_fields_of_a_method_are_inverses(name, data):
    kind = find_method(name)
    options, method = drawn(data, kind)
    assert from_options(kind, to_options(method)) == method
    reported = method.to_options()
    assert reported.keys() <= kind.own_names()
    again = from_options(kind, reported)
    assert again.to_options() == reported
    assert method.with_options(reported) == again
    through_toml = tomllib.loads(tomli_w.dumps(plain_options(reported)))
    assert from_options(kind, check_all(through_toml, kind.options(), name)) == again
    of_own_init = {one.name for one in own_options(kind().initializer)} if "init" in options else set()
    for one, value in options.items():
        if (
            one not in of_own_init
            and value not in ("", "sgd", "constant")
            and one not in ("lr_decay", "local_epochs", "restarts")
        ):
            assert one in reported, "an option that was given is named again"


@pytest.mark.parametrize("name", Method.members)
@settings(max_examples=round(8 * SCALE), suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_options_give_the_tiers_of_the_fields(name, data):
    """The options of a method give the same tiers as its fields, with the averaging of its paper."""
    kind = find_method(name)
    _, method = drawn(data, kind)
    try:
        tiers = method.tiers()
    except ConfigError:
        return
    assert from_options(kind, method.to_options()).tiers() == tiers


@pytest.mark.parametrize("name", Method.members)
def test_every_option_of_a_method_has_a_help_text_and_one_meaning(name):
    options = find_method(name).options()
    names = [one.name for one in options]
    assert len(names) == len(set(names)), "an option is declared twice"
    for one in options:
        assert len(one.help) > 10, one.name
        assert not one.help.endswith("."), f"{one.name}: help texts are fragments, as --help shows them"
        if one.default is not None and not isinstance(one.default, tuple):
            assert one.check(one.default) == one.default


def test_settings_of_runs_are_not_options_of_methods():
    of_runs = {one.name for one in RUN_OPTIONS}
    for kind in Method.members.values():
        assert not of_runs & {one.name for one in options_of(kind)}, kind.name


@given(
    st.integers(1, 9), st.floats(0.1, 1), st.sampled_from(["float32", "float64", None]), st.none() | st.integers(1, 9)
)
def test_settings_of_runs_and_options_are_inverses(rounds, participation, dtype, patience):
    run = RunSettings(rounds=rounds, participation=participation, dtype=dtype, patience=patience)
    assert from_options(RunSettings, to_options(run)) == run


# ---- initializers as a group -----------------------------------------------------------------------------------------


def test_restarts_belong_to_the_initializer():
    assert from_options(IFCA, {"restarts": 3}).init == RandomInit(restarts=3)
    assert from_options(IFCA, {"restarts": 3, "init": "gaussian:sd=2"}).init == GaussianInit(sd=2, restarts=3)
    assert from_options(IFCA, {"init": "gaussian:sd=2,restarts=4"}).init == GaussianInit(sd=2, restarts=4)
    with pytest.raises(ConfigError, match="restarts=3 needs random initial models: leave restarts at 1 with init=odcl"):
        from_options(IFCA, {"restarts": 3, "init": "odcl"})


def test_settings_of_a_methods_own_initializer_are_its_options():
    shot = find_method("one-shot")
    assert "clustering" in shot.own_names()
    assert from_options(shot, {"clustering": "spectral"}).init.clustering == "spectral"
    assert "clustering" not in IFCA.own_names()


def test_options_of_a_method_do_not_reach_into_an_initializer_of_another_type():
    """HCFL and ODCL both have an option called lam."""
    mine = HCFL(backbone="fedsoft", init=ODCL(lam=2.0))
    changed = mine.with_options({"lam": 0.25})
    assert (changed.lam, changed.init) == (0.25, ODCL(lam=2.0))
    assert OneShot(init=ODCL(lam=2.0)).with_options({"lam": 0.25}).init == ODCL(lam=0.25)


def test_members_of_every_family_named_here_exist():
    known = {one.name: one for kind in Method.members.values() for one in kind.options()}
    for name, texts in MEMBERS.items():
        for text in texts:
            known[name].check(text)
