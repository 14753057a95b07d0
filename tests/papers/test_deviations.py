"""The table of deviations: pairs of runs that can be made and differ in one setting, and verdicts by hand."""

from coterie.data import scenario
from coterie.training.planning import prepare
from papers.deviations import DEVIATIONS, SCENARIOS, SIDES, claims, tables


def test_the_runs_of_a_pair_differ_in_the_named_settings_only():
    data = {name: scenario(name, **options) for name, options in SCENARIOS.items()}
    for one in DEVIATIONS:
        configs = [
            prepare(data[one.scenario], one.method, None, {**one.options(side, True), "seed": 0}).config
            for side in SIDES
        ]
        differing = {
            name for name in configs[0].keys() | configs[1].keys() if configs[0].get(name) != configs[1].get(name)
        }
        assert differing, one.cell_name("paper")
        assert one.paper.keys() <= differing, (one.cell_name("paper"), differing)


def test_verdicts_by_hand():
    one = DEVIATIONS[0]
    found = {
        one.cell_name("paper"): {0: figures(80), 1: figures(90), 2: figures(85)},
        one.cell_name("default"): {0: figures(95), 1: figures(95), 2: figures(96)},
    }
    # the gains are 15, 5 and 11: mean 10.33, standard deviation 5.03, standard error 2.91
    claim = claims(found, False)[0]
    assert (claim.verdict, claim.evidence) == ("holds", "better by 10.33, standard error 2.91")
    found[one.cell_name("default")][2] = figures(85)  # gains 15, 5 and 0: mean 6.67, standard error 4.41
    assert claims(found, False)[0].verdict == "undecided"
    assert claims(found, False)[-1].verdict == "not run"
    [table] = tables(found, False)
    assert len(table.rows) == len(DEVIATIONS)
    assert all(len(row) == len(table.header) for row in table.rows)


def figures(accuracy: float) -> dict:
    return {"accuracy": accuracy, "clusters": 4, "ari": 1.0}
