"""Two phases from the user's side: results, messages and mistakes."""

import json
import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.core.blocks import cut
from coterie.errors import ConfigError, InputError
from coterie.learners import make_learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.testing.checks import small_federation

HARD = {"clients": 150, "samples": "5-60", "dimension": 15, "noise": "0.2", "separation": 1.2, "test_samples": 20}


@pytest.mark.parametrize("seed", range(2))
def test_groups_and_models_are_found_without_their_number(seed):
    data = coterie.scenario("mixed-regression", seed=seed, **HARD)
    result = coterie.fit(data, "two-phase", clusters="auto", rounds=60, seed=seed)
    assert len(result.models) == 3
    assert result.metrics["ari"] == 1.0
    # pooled least squares in the true groups is a lower bound
    rows = np.repeat(data.truth, data.train.sizes)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    best = [np.linalg.lstsq(x[rows == g], y[rows == g])[0] for g in range(3)]
    floor = max(np.linalg.norm(b - t) for b, t in zip(best, data.true_models, strict=True))
    assert result.metrics["parameter_error"] < 1.2 * floor


def test_the_result_reports_the_choice_and_its_cost():
    data = coterie.scenario("mixed-regression", **HARD)
    result = coterie.fit(data, "two-phase", clusters="auto", rounds=3)
    findings = result.metrics["moment_descent"]
    assert findings["clusters"] == 3
    assert set(findings["anchors"]) <= set(data.clients)
    assert set(findings["anchors"].values()) == {0, 1, 2}
    assert findings["delta"] > 0
    rate = result.metrics["learning_rate"]
    # every client sends its curvature, the sums of the squares of its features, and its number of samples
    assert rate["bytes_up"] == len(data.clients) * 8 * (1 + data.train.x.shape[1] + 1)
    rounds = sum(record["bytes_up"] for record in result.records)
    assert result.metrics["bytes_up"] == findings["bytes_up"] + rate["bytes_up"] + rounds
    assert result.config["lr"] == rate["lr"] == pytest.approx(0.9 / rate["curvature"])
    x, starts, stops = data.train.x.numpy(), data.train.starts, data.train.stops
    largest = max(np.linalg.norm(x[a:b], 2) ** 2 / (b - a) for a, b in zip(starts, stops, strict=True))
    assert rate["curvature"] == pytest.approx(largest)
    assert result.config["clusters"] == 3


