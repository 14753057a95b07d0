"""The number of clusters by trial runs, on small data; tests of the rule are in test_verdict.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.keys import Purpose, key_for
from coterie.data.arrays import from_arrays
from coterie.errors import ConfigError
from coterie.methods import Method
from coterie.report.choosing import answer, table_rows
from coterie.training import choosing
from coterie.training.choosing import agreement
from coterie.training.fitting import initialize_run
from coterie.training.planning import prepare

CHOOSERS = [name for name, method in Method.members.items() if method.tries_counts]
TRIALS = {"clusters": "auto", "max_clusters": 3, "choose_seeds": 2}
LOCAL = {"local_steps": 5, "lr": 0.1, "restarts": 3}
QUICK = {**TRIALS, **LOCAL, "rounds": 20}
WHOLE = {**QUICK, "seed": 5, "checkpoint_every": 2}
FEW = {"choose_rounds": 3, "restarts": 2}


def lines(slopes, clients: int = 12, samples: int = 20, noise: float = 0.3, seed: int = 0):
    """Clients with y = slope x + noise and alternating slopes; the true groups are present but must not be used."""
    random = np.random.default_rng(seed)
    data = {}
    for i in range(clients):
        x = random.standard_normal((samples, 2))
        data[f"c{i:02d}"] = (x, x @ np.array([slopes[i % len(slopes)], 1.0]) + noise * random.standard_normal(samples))
    return from_arrays(data, truth={name: i % len(slopes) for i, name in enumerate(data)})


def classes(turns, clients: int = 12, samples: int = 24):
    """Clients with two classes, which some of them label the other way round."""
    random = np.random.default_rng(1)
    data = {}
    for i in range(clients):
        x = random.standard_normal((samples, 2))
        data[f"c{i:02d}"] = (x, ((x[:, 0] > 0) ^ bool(turns[i % len(turns)])).astype(int))
    return from_arrays(data)


@pytest.fixture(scope="module")
def data():
    """Two groups of clients."""
    return lines((3.0, -3.0))


@pytest.fixture(scope="module")
def trials() -> list[tuple[int, int]]:
    """The findings of the trial runs in the whole run."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the whole run, which tests do not change."""
    return tmp_path_factory.mktemp("whole") / "run"


@pytest.fixture(scope="module")
def whole(data, trials, folder):
    """A run that chose its number of clusters and was never interrupted."""
    return coterie.fit(data, "ifca", out=folder, on_trial=lambda *at: trials.append(at), **WHOLE)


@pytest.fixture(scope="module")
def by_hand(data):
    """Every trial of the whole run as a separate run, with the samples and the seed of the trial."""
    alone = replace(data, truth=None)
    options = {**LOCAL, "rounds": 10, "validation": 0.2}
    seeds = [key_for(WHOLE["seed"], Purpose.TRIAL, s) >> 1 for s in (0, 1)]
    return {
        (K, s): coterie.fit(alone, "ifca", clusters=K, seed=seed, **options)
        for K in (1, 2, 3)
        for s, seed in enumerate(seeds)
    }


# ---- agreement -----------------------------------------------------------------------------------------------------


def test_agreement_of_known_partitions():
    one, renamed, other, equal = [0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], np.full(4, 10)
    assert agreement(np.array([one, renamed]), equal) == pytest.approx(1)
    # four pairs together by chance: ARI = (0 - 2*2/6) / (2 - 2*2/6) = -0.5
    assert agreement(np.array([one, other]), equal) == pytest.approx(-0.5)
    assert agreement(np.array([one, renamed, other]), equal) == pytest.approx((1 - 0.5 - 0.5) / 3)
    assert agreement(np.array([one]), equal) is None
    absent = np.array([[0, 0, 1, 1, -1], [1, 1, 0, 0, 2]])
    assert agreement(absent, np.full(5, 10)) == pytest.approx(1), "who is absent does not count"


