"""What the page claims, against runs whose numbers are plain."""

from __future__ import annotations

import pytest

from coterie.report.commands import compare_command, run_command
from coterie.report.comparison import compare
from coterie.report.figures.strip import leaders, story
from coterie.report.formats import ABSENT, MINUS, like, listed, natural, plain, score
from coterie.report.sentences import gain_caption, headline, notes, restarts_words, support
from coterie.report.tables import cell, method_columns, method_rows, tiles

CERTAINTY = (1.0, 0.99, 0.95, 0.9)
SURE = "3 of 4 clients belong to their cluster rather than another with at least 95 % probability"


def _three(make_run, main, one, alone, **options):
    return [
        make_run("ifca", scores=(main,) * 4, certainty=CERTAINTY, **options),
        make_run("fedavg", clusters=(0,) * 4, scores=(one,) * 4, **options),
        make_run("local", clusters=(0, 1, 2, 3), scores=(alone,) * 4, **options),
    ]


@pytest.mark.parametrize(
    ("main", "one", "alone", "middle"),
    [
        (0.95, 0.877, 0.862, "their models beat one global model by 7.3 points and local models by 8.8"),
        (0.95, 0.877, 0.962, "their models beat one global model by 7.3 points but lose to local models by 1.2 points"),
        (0.50, 0.60, 0.70, "their models lose to one global model by 10.0 points and local models by 20.0"),
        (0.50, 0.50, 0.40, "their models equal one global model but beat local models by 10.0 points"),
    ],
)
def test_accuracy_headline(make_run, main, one, alone, middle):
    found = compare(_three(make_run, main, one, alone))
    assert headline(found) == f"2 groups, as asked for, among 4 clients; {middle}."
    assert f"{SURE}." in support(found)


def test_regression_headline(make_run):
    runs = _three(make_run, 0.2, 0.8, 0.16, score="rmse")
    assert headline(compare(runs)) == (
        "2 groups, as asked for, among 4 clients; the RMSE of their models is 75.0 % lower than with one global model "
        "and 25.0 % higher than with local models."
    )
    assert f"{SURE}." in support(compare(runs))


def test_headline_averages_over_seeds(make_run):
    runs = []
    for seed, (mine, other) in enumerate([(0.9, 0.8), (0.8, 0.6)]):
        runs.append(make_run("ifca", seed, scores=(mine,) * 4, certainty=(1, 1, 1, seed)))
        runs.append(make_run("fedavg", seed, clusters=(0,) * 4, scores=(other,) * 4))
    found = compare(runs)
    # (0.1 + 0.2) / 2 = 15 points
    assert "beat one global model by 15.0 points" in headline(found)
    assert any(fact.startswith("3 to 4 of 4 clients belong to their cluster") for fact in support(found))
    assert any("+10.0 and +20.0 points" in fact for fact in support(found))


def test_groups_that_differ_by_seed(make_run):
    runs = [make_run(seed=0), make_run(seed=1, clusters=(0, 1, 2, 3))]
    assert headline(compare(runs)).startswith("2 to 4 groups among 4 clients, depending on the seed")


def test_one_cluster(make_run):
    text = headline(compare([make_run(clusters=(0,) * 4)]))
    assert text == "One group: all 4 clients share one model; mean accuracy 85.0 %."


@pytest.mark.parametrize(
    ("method", "clusters", "begin"),
    [
        ("fedavg", (0,) * 4, "One global model for 4 clients"),
        ("local", (0, 1, 2, 3), "4 clients, each training alone"),
        ("oracle", (0, 0, 1, 1), "2 groups given beforehand among 4 clients"),
    ],
)
def test_headline_of_methods_that_find_nothing(make_run, method, clusters, begin):
    assert headline(compare([make_run(method, clusters=clusters)])) == f"{begin}; mean accuracy 85.0 %."


def test_training_data_is_a_caution(make_run):
    (first, *_) = notes(compare([make_run(held_out=False)]))
    assert first.caution
    assert "training data" in first.text
    assert not any(note.caution for note in notes(compare([make_run()])))


def test_missing_baselines_name_the_command(make_run):
    (note,) = [note for note in notes(compare([make_run()])) if note.command]
    assert "one global model and local models" in note.text
    assert note.command.startswith("coterie compare rotated-digits --methods local,fedavg,ifca")
    assert not any(note.command for note in notes(compare(_three(make_run, 0.9, 0.8, 0.7))))


def test_trouble_and_unfinished_runs_are_mentioned(make_run):
    run = make_run()
    run.records[0] |= {"missing": ["client-0"]}
    run.records[1] |= {"rejected": ["client-0", "client-1"]}
    texts = [note.text for note in notes(compare([run]), unfinished=2) if note.caution]
    assert texts == [
        "2 runs of this comparison are not finished and left out here.",
        "1 answer of 15 never came; the rounds went on without.",
        "2 updates of 15 had values that are not finite and were left out.",
    ]


