"""The story of K: lives of clusters by hand, the drawing of them, and what a real run's page and terminal say."""

import re

import pytest

import coterie
from coterie.report import descent
from coterie.report.comparison import compare
from coterie.report.figures.family import Life, family_figure, rows_of
from coterie.report.page import render
from coterie.report.reading import run_from_parts
from coterie.testing.checks import small_federation
from coterie.training.records import RoundRecord


def record(round_, K, sizes, *events):
    return RoundRecord(round=round_, events=list(events), measures={"K": K, "sizes": sizes})


def event(kind, before, parents, reason="because"):
    return {"kind": kind, "reason": reason, "before": before, "parents": parents}


HISTORY = [
    record(0, 1, [9]),
    record(1, 2, [5, 4], event("split", 1, [[0], [0]])),
    record(2, 4, [3, 2, 2, 2], event("split", 2, [[0], [1], [0], [1]])),
    # cluster 1 goes, 2 and 3 become 1 and 2; then these two are merged
    record(3, 2, [4, 5], event("remove", 4, [[0], [2], [3]]), event("merge", 3, [[0], [1, 2]])),
]


def test_lives_follow_splits_removals_and_mergers():
    """Rounds count from one. 0 lives throughout; 1 is born after round 2 and removed after 4; 2 and 3 are born after
    round 3, and 3 is merged into 2, which ends as cluster 1."""
    assert descent.lives_of(HISTORY) == [
        Life(0, number=0, size=4),
        Life(2, parent=0, ends=4),
        Life(3, parent=0, number=1, size=5),
        Life(3, parent=1, ends=4, joins=2),
    ]


def test_a_newborn_has_no_parent_and_a_life_that_continues_in_no_cluster_has_ended():
    lives = descent.lives_of([record(0, 2, [3, 0], event("regroup", 2, [[1], []]))])
    assert lives == [Life(0, ends=1), Life(0, number=0, size=3), Life(1, number=1, size=0)]


def test_the_answer_counts_every_split_of_an_event():
    reported = descent.answer(HISTORY)
    assert reported == "from 1 to 2 clusters by 3 splits, 1 removal and 1 merger, the last after round 4"
    assert descent.answer(HISTORY[:1]) == "1 cluster from the first round to the last: no step changed that"


def test_one_change_is_one_line():
    assert descent.event_line(2, HISTORY[1]["events"][0]) == "round 2: split, 1 to 2 clusters (because)"


def test_no_branch_crosses_a_line_that_is_there_by_then():
    """A branch at round t from a parent's row to the child's passes only rows whose lives begin later."""
    lives = [Life(0), Life(0), Life(1, parent=0), Life(2, parent=0), Life(3, parent=2), Life(4, parent=0)]
    rows = rows_of(lives)
    assert sorted(rows) == list(range(len(lives)))
    for at, life in enumerate(lives):
        if life.parent is not None:
            passed = [other for i, other in enumerate(lives) if rows[life.parent] < rows[i] < rows[at]]
            assert all(other.begins >= life.begins for other in passed)


def test_the_tree_has_a_line_for_each_life_a_bar_for_a_removal_and_sizes_at_the_end():
    lives = descent.lives_of(HISTORY)
    drawn = str(family_figure(lives, len(HISTORY), "tree"))
    assert drawn.count('<path d="M') == 2 * len(lives)  # what is seen and what can be pointed at
    assert drawn.count("<line") == 1
    assert re.findall(r"cluster \d: \d clients?", drawn) == ["cluster 0: 4 clients", "cluster 1: 5 clients"]


def test_where_k_is_fixed_there_is_no_story():
    assert descent.section(run_from_parts({}, [{"round": 0}], {"metrics": {}, "clients": []})) is None


@pytest.fixture(scope="module")
def run():
    data = small_federation("mlp", sizes=(20,) * 9)
    options = {"warmup": 1, "thresholds": "relative", "eps1": 1.0, "eps2": 0.0, "rounds": 4}
    result = coterie.fit(data, "cfl", learner="mlp:hidden=6", **options)
    return run_from_parts(result.config, result.records, result.summary())


def test_the_page_of_a_growing_run_shows_k_the_tree_and_every_reason(run):
    events = [event for record in run.records for event in record.get("events", ())]
    assert events, "nothing was split: the test shows nothing"
    page = render(compare([run]))
    assert "How many clusters, and where they come from" in page
    assert "Which cluster descends from which" in page
    for event in events:
        assert event["reason"] in page
    assert "K is 1, so every client" not in page, "it began with one cluster and did not stay there"


def test_a_run_of_an_adaptive_method_that_never_changes_says_so():
    data = small_federation("mlp", sizes=(20,) * 9)
    result = coterie.fit(data, "cfl", learner="mlp:hidden=6", rounds=2)
    page = render(compare([run_from_parts(result.config, result.records, result.summary())]))
    assert "1 cluster from the first round to the last" in page
    assert 'id="formation"' not in page


def test_clients_that_arrive_remove_nothing():
    reported = descent.answer([record(0, 1, [5], event("arrival", 1, [[]]))])
    assert reported == "1 cluster from the first round to the last: all clients joined it"
    reported = descent.answer([record(0, 2, [3, 2], event("arrival", 1, [[], []]))])
    assert reported == "from 1 to 2 clusters by 2 newcomers' clusters, the last after round 1"


def test_the_page_tells_how_clients_were_grouped_before_training():
    done = coterie.fit(small_federation("logistic"), "pacfl", clusters=2, rounds=1)
    page = render(compare([run_from_parts(done.config, done.records, done.summary())]))
    assert re.search(r"grouped once, before the first round: 9 clients by principal-angles, .* degrees apart", page)