def test_clients_with_one_sample_do_not_hide_the_agreement_of_the_others():
    random = np.random.default_rng(0)
    sizes = np.r_[np.full(40, 100), np.full(60, 1)]
    runs = np.array([np.r_[np.arange(40) % 3, random.integers(0, 3, 60)] for _ in range(3)])
    found = agreement(runs, sizes)
    assert found is not None
    assert found > 0.95
    together = agreement(runs, np.ones(100, dtype=np.int64))
    assert together is not None
    assert together < 0.3


# ---- whole runs ----------------------------------------------------------------------------------------------------


def test_the_methods_that_can():
    assert {"ifca", "fedem", "fedrc"} <= set(CHOOSERS)


@pytest.mark.filterwarnings("ignore:clusters=auto")  # 240 samples may be too few to say that there is one group
@pytest.mark.parametrize("method", ["ifca", "fedem"])
@pytest.mark.parametrize("slopes", [(1.0,), (4.0, -4.0)], ids=["one group", "two groups"])
def test_numbers(method: str, slopes):
    options = QUICK if method == "ifca" else {**QUICK, "rounds": 30, "averaging": "responsibility"}
    result = coterie.fit(lines(slopes), method, **options)
    assert len(result.models) == result.config["clusters"] == result.metrics["chosen"]["clusters"] == len(slopes)
    assert result.metrics["ari"] == 1.0


@pytest.mark.filterwarnings("ignore:clusters=auto")
@pytest.mark.parametrize("method", CHOOSERS)
@pytest.mark.parametrize("turns", [(0,), (0, 1)], ids=["one group", "two groups"])
def test_classes(method: str, turns):
    options = {**QUICK, "rounds": 10, "restarts": 2, "lr": 1.0, "averaging": "responsibility"}
    result = coterie.fit(classes(turns), method, learner="logistic:l2=0.01", **options)
    assert result.metrics["chosen"]["clusters"] == len(turns)


def table_of(data, **options: Any) -> Mapping[str, Any]:
    return initialize_run(prepare(data, "ifca", None, {**QUICK, **options})).found["chosen"]


def test_the_table_against_runs_by_hand(whole, by_hand):
    findings = whole.metrics["chosen"]
    tables = np.empty((3, 2, 12))
    for (K, s), run in by_hand.items():
        assert run.metrics["evaluated_on"] == "validation samples"
        tables[K - 1, s] = [row["loss"] for row in run.clients]
    # all clients have 20 samples and hold out 4, so that the mean over samples is the mean over clients
    assert [row["loss"] for row in findings["table"]] == pytest.approx(tables.mean(axis=(1, 2)), rel=1e-9)
    assert [row["clusters"] for row in findings["table"]] == [1, 2, 3]
    assert (findings["rounds"], findings["seeds"], findings["judged"], findings["share"]) == (10, 2, 12, 0.2)


@pytest.mark.filterwarnings("ignore:clusters=auto")  # three rounds are too few to trust
def test_neither_truth_nor_test_data_nor_validation_samples_are_seen(data):
    mixed = replace(data, truth=np.zeros(12, dtype=np.int64), group_names=("all",), test=data.train)
    assert table_of(mixed, **FEW) == table_of(data, **FEW)
    spared = table_of(data, validation=0.25, **FEW)
    spoilt = data.train.y.clone()
    kept = coterie.core.validation.validation_split(data, 0.25, 0)
    gone = ~np.isin(data.train.y.numpy(), kept.train.y.numpy())
    assert gone.sum() == 12 * 5
    spoilt[gone] = 1e6
    assert table_of(replace(data, train=replace(data.train, y=spoilt)), validation=0.25, **FEW) == spared


@pytest.mark.filterwarnings("ignore:clusters=auto")
def test_order_and_engine_do_not_matter(data):
    backwards = data.train.take(np.arange(12)[::-1].copy())
    findings = table_of(data, **FEW)
    others = (table_of(replace(data, train=backwards, truth=None), **FEW), table_of(data, engine="sequential", **FEW))
    for other in others:
        assert other["clusters"] == findings["clusters"]
        for name in ("loss", "se", "agreement"):
            expected = [row[name] for row in findings["table"]]
            assert [row[name] for row in other["table"]] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert (other["bytes_up"], other["bytes_down"]) == (findings["bytes_up"], findings["bytes_down"])


