"""Means, spreads, pairs and gains against numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import RunError
from coterie.report.comparison import Spread, advantages, compare, contingency, curve, gains, pairs, tally, trouble
from coterie.report.figures.map import fit_shares, spread_out
from tests.records import without


def test_standard_deviation_divides_by_seeds_less_one():
    found = Spread((1.0, 2.0, 3.0))
    assert found.mean == 2.0
    assert found.sd == 1.0  # sqrt((1 + 0 + 1) / 2), not sqrt(2 / 3)
    assert Spread((1.0,)).sd is None


def test_main_method_is_the_best_that_finds_groups(make_run):
    runs = [
        make_run("oracle", scores=(1.0,) * 4),
        make_run("fedavg", clusters=(0,) * 4, scores=(0.99,) * 4),
        make_run("ifca", scores=(0.7,) * 4),
        make_run("newer", scores=(0.8,) * 4),  # a method that this version does not know
    ]
    found = compare(runs)
    assert found.main.name == "newer"
    assert [m.name for m in found.methods] == ["fedavg", "ifca", "oracle", "newer"]
    assert [b.name for b in found.baselines] == ["fedavg"]


def test_lower_rmse_is_better(make_run):
    found = compare(
        [make_run("ifca", score="rmse", scores=(0.2,) * 4), make_run("newer", score="rmse", scores=(0.5,) * 4)]
    )
    assert found.main.name == "ifca"


def test_differences_use_only_seeds_that_both_have(make_run):
    found = compare(
        [
            make_run("ifca", 0, scores=(0.9,) * 4),
            make_run("ifca", 1, scores=(0.1,) * 4),  # no partner: must not count
            make_run("fedavg", 0, clusters=(0,) * 4, scores=(0.6,) * 4),
            make_run("fedavg", 7, clusters=(0,) * 4, scores=(0.0,) * 4),
        ]
    )
    base = found.of("one")
    assert [(a.seed, b.seed) for a, b in pairs(found.main, base)] == [(0, 0)]
    assert advantages(found.main, base).values == pytest.approx((0.3,))


def test_rmse_advantage_is_a_share_of_the_baseline(make_run):
    found = compare(
        [
            make_run("ifca", score="rmse", scores=(0.2,) * 4),
            make_run("local", clusters=(0, 1, 2, 3), score="rmse", scores=(0.8,) * 4),
        ]
    )
    assert advantages(found.main, found.of("self")).mean == pytest.approx(0.75)  # (0.8 - 0.2) / 0.8


def test_gains_client_by_client_over_seeds(make_run):
    found = compare(
        [
            make_run("ifca", 0, scores=(0.9, 0.5, 0.7, 0.7)),
            make_run("ifca", 1, scores=(0.7, 0.5, 0.7, 0.9)),
            make_run("fedavg", 0, clusters=(0,) * 4, scores=(0.5, 0.6, 0.7, 0.6)),
            make_run("fedavg", 1, clusters=(0,) * 4, scores=(0.5, 0.8, 0.7, 0.6)),
        ]
    )
    each = gains(found.main, found.of("one"))
    # client-0: mean(0.9, 0.7) - 0.5 = 0.3; client-1: 0.5 - mean(0.6, 0.8) = -0.2; client-2: 0; client-3: 0.8 - 0.6
    assert [(g.client, round(g.gain, 9)) for g in each] == [
        ("client-0", 0.3),
        ("client-3", 0.2),
        ("client-2", 0.0),
        ("client-1", -0.2),
    ]
    assert tally(each) == (2, 1, 1)


def test_lower_rmse_is_a_gain(make_run):
    found = compare(
        [
            make_run("ifca", score="rmse", scores=(0.2, 0.9, 0.5, 0.5)),
            make_run("fedavg", clusters=(0,) * 4, score="rmse", scores=(0.5,) * 4),
        ]
    )
    each = gains(found.main, found.of("one"))
    assert (each[0].client, each[-1].client) == ("client-0", "client-1")  # 0.2 < 0.5 gains, 0.9 > 0.5 loses
    assert tally(each) == (1, 1, 2)


def test_curve_leaves_out_rounds_without_a_number(make_run):
    run = make_run(loss=(1.0, 0.5, 0.25))
    run.records[1] |= {"loss": None}  # a start that diverged
    run.records[2] = without(run.records[2], "accuracy")  # evaluate_every
    found = compare([run, make_run(seed=1, loss=(3.0, 0.7, 0.75))])
    loss = curve(found.main, "loss")
    assert loss.rounds == (1, 2, 3)
    assert loss.mean == pytest.approx((2.0, 0.7, 0.5))
    assert (loss.low[0], loss.high[0]) == (1.0, 3.0)
    assert curve(compare([run]).main, "accuracy").rounds == (1, 2)
    assert curve(found.main, "rmse") is None


def test_contingency_counts_clients_in_natural_order(make_run):
    run = make_run(truth=("90 degrees", "180 degrees", "90 degrees", "180 degrees"), clusters=(0, 0, 1, 0))
    assert contingency(run) == (["90 degrees", "180 degrees"], [0, 1], [[1, 1], [2, 0]])
    assert contingency(make_run()) is None


def test_trouble_is_counted_over_all_rounds(make_run):
    run = make_run()
    run.records[0] |= {"missing": ["client-0", "client-1"]}
    run.records[2] |= {"rejected": ["client-3"]}
    run.records[1] = without(run.records[1], "missing")  # as an earlier version may have left it out
    assert trouble([run]) == (2, 1)


def test_no_runs_is_an_error():
    with pytest.raises(RunError, match="at least one finished run"):
        compare([])


def test_points_on_one_spot_become_distinct_and_stay_near():
    places, radii, moved = spread_out(np.array([[100.0, 100.0]] * 15 + [[300.0, 50.0]]))
    assert moved == 14
    distances = np.linalg.norm(places[:15, None] - places[None, :15], axis=2) + 100 * np.eye(15)
    assert distances.min() > 3
    assert np.linalg.norm(places[:15] - [100, 100], axis=1).max() < 35
    assert places[15].tolist() == [300, 50]
    assert len(radii) == 16


def test_models_share_a_client_by_one_over_the_squared_loss():
    """Losses 1 and 2: shares 1 and 1/4 of 5/4, so 0.8 and 0.2. Equal losses share equally; a zero loss takes all."""
    assert fit_shares(np.array([[1.0, 2.0]]))[0] == pytest.approx([0.8, 0.2])
    assert fit_shares(np.array([[3.0, 3.0, 3.0]]))[0] == pytest.approx([1 / 3] * 3)
    assert fit_shares(np.array([[0.0, 1.0], [np.inf, 1.0]])) == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]))
