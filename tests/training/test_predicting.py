"""Predictions for clients that trained, and for new clients with and without labelled samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import coterie
from coterie.errors import InputError, RunError
from coterie.evaluate.placing import CHUNK, mixed, sample_losses
from coterie.methods import Method
from coterie.testing.checks import small_federation


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def classes_of(result, x: np.ndarray) -> list[np.ndarray]:
    """Return the probabilities (n, C) of each model."""
    return [softmax(x.reshape(len(x), -1) @ m["weight"].T + m["bias"]) for m in result.models]


def em(likelihoods: np.ndarray) -> np.ndarray:
    """Weights (K,) from p_k(y_j|x_j), (n, K), sample by sample."""
    n, K = likelihoods.shape
    w = np.full(K, 1 / K)
    for _ in range(20):
        total = np.zeros(K)
        for j in range(n):
            total += w * likelihoods[j] / (w * likelihoods[j]).sum()
        w = total / n
    return w


@pytest.fixture(scope="module")
def data():
    return small_federation("logistic")


def samples(data, client: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(data.test.starts[client], data.test.stops[client])
    return data.test.x[rows].numpy(), data.test.y[rows].numpy()


@pytest.mark.parametrize("method", ["fedem", "fedrc"])
def test_a_new_client_mixes_the_models_by_em_on_its_support(data, method: str):
    result = coterie.fit(data, method, learner="logistic", clusters=2, rounds=8, lr=0.5, local_steps=5)
    (xs, ys), (x, _) = samples(data, 3), samples(data, 5)
    w = em(np.stack([p[np.arange(len(ys)), ys] for p in classes_of(result, xs)], axis=1))
    assert 0.01 < w[0] < 0.99, "both models must count, or nothing is tested"
    assert result.weigh(xs, ys) == pytest.approx(w, abs=1e-9)
    expected = sum(part * p for part, p in zip(w, classes_of(result, x), strict=True)).argmax(axis=1)
    assert result.predict(x, support=(xs, ys)).tolist() == expected.tolist()


def test_regressions_are_weighed_by_a_gaussian_with_the_last_error():
    random = np.random.default_rng(0)
    clients = {}
    for i in range(8):
        x = random.standard_normal((30, 2))
        clients[i] = (x, x.sum(axis=1) * (-1) ** i + 0.7 * random.standard_normal(30))
    result = coterie.fit(
        coterie.from_arrays(clients), "fedem", learner="linear", clusters=2, rounds=30, lr=0.2, local_steps=5, seed=1
    )
    x = random.standard_normal((12, 2))
    y = x.sum(axis=1) * np.where(np.arange(12) < 8, 1, -1) + 0.7 * random.standard_normal(12)
    variance = 2 * result.records[-1]["loss"]  # the loss is half the squared error
    errors = np.stack([(y - x @ m["weight"]) ** 2 for m in result.models], axis=1)
    w = em(np.exp(-errors / (2 * variance)))
    assert result.weigh(x, y) == pytest.approx(w, abs=1e-9)
    by_plain_losses = em(np.exp(-errors / 2))
    assert abs(w - by_plain_losses).max() > 0.01, "the variance must matter, or nothing is tested"


def test_that_error_belongs_to_the_winning_restart_and_the_kept_models(data):
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=3, restarts=3, lr=0.2)
    assert result._usual_loss == result.records[-1]["restart_losses"][result.metrics["restart"]]
    earlier = replace(result, metrics=result.metrics | {"best_rounds": 2})
    assert earlier._usual_loss == result.records[1]["restart_losses"][result.metrics["restart"]]
    assert replace(result, records=[])._usual_loss == float("inf")


@pytest.mark.filterwarnings("ignore:one-shot")  # these clients are too small for reliable solutions
@pytest.mark.parametrize("method", ["ifca", "fesem", "one-shot", "oracle"])
def test_a_new_client_takes_the_model_of_lowest_loss_with_hard_clusters(data, method: str):
    own = {} if method == "oracle" else {"clusters": 2}
    result = coterie.fit(data, method, learner="logistic", rounds=3, **own)
    (xs, ys), (x, _) = samples(data, 3), samples(data, 5)
    losses = [-np.log(p[np.arange(len(ys)), ys]).mean() for p in classes_of(result, xs)]
    best = int(np.argmin(losses))
    assert result.weigh(xs, ys).tolist() == [float(k == best) for k in range(len(losses))]
    assert result.losses(xs, ys) == pytest.approx(losses, rel=1e-9)
    assert result.assign(xs, ys) == best
    assert result.predict(x, support=(xs, ys)).tolist() == result.predict(x, cluster=best).tolist()


def test_one_model_needs_no_labels(data):
    result = coterie.fit(data, "fedavg", learner="logistic", rounds=3)
    x, y = samples(data, 5)
    assert result.predict(x).tolist() == classes_of(result, x)[0].argmax(axis=1).tolist()
    assert result.weigh(x, y).tolist() == [1.0]
    alone = coterie.fit(data, "ifca", learner="logistic", clusters=1, rounds=3)
    assert alone.predict(x).tolist() == classes_of(alone, x)[0].argmax(axis=1).tolist()


def test_a_loaded_run_assigns_new_clients_as_before(data, tmp_path):
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=3, lr=0.5)
    again = coterie.load(result.save(tmp_path / "run"))
    x, y = samples(data, 3)
    assert again.weigh(x, y).tolist() == result.weigh(x, y).tolist()


def test_many_samples_are_predicted_in_parts(data):
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=2)
    random = np.random.default_rng(0)
    n = 2 * CHUNK + 7
    x, y = random.standard_normal((n, *result.profile.features)), random.integers(0, result.profile.classes, n)
    losses = sample_losses(result.learner, result.parameters, torch.from_numpy(x), torch.from_numpy(y))
    expected = np.stack([-np.log(p[np.arange(n), y]) for p in classes_of(result, x)])
    assert losses.numpy() == pytest.approx(expected, rel=1e-9)
    said = mixed(result.learner, result.parameters, torch.tensor([0.3, 0.7], dtype=torch.float64), torch.from_numpy(x))
    assert said.numpy() == pytest.approx(0.3 * classes_of(result, x)[0] + 0.7 * classes_of(result, x)[1], rel=1e-9)


def test_a_model_that_is_not_finite_is_never_the_best(data):
    result = coterie.fit(data, "ifca", learner="logistic", clusters=2, rounds=2)
    lost = [{name: torch.full_like(p, torch.nan) for name, p in result.parameters[0].items()}, result.parameters[1]]
    assert replace(result, parameters=lost).weigh(*samples(data, 3)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("method", "ask", "message"),
    [
        ("ifca", lambda r, x, y: r.predict(x), "ifca needs a few labelled samples to assign a new client"),
        ("fedem", lambda r, x, y: r.predict(x), "fedem needs a few labelled samples to assign a new client"),
        (
            "local",
            lambda r, x, y: r.predict(x),
            "local gives every client a personal model, so a new client has none",
        ),
        ("local", lambda r, x, y: r.predict(x, support=(x, y)), "local gives every client a personal model"),
        ("local", lambda r, x, y: r.weigh(x, y), "local gives every client a personal model"),
        ("ifca", lambda r, x, y: r.predict(x, client="site-1", support=(x, y)), "exclude each other"),
        ("ifca", lambda r, x, y: r.predict(x, client="site-1", cluster=0), "exclude each other"),
        ("ifca", lambda r, x, y: r.predict(x, client="site1"), r"not in the training data \(near names: site-"),
        ("ifca", lambda r, x, y: r.predict(x, cluster=1.5), "cluster must be 0 to 1, got 1.5"),
        ("ifca", lambda r, x, y: r.predict(x, support=x), r"support must be a pair \(x, y\)"),
        ("ifca", lambda r, x, y: r.predict(x, support=(x, y[:-1])), "samples but labels of shape"),
        ("ifca", lambda r, x, y: r.predict(x, support=(x, y + 5)), "labels must be whole numbers from 0 to 2"),
        ("ifca", lambda r, x, y: r.predict(x, support=(x, y + 0.5)), "labels must be whole numbers from 0 to 2"),
        ("ifca", lambda r, x, y: r.predict(x * np.nan, cluster=0), "samples contain NaN or infinite values"),
        ("ifca", lambda r, x, y: r.predict(x.astype(str), cluster=0), "samples must be numbers"),
    ],
)
def test_wrong_calls_are_answered_with_what_to_do(data, method, ask, message):
    own = {} if method == "local" else {"clusters": 2}
    result = coterie.fit(data, method, learner="logistic", rounds=1, **own)
    with pytest.raises(InputError, match=message):
        ask(result, *samples(data, 5))


def test_methods_declare_how_new_clients_are_assigned():
    assert {name for name, method in Method.members.items() if method().placing == "mixture"} >= {"fedem", "fedrc"}
    assert {Method.members[name]().placing for name in ("ifca", "fesem", "odcl", "one-shot", "oracle")} == {
        "least-loss"
    }


# ---- tables ------------------------------------------------------------------------------------------------------


def pupils(rows: int, seed: int, verdict: bool = False) -> dict[str, list[object]]:
    """Six schools with large, unscaled values: the score rises with income in three and falls in the others."""
    random = np.random.default_rng(seed)
    income, kind = random.normal(50_000, 10_000, rows), random.choice(["a", "b"], rows)
    slope = np.where(np.arange(rows) % 6 < 3, 0.004, -0.004)
    score = 300 + slope * (income - 50_000) + 20 * (kind == "b") + random.normal(0, 2, rows)
    table = {"school": [f"s{i % 6}" for i in range(rows)], "income": income.tolist(), "kind": kind.tolist()}
    return table | {"score": np.where(score > 310, "high", "low").tolist() if verdict else score.tolist()}


def trained_on(table: dict[str, list[object]], **options: object) -> coterie.Result:
    data = coterie.from_table(table, client="school", target="score", features="income,kind")
    return coterie.fit(data, "ifca", clusters=2, rounds=60, **options)


def of_school(table: dict[str, list[object]], school: str) -> dict[str, list[object]]:
    rows = [i for i, name in enumerate(table["school"]) if name == school]
    return {name: [values[i] for i in rows] for name, values in table.items()}


FORMS = {
    "dict": lambda table, folder: table,
    "pandas": lambda table, folder: pd.DataFrame(table),
    "polars": lambda table, folder: pl.DataFrame(table),
    "arrow": lambda table, folder: pa.table(table),
    "csv": lambda table, folder: written(pd.DataFrame(table), folder / "t.csv"),
    "other order": lambda table, folder: pd.DataFrame(table).iloc[:, ::-1],
}


def written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_raw_rows_are_scaled_as_in_training_and_arrays_are_refused(tmp_path):
    result, new = trained_on(pupils(600, 0), out=tmp_path / "run"), of_school(pupils(600, 1), "s1")
    error = np.array(new["score"]) - result.predict(new, client="s1")
    assert np.sqrt(np.mean(error**2)) < 1.5 * result.metrics["rmse"] < 5, "the noise has a deviation of 2"
    expected = result.predict(new, client="s1").tolist()
    again = coterie.load(tmp_path / "run")
    for name, form in FORMS.items():
        frame = form(new, tmp_path)
        assert again.predict(frame, client="s1").tolist() == expected, name
        assert again.assign(frame) == result.assignments["s1"], name
        assert again.assign(frame, new["score"]) == result.assignments["s1"], name
        assert again.weigh(frame).tolist() == result.weigh(new, new["score"]).tolist(), name
        assert again.predict(frame, support=frame).tolist() == expected, name
        assert again.predict(frame, support=(frame, new["score"])).tolist() == expected, name
    raw = np.array([new["income"], [0.0] * len(new["income"])]).T
    for use in (
        lambda: result.predict(raw, client="s1"),
        lambda: result.assign(raw, new["score"]),
        lambda: result.weigh(raw, new["score"]),
        lambda: result.losses(raw, new["score"]),
        lambda: result.predict(new, support=(raw, new["score"])),
        lambda: result.predict_mixed(raw, [1, 0]),
    ):
        with pytest.raises(InputError, match="the run was made from a table, got ndarray: give the raw rows"):
            use()
    unlabelled = {name: values for name, values in new.items() if name != "score"}
    with pytest.raises(InputError, match="the samples have no column 'score'"):
        result.assign(unlabelled)


def test_text_classes_are_predicted_as_texts():
    table = pupils(600, 0, verdict=True)
    result, new = trained_on(table), of_school(pupils(600, 1, verdict=True), "s4")
    said = result.predict(new, client="s4")
    assert set(said) == {"high", "low"}
    assert np.mean(said == np.array(new["score"])) > 0.85
    assert result.assign(new) == result.assignments["s4"]
    with pytest.raises(
        InputError, match="labels holds 'none', which is not a class of this run: use the classes 'high', 'low'"
    ):
        result.assign(new, ["none"] * len(new["score"]))


def test_a_run_folder_without_the_columns_of_its_table_is_refused(tmp_path):
    trained_on(pupils(60, 0), out=tmp_path / "run")
    file = tmp_path / "run" / "result.json"
    facts = json.loads(file.read_text())
    for broken in (
        {},
        {"columns": [], "scales": 3},
        {**facts["schema"], "scales": []},
        {**facts["schema"], "classes": [[]]},
    ):
        with pytest.raises(RunError):
            _schema_of(broken, facts, file, tmp_path)


def _schema_of(broken: dict[str, object], facts: dict[str, object], file: Path, folder: Path) -> coterie.Result:
    rest = {name: value for name, value in facts.items() if name != "schema"}
    file.write_text(json.dumps(rest | ({"schema": broken} if broken else {})))
    return coterie.load(folder / "run")