def test_the_cost_of_the_choice(whole, by_hand):
    """The rounds of the trials as in runs by hand, and one exchange more in each; a model has 16 bytes."""
    findings, starts = whole.metrics["chosen"], LOCAL["restarts"]
    up = sum(run.metrics["bytes_up"] + 12 * starts * 3 * 8 for run in by_hand.values())
    down = sum(run.metrics["bytes_down"] + 12 * starts * K * 16 for (K, _), run in by_hand.items())
    assert (findings["bytes_up"], findings["bytes_down"]) == (up, down)
    assert findings["exchanges"] == 3 * 2 * 11
    rounds = {name: sum(record[name] for record in whole.records) for name in ("bytes_up", "bytes_down")}
    assert whole.metrics["bytes_up"] == rounds["bytes_up"] + up
    assert whole.metrics["bytes_down"] == rounds["bytes_down"] + down
    assert whole.metrics["exchanges"] == 20 + 3 * 2 * 11
    assert whole.metrics["seconds"] > whole.metrics["initialization_seconds"] > 0


def test_rounds_seeds_and_the_number_of_clients_bound_the_trials():
    findings = table_of(lines((3.0, -3.0), clients=4), max_clusters=9, choose_seeds=1, choose_rounds=3)
    assert [row["clusters"] for row in findings["table"]] == [1, 2, 3, 4]
    assert (findings["rounds"], findings["seeds"]) == (3, 1)
    assert [row["agreement"] for row in findings["table"]] == [None] * 4


def with_a_single_sample(data):
    """The same data, but the fourth client has one sample."""
    sizes = {name: 1 if i == 3 else 20 for i, name in enumerate(data.clients)}
    first = data.train.starts
    return from_arrays(
        {
            name: (data.train.x[start : start + n], data.train.y[start : start + n])
            for start, (name, n) in zip(first, sizes.items(), strict=True)
        }
    )


def test_a_client_with_one_sample_trains_without_a_held_out_loss_also_from_the_log(tmp_path, data):
    """Its losses are no numbers."""
    fewer = with_a_single_sample(data)
    result = coterie.fit(fewer, "ifca", out=tmp_path / "run", **QUICK)
    assert result.metrics["chosen"]["judged"] == 11
    assert len(result.assignments) == 12
    assert '"nan"' in (tmp_path / "run" / "trials.jsonl").read_text()
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    again = coterie.resume(tmp_path / "run", fewer)
    assert again.metrics["chosen"] == result.metrics["chosen"]


# ---- interruptions, mistakes, words --------------------------------------------------------------------------------


class StopError(Exception):
    """Simulates a kill."""


def stop_in_round_three(record):
    if record["round"] == 3:
        raise StopError


def test_a_resumed_run_keeps_the_chosen_number(tmp_path, monkeypatch, data, whole):
    with pytest.raises(StopError):
        coterie.fit(data, "ifca", out=tmp_path / "cut", callbacks=[stop_in_round_three], **WHOLE)
    kept = json.loads((tmp_path / "cut" / "initialization.json").read_text())["chosen"]
    assert kept == whole.metrics["chosen"]

    def again(*given):
        raise AssertionError("the choice was made already")

    monkeypatch.setattr("coterie.training.fitting.choose", again)
    result = coterie.resume(tmp_path / "cut", data)
    changing = {"seconds", "initialization_seconds"}
    assert {k: v for k, v in result.metrics.items() if k not in changing} == {
        k: v for k, v in whole.metrics.items() if k not in changing
    }
    assert all((a["weight"] == b["weight"]).all() for a, b in zip(result.models, whole.models, strict=True))