@pytest.mark.parametrize(("phase2", "steps"), [("fedavg", 1), ("fedavg", 5), ("fedprox", 1)])
@pytest.mark.parametrize("averaging", ["all", "members"])
def test_phase_two_against_a_plain_loop_over_clients(phase2, steps, averaging):
    data = coterie.scenario("mixed-regression", clients=20, samples="1-12", dimension=6, groups=2, test_samples=1)
    start = np.random.default_rng(0).standard_normal((2, 6))
    options = {"phase2": phase2, "local_steps": steps, "averaging": averaging, "lr": 0.05, "rounds": 4, "clusters": 2}
    result = coterie.fit(data, "two-phase", init=[{"weight": s} for s in start], **options)
    theta = start.copy()
    x, y = data.train.x.numpy(), data.train.y.numpy()
    clients = [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]
    for _ in range(4):
        moved, mass = np.zeros_like(theta), np.zeros(2)
        for features, target in clients:
            n = len(target)
            j = int(np.argmin([((target - features @ t) ** 2).sum() for t in theta]))
            local = theta[j].copy()
            if phase2 == "fedprox":
                matrix = features.T @ features / n + np.eye(6) / 0.05
                local = np.linalg.solve(matrix, features.T @ target / n + local / 0.05)
            else:
                for _ in range(steps):
                    local -= 0.05 * features.T @ (features @ local - target) / n
            moved[j] += n * (local - theta[j])
            mass[j] += n
        divisor = np.full(2, mass.sum()) if averaging == "all" else np.maximum(mass, 1)
        theta += moved / divisor[:, None]
    np.testing.assert_allclose([m["weight"] for m in result.models], theta, rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("averaging", ["all", "members"])
def test_soft_weights_against_a_plain_loop_over_clients(steps, averaging):
    data = coterie.scenario("mixed-regression", clients=15, samples="1-12", dimension=5, groups=2, test_samples=1)
    start = np.random.default_rng(1).standard_normal((2, 5))
    options = {"soft": 0.7, "local_steps": steps, "averaging": averaging, "lr": 0.05, "rounds": 3, "clusters": 2}
    result = coterie.fit(data, "two-phase", init=[{"weight": s} for s in start], **options)
    theta = start.copy()
    x, y = data.train.x.numpy(), data.train.y.numpy()
    clients = [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]
    for _ in range(3):
        moved, mass, total = np.zeros_like(theta), np.zeros(2), 0
        for features, target in clients:
            n = len(target)
            loss = np.array([((target - features @ t) ** 2).mean() / 2 for t in theta])
            share = np.exp(-loss / 0.7) / np.exp(-loss / 0.7).sum()
            for j in range(2):
                local = theta[j].copy()
                for _ in range(steps):
                    local -= 0.05 * share[j] * features.T @ (features @ local - target) / n
                moved[j] += n * (local - theta[j])
            mass += n * share
            total += n
        theta += moved / (np.full(2, total) if averaging == "all" else mass)[:, None]
    np.testing.assert_allclose([m["weight"] for m in result.models], theta, rtol=1e-9)


@pytest.mark.parametrize("learner", ["logistic", "mlp:hidden=5", "cnn:channels=2,hidden=4"])
@pytest.mark.parametrize("local", [FullBatch(steps=3), MiniBatch(batch_size=4), FullBatch(steps=1)])
def test_focus_scales_every_learners_gradient(learner, local):
    """Samples that count half train as samples of half the loss: for one step, half the change."""
    data = small_federation("mlp" if learner != "logistic" else "logistic", [6, 9])
    built = make_learner(learner, data.profile)
    shard = data.train.to(torch.float64, torch.device("cpu"))
    (block, *_) = cut(shard, shard.hashes, 0)
    theta = {
        name: p[None].repeat(len(block.positions), *(1,) * p.dim())
        for name, p in built.start([1], torch.float64).items()
    }
    whole = built.descend(theta, block, local, 0.1)
    half = built.descend(theta, replace(block, focus=torch.full_like(block.y, 0.5, dtype=torch.float64)), local, 0.2)
    for name in whole:  # half the gradient with twice the step size is the same update
        torch.testing.assert_close(half[name], whole[name], rtol=1e-9, atol=1e-12)
    mass, rows = torch.ones(len(block.positions), 1, dtype=torch.float64), torch.zeros(len(block.positions), 1).long()
    models = built.start([1], torch.float64)
    whole_sums = built.contribute(models, rows, block, local, 0.1, mass, None).sums
    focused = replace(block, focus=torch.full_like(block.y, 0.5, dtype=torch.float64))
    half_sums = built.contribute(models, rows, focused, local, 0.2, mass, None).sums
    for name in whole_sums:
        torch.testing.assert_close(half_sums[name], whole_sums[name], rtol=1e-9, atol=1e-12)


def least_squares_of(data, result):
    """Return the least-squares solution of the pooled samples of each cluster of a result."""
    own = np.repeat([client["cluster"] for client in result.clients], data.train.sizes)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    return [np.linalg.lstsq(x[own == k], y[own == k])[0] for k in range(len(result.models))]


def three_clients():
    """One feature: clients a and b of slope about 2, c of slope -4."""
    x = {"a": [[1.0], [2.0]], "b": [[3.0]], "c": [[1.0], [1.0]]}
    y = {"a": [2.0, 4.0], "b": [7.0], "c": [-3.0, -5.0]}
    return coterie.from_arrays({client: (np.array(x[client]), np.array(y[client])) for client in x})


def test_refit_ends_with_the_least_squares_of_each_cluster_and_counts_its_exchange():
    start = [{"weight": np.array([1.0])}, {"weight": np.array([-1.0])}]
    options = {"init": start, "clusters": 2, "rounds": 2, "lr": 0.01, "learner": "linear"}
    result = coterie.fit(three_clients(), "two-phase", refit=True, **options)
    # cluster 0: (1*2 + 2*4 + 3*7) / (1 + 4 + 9) = 31/14; cluster 1: (-3 - 5) / 2
    assert [m["weight"].item() for m in result.models] == pytest.approx([31 / 14, -4], rel=1e-12)
    findings, rounds = result.metrics["refit"], coterie.fit(three_clients(), "two-phase", **options).metrics
    # 74 - 31^2/14 of cluster 0 in squares, 34 - 8^2/2 of cluster 1: half of their sum a sample
    squares = 4 + 16 + 49 - 31**2 / 14 + 34 - 32
    assert findings["loss_after"] == pytest.approx(squares / 2 / 5, rel=1e-9)
    assert findings["loss_before"] > findings["loss_after"]
    assert findings["exchanges"] == 1
    assert result.metrics["bytes_up"] == rounds["bytes_up"] + findings["bytes_up"]
    assert result.metrics["bytes_down"] == rounds["bytes_down"] + findings["bytes_down"]
    # each client sends X^T X, X^T r, a loss, the number of its samples and that of its cluster
    assert findings["bytes_up"] == 3 * 8 * 5


@pytest.mark.parametrize("engine", ["simulated", "sequential"])
def test_refit_removes_the_error_of_local_steps(engine):
    data = coterie.scenario("mixed-regression", clients=16, samples="3-30", dimension=4, groups=2, test_samples=2)
    start = [{"weight": np.asarray(truth) + 0.3} for truth in data.true_models]
    options = {"clusters": 2, "rounds": 3, "lr": 0.1, "init": start, "engine": engine}
    plain, refitted = coterie.fit(data, "two-phase", **options), coterie.fit(data, "two-phase", refit=True, **options)
    for model, best in zip(refitted.models, least_squares_of(data, refitted), strict=True):
        np.testing.assert_allclose(model["weight"], best, rtol=1e-9)
    assert refitted.metrics["loss"] < plain.metrics["loss"]


def test_refit_keeps_the_best_restart_and_clusters_without_members():
    data = coterie.scenario("mixed-regression", clients=20, samples="10", dimension=3, groups=2, test_samples=2)
    result = coterie.fit(data, "ifca", clusters=2, restarts=3, rounds=8, refit=True)
    for model, best in zip(result.models, least_squares_of(data, result), strict=True):
        np.testing.assert_allclose(model["weight"], best, rtol=1e-9)
    far = [{"weight": np.zeros(3)}, {"weight": np.full(3, 1e3)}]
    alone = coterie.fit(data, "ifca", clusters=2, init=far, rounds=1, refit=True)
    assert alone.models[1]["weight"].tolist() == [1e3] * 3  # no client has chosen it


def test_a_run_killed_before_its_last_exchange_ends_as_if_it_had_not_been(tmp_path):
    data = coterie.scenario("mixed-regression", clients=12, samples="8", dimension=3, groups=2, test_samples=2)
    options = {"clusters": 2, "rounds": 3, "refit": True}
    with patch("coterie.training.fitting.refitted", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "two-phase", out=tmp_path / "run", **options)
    resumed, whole = coterie.resume(tmp_path / "run"), coterie.fit(data, "two-phase", **options)
    assert all((a["weight"] == b["weight"]).all() for a, b in zip(resumed.models, whole.models, strict=True))
    for name in ("bytes_up", "bytes_down", "refit"):
        assert resumed.metrics[name] == whole.metrics[name]


def test_moment_descent_before_another_method_and_alone():
    data = coterie.scenario("mixed-regression", **HARD)
    coarse = coterie.fit(data, "moment-descent", clusters=3)
    assert coarse.metrics["rounds"] == 0
    assert coarse.metrics["parameter_error"] < 0.6  # half of the separation
    result = coterie.fit(data, "ifca", clusters=3, init="moment-descent", rounds=40)
    assert result.metrics["ari"] == 1.0
    assert result.metrics["parameter_error"] < coarse.metrics["parameter_error"]


def test_a_run_killed_in_phase_two_keeps_what_phase_one_found(tmp_path):
    data = coterie.scenario("mixed-regression", **HARD)

    def kill(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "two-phase", clusters="auto", rounds=6, out=tmp_path / "run", callbacks=[kill])
    resumed = coterie.resume(tmp_path / "run")
    whole = coterie.fit(data, "two-phase", clusters="auto", rounds=6)
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(resumed.models, whole.models, strict=True))
    for name in ("bytes_up", "bytes_down", "moment_descent", "learning_rate"):
        assert resumed.metrics[name] == whole.metrics[name]


