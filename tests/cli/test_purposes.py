"""`coterie methods --for`: recommended methods suit their purposes, and their commands run."""

import shlex

import pytest
from click.testing import CliRunner

from coterie.cli.about import default_method, private_forms
from coterie.cli.main import cli
from coterie.cli.purposes import PURPOSES
from coterie.data import scenario
from coterie.methods import Method
from coterie.training.planning import prepare

CHOICES = [(purpose.name, choice) for purpose in PURPOSES.values() for choice in purpose.choices]


@pytest.mark.parametrize(("name", "choice"), CHOICES, ids=[f"{name}-{choice.method}" for name, choice in CHOICES])
def test_the_method_runs_on_the_scenario_with_these_options(name, choice):
    assert prepare(scenario(choice.scenario), choice.method, None, dict(choice.options)).method.name == choice.method
    _, command, *arguments = shlex.split(choice.command)
    cli.commands[command].make_context(command, arguments).close()


def test_methods_for_one_round_do_not_train_further():
    assert all(not Method.members[choice.method].trains for choice in PURPOSES["one-round"].choices)


def test_methods_for_privacy_support_it():
    assert all(not private_forms(Method.members[c.method]).startswith("none") for c in PURPOSES["private"].choices)


def test_methods_for_an_unknown_number_of_groups_are_given_no_number():
    for choice in PURPOSES["unknown-k"].choices:
        assert choice.options.get("clusters", "auto") == "auto"
        assert default_method(Method.members[choice.method]).groups.kind == "found"


def test_the_command_prints_the_choices_and_refuses_others():
    shown = CliRunner().invoke(cli, ["methods", "--for", "one-round"])
    assert shown.exit_code == 0
    for choice in PURPOSES["one-round"].choices:
        assert choice.command in shown.output
    assert CliRunner().invoke(cli, ["methods", "--for", "everything"]).exit_code == 2