def test_an_interrupted_choice_continues_with_the_next_trial(tmp_path, monkeypatch, data, whole, folder, trials):
    """Interrupted before the first trial, and again after the fourth."""
    assert trials == [(number, 6) for number in range(7)]
    seen: list[tuple[int, int]] = []
    tried: list[tuple[int, int]] = []

    def interrupt_after(done: int):
        def interrupt(finished: int, total: int) -> None:
            seen.append((finished, total))
            if finished == done:
                raise KeyboardInterrupt

        return interrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "ifca", out=tmp_path / "cut", on_trial=interrupt_after(0), **WHOLE)
    trial, numbers = choosing._trial, [(k, s) for k in (1, 2, 3) for s in (0, 1)]
    monkeypatch.setattr(choosing, "_trial", lambda *given: tried.append(given[2:4]) or trial(*given))
    for begin, end in ((0, 4), (4, 6)):
        seen.clear()
        tried.clear()
        with nullcontext() if end == 6 else pytest.raises(KeyboardInterrupt):
            result = coterie.resume(tmp_path / "cut", data, on_trial=interrupt_after(end if end < 6 else 7))
        assert seen == [(number, 6) for number in range(begin, end + 1)]
        assert tried == numbers[begin:end]
    assert result.metrics["chosen"] == whole.metrics["chosen"]
    assert result.config == whole.config
    for name in ("models.safetensors", "trials.jsonl", "config.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fesem", {"init": "random"}, "clusters=auto needs init=odcl.*without them fesem needs a number"),
        ("ifca", {"init": "near-truth"}, "clusters=auto does not work with init=near-truth: use init=random"),
        ("ifca", {"max_clusters": 0}, "max_clusters must be a whole number at least 1"),
        ("ifca", {"choose_seeds": 0}, "choose_seeds must be a whole number at least 1"),
        ("fesem", {"max_clusters": 3, "clusters": 2}, "max_clusters has no meaning for method fesem"),
    ],
)
def test_mistakes(method: str, options, words: str):
    with pytest.raises(ConfigError, match=words):
        prepare(lines((1.0,)), method, None, {"clusters": "auto", **options})


def test_clients_with_single_samples_cannot_be_evaluated():
    with pytest.raises(ConfigError, match=r"holds out some of each client's samples.*set a number of clusters"):
        prepare(lines((1.0,), samples=1), "ifca", None, {"clusters": "auto"})


def test_a_gaussian_initializer_is_as_good():
    plan = prepare(lines((3.0, -3.0)), "ifca", None, {**QUICK, "lr": "auto", "init": "gaussian:sd=2"})
    initialized = initialize_run(plan)
    assert initialized.plan.method.clusters == 2
    assert {"learning_rate", "chosen", "initialization_seconds"} <= set(initialized.found)


def test_reasons_against_the_chosen_number():
    assert list(choosing._warnings_about(1, [1.0, 0.2], [1, 2], 2)) == []
    assert list(choosing._warnings_about(2, [1.0, 0.95, 0.3], [1, 2, 3], 3)) == []
    assert "adjusted Rand index 0.30" in next(choosing._warnings_about(2, [1.0, 0.3, 0.3], [1, 2, 3], 3))
    assert "of 3 clusters only 2.3 had clients" in next(choosing._warnings_about(3, [1.0] * 4, [1, 2, 7 / 3, 3], 4))
    assert list(choosing._warnings_about(2, [None, None], [1, 2], 2)) == [
        "2 is the largest number of clusters that was tried, and more may be better: set a larger max_clusters"
    ]


def test_empty_clusters_do_not_count(monkeypatch):
    """K=2 fits better only because one of its two starts was luckier: all clients are in one cluster."""
    losses = np.stack([np.full((2, 4), 2.0), np.full((2, 4), 1.0)])
    alone = choosing.Trials(losses, np.zeros((2, 2, 4), dtype=np.int64), np.full(4, 20), 10, 0, 0, 0)
    parted = replace(alone, clusters=np.stack([alone.clusters[0], np.array([[0, 0, 1, 1], [1, 1, 0, 0]])]))
    plan = prepare(lines((1.0,)), "ifca", None, QUICK)
    for trials, expected in ((alone, 1), (parted, 2)):
        monkeypatch.setattr(choosing, "_trials", lambda *given, trials=trials: trials)
        settled, findings = choosing.choose(plan, lambda trial: pytest.fail("no trial is needed"))
        assert findings["clusters"] == settled.method.clusters == expected