def test_fewer_groups_of_anchors_are_reported():
    data = coterie.scenario("mixed-regression", groups=1, clients=80, samples="40", dimension=8, test_samples=5)
    with pytest.warns(UserWarning, match="the anchors show 1 group, not 2"):
        result = coterie.fit(data, "two-phase", clusters=2, rounds=2)
    assert len(result.models) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner": "mlp"}, "supports learner linear only, but this run has mlp"),
        ({"init": "random", "clusters": "auto"}, "clusters=auto needs init=odcl"),
        ({"restarts": 3}, "restarts=3 needs random initial models"),
        ({"anchors": 1, "clusters": 3}, "anchors=1 cannot show clusters=3"),
        ({"phase2": "sgd"}, "phase2"),
        ({"refit": True, "learner": "mlp", "init": "random"}, "refit solves least squares, but the learner is mlp"),
        ({"refit": True, "combine": "median"}, "refit needs plain sums over the clients' samples, but combine"),
        (
            {"refit": True, "privacy": "central", "privacy_noise": 1.0, "init": "random"},
            "but privacy protects single clients",
        ),
        ({"refit": True, "poison": "scale"}, "not the sums that refit asks for at the end"),
        ({"clusters": "many"}, "clusters must be a whole number at least 1, or auto"),
    ],
)
def test_mistakes_are_refused(options, message):
    data = coterie.scenario("mixed-regression", **HARD)
    with pytest.raises(ConfigError, match=message):
        coterie.fit(data, "two-phase", **{"clusters": 3, "rounds": 2} | options)


