"""Families of named values: members are found by name, and what cannot be a member is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coterie.core.registry import Registered, families_of, find_member, register
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.learners.local_training import LocalTraining
from coterie.learners.optimizers import Optimizer
from coterie.learners.schedules import Schedule
from coterie.methods import Initializer, Method
from coterie.methods.pacfl import PACFL
from coterie.server.combine import Combine
from coterie.server.optimizers import ServerOptimizer
from coterie.tiers import AssignmentRule, Distance, Objective, ProcedureStep

FAMILIES = [
    *(Task, LocalTraining, Optimizer, Schedule, Initializer, Method, Combine, ServerOptimizer),
    *(AssignmentRule, Distance, Objective, ProcedureStep),
]


def colours() -> type[Registered]:
    """A family of its own for each test."""

    class Colour(Registered, family="colour"):
        pass

    return Colour


def test_a_member_is_found_by_its_name_and_knows_it():
    family = colours()

    @register("dark-red")
    @dataclass(frozen=True)
    class Red(family):
        pass

    assert family.members == {"dark-red": Red}
    assert find_member(family, "dark-red") is Red
    assert (Red.name, Red.family) == ("dark-red", "colour")


def test_an_unknown_name_gets_the_nearest_one():
    family = colours()
    register("green")(dataclass(frozen=True)(type("Green", (family,), {})))
    with pytest.raises(ConfigError, match="unknown colour 'gren': did you mean 'green'"):
        find_member(family, "gren")


def test_families_do_not_share_members():
    one, other = colours(), colours()
    register("blue")(dataclass(frozen=True)(type("Blue", (one,), {})))
    assert other.members == {}
    assert Registered.members == {}


def test_a_member_of_two_families_is_known_to_both():
    one, other = colours(), colours()
    both = register("teal")(dataclass(frozen=True)(type("Teal", (one, other), {})))
    assert one.members == other.members == {"teal": both}
    assert families_of(both) == [one, other]
    assert PACFL in Method.members.values()
    assert Initializer.members["pacfl"] is Method.members["pacfl"] is PACFL


def test_a_name_is_taken_once_unless_the_same_class_is_defined_again():
    family = colours()

    def defined(name: str) -> type[Registered]:
        return register("grey")(dataclass(frozen=True)(type(name, (family,), {})))

    defined("Grey")
    again = defined("Grey")
    assert family.members["grey"] is again, "a notebook cell that is run twice replaces its class"
    with pytest.raises(ConfigError, match="there is already a colour called 'grey': choose another name"):
        defined("Silver")
    assert family.members["grey"] is again


def test_what_belongs_to_no_family_is_refused():
    @dataclass(frozen=True)
    class Alone:
        pass

    with pytest.raises(ConfigError, match=r"Alone has no extensible base class: .* such as coterie\.methods\.Method"):
        register("alone")(Alone)


def test_what_is_no_dataclass_is_refused():
    bare = type("Bare", (colours(),), {})
    with pytest.raises(ConfigError, match=r"Bare must be a dataclass: put @dataclass\(frozen=True\) above the class"):
        register("bare")(bare)
    assert bare.members == {}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.family)
def test_every_family_has_members_under_their_own_names(family):
    assert family.members
    for name, member in family.members.items():
        assert member.name == name
        assert issubclass(member, family)
        assert all(base.members[name] is member for base in families_of(member))
        assert find_member(family, name) is member