def test_reasons_against_the_number_become_warnings():
    with pytest.warns(UserWarning, match=r"clusters=auto: 2 is the largest number of clusters that was tried"):
        coterie.fit(lines((4.0, -4.0)), "ifca", **{**QUICK, "max_clusters": 2})


def test_the_answer_in_words():
    row = {"loss": 0.5, "behind": 0.0, "se": 0.0, "agreement": None, "in_use": 1.0}
    table = [{"clusters": 1, **row}, {"clusters": 2, **row, "behind": 0.02, "se": 0.004}]
    findings = {"clusters": 1, "answer": "One model is as good.", "table": table}
    assert answer(findings) == "One model is as good."
    assert table_rows(findings)[1][2] == "0.020 ± 0.0040"
    assert table_rows(findings)[0] == ("1", "0.5000", "lowest", "–", "1")  # noqa: RUF001


def test_no_larger_number_is_tried_after_two_worse_ones():
    seen: list[tuple[int, int]] = []
    plan = prepare(lines((4.0, -4.0)), "ifca", None, {**QUICK, "max_clusters": 9})
    findings = initialize_run(plan, on_trial=lambda *at: seen.append(at)).found["chosen"]
    done = 2 * len(findings["table"])
    assert seen[-2:] == [(done, 18), (done, done)]
    assert findings["clusters"] == 2
    assert len(findings["table"]) < 9
    losses = [row["loss"] for row in findings["table"]]
    assert len(losses) == 1 + int(np.argmin(losses)) + choosing.MAX_CONSECUTIVE_WORSE


def test_a_trial_ends_when_its_loss_settles():
    findings = table_of(lines((4.0, -4.0)), choose_rounds=500)
    assert findings["rounds"] == 500
    assert findings["exchanges"] < 6 * 100


def uneven(groups: int, seed: int = 0):
    """60 clients with 1 to 400 samples, a third of them with one, in groups of different slopes."""
    random = np.random.default_rng(seed)
    slopes = random.standard_normal((groups, 4))
    sizes = np.maximum(1, np.round(400 ** random.uniform(-0.5, 1, 60))).astype(int)
    data = {}
    for i, n in enumerate(sizes):
        x = random.standard_normal((n, 4))
        data[f"c{i:03d}"] = (x, x @ slopes[i % groups] + random.standard_normal(n))
    return from_arrays(data)


@pytest.mark.parametrize("groups", [1, 3])
def test_clients_of_very_different_sizes(groups: int):
    options = {"local_steps": 10, "lr": 0.05, "restarts": 3, "client_weight": "samples", "rounds": 40}
    findings = initialize_run(
        prepare(uneven(groups), "ifca", None, {**options, "clusters": "auto", "max_clusters": 4, "choose_seeds": 2})
    ).found["chosen"]
    assert findings["verdict"]["name"] == ("one-model" if groups == 1 else "cluster")
    assert findings["clusters"] == groups


def test_the_page_shows_the_choice(tmp_path, data, whole):
    page = coterie.write_report(whole, tmp_path / "report.html").read_text()
    section = page.partition('id="choice"')[2].partition("</section>")[0]
    answer = "Cluster, K = 2: the RMSE on held-out samples falls from"
    assert page.count(answer) == 1, "at the top of the page, once"
    assert answer not in section
    assert section.count("<tr") == 4  # the head and three numbers
    assert section.count('class="mark"') == 3
    plain = coterie.fit(data, "ifca", clusters=2, rounds=2)
    without = coterie.write_report(plain, tmp_path / "plain.html").read_text()
    assert 'id="choice"' not in without