def test_other_learners_run_phase_two_from_random_models():
    data = coterie.scenario("mixed-regression", clients=12, samples="8", dimension=4, groups=2, test_samples=5)
    for phase2 in ("fedavg", "fedprox"):
        result = coterie.fit(
            data, "two-phase", learner="mlp:hidden=4", init="random", clusters=2, rounds=2, phase2=phase2
        )
        assert np.isfinite(result.metrics["loss"])


def test_on_the_command_line(tmp_path):
    arguments = [
        "run",
        "mixed-regression",
        "--method",
        "two-phase",
        "--clusters",
        "auto",
        "--dimension",
        "8",
        "--rounds",
        "20",
        "--json",
        "-",
    ]
    found = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "run")])
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["metrics"]["moment_descent"]["clusters"] == 3
    assert json.loads((tmp_path / "run" / "initialization.json").read_text())["moment_descent"]["clusters"] == 3
    assert len(summary["metrics"]["regression"]["clusters"]) == 3
    assert summary["clients"][0]["posterior"][summary["clients"][0]["cluster"]] > 0.5
    shown = CliRunner().invoke(
        cli,
        ["run", "mixed-regression", "--method", "moment-descent", "--clusters", "3", "--out", str(tmp_path / "coarse")],
    )
    assert shown.exit_code == 0, shown.output
    assert "in 3 groups" in shown.output
    assert (tmp_path / "coarse" / "report.html").is_file()


def test_a_client_of_a_table_with_a_single_row_has_no_score():
    random = np.random.default_rng(0)
    frame = {"site": ["a"] * 12 + ["b"] * 12 + ["c"], "x": random.standard_normal(25)}
    frame["y"] = 2 * frame["x"] + 0.1 * random.standard_normal(25)
    result = coterie.fit(coterie.from_table(frame, client="site", target="y"), "ifca", clusters=1, rounds=3)
    rows = {row["id"]: row for row in result.clients}
    assert rows["c"]["score"] is None
    assert rows["a"]["score"] is not None


def test_learner_counts_its_coefficients():
    assert Linear(3).coefficients == 3
    assert Linear(3, bias=True, degree=2).coefficients == 3 + 6 + 1
    named = Linear(2, bias=True).named(torch.tensor([1.0, 2.0, 3.0]))
    assert named["bias"].item() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert named["weight"].tolist() == [1, 2]


def test_expensive_intervals_are_left_out_and_reported(monkeypatch):
    data = coterie.scenario("mixed-regression", clients=12, samples="8", dimension=4, groups=2, test_samples=5)
    result = coterie.fit(data, "ifca", clusters=2, rounds=1)
    assert "regression" in result.with_diagnostics().metrics
    monkeypatch.setattr("coterie.training.diagnostics.MOST_PRODUCTS", 12 * 8 * 4**2 - 1)
    result = coterie.fit(data, "ifca", clusters=2, rounds=1)
    assert "regression" not in result.with_diagnostics().metrics
    with pytest.raises(InputError, match="has no intervals of coefficients"):
        result.coefficients()
