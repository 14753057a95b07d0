"""`coterie describe` knows every name there is, and tells what the code says of it."""

import pytest

from coterie.cli import about
from coterie.data import SCENARIOS
from coterie.learners import LEARNERS
from coterie.methods import FullBatch, Method, MiniBatch
from coterie.methods.settings import RUN_OPTIONS


def names():
    found = {*SCENARIOS, *LEARNERS}
    for family in about.families():
        found |= set(family.members)
    return sorted(found)


@pytest.mark.parametrize("name", names())
def test_every_name_is_described(coterie, name):
    code, out, err = coterie("describe", name)
    assert code == 0, err
    assert out.startswith(name)


def test_names_of_all_kinds_are_among_them():
    kinds = {"ifca", "odcl", "adam", "cosine", "lowest-loss", "csv", "local-round", "krum", "rotated-digits", "mlp"}
    assert kinds <= set(names())


@pytest.mark.parametrize("method", Method.members)
def test_every_option_of_a_method_is_listed_once_under_its_group(method):
    kind = Method.members[method]
    listed = [option.name for options in about.sections(kind).values() for option in options]
    assert sorted(listed) == sorted(option.name for option in kind.options())
    titles = list(about.sections(kind))
    assert titles[-1] == "Run"
    taken = [option.name for option in RUN_OPTIONS if option.name not in kind.refuses]
    assert [option.name for option in about.sections(kind)["Run"]] == taken


def test_options_are_grouped_by_where_they_come_from():
    sections = {title: [o.name for o in options] for title, options in about.sections(Method.members["ifca"]).items()}
    assert sections["Options of the method"][0] == "clusters"
    assert {"lr", "local_steps", "optimizer", "schedule"} <= set(sections["Local training"])
    assert sections["Averaging"] == ["averaging", "client_weight", "divide_by", "combine"]
    assert sections["Server"] == ["server_lr", "server_optimizer"]
    assert sections["First models"] == ["init", "restarts"]


@pytest.mark.parametrize("method", Method.members)
def test_the_typed_form_gives_the_default_method(method):
    import coterie.methods

    text = about.python_form(about.default_method(Method.members[method]))
    scope = vars(coterie.methods) | vars(coterie.tiers) | vars(coterie.learners)
    assert eval(text, dict(scope)) == about.default_method(Method.members[method])


def test_what_the_server_sees_follows_from_the_messages():
    assert about.server_sees(Method.members["local"]) == {"update": "nothing: no model travels"}
    assert "change" in about.server_sees(Method.members["cfl"])
    assert "sums over clients" in about.server_sees(Method.members["ifca"])["update"]
    assert about.private_forms(Method.members["ifca"]) == "privacy=local or privacy=central"
    assert about.private_forms(Method.members["local"]) == "none; nothing leaves a client"
    assert "init=odcl asks clients" in about.private_forms(Method.members["one-shot"])


def test_a_method_that_initializes_others_says_how(coterie):
    _, out, _ = coterie("describe", "odcl")
    assert "As the initializer of another method" in out
    assert "--init odcl:solver=VALUE" in out


def test_a_name_of_two_families_is_described_twice(coterie):
    _, out, _ = coterie("describe", "adam")
    assert "adam (optimizer)" in out
    assert "adam (server optimizer)" in out
    assert "--optimizer adam:" in out
    assert "--server-optimizer adam:" in out


def test_settings_of_members_have_types_defaults_and_meanings():
    rows = {each.name: each for each in about.member_settings(about.members_called("split-by-norm")[0])}
    assert (rows["eps1"].default, rows["eps1"].values) == ("needed", "number")
    assert rows["eps2"].meaning == "The norm of the largest member's update must be above this."
    assert rows["gate"].values == "number or none"
    rows = {each.name: each for each in about.member_settings(MiniBatch)}
    assert rows["optimizer"].values == "name of an optimizer"
    rows = {each.name: each for each in about.member_settings(FullBatch)}
    assert rows["steps"].meaning == "Number of gradient steps in a round (tau)."
