"""Fine-tuning: a few local steps of each client after the last round."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli import show
from coterie.core.clusters import Clusters
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, hash_ids, keys_for_clients, permutations
from coterie.core.messages import Reply
from coterie.core.task import Task
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.errors import ConfigError
from coterie.evaluate.clients import Tuning, finetuned_scores
from coterie.learners.local_training import FullBatch
from coterie.report.formats import ABSENT
from coterie.report.page import write_report
from coterie.report.reading import run_from_parts
from coterie.testing.checks import ROUNDS, Case, _Recording, small_federation
from coterie.training.result import Result


def samples_of(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Each client's x, y and held-out x, y, images as rows."""
    assert data.test is not None
    found = []
    for i in range(len(data.clients)):
        parts = []
        for shard in (data.train, data.test):
            rows = slice(shard.starts[i], shard.stops[i])
            parts += [shard.x[rows].flatten(1).double().numpy(), shard.y[rows].numpy()]
        found.append(tuple(parts))
    return found


def least_squares(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the mean of half the squared errors."""
    return x.T @ (x @ theta - y) / len(y)


def personal_rmse(result: Result, data: FederatedDataset, steps: int, lr: float) -> list[float]:
    """Full-batch steps for every client, one after the other, from its own cluster's model."""
    errors = []
    for (x, y, test_x, test_y), row in zip(samples_of(data), result.clients, strict=True):
        theta = result.models[row["cluster"]]["weight"].copy()
        for _ in range(steps):
            theta = theta - lr * least_squares(theta, x, y)
        errors.append(float(np.sqrt(((test_x @ theta - test_y) ** 2).mean())))
    return errors


def tuned(result: Result) -> list[float]:
    return [row["finetuned"] for row in result.clients]


def run(method: str, learner: str = "linear", **options: object) -> Result:
    return Case(method, learner, {"finetune": 3, **options}).run()


def test_numbers_equal_a_plain_loop_with_the_last_step_size():
    result = run("ifca", finetune=5, lr=0.2, lr_decay=0.5)
    expected = personal_rmse(result, small_federation("linear"), 5, 0.2 * 0.5 ** (ROUNDS - 1))
    assert tuned(result) == pytest.approx(expected, rel=1e-9)
    assert result.metrics["finetuned"] == pytest.approx(np.mean(expected), rel=1e-9)
    assert result.metrics["finetuned_worst_tenth"] == pytest.approx(max(expected), rel=1e-9)  # one of nine clients
    assert tuned(result) != pytest.approx([row["score"] for row in result.clients], rel=1e-3)


def test_classes_equal_a_plain_loop_of_logistic_regression():
    """theta <- theta - lr (x^T (softmax(x theta) - one-hot) / n + l2 theta), the bias without l2."""
    case, data = Case("fedavg", "logistic"), small_federation("logistic")
    result, plan = case.run(), case.plan()
    clusters = Clusters({n: p[None] for n, p in result.parameters[0].items()}, 1)
    own = torch.zeros(len(data.clients), dtype=torch.int64)
    found = finetuned_scores(plan.federation, clusters, own, False, Tuning(FullBatch(steps=7), lr=0.3, seed=3, round=9))
    for i, (x, y, test_x, test_y) in enumerate(samples_of(data)):
        weight, bias = (result.models[0][name].copy() for name in ("weight", "bias"))
        for _ in range(7):
            slope = (softmax(x @ weight.T + bias) - np.eye(3)[y]) / len(y)
            weight, bias = weight - 0.3 * (slope.T @ x + 0.01 * weight), bias - 0.3 * slope.sum(axis=0)
        said = softmax(test_x @ weight.T + bias)
        assert found.score[i] == (said.argmax(axis=1) == test_y).mean()
        assert found.loss[i] == pytest.approx(-np.log(said[np.arange(7), test_y]).mean(), rel=1e-9)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def test_mini_batches_are_those_of_a_later_round():
    result, data = run("fedavg", batch_size=4, finetune=6, lr=0.1), small_federation("linear")
    keys = keys_for_clients(3, Purpose.BATCHES, ROUNDS, hash_ids(data.clients))
    expected = []
    for (x, y, test_x, test_y), key in zip(samples_of(data), keys, strict=True):
        theta, per_pass = result.models[0]["weight"].copy(), -(-len(y) // 4)
        for step in range(6):
            order = permutations(np.array([key]), np.array([len(y)]), len(y), step // per_pass)[0]
            rows = order[step % per_pass * 4 :][:4]
            theta = theta - 0.1 * least_squares(theta, x[rows], y[rows])
        expected.append(float(np.sqrt(((test_x @ theta - test_y) ** 2).mean())))
    assert tuned(result) == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore:one-shot")  # nine small clients rarely show their groups
@pytest.mark.parametrize(
    ("method", "options"),
    [("fedprox", {"mu": 5.0}), ("two-phase", {"phase2": "fedprox", "init": "random"}), ("odcl", {})],
)
def test_fine_tuning_uses_plain_steps_whatever_the_rounds_used(method: str, options: dict):
    result = run(method, lr=0.05, **options)
    assert tuned(result) == pytest.approx(personal_rmse(result, small_federation("linear"), 3, 0.05), rel=1e-9)


def test_soft_clients_start_from_the_cluster_that_weighs_most():
    result = run("fedem", clusters=3, rounds=3)
    assert [row["cluster"] for row in result.clients] == result.weights.argmax(axis=1).tolist()
    assert 0 < result.weights.max(axis=1).min() < 1, "weights that say nothing about soft clients"
    assert tuned(result) == pytest.approx(personal_rmse(result, small_federation("linear"), 3, 0.05), rel=1e-9)


BATCHED = {"finetune": 3, "batch_size": 4}
CASES = [
    Case(method, learner, BATCHED | {"rounds": 1})
    for method, learner in (
        ("fedavg", "mlp"),
        ("ifca", "linear"),
        ("oracle", "module"),
        ("fesem", "linear"),
        ("fedem", "linear"),
        ("fedrc", "logistic"),
    )
]
CASES += [
    Case("naive-averaging", "linear", BATCHED),
    Case("ifca", "mlp", {"finetune": 2, "rounds": 1, "shared": "layer0", "restarts": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}-{case.learner}")
def test_shards_engines_and_the_order_of_clients_do_not_matter(case: Case):
    expected = case.run()
    assert "finetuned" in expected.metrics
    for federation in (partial(InShards, shards=2), partial(InShards, shards=9), Sequential):
        assert tuned(case.run(federation=federation)) == pytest.approx(tuned(expected), rel=1e-9)
    shuffled = case.run(case.plan(case.data(order=[4, 0, 8, 2, 6, 1, 7, 3, 5])))
    by_id = {row["id"]: row["finetuned"] for row in shuffled.clients}
    assert [by_id[row["id"]] for row in expected.clients] == pytest.approx(tuned(expected), rel=1e-9)


def test_fine_tuned_models_stay_with_the_clients_and_change_nothing_else():
    heard: list[tuple[Task, Reply]] = []
    result = Case("ifca", "mlp", {"finetune": 3}).run(federation=partial(_Recording, recorded=heard))
    (sent,) = [reply for task, reply in heard if task.name == "finetune"]
    assert {name: tuple(row.shape) for name, row in sent.rows.items()} == {"score": (9,), "loss": (9,)}
    assert not sent.sums
    assert not sent.slotted
    plain = Case("ifca", "mlp").run()
    assert all(torch.equal(a[n], b[n]) for a, b in zip(result.parameters, plain.parameters, strict=True) for n in a)
    new = {"finetuned", "finetuned_worst_tenth"}
    assert result.metrics.keys() - plain.metrics.keys() == new
    assert {k: v for k, v in result.metrics.items() if k not in new | {"seconds"}} == {
        k: v for k, v in plain.metrics.items() if k != "seconds"
    }
    assert all("finetuned" not in row for row in plain.clients)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("learner", "score"), [("linear", None), ("mlp", 0.0)])
def test_a_client_whose_steps_diverge_has_the_worst_score(learner: str, score: float | None):
    case = Case("fedavg", learner, {"rounds": 1, "local_steps": 1, "lr": 1e200, "server_lr": 1e-200, "finetune": 50})
    result = case.run()
    assert tuned(result)[2:] == [score] * 7  # clients with one or two samples may be fitted exactly
    assert result.metrics["finetuned_worst_tenth"] == score


@pytest.mark.parametrize("method", ["local", "local-erm", "moment-descent"])
def test_local_methods_and_methods_without_steps_refuse_fine_tuning(method: str):
    with pytest.raises(ConfigError, match=f"finetune has no meaning for method {method}"):
        coterie.fit(small_federation("linear"), method, finetune=3)


def test_zero_steps_are_refused():
    with pytest.raises(ConfigError, match="finetune must be a whole number at least 1, got 0"):
        coterie.fit(small_federation("linear"), "fedavg", finetune=0)


def test_a_sweep_ranks_as_without_fine_tuning_and_does_not_sweep_it():
    data, lr = small_federation("linear"), [0.3, 0.001, 0.05]
    plain, with_steps = (
        coterie.sweep(data, "fedavg", over={"lr": lr}, rounds=2, validation=0.4, **more)
        for more in ({}, {"finetune": 40})
    )
    assert [c.options for c in plain.cells] == [c.options for c in with_steps.cells]
    assert [c.score for c in plain.cells] == [c.score for c in with_steps.cells]
    assert "finetune=40" in with_steps.command
    with pytest.raises(ConfigError, match="finetune cannot be swept"):
        coterie.sweep(data, "fedavg", over={"finetune": [1, 2]}, rounds=2)


# ---- where it is shown ---------------------------------------------------------------------------------------

TUNED = {"finetuned": 0.75, "finetuned_worst_tenth": 0.5}


@cache
def finished(method: str) -> Result:
    return Case(method, "logistic").run()


def printed(width: int, metrics: dict[str, float]) -> str:
    """`local`, and `fedavg` with these metrics, side by side."""
    fedavg = finished("fedavg")
    results = [finished("local"), replace(fedavg, metrics=fedavg.metrics | metrics)]
    runs = [run_from_parts(each.config, each.records, each.summary()) for each in results]
    text = StringIO()
    show.comparison(Console(file=text, width=width), runs)
    return text.getvalue()


def test_a_comparison_has_the_columns_only_if_requested():
    wide = printed(120, TUNED).splitlines()
    assert "ARI  finetuned  tuned worst  rounds" in wide[0]
    assert wide[2].split()[5:7] == ["75.0", "50.0"]
    assert wide[1].split()[5:7] == [ABSENT] * 2, "local has no such figure"
    assert "finetuned" not in printed(120, {})


def test_a_narrow_terminal_keeps_the_scores_whole():
    everything = TUNED | {"newcomers": 0.25}
    for width in (70, 80, 90, 100):
        lines = printed(width, everything).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        assert {"finetuned", "newcomers"} <= set(lines[0].split())
    assert "MB" not in printed(80, everything)
    assert "MB up" in printed(80, {})


def test_the_run_reports_fine_tuning_in_a_line():
    text = StringIO()
    result = run("fedavg", "logistic")
    show.result(Console(file=text, width=100), result)
    shown = (
        f"finetuned {result.metrics['finetuned']:.4f}  worst-off tenth {result.metrics['finetuned_worst_tenth']:.4f}"
    )
    assert f"{shown}, after 3 local steps of each client" in text.getvalue()


def test_the_report_has_fine_tuning_only_if_requested(tmp_path):
    pages = []
    for more in ({"finetune": 3}, {}):
        result = Case("fedavg", "logistic", more).run()
        data = run_from_parts(result.config, result.records, result.summary())
        pages.append(write_report([data], tmp_path / f"{len(more)}.html").read_text())
    assert ">finetuned</abbr></th>" in pages[0]
    assert pages[0].count("finetuned") > pages[1].count("finetuned") == 0
    assert "the score of the model that it fine-tuned by local steps and kept" in pages[0]