def test_unused_clusters_are_mentioned(make_run):
    texts = [note.text for note in notes(compare([make_run(clusters=(0, 0, 3, 3), seed=5)]))]
    assert any("2 of 4 (seed 5)" in text for text in texts)


def test_seeds_without_a_partner_are_mentioned(make_run):
    found = compare([make_run("ifca", 0), make_run("fedavg", 3, clusters=(0,) * 4)])
    assert "global" not in headline(found)
    assert any("No seed is shared with fedavg" in note.text for note in notes(found))


def test_gain_caption(make_run):
    found = compare([make_run(scores=(0.9, 0.9, 0.9, 0.5)), make_run("fedavg", clusters=(0,) * 4, scores=(0.8,) * 4)])
    assert gain_caption(found, found.of("one")) == "3 of 4 clients gain, 1 loses"


def test_tiles_and_table_give_the_spread_only_with_seeds(make_run):
    alone = compare([make_run(scores=(0.9,) * 4)])
    assert (tiles(alone)[0].value.text, tiles(alone)[0].value.spread) == ("90.0 %", "")
    found = compare([make_run(seed=0, scores=(0.9,) * 4), make_run(seed=1, scores=(0.8,) * 4)])
    (row,) = method_rows(found, method_columns(found))
    cells = row["cells"]
    assert (cells["score"].text, cells["score"].spread) == ("85.0 %", "± 7.1")  # 0.1 / sqrt(2) = 0.0707
    assert (cells["up"].text, cells["up"].spread) == ("3.00", "")  # every seed sent the same
    assert "ari" not in cells, "no method has it"
    both = compare([make_run(truth=("a", "a", "b", "b")), make_run("fedavg")])
    assert [each["cells"]["ari"].text for each in method_rows(both, method_columns(both))] == [ABSENT, "1.00"]


def test_the_command_runs_it_again(make_run):
    run = make_run(seed=3, learner="mlp:hidden=64", rounds=15, lr=0.5, lr_decay=1.0, participation=0.5, restarts=2)
    words = run_command(run).replace("\\\n", " ").split()
    assert words[:7] == ["coterie", "run", "rotated-digits", "--method", "ifca", "--seed", "3"]
    given = dict(zip(words[7::2], words[8::2], strict=True))
    assert given == {
        "--clients": "4",
        "--clusters": "2",
        "--learner": "mlp:hidden=64",
        "--rounds": "15",
        "--lr": "0.5",
        "--participation": "0.5",
        "--restarts": "2",
    }  # lr_decay is at its default and needs no word


def test_a_refused_option_is_not_in_the_command(make_run):
    assert "--clusters" not in run_command(make_run("local", clusters=(0, 1, 2, 3)))


def test_hostile_values_are_quoted_for_the_shell(make_run):
    assert "'$(rm -rf x)'" in run_command(make_run(learner="$(rm -rf x)"))


def test_arrays_are_run_again_in_python(make_run):
    run = make_run(lr=0.1)
    config = {name: value for name, value in run.config.items() if name != "clients"} | {"scenario": "wards"}
    own = type(run)(config, run.records, run.metrics, run.clients)
    assert "coterie.fit(" in run_command(own)
    assert "seed=0" in run_command(own)
    assert compare_command(compare([own]).main).startswith("coterie.compare(")


def test_leading_restarts_and_a_client_story(make_run):
    run = make_run()
    run.records[:] = [record | {"restart": restart} for record, restart in zip(run.records, (1, 0, 0), strict=True)]
    assert leaders(run) == [(1, 1, 1), (2, 3, 0)]
    assert story((2, 2, 0)) == "rounds 1 to 2: cluster 2\nround 3: cluster 0"
    assert story((-1, 0, 0), (1, 0, 0)) == "round 1: not heard yet\nrounds 2 to 3: cluster 0 of restart 0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (139.4, "139"), (1.288, "1.29"), (0.04932, "0.0493"), (None, ABSENT), (-2.5, MINUS + "2.50")],
)
def test_plain_numbers(value, text):
    assert plain(value) == text


def test_words():
    assert score(0.93674, "accuracy") == "93.7 %"
    assert score(0.2061, "rmse") == "0.206"
    assert like(1.3333, "93.7 %") == "1.3"
    assert like(1.3333, "15") == "1"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert sorted(["180 d", "90 d", "a"], key=natural) == ["90 d", "180 d", "a"]
    assert cell(None, plain).text == ABSENT


def test_a_race_of_restarts_is_described_as_one(make_run):
    run = make_run(restarts=5, race=3, race_share=0.25, rounds=15)
    words = restarts_words(compare([run]).main)
    assert "raced 5 restarts for 3 rounds on 25 % of the clients" in words
    assert "side by side" in restarts_words(compare([make_run(restarts=5, race=0, rounds=15)]).main)
