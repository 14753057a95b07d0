"""Nodes with tables agree on one schema and train the same models as one process with all rows."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import coterie
from coterie.errors import ConfigError, InputError, TrainingError
from coterie.flower.clients import clients_of
from coterie.flower.exchange import Exchange
from coterie.flower.guard import Guard
from coterie.flower.in_process import InProcessGrid
from coterie.flower.node import make_client_app
from coterie.flower.raw_table import raw_table
from coterie.flower.schema import DataSchema
from coterie.flower.server import Settings, run_federation
from coterie.flower.wire import HostedClients, Lengths, hosted_content, onboarding_content, read_hosted

NODES = {5: "ab", 7: "cde", 9: "f"}
"""Clients at each node; one node has a single client."""
N = 24
"""Rows of each client."""
OPTIONS = {"clusters": 2, "rounds": 2, "dtype": "float64", "seed": 1}


def table(classes=False, seed=3):
    """Return a table of six clients: numbers, missing values, a category with a rare level, dates, true and false."""
    random = np.random.default_rng(seed)
    who = np.repeat(list("abcdef"), N)
    n = len(who)
    dose, age = random.normal(7, 3, n), random.integers(20, 90, n).astype(float)
    kind = random.choice(["red", "green", "blue"], n, p=[0.5, 0.3, 0.2])
    sign = np.where(np.isin(who, list("ace")), 1.0, -1.0)
    score = sign * (dose - 7) + 0.1 * (kind == "red") + 0.1 * random.normal(size=n)
    age[::11] = np.nan
    return {
        "who": who.tolist(),
        "dose": dose.tolist(),
        "age": age.tolist(),
        "kind": kind.tolist(),
        "day": [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(n)],
        "smokes": (random.random(n) < 0.4).tolist(),
        "score": np.where(score > 0, "up", "down").tolist() if classes else score.tolist(),
    }


def rows_of(whole, clients):
    """Return the rows of some clients."""
    mine = [row for row, client in enumerate(whole["who"]) if client in clients]
    return {name: [values[row] for row in mine] for name, values in whole.items()}


def node(part, **options):
    given = {"client": "who", "target": "score", **options}
    return make_client_app(lambda context: raw_table(part, **given))


def apps_of(whole, nodes=NODES, **options):
    return {number: node(rows_of(whole, clients), **options) for number, clients in nodes.items()}


def clients_behind(apps, **options):
    return clients_of(InProcessGrid(apps), **{"nodes": len(apps), "wait": 1, "deadline": 10, **options})


def assert_close(schema, other):
    """Assert that columns and classes are the same, and scales are equal up to rounding."""
    ours, theirs = json.loads(json.dumps(schema.plain())), json.loads(json.dumps(other.plain()))
    assert ours.pop("scales") == [pytest.approx(scale, rel=1e-12) for scale in theirs.pop("scales")]
    assert ours.pop("target_scale") == pytest.approx(theirs.pop("target_scale"), rel=1e-12)
    for one, two in zip(ours.pop("columns"), theirs.pop("columns"), strict=True):
        assert one == {name: pytest.approx(v, rel=1e-12) if name == "fill" else v for name, v in two.items()}
    assert ours == theirs


@pytest.mark.parametrize("classes", [False, True])
def test_tables_split_over_nodes_train_the_models_of_the_whole_table(classes, recwarn):
    whole = table(classes=classes)
    alone = coterie.fit(coterie.from_table(whole, client="who", target="score"), "ifca", **OPTIONS)
    split = coterie.fit(clients_behind(apps_of(whole)), "ifca", **OPTIONS)
    assert_close(split.schema, alone.schema)
    assert split.assignments == alone.assignments
    assert split.config["lr"] == alone.config["lr"]
    for ours, theirs in zip(split.models, alone.models, strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-9)
    assert [(n.column, n.detail) for n in split.column_notes] == [
        (n.column, n.detail) for n in alone.column_notes if n.action != "client"
    ]
    some = rows_of(whole, "a")
    mine, other = (result.predict(some, client="a") for result in (split, alone))
    assert mine.tolist() == (other.tolist() if classes else pytest.approx(other.tolist(), abs=1e-9))


def reasons(clients):
    return [note.reason for note in clients.registry._unreported]


def changed(part, **columns):
    """Return the rows of a node with other columns; None removes a column."""
    return {name: values for name, values in {**part, **columns}.items() if values is not None}


UNFIT = {
    "a column is missing": ({"dose": None}, {}, "has no column 'dose'"),
    "a column has another name": (
        {"dose": None, "Dose": [1.0] * N},
        {},
        "has no column 'dose', but 'Dose', which most nodes do not have",
    ),
    "texts for numbers": (
        {"dose": ["low", "high"] * (N // 2)},
        {},
        "has texts in column 'dose', but most nodes have numbers",
    ),
    "dates written in another way": (
        {"day": ["31/12/2024", "1/2/2024"] * (N // 2)},
        {},
        "has dates such as .* in column 'day', but most nodes have dates such as 2024-12-31",
    ),
    "numbers with decimal commas": (
        {"weight": ["1,5", "2,25"] * (N // 2)},
        {},
        "has numbers such as 1.234,5 in column 'weight', but most nodes have numbers",
    ),
    "a target of texts": (
        {"score": ["up", "down"] * (N // 2)},
        {},
        "has texts in column 'score', but most nodes have numbers",
    ),
    "cells of another type": (
        {"smokes": np.array([b"x"] * N, dtype=object)},
        {},
        "has cells that cannot be read in column 'smokes', but most nodes have texts",
    ),
    "infinite values": ({"dose": [float("inf")] * N}, {}, f"has {N} infinite values in column 'dose'"),
    "huge values": ({"dose": [1e200, 1.0] * (N // 2)}, {}, "has absolute values above 1e.100 in column 'dose'"),
    "another target": ({}, {"target": "dose"}, "reads its table with target='dose', but most nodes use 'score'"),
    "another task": ({}, {"task": "regression"}, "reads its table with task='regression', but most nodes use None"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_node_that_does_not_fit_is_refused_and_the_others_continue(case):
    columns, options, why = UNFIT[case]
    whole = table()
    whole["weight"] = [f"{50.25 + i % 17}" for i in range(6 * N)]
    apps = apps_of(whole, {5: "ab", 7: "cd", 8: "e"})
    honest = clients_behind(apps)
    apps[9] = node(changed(rows_of(whole, "f"), **columns), **options)
    clients = clients_behind(apps)
    assert clients.clients == ("a", "b", "c", "d", "e")
    assert clients.schema == honest.schema
    (found,) = reasons(clients)
    assert re.fullmatch(f"node 9 {why}: refused", found), found


def test_a_node_with_missing_values_is_refused_if_they_are_not_allowed():
    whole = table()
    part = rows_of(whole, "f")
    parts = {5: rows_of(whole, "ab"), 7: rows_of(whole, "cd"), 9: changed(part, dose=[None, *part["dose"][1:]])}
    holes = clients_behind({n: node(changed(rows, age=None), missing="refuse") for n, rows in parts.items()})
    assert reasons(holes) == ["node 9 has 1 missing values in column 'dose', and missing='refuse': refused"]


def test_without_a_majority_the_run_does_not_start():
    whole = table()
    apps = apps_of(whole, {5: "abc"})
    one = rows_of(whole, "def")
    with pytest.raises(InputError, match=r"column 'dose' is missing at half of the nodes.*\(option schema\)"):
        clients_behind({**apps, 7: node(changed(one, dose=None))})
    with pytest.raises(InputError, match="do not agree on column 'dose'"):
        clients_behind({**apps, 7: node(changed(one, dose=["low", "high"] * (3 * N // 2)))})
    with pytest.raises(InputError, match="do not agree on the settings of their tables"):
        clients_behind({**apps, 7: node(one, target="age")})


def test_a_column_of_few_nodes_is_left_out_with_a_note():
    whole = table()
    apps = apps_of(whole, {5: "ab", 7: "cde"}) | {9: node(changed(rows_of(whole, "f"), ward=["x"] * N))}
    clients = clients_behind(apps)
    assert [tuple(note) for note in clients.column_notes][-1] == ("ward", "dropped", "1 of 3 nodes have it")
    assert clients.clients == tuple("abcdef")


def test_whole_numbers_are_categories_if_another_node_has_texts():
    whole = table()
    grade = {"abc": [1, 2] * (3 * N // 2), "def": ["1", "2", "2a"] * N}
    apps = {
        number: node(changed(rows_of(whole, who), grade=values)) for number, (who, values) in enumerate(grade.items())
    }
    joined = [str(value) for values in grade.values() for value in values]
    alone = coterie.from_table(changed(whole, grade=joined), client="who", target="score")
    assert_close(clients_behind(apps).schema, alone.schema)


# ---- rare levels -----------------------------------------------------------------------------------------------------


def test_rare_texts_are_counted_and_not_named():
    whole = table()
    kind = [*whole["kind"]]
    kind[0], kind[1], kind[2], kind[3] = "a secret", "another one", "another one", "x" * 150
    offer = raw_table(rows_of(changed(whole, kind=kind), "ab"), client="who", target="score").offer()
    column = offer.summary.column("kind")
    assert {level.text for level in column.texts} == {"red", "green", "blue"}
    assert (column.unnamed.levels, column.unnamed.rows) == (3, 4)
    sent = json.dumps(offer.plain())
    assert "secret" not in sent
    assert "another one" not in sent
    result = coterie.fit(clients_behind(apps_of(changed(whole, kind=kind))), "ifca", **OPTIONS)
    (made,) = [column for column in result.schema.columns if column.name == "kind"]
    assert made.other
    assert "a secret" not in json.dumps(result.schema.plain())
    named = raw_table(rows_of(changed(whole, kind=kind), "ab"), client="who", target="score", min_level_rows=1)
    assert "a secret" in json.dumps(named.offer().plain())
    with pytest.raises(ConfigError, match="min_level_rows must be a whole number of at least 1"):
        raw_table(whole, client="who", target="score", min_level_rows=0)


def test_the_classes_of_the_target_are_always_named():
    whole = table(classes=True)
    score = ["rare", *whole["score"][1:]]
    clients = clients_behind(apps_of(changed(whole, score=score)))
    assert clients.schema.classes == ("down", "rare", "up")
    assert clients.profile.classes == 3


# ---- the schema stays ------------------------------------------------------------------------------------------------


def late_grid(late, **options):
    """Return the clients of a grid of two nodes, to which a third node connects after the start of the run."""
    whole = table()
    grid = InProcessGrid(apps_of(whole, {5: "ab", 7: "cde"}))
    clients = clients_of(grid, nodes=2, wait=0.3, deadline=10, expected=["f"], **options)
    grid.apps[9] = node(late(rows_of(whole, "f")))
    return clients


def test_a_late_node_is_sent_the_schema_and_its_new_levels_are_other():
    def late(part):
        return changed(part, kind=["green", "never seen"] * (N // 2))

    whole = changed(table(), kind=[["red", "green", f"rare {i}"][i % 3] for i in range(6 * N)])
    grid = InProcessGrid(apps_of(whole, {5: "ab", 7: "cde"}))
    clients = clients_of(grid, nodes=2, wait=0.3, deadline=10, expected=["f"])
    assert "kind=other" in clients.schema.feature_names
    assert clients.registry.sizes.tolist()[-1] == 0
    grid.apps[9] = node(late(rows_of(whole, "f")))
    result = coterie.fit(clients, "ifca", **OPTIONS)
    assert result.records[0].answered == 6


def test_a_late_node_that_does_not_fit_is_refused():
    clients = late_grid(lambda part: changed(part, kind=["never seen"] * N))
    result = coterie.fit(clients, "ifca", **OPTIONS)
    notes = [note["reason"] for note in result.records[0].notes]
    assert any(
        "node 9 has a table that does not fit the schema: column 'kind' holds 'never seen'" in note for note in notes
    ), notes
    assert result.records[0].answered == 5
    gone = coterie.fit(late_grid(lambda part: changed(part, dose=None)), "ifca", **OPTIONS)
    assert any(
        "does not fit the schema: the table has no column 'dose'" in n["reason"] for n in gone.records[0].notes
    ), gone.records[0].notes


def test_a_resumed_run_keeps_its_schema(tmp_path):
    whole = table()
    straight = coterie.fit(clients_behind(apps_of(whole)), "ifca", out=tmp_path / "a", **OPTIONS)

    def stop(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(
            clients_behind(apps_of(whole)), "ifca", out=tmp_path / "b", checkpoint_every=1, callbacks=[stop], **OPTIONS
        )
    again = clients_behind(apps_of(whole), again=tmp_path / "b")
    result = coterie.resume(tmp_path / "b", again)
    assert result.schema == straight.schema
    assert result.column_notes == straight.column_notes
    for ours, theirs in zip(result.models, straight.models, strict=True):
        np.testing.assert_allclose(ours["weight"], theirs["weight"], rtol=1e-12)
    loaded = coterie.load(tmp_path / "b")
    assert loaded.predict(rows_of(whole, "a"), client="a").tolist() == pytest.approx(
        straight.predict(rows_of(whole, "a"), client="a").tolist()
    )


def test_with_a_given_schema_no_summary_is_sent(tmp_path):
    whole = table()
    schema = coterie.from_table(whole, client="who", target="score").schema
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema.plain()))
    apps = apps_of(whole)
    seen = []

    def watched(message, context, call):
        answer = call(message, context)
        seen.append(str(answer.content["config"]["header"]))
        return answer

    apps[5] = make_client_app(
        lambda context: raw_table(rows_of(whole, "ab"), client="who", target="score"), mods=[watched]
    )
    clients = clients_behind(apps, schema=file)
    assert clients.schema == schema
    assert json.loads(seen[0])["offer"] is None
    assert clients_behind(apps_of(whole), schema=schema).schema == schema
    few = clients_behind({**apps_of(whole), 9: node(changed(rows_of(whole, "f"), dose=None))}, nodes=2, schema=file)
    assert few.clients == tuple("abcde")
    assert (
        "node 9 has a table that does not fit the schema: the table has no column 'dose', which the schema needs"
        in reasons(few)[0]
    )
    with pytest.raises(ConfigError, match="schema of the expected tables: a schema needs columns, scales"):
        clients_behind(apps, schema={"columns": []})


def test_nodes_that_encode_their_tables_by_the_same_schema_take_part():
    whole = table()
    schema = coterie.from_table(whole, client="who", target="score").schema
    own = coterie.from_table(rows_of(whole, "ef"), client="who", target="score", schema=schema)
    apps = apps_of(whole, {5: "ab", 7: "cd"}) | {9: make_client_app(lambda context: own)}
    assert clients_behind(apps, schema=schema).clients == tuple("abcdef")
    fitted = clients_behind(apps)  # the schema of four clients is another one
    assert fitted.clients == tuple("abcd")
    assert "node 9 scales its features differently than the schema of the tables" in reasons(fitted)[0]


# ---- privacy ---------------------------------------------------------------------------------------------------------

PRIVATE = {
    "privacy": "local",
    "privacy_noise": 1.0,
    "privacy_choice": 1.0,
    "rounds": 1,
    "clusters": 2,
    "learner": "linear:bias=true",
    "lr": 0.1,
}


def test_a_private_run_has_no_summaries():
    whole = table()
    with pytest.raises(
        TrainingError, match="this run sends private requests only, and no noise is added to the summary"
    ):
        run_federation(
            InProcessGrid(apps_of(whole)), Settings.read({"nodes": 3, "wait": 0.3, "method": "ifca", **PRIVATE})
        )
    with pytest.raises(ConfigError, match="no noise is added, so that the run is not private"):
        coterie.fit(clients_behind(apps_of(whole)), "ifca", **PRIVATE)
    schema = coterie.from_table(whole, client="who", target="score").schema
    settings = {"nodes": 3, "wait": 0.3, "method": "ifca", "schema": json.dumps(schema.plain()), **PRIVATE}
    result = run_federation(InProcessGrid(apps_of(whole)), Settings.read(settings))
    assert result.schema == schema
    assert clients_behind(apps_of(whole), schema=schema, summaries=False).registry.lengths is None


def test_the_answer_to_a_probe_has_no_summary_of_the_table():
    grid = InProcessGrid(apps_of(table(), {5: "ab"}))
    received = Exchange(grid, deadline=5).send({5: onboarding_content()})
    assert not received.contents
    assert "no noise is added to the summary of a table" in received.troubles[0][1]


def test_a_guarded_node_sends_no_summary():
    part = rows_of(table(), "ab")
    app = make_client_app(
        lambda context: raw_table(part, client="who", target="score"), guard=Guard(noise=1.0, answers=3)
    )
    with pytest.raises(TrainingError, match="private requests only, and no noise is added to the summary of a table"):
        clients_behind({5: app})


# ---- summaries of a hostile node -------------------------------------------------------------------------------------


def offer_with(edit):
    """Return a mod that changes the summary that a node sends."""

    def mod(message, context, call):
        answer = call(message, context)
        config = answer.content["config"]
        header = json.loads(str(config["header"]))
        if header.get("offer") is None:
            return answer
        edit(header["offer"])
        config["header"] = json.dumps(header)
        return Message(answer.content, reply_to=message)

    return mod


def column(name, /, **changes):
    def edit(offer):
        next(c for c in offer["summary"]["columns"] if c["name"] == name).update(changes)

    return edit


def moments(**changes):
    def edit(offer):
        cells = next(c for c in offer["summary"]["columns"] if c["name"] == "dose")["numbers"]
        for each in cells["readings"]:
            each.update(changes)

    return edit


def level(text="red", rows=1, training=1):
    return {"text": text, "rows": rows, "training": training}


HOSTILE = {
    "a mean that is infinite": moments(mean=float("inf")),
    "a mean that is NaN": moments(mean=float("nan")),
    "a mean outside of the extremes": moments(mean=1e6),
    "a negative deviation": moments(deviation=-1.0),
    "a deviation that is too large": moments(deviation=1e6),
    "extremes in the wrong order": moments(low=5.0, high=-5.0),
    "extremes of 1e308": moments(low=-1e308, high=1e308, mean=0.0),
    "more numbers than rows": moments(count=10**6),
    "an unknown reading": moments(reading="roman"),
    "the same reading": moments(reading="plain"),
    "rows of 10^30": column("dose", rows=10**30),
    "negative missing values": column("dose", missing=-1),
    "more cells than rows": column("dose", missing=7),
    "a count that is true": column("dose", infinite=True),
    "a count that is a float": column("dose", missing=0.5),
    "many levels": column("kind", texts=[level(f"t{i:05}") for i in range(1001)]),
    "a level of a megabyte": column("kind", texts=[level("x" * 2**20, N, 30)]),
    "a level with a line break": column("kind", texts=[level("a\nb", N, 30)]),
    "a level twice": column("kind", texts=[level(rows=20), level(rows=20)]),
    "a level of no rows": column("kind", texts=[level(rows=0), level("blue", N, 30)]),
    "a level that is a number": column("kind", texts=[level(7, N, 30)]),
    "unnamed levels without rows": column("kind", unnamed={"levels": 3, "rows": 0, "training": 0}),
    "an unnamed class": column("score", unnamed={"levels": 1, "rows": 0, "training": 0}),
    "a reason of many lines": column("dose", unreadable="a\nb"),
    "a reason of a megabyte": column("dose", unreadable="x" * 2**20),
    "codes that are no numbers": column("age", codes=[level("x")]),
    "a sketch of another length": column("age", sketch="00"),
    "a sketch that is no hexadecimal number": column("age", sketch="zz" * 1024),
    "a name of a megabyte": column("dose", name="x" * 2**20),
    "a name with an escape": column("dose", name="\x1b[2J"),
    "a column twice": lambda offer: offer["summary"]["columns"].append(offer["summary"]["columns"][0]),
    "many columns": lambda offer: offer["summary"].update(
        columns=[{**offer["summary"]["columns"][0], "name": f"c{i}"} for i in range(2001)]
    ),
    "no columns": lambda offer: offer["summary"].update(columns=[]),
    "more clients than there are": lambda offer: offer["summary"].update(clients=50),
    "more rows than there are": lambda offer: offer["summary"].update(rows=10**9),
    "a summary that is a list": lambda offer: offer.update(summary=[]),
    "no summary": lambda offer: offer.pop("summary"),
    "an unknown setting": lambda offer: offer["settings"].update(file="/etc/passwd"),
    "an unknown task": lambda offer: offer["settings"].update(task="guess"),
    "a target that is a list": lambda offer: offer["settings"].update(target=["score"]),
    "a target that is no column": lambda offer: offer["settings"].update(target="elsewhere"),
    "features that are no columns": lambda offer: offer["settings"].update(features=["elsewhere"]),
}


@pytest.fixture(scope="module")
def honest():
    offer = raw_table(rows_of(table(), "f"), client="who", target="score").offer()
    return hosted_content(HostedClients(offer.clients, offer.train, offer.test, offer=offer))


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_summary_is_refused_with_one_sentence(attack, honest):
    assert read_hosted(honest).offer is not None
    config = honest["config"]
    header = json.loads(str(config["header"]))
    HOSTILE[attack](header["offer"])
    hostile = RecordDict({**honest, "config": ConfigRecord({**config, "header": json.dumps(header)})})
    with pytest.raises(InputError) as refused:
        read_hosted(hostile)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


def test_a_hostile_summary_changes_nothing_for_the_others():
    whole = table()
    apps = apps_of(whole, {5: "ab", 7: "cd"})
    schema = clients_behind(apps).schema
    part = rows_of(whole, "f")
    for attack in ("a mean that is infinite", "a level with a line break", "no summary"):
        mods = [offer_with(HOSTILE[attack])]
        apps[9] = make_client_app(lambda context: raw_table(part, client="who", target="score"), mods=mods)
        clients = clients_behind(apps, nodes=2)
        assert clients.schema == schema
        (found,) = reasons(clients)
        assert re.fullmatch("node 9 .*: refused", found)


@pytest.mark.parametrize("lengths", [[1.0], [1.0, 2.0], [-1.0, -1.0], ["1", "1"], [1e300, 1.0], 3, {}])
def test_impossible_lengths_are_refused(lengths):
    known = HostedClients(("a",), (3,), (0,), DataSchema((2,)))
    assert read_hosted(hosted_content(replace(known, lengths=Lengths(2.0, 1.5)))).lengths == (2.0, 1.5)
    with pytest.raises(InputError, match="cannot be read"):
        read_hosted(hosted_content(replace(known, lengths=lengths)))


def test_a_node_that_changes_its_clients_after_the_agreement_is_refused():
    whole = table()
    asked = []

    def load(context):
        asked.append(1)
        return raw_table(rows_of(whole, "f" if len(asked) == 1 else "a"), client="who", target="score")

    clients = clients_behind({**apps_of(whole, {5: "ab", 7: "cd"}), 9: make_client_app(load)})
    assert clients.registry.bound["a"] == 5
    assert clients.registry.node_of("f") is None
    assert "node 9 registers client 'a', which belongs to node 5" in reasons(clients)[0]


def test_the_clients_of_one_table_can_be_divided_among_nodes():
    whole = table()
    given = raw_table(whole, client="who", target="score")
    apps = {n: make_client_app(lambda context, n=n: given.dealt(n, 4)) for n in range(4)}
    clients = clients_behind(apps)
    assert clients.registry.bound == {"a": 0, "e": 0, "b": 1, "f": 1, "c": 2, "d": 3}
    assert_close(clients.schema, coterie.from_table(whole, client="who", target="score").schema)
    with pytest.raises(InputError, match="6 clients for 7 nodes"):
        given.dealt(6, 7)
    with pytest.raises(ConfigError, match="client column 'site'"):
        raw_table(whole, client="site", target="score").dealt(0, 2)
