"""The scoreboard: what scenarios draw, a few cells, the arithmetic of ranks and gains, the page."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.scoreboard import SCOREBOARD
from benchmarks.scoreboard.cells import chosen_cells, measured
from benchmarks.scoreboard.drawing import SUPPORT, Client, federation, table
from benchmarks.scoreboard.entries import ENTRIES, LEFT_OUT, Entry, Knows
from benchmarks.scoreboard.files import Files
from benchmarks.scoreboard.page import good_for, page, summary
from benchmarks.scoreboard.pictures import Pictures, Source
from benchmarks.scoreboard.regressions import Regression
from benchmarks.scoreboard.scenarios import scenarios
from benchmarks.scoreboard.standing import Standing, ranks, share_of_gain
from coterie.errors import ConfigError
from coterie.experiments.results import read
from coterie.experiments.scoreboard import KEPT_AS
from coterie.methods import Method


def figures(score, clusters=1, groups=2, unit="accuracy", **more):
    given = {"unit": unit, "score": score, "worst": score, "newcomers": score, "groups": groups, "version": "v1"}
    return given | {"rounds": 50, "bytes": 2_000_000, "cpu": 1.5, "clusters": clusters, "ari": 0.5} | more


def board(**cells):
    """Return the standing of cells {"scenario: method": {seed: figures}}."""
    return Standing({name.replace("__", ": ").replace("_", " "): of for name, of in cells.items()}, scenarios())


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_equal_values_share_the_mean_of_their_ranks():
    # 0.9 is first; the two 0.8 share ranks 2 and 3; -inf, which diverged, is last
    assert ranks({"a": 0.8, "b": 0.9, "c": float("-inf"), "d": 0.8}) == {"a": 2.5, "b": 1.0, "c": 4.0, "d": 2.5}


def test_the_share_of_the_gain_is_how_far_between_fedavg_and_the_oracle():
    assert share_of_gain(0.7, 0.5, 0.9) == pytest.approx(0.5)
    assert share_of_gain(0.45, 0.5, 0.9) == pytest.approx(-0.125)
    assert share_of_gain(-1.5, -2.0, -1.0) == pytest.approx(0.5)  # of RMSE 2 and 1


STANDING = board(
    digits_concept__fedavg={1: figures(0.4), 2: figures(0.6)},  # mean .5
    digits_concept__oracle={1: figures(0.9, 2), 2: figures(0.9, 2)},
    digits_concept__ifca={1: figures(0.8, 2), 2: figures(0.8, 2)},  # (.8 - .5) / (.9 - .5) = .75
    digits_concept__cfl={1: figures(0.9, 5), 2: figures(0.88, 2)},  # .89 - .5 of .4 = .975; |5 - 2|, |2 - 2|
    digits_none__fedavg={1: figures(0.9, groups=1)},
    digits_none__oracle={1: figures(0.91, groups=1)},  # gains one point only: no clear groups
    digits_none__ifca={1: figures(0.85, 2, groups=1)},
    digits_none__cfl={1: figures(0.9, 1, groups=1), 2: figures(0.9, 3, groups=1)},
    linear_groups__fedavg={1: figures(2.0, unit="rmse")},
    linear_groups__oracle={1: figures(1.0, 2, unit="rmse")},
    linear_groups__ifca={1: figures(1.05, 2, unit="rmse")},  # .95 of the gain
    linear_groups__cfl={1: figures(9.0, 2, unit="rmse", diverged=True)},
    **{"linear_groups__hcfl+": {1: {"refused": "for classes only", "version": "v1"}}},
)


def test_a_low_error_and_a_high_accuracy_rank_first_and_yardsticks_have_no_rank():
    assert STANDING.ranking["digits concept"] == {"cfl": 1, "ifca": 2, "fedavg": 3}
    assert STANDING.ranking["digits none"] == {"fedavg": 1.5, "cfl": 1.5, "ifca": 3}
    assert STANDING.ranking["linear groups"] == {"ifca": 1, "fedavg": 2, "cfl": 3}
    assert STANDING.mean_rank("ifca") == pytest.approx((2 + 3 + 1) / 3)
    assert STANDING.mean_rank("ifca", "digits") == pytest.approx((2 + 3) / 2)
    assert STANDING.mean_rank("oracle") is None
    assert [entry.name for entry in STANDING.entries] == ["oracle", "cfl", "ifca", "fedavg"]


def test_shares_count_where_the_oracle_gains():
    assert STANDING.shares("ifca") == pytest.approx([0.95, 0.75])  # in the order of the scenarios
    assert STANDING.share("digits none", "ifca") is None
    assert STANDING.shares("cfl") == pytest.approx([-1, 0.975])  # one that diverged counts as -1
    assert STANDING.shares("hcfl+") == []


def test_errors_in_k_and_splits_of_alike_clients():
    assert STANDING.count_error("cfl") == pytest.approx((3 + 0 + 0) / 3)
    assert STANDING.split_alike("cfl") == (1, 2)
    assert STANDING.split_alike("hcfl+") is None


def test_the_summary_and_the_page_say_all_that():
    rows = {row[0]: row for row in summary(STANDING).rows}
    shown = ["`cfl`", "finds", "1.8", "3", "-1 %", "1/2", "-1 %", "1.00", "1/2", "1.5", "2.0"]
    assert rows["`cfl`"] == shown  # mean rank (1 + 1.5 + 3) / 3; mean share (-1 + .975) / 2
    assert rows["`ifca`"][1:6] == ["given", "2.0", "3", "85 %", "1/2"]
    assert good_for(STANDING, ENTRIES["cfl"]) == (
        "`cfl`: best on digits (mean rank 1.2); worst on linear (3.0); 95 % of the oracle's gain in 1 of 2 "
        "scenarios with clear groups; least gain on linear groups (-100 %); splits alike clients in 1 of 2 runs."
    )
    text = page(STANDING, "board.svg")
    assert "3 scenarios, 4 methods, seeds 1 to 2: 18 cells, of which 1 were refused" in text
    assert "| `ifca` | 80.0 / 80.0 (2.0, 0.50) | 85.0 / 85.0 (2.0, 0.50) |" in text
    assert "| `cfl` | diverged |" in text
    assert "- usps concept (data: put usps.npz (x_train, y_train) into the folder of --data)" in text


def test_the_picture_has_a_cell_for_each_rank():
    root = ElementTree.fromstring(SCOREBOARD.picture(STANDING.found))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 9
    assert "cfl, digits none: rank 1.5 of 3" in titles


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_every_registered_method_is_a_row():
    there = {entry.method or entry.name for entry in ENTRIES.values()} - {"auto"}
    assert there == set(Method.members) - LEFT_OUT


def test_only_methods_that_need_k_receive_it():
    assert ENTRIES["ifca"].run_options(3) == {"clusters": 3}
    assert ENTRIES["ifca"].run_options(1) == {"clusters": 2}
    assert ENTRIES["ifca"].run_options(None) == {}
    assert ENTRIES["hcfl+"].run_options(3) == {}
    assert ENTRIES["ifca-auto"].run_options(3) == {"clusters": "auto"}
    finding = [entry.name for entry in ENTRIES.values() if entry.knows is Knows.GIVEN]
    assert all("clusters" in Method.members[name].own_names() for name in finding)


# ---- scenarios -------------------------------------------------------------------------------------------------------


def test_there_are_scenarios_of_every_kind_and_a_seed_draws_the_same_again():
    known = scenarios()
    assert len(known) >= 25
    assert sum(scenario.alike for scenario in known.values()) >= 3
    for name in ("logistic unequal", "table"):
        once, again, other = (known[name].draw(seed).data for seed in (1, 1, 2))
        assert once.fingerprint() == again.fingerprint() != other.fingerprint()


def test_every_fifth_client_is_a_newcomer_with_samples_of_its_own():
    clients = [Client(np.full((25, 2), float(i)), np.arange(25) % 2, 15, i % 2) for i in range(10)]
    drawn = federation(clients)
    assert drawn.data.clients == tuple(f"c{i:03d}" for i in (0, 1, 2, 3, 5, 6, 7, 8))
    assert drawn.data.sizes.tolist() == [15] * 8
    assert drawn.groups == 2
    assert [(float(n.x[0, 0]), len(n.support[1]), len(n.y)) for n in drawn.newcomers] == [(4, 10, 10), (9, 10, 10)]


def test_a_newcomer_is_not_asked_about_classes_that_no_client_trained_on():
    clients = [Client(np.zeros((6, 1)), np.array([0, 1, 0, 1, 0, 1]), 3) for _ in range(4)]
    clients.append(Client(np.arange(6.0)[:, None], np.array([0, 7, 1, 7, 1, 0]), 3))
    (newcomer,) = federation(clients).newcomers
    assert newcomer.support[1].tolist() == [0, 1]
    assert newcomer.x.ravel().tolist() == [4.0, 5.0]


def test_newcomers_of_a_table_bring_raw_rows():
    site = np.repeat([f"s{i}" for i in range(5)], 14)
    columns = {"site": site, "x": np.arange(70.0), "kind": np.array(["a", "b"] * 35), "y": np.arange(70.0) / 2}
    drawn = table(columns, "site", "y", [0, 1, 0, 1, 1], 0)
    assert drawn.data.truth.tolist() == [0, 1, 0, 1]
    assert drawn.data.group_names == ("0", "1")
    (newcomer,) = drawn.newcomers
    assert sorted(newcomer.support) == ["kind", "x", "y"]
    assert newcomer.support["x"].tolist() == list(range(56, 56 + SUPPORT))
    assert sorted(newcomer.x) == ["kind", "x"]
    assert newcomer.y.tolist() == [33.0, 33.5, 34.0, 34.5]


def test_no_image_is_given_twice_and_each_shift_changes_what_it_says():
    source = Source("digits", 40, 18)
    rows = {}
    for shift in ("none", "feature", "concept", "label"):
        drawn = Pictures(source, shift)(3)
        rows[shift] = np.concatenate([drawn.data.train.x.numpy(), drawn.data.test.x.numpy()])
    same = len(np.unique(Pictures(source, "none").source.read(Files())[0].reshape(1797, -1), axis=0)) == 1797
    assert same
    assert len(np.unique(rows["none"].round(4), axis=0)) == len(rows["none"]) == 24 * 58
    assert np.array_equal(rows["none"], rows["concept"])  # the same images, other labels
    assert not np.array_equal(rows["none"], rows["feature"])
    assert np.allclose(np.sort(rows["none"].sum(1)), np.sort(rows["feature"].sum(1)), atol=1e-4)  # turned, not changed


# ---- cells -----------------------------------------------------------------------------------------------------------

TINY = replace(scenarios()["linear groups"], draw=Regression(clients=10, samples=20, groups=2))


def test_a_cell_is_a_run_with_defaults():
    drawn = TINY.draw(1)
    found = measured(Entry("oracle-averaging", Knows.TRUTH), TINY, drawn, 1)
    assert (found["unit"], found["groups"], found["clusters"], found["ari"]) == ("rmse", 2, 2, 1.0)
    assert 0.8 < found["score"] < 1.5  # the noise is 1
    assert 0.8 < found["newcomers"] < 1.6
    assert found["bytes"] > 0
    kept = measured(Entry("local-erm", Knows.ONE), TINY, drawn, 1)
    assert "clusters" not in kept
    assert kept["newcomers"] is None


def test_files_of_the_user_come_before_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    (tmp_path / "femnist_200.npz").touch()
    assert Files(tmp_path).path("femnist") == tmp_path / "femnist_200.npz"
    assert Files(tmp_path).path("usps") is None
    assert not any("femnist" in line for line in SCOREBOARD.absent(tmp_path, None, False))
    assert SCOREBOARD.absent(tmp_path, None, True) == []  # the small version needs no file


def test_an_unknown_method_gets_a_suggestion():
    with pytest.raises(ConfigError, match="ifca"):
        chosen_cells(None, 1, None, "ifcaa")


def test_the_committed_page_is_that_of_the_committed_results():
    committed = Path(__file__).resolve().parents[2] / "docs" / "scoreboard.md"
    if SCOREBOARD.results.is_file():
        assert committed.read_text() == SCOREBOARD.page(read(SCOREBOARD.results, KEPT_AS), "scoreboard.svg")
    else:
        assert not committed.is_file()
