"""The experiments of the IFCA paper: metrics by hand, verdicts that can fail, a small run through everything."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from coterie.core.dataset import FederatedDataset, Profile
from coterie.data.arrays import group_tests, stack_shard
from coterie.experiments.page import Judged, pages
from coterie.experiments.reproduce import find_reproduction, reproduce
from coterie.experiments.reproduction import Claim, Explanation, Paper
from coterie.experiments.results import Measured, append
from coterie.learners import make_learner
from coterie.training.result import Result
from papers import PAPERS, REPRODUCTIONS
from papers.ifca.figure3 import FULL, REDUCED, Setting, Trial, mean_distance
from papers.ifca.newcomers import least_loss_accuracy
from papers.ifca.table1 import COLUMNS


def verdicts(name, found, quick=False):
    return {claim.text: claim.holds for claim in find_reproduction(name).claims(found, quick)}


# ---- test clients -----------------------------------------------------------------------------------------


def two_models(seed):
    """A population of two groups with 60 test samples each, and a result with two random logistic models."""
    random = np.random.default_rng(seed)
    ids = ["a", "b", "c"]
    truth = np.array([0, 1, 1])
    x, y = random.standard_normal((9, 5)), random.integers(0, 3, 9)
    x_test, y_test = random.standard_normal((120, 5)), random.integers(0, 3, 120)
    data = FederatedDataset(
        "toy", stack_shard(ids, x, y, [3, 3, 3]), group_tests(ids, x_test, y_test, truth, 60), truth=truth
    )
    learner = make_learner("logistic", Profile((5,), 3))
    models = learner.start([1, 2], torch.float64)
    models = {name: torch.from_numpy(random.standard_normal(p.shape)) for name, p in models.items()}
    parameters = [{name: p[k] for name, p in models.items()} for k in range(2)]
    return data, Result({}, data.profile, learner, parameters, [], {}, [])


def test_test_clients_of_one_image_take_the_model_that_is_surer_of_the_label():
    """With n=1 the cut does not matter: each image is judged by the model with the least loss on it."""
    data, result = two_models(0)
    hits = []
    for x, y in zip(data.test.x.numpy(), data.test.y.numpy(), strict=True):
        losses = result.losses(x[None], [y])
        hits.append(result.predict(x[None], cluster=int(np.argmin(losses)))[0] == y)
    assert least_loss_accuracy(data, result, 1, seed=0) == pytest.approx(np.mean(hits))


def test_test_clients_never_mix_groups_and_the_rest_is_dropped():
    data, result = two_models(1)
    # 60 images a group as one client each: the better model for all of them
    expected = []
    for first in (0, 60):
        x, y = data.test.x[first : first + 60].numpy(), data.test.y[first : first + 60].numpy()
        expected.append(np.mean(result.predict(x, cluster=int(np.argmin(result.losses(x, y)))) == y))
    assert least_loss_accuracy(data, result, 60, seed=3) == pytest.approx(np.mean(expected))
    assert 0 <= least_loss_accuracy(data, result, 59, seed=3) <= 1  # one image of each group is left over


# ---- figure 3 ---------------------------------------------------------------------------------------------


def test_mean_distance_by_hand():
    true = np.array([[0.0, 0.0], [3.0, 4.0]])
    # swapped and the first one off by (0, 1): distances 0 and 1 under the matching, 5 and 6 or so without
    assert mean_distance(true, np.array([[3.0, 4.0], [0.0, 1.0]])) == pytest.approx(0.5)
    assert mean_distance(true, np.array([[3.0, np.nan], [0.0, 1.0]])) == np.inf


def test_mean_distance_is_least_over_all_matchings():
    random = np.random.default_rng(0)
    true, found = random.standard_normal((2, 4, 3))
    slow = min(np.mean([np.linalg.norm(found[p[j]] - true[j]) for j in range(4)]) for p in permutations(range(4)))
    assert mean_distance(true, found) == pytest.approx(slow)


def plain_ifca(data, lr, starts, rounds):
    """Option I as the paper writes it: residuals of all models, gradient of (y - <x, theta>)^2, step lr / m."""
    m, n = len(data.clients), int(data.train.sizes[0])
    x = data.train.x.numpy().reshape(m, n, -1)
    y = data.train.y.numpy().reshape(m, n)
    final = []
    for theta in starts.copy():
        for _ in range(rounds):
            step = np.zeros_like(theta)
            for i in range(m):
                losses = [np.mean((y[i] - x[i] @ t) ** 2) for t in theta]
                j = int(np.argmin(losses))
                step[j] += 2 / n * x[i].T @ (x[i] @ theta[j] - y[i])
            theta = theta - lr / m * step
        final.append(theta)
    return np.array(final)


def test_a_trial_is_the_algorithm_of_the_paper():
    """Distances of all ten starts against a plain loop."""
    from coterie.data import scenario
    from coterie.training.fitting import initialize
    from coterie.training.planning import prepare

    trial = Trial(Setting("a", 2, 1.0, 0.1, 8, 10, 6), 5, "float64", rounds=15)
    data = scenario("ifca-synthetic", clients=8, samples=10, dimension=6, groups=2, norm=1.0, noise=0.1, seed=5)
    plan = prepare(data, "ifca", None, {"init": "random", "restarts": 10, "lr": 0.1, "seed": 5})
    starts = initialize(plan).state.clusters.params["weight"].numpy().reshape(10, 2, 6)
    assert set(np.unique(starts)) == {0.0, 1.0}
    slow = [mean_distance(data.true_models, models) for models in plain_ifca(data, 0.1, starts, 15)]
    assert trial._distances(data, 0.1) == pytest.approx(slow, rel=1e-9)


def test_a_trial_says_which_share_of_starts_succeeds():
    """So much data and separation that most starts succeed with step size 0.1; none can within a round."""
    setting = Setting("a", 2, 1.0, 0.1, 20, 50, 12)
    figures = Trial(setting, 0, "float64").measure(None)
    assert figures["success"] == 1.0
    assert figures["share"] == max(figures["shares"].values()) >= 0.5
    assert figures["best"] < 1
    assert Trial(setting, 0, "float64", rounds=1).measure(None)["share"] == 0.0


def test_the_paper_s_ratio_of_samples_to_dimension_is_kept():
    for k, ratio in ((2, 5), (4, 10)):
        assert FULL.m[k] * FULL.n / (k * FULL.d) == ratio == REDUCED.m[k] * REDUCED.n / (k * REDUCED.d)


def shares(panel, values, **fixed):
    """Found figures along a line of settings of the reduced scale."""
    line = [s for s in REDUCED.settings() if s.panel == panel and all(getattr(s, k) == v for k, v in fixed.items())]
    return {
        s.name: {0: {"share": v, "success": float(v > 0), "shares": {"1": v, "2": v}}}
        for s, v in zip(line, values, strict=True)
    }


def test_the_trends_can_fail():
    rising = verdicts(
        "ifca-figure3", shares("a", [0.0, 0.1, 0.4, 0.8], sigma=0.1) | shares("c", [0, 0.2, 0.9, 1], n=50, R=0.25)
    )
    assert rising["(a) sigma=0.1: a larger R helps"] is True
    assert rising["(c) R=0.25, n=50: more clients help"] is True
    assert rising["(a) sigma=0.4: a larger R helps"] is None
    falling = verdicts(
        "ifca-figure3", shares("a", [0.0, 0.8, 0.4, 0.8], sigma=0.1) | shares("c", [0, 0.9, 0.2, 1], n=50, R=0.25)
    )
    assert falling["(a) sigma=0.1: a larger R helps"] is False
    assert falling["(c) R=0.25, n=50: more clients help"] is False


# ---- table 1, figure 4, table 2 ---------------------------------------------------------------------------


def column_found(ifca, world, alone, ari=1.0):
    cell = COLUMNS[2].cell
    return {
        cell("ifca"): {0: {"accuracy": ifca, "ari": ari, "right_from_round": 5}},
        cell("fedavg"): {0: {"accuracy": world}},
        cell("local"): {0: {"accuracy": alone}},
    }


def test_table_one_verdicts_by_hand():
    good = verdicts("ifca-table1", column_found(95.0, 89.0, 80.0))
    name = "rotated-mnist 1200x200"
    assert good[f"{name}: IFCA above the global model above local models"] is True
    assert good[f"{name}: every client's identity is right at the end"] is True
    assert good[f"{name}: IFCA reaches 95.25 less 0.25 points at most"] is True
    assert good[f"{name}: global model within 1.5 points of 89.73"] is True
    bad = verdicts("ifca-table1", column_found(94.9, 95.0, 70.0, ari=0.9))
    assert bad[f"{name}: IFCA above the global model above local models"] is False
    assert bad[f"{name}: every client's identity is right at the end"] is False
    assert bad[f"{name}: IFCA reaches 95.25 less 0.25 points at most"] is False
    assert bad[f"{name}: local model within 1.5 points of 80.05"] is False
    assert set(verdicts("ifca-table1", {}).values()) == {None}


def test_cells_hold_as_many_images_as_their_names_say():
    for column in COLUMNS:
        turns = 4 if column.scenario == "rotated-mnist" else 2
        assert column.m * column.n == turns * (60000 if turns == 4 else 50000)
    for cell in find_reproduction("ifca-table1").cells(1, True):
        n = int(cell.name.split("x")[1].split()[0])
        turns = 4 if cell.scenario == "rotated-mnist" else 2
        assert cell.scenario_options["clients"] * n == turns * cell.scenario_options["train_images"]


def test_figure_four_verdicts_by_hand():
    runs = {0: {"identity": [0.5, 1.0], "found_after": 2}, 1: {"identity": [0.5, 0.75], "found_after": None}}
    found = verdicts("ifca-figure4", {"rotated-mnist 1200x200 single": runs})
    assert found["one random start: all identities right within 30 rounds"] is False
    assert found["best of five after 5 rounds: all identities right within 30 rounds"] is None


def test_table_two_verdicts_by_hand():
    def figures(accuracy, in_use=1, sizes=()):
        return {0: {"accuracy": accuracy, "in_use": in_use, "sizes": list(sizes)}}

    found = {
        "femnist ifca k=2": figures(80.0, 2, (150, 50)),
        "femnist ifca k=3": figures(81.5, 3, (100, 60, 40)),
        "femnist ifca k=4": figures(81.0, 4, (100, 40, 30, 30)),
        "femnist global": figures(78.0),
        "femnist local": figures(60.0),
    }
    assert list(verdicts("ifca-table2", found).values()) == [True, True, False, False]
    assert list(verdicts("ifca-table2", {}).values()) == [None] * 4
    table = find_reproduction("ifca-table2").tables(found, False)[0]
    assert ["ifca k=2", "87.99 ± 0.35", "80.00 (1)", "150+50"] in [list(row) for row in table.rows]
    assert ["ifca k=5", "", "not run", ""] in [list(row) for row in table.rows]


# ---- all of it --------------------------------------------------------------------------------------------


def test_missing_data_is_a_line_for_each_cell_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "none"))
    findings = reproduce(
        "ifca-figure4", only="single", seeds=1, out=tmp_path / "out", results=tmp_path / "results.jsonl"
    )
    assert len(findings.failed) == 1
    assert "coterie data get mnist" in findings.failed[0]
    assert not (tmp_path / "results.jsonl").exists()


def test_the_page_shows_every_reproduction_and_what_was_not_run(tmp_path):
    found = pages(PAPERS, tmp_path / "none.jsonl", "all.md")
    for paper in PAPERS:
        for reproduction in paper.reproductions:
            assert f"## {reproduction.name}\n" in found[f"all-{paper.name}.md"]
            assert f"[{reproduction.name}](all-{paper.name}.md#{reproduction.name})" in found["all.md"]
    assert "| IFCA | 94.20 ± 0.03 | not run |" in found["all-ifca.md"]
    claims = len(REPRODUCTIONS["ifca-figure3"].claims({}, False))
    line = f"| Ghosh, Chung, Yin, Ramchandran 2020, figure 3 | not run | 0 | 0 | 0 | {claims} |"
    assert f"| [ifca-figure3](all-ifca.md#ifca-figure3) {line}" in found["all.md"]
    assert f"| [ifca-figure3](#ifca-figure3) {line}" in found["all-ifca.md"]
    assert " not hold:**" not in found["all-ifca.md"]
    assert "`coterie reproduce ifca-figure3` | 540 | not measured |" in found["all-ifca.md"]


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [((True, None), "holds"), ((True, False), "depends"), ((False, None), "fails"), ((None,), "not run")],
)
def test_the_result_of_a_reproduction_follows_from_its_claims(verdicts, result):
    claims = [Claim("the text", verdict, "evidence") for verdict in verdicts]
    assert Judged(REPRODUCTIONS["ifca-figure3"], [], claims).result == result
    undecided = Claim("the text", True, "evidence", decided=False)
    assert Judged(REPRODUCTIONS["ifca-figure3"], [], [*claims, undecided]).result == result.replace(
        "not run", "undecided"
    )


def page_of(tmp_path, **parts):
    one = replace(REPRODUCTIONS["ifca-figure3"], cells=lambda seeds, quick: [], **parts)
    return pages([Paper("mine", "Mine", "Me 2020.", (one,))], tmp_path / "none.jsonl", "all.md")["all-mine.md"]


def test_claims_that_do_not_hold_are_listed_with_the_reason(tmp_path):
    text = page_of(
        tmp_path,
        claims=lambda found, quick: [Claim("it is fast", False, "no")],
        explanations=(Explanation("fast", "It is heavy."),),
    )
    assert "**1 does not hold:**\n\n- it is fast ([ifca-figure3](#ifca-figure3)). Found: no. It is heavy.\n" in text


def test_readings_of_a_statement_are_counted_once(tmp_path):
    claims = [Claim("it is fast", True, "a"), Claim("read: 1", True, "b"), Claim("read: 2", False, "c")]
    text = page_of(
        tmp_path, claims=lambda found, quick: claims, explanations=(Explanation("read:", "", "it reads well"),)
    )
    assert "Of 2 statements, readings of the same statement counted once, **1 hold**." in text
    assert "- it reads well: 1 of 2 readings hold ([ifca-figure3](#ifca-figure3)).\n" in text


def test_a_picture_is_a_file_next_to_the_page(tmp_path):
    cell = Trial(Setting("a", 2, 1.0, 0.1, 8, 10, 6), 0, "float64")
    append(tmp_path / "results.jsonl", "ifca-figure3", cell, Measured({}, 1.0), "v1")
    parts = {"tables": lambda found, quick: [], "claims": lambda found, quick: []}
    one = replace(REPRODUCTIONS["ifca-figure3"], picture=lambda found: "<svg/>", **parts)
    found = pages([Paper("mine", "Mine", "Me 2020.", (one,))], tmp_path / "results.jsonl", "all.md")
    assert found["images/papers/ifca-figure3.svg"] == "<svg/>"
    assert "](images/papers/ifca-figure3.svg)" in found["all-mine.md"]
