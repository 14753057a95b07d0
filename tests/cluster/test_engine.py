"""The engine `dask` on real worker processes: the same bits as in this process, whatever happens to workers."""

import gc
import os
import signal
import time
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import coterie
from coterie.cluster import engine
from coterie.cluster.connection import Connection, disconnect
from coterie.engines.sequential import Sequential
from coterie.errors import ConfigError, InputError, SmallWorkWarning, WorkerError
from coterie.experiments.pools import OnExecutor
from coterie.testing.checks import Case, small_federation, small_module
from coterie.training.planning import prepare
from tests.cluster import work

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SHARDS = 4
CASES = {
    "plain": Case("ifca", "mlp", {"participation": 0.6, "restarts": 2, "race": 0}),
    "closed form": Case("fedavg", "linear"),
    "personal": Case("fedamp", "linear"),
    "soft": Case("fedem", "logistic", {"participation": 0.6}),
    "grows": Case("cfl", "logistic", {"validation": 0.3}),
    "one-shot": Case("odcl", "linear"),
    "attacked": Case("ifca", "linear", {"poison": "sign-flip:share=0.3"}),
    "false labels": Case("fedavg", "logistic", {"poison": "label-flip:share=0.3"}),
    "private": Case("ifca", "logistic", {"privacy": "local", "privacy_epsilon": 8.0}),
}


def on_cluster(case, local, **more):
    return case.run(case.plan(engine="dask", workers=local.address, shards=SHARDS, **more))


def here(case, **more):
    return case.run(case.plan(shards=SHARDS, **more))


def assert_identical(one, other):
    assert len(one.models) == len(other.models)
    for a, b in zip(one.models, other.models, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert one.assignments == other.assignments
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in run.records] for run in (one, other)]
    assert timeless[0] == timeless[1]
    for name in ("bytes_up", "bytes_down"):
        assert one.metrics[name] == other.metrics[name]


@pytest.mark.parametrize("name", CASES)
def test_two_workers_give_the_same_bits_as_the_same_shards_here(name, local):
    assert_identical(here(CASES[name]), on_cluster(CASES[name], local))


def test_the_result_equals_the_slow_reference(local):
    case = CASES["soft"]
    slow, fast = case.run(federation=Sequential), on_cluster(case, local)
    for a, b in zip(slow.models, fast.models, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-12)


def test_the_number_of_workers_does_not_matter(local, monkeypatch):
    both, present = on_cluster(CASES["plain"], local), Connection.workers
    monkeypatch.setattr(Connection, "workers", lambda self: dict([min(present(self).items())]))
    assert_identical(both, on_cluster(CASES["plain"], local))


def test_a_scenario_is_generated_by_the_workers_and_other_data_is_sent(local):
    options = {"clusters": 2, "rounds": 2, "engine": "dask", "workers": local.address, "shards": 3}
    named = coterie.scenario("mixed-regression", clients=7)
    sent = replace(named, source=None)
    plans = [prepare(data, "ifca", None, options) for data in (named, sent)]
    results = [coterie.training.fitting.carry_out(plan) for plan in plans]
    assert_identical(*results)
    assert [len(plan.federation._sent) for plan in plans] == [0, 3]


def test_workers_refuse_other_samples_than_those_of_the_run(local):
    data = coterie.scenario("mixed-regression", clients=6)
    changed = replace(data, train=replace(data.train, y=data.train.y + 1))  # still names its source
    with pytest.raises(InputError, match="a worker loaded other samples for clients 0 to 2"):
        coterie.fit(changed, "fedavg", rounds=1, engine="dask", workers=local.address, shards=2)


def test_an_unexpected_error_is_retried_twice(local, connection, tmp_path):
    case, counts = Case("fedavg", "linear", {"rounds": 1}), [tmp_path / "few", tmp_path / "many"]
    try:
        connection.client.run(work.fail_at_first, str(counts[0]), 2)
        assert_identical(here(case), on_cluster(case, local))
        connection.client.run(work.fail_at_first, str(counts[1]), 1000)
        with pytest.raises(WorkerError, match=r"failed \(ZeroDivisionError: fragile\): remove the cause, then resume"):
            case.run(case.plan(engine="dask", workers=local.address, shards=1))
        assert counts[1].read_text() == "." * 3
    finally:
        connection.client.run(work.heal)


def test_a_killed_worker_changes_nothing_but_the_time(local, connection):
    case = replace(CASES["soft"], options={"rounds": 5})
    plan = case.plan(engine="dask", workers=local.address, shards=SHARDS)
    addresses = sorted(connection.workers())

    def kill(record):
        if record["round"] == 1:
            os.kill(connection.client.run(os.getpid, workers=addresses[:1])[addresses[0]], signal.SIGKILL)

    assert_identical(here(case), coterie.training.fitting.carry_out(plan, callbacks=[kill]))


class DoneAndLost:
    """The future of a result that was lost with its worker."""

    def done(self):
        return True

    def result(self, timeout):
        raise TimeoutError


@pytest.mark.parametrize("done", [False, True])
def test_a_worker_that_ends_while_it_is_checked_is_not_awaited(done, local, connection, monkeypatch):
    ended, present = {"tcp://127.0.0.1:1": {"nthreads": 1}}, Connection._known
    looks = [ended, ended]
    monkeypatch.setattr(Connection, "_known", lambda self: looks.pop() if looks else present(self))
    fresh = Connection(local.address, connection.client)
    fresh.pending = {"tcp://127.0.0.1:1": DoneAndLost()} if done else {}
    assert fresh.workers().keys() == present(fresh).keys() & fresh.checked
    assert not looks
    assert ended.keys().isdisjoint(fresh.pending)


def test_a_worker_without_the_package_is_named(local, connection, monkeypatch):
    monkeypatch.setattr("coterie.cluster.connection.PACKAGE", "not-installed")
    with pytest.raises(ConfigError, match=r"worker tcp.* cannot import not-installed: install the same packages"):
        Connection(local.address, connection.client).workers()


def test_an_interrupted_run_continues_with_other_workers_and_the_stored_number_of_shards(local, tmp_path):
    data, out = small_federation("logistic"), tmp_path / "run"
    options = {"rounds": 4, "clusters": 2, "local_steps": 2, "lr": 0.1, "seed": 1, "checkpoint_every": 1}

    def interrupt(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(
            data, "fedem", out=out, callbacks=[interrupt], engine="dask", workers=local.address, shards=5, **options
        )
    other = local.address.replace("127.0.0.1", "localhost")
    resumed = coterie.resume(out, data, workers=other)
    disconnect(other)
    assert resumed.config["shards"] == 5
    whole = coterie.fit(data, "fedem", shards=5, **options)
    for a, b in zip(whole.models, resumed.models, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_small_work_is_said_to_be_faster_here(local):
    with pytest.warns(
        SmallWorkWarning, match=r"the workers took .* ms .*: without engine=dask this machine would take"
    ):
        on_cluster(Case("fedavg", "linear", {"rounds": 12}), local)


def test_mistakes_are_found_before_anything_is_written(local, tmp_path):
    data, out = small_federation("logistic"), tmp_path / "run"
    for options, words in (
        ({"engine": "dask"}, "engine=dask needs workers: local:4"),
        ({"workers": local.address}, "workers have no work in this run"),
        ({"engine": "dask", "workers": "tcp://10.0.0.1:8786"}, "without encryption"),
        ({"engine": "dask", "workers": "four"}, "names no workers: expected local:N"),
        ({"engine": "dask", "workers": local.address, "shards": 10}, "at most the number of clients, 9, got 10"),
        ({"engine": "sequential", "shards": 2}, "shards has no effect with engine=sequential"),
    ):
        with pytest.raises(ConfigError, match=words):
            coterie.fit(data, "fedavg", out=out, **options)
    with pytest.raises(ConfigError, match="a learner that workers find by its name"):
        coterie.fit(data, "fedavg", learner=small_module, out=out, engine="dask", workers=local.address)
    assert not out.exists()


def test_a_federation_that_ends_leaves_its_shards_to_be_dropped(local, connection):
    on_cluster(CASES["closed form"], local)
    gc.collect()
    deadline = time.monotonic() + 10
    while connection.client.run_on_scheduler(work.task_names) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert connection.client.run_on_scheduler(work.task_names) == []


def test_runs_of_a_comparison_and_trial_runs_are_shared_by_workers(local, tmp_path):
    options = {"clients": 6, "rounds": 2}
    shared = coterie.compare(
        "mixed-regression", ["fedavg"], seeds=2, out=tmp_path / "there", workers=local.address, **options
    )
    assert [row["seeds"] for row in shared.to_frame().to_dict("records")] == [2]
    data = coterie.scenario("mixed-regression", clients=6)
    chosen = {"clusters": "auto", "init": "random", "max_clusters": 2, "choose_seeds": 1, "choose_rounds": 2}
    there, in_process = (
        coterie.fit(data, "ifca", rounds=2, lr=0.1, **chosen, **more) for more in ({"workers": local.address}, {})
    )
    assert there.metrics["chosen"]["table"] == in_process.metrics["chosen"]["table"]


def test_workers_load_their_own_clients_from_files(local, tmp_path):
    data = coterie.scenario("mixed-regression", clients=9, samples="3-9")
    stored = coterie.from_parquet_dir(
        coterie.to_parquet_dir(data, tmp_path / "stored"), client="client", target="target"
    )
    options = {"clusters": 2, "rounds": 2, "lr": 0.1, "init": "random", "learner": "linear", "shards": SHARDS}
    plan = prepare(stored, "ifca", None, options | {"engine": "dask", "workers": local.address, "validation": 0.2})
    assert not hasattr(plan.federation.data, "train")
    there = coterie.training.fitting.carry_out(plan, tmp_path / "run")
    assert_identical(there, coterie.fit(stored, "ifca", validation=0.2, **options))
    assert there.config["scenario"] == "parquet"
    tested = coterie.from_parquet_dir(tmp_path / "stored", test=tmp_path / "stored", client="client", target="target")
    scored = [
        coterie.fit(tested, "ifca", **options, **more) for more in ({"engine": "dask", "workers": local.address}, {})
    ]
    assert scored[0].metrics["rmse"] == scored[1].metrics["rmse"]


def test_workers_read_the_rows_of_a_mapped_file(local, tmp_path, monkeypatch):
    random, sizes = np.random.default_rng(0), [4, 9, 5, 7, 5, 6, 8]
    np.save(tmp_path / "x.npy", random.standard_normal((3 + sum(sizes), 50)))
    mapped, y = np.load(tmp_path / "x.npy", mmap_mode="r")[3:], random.standard_normal(sum(sizes))
    options = {"clusters": 2, "rounds": 2, "lr": 0.1, "init": "random", "shards": 3, "dtype": "float64"}
    there = options | {"engine": "dask", "workers": local.address}
    monkeypatch.setattr(engine, "MOST_SENT", mapped.nbytes // 2)
    assert_identical(
        coterie.fit(coterie.from_rows(mapped, y, sizes), "ifca", **options),
        coterie.fit(coterie.from_rows(mapped, y, sizes), "ifca", **there),
    )
    with pytest.raises(ConfigError, match="exist in this process only"):
        coterie.fit(coterie.from_rows(np.array(mapped), y, sizes), "ifca", **there)
    changed = coterie.from_rows(mapped, y + 1, sizes)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(
        InputError, match=r"a worker cannot read .*x.npy \(.*\): put it on a disk that all machines share"
    ):
        coterie.fit(changed, "ifca", **there)


def test_jobs_may_be_in_modules_that_only_this_process_finds(connection, tmp_path, monkeypatch):
    (tmp_path / "own_jobs.py").write_text("def triple(job):\n    return 3 * job\n")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = OnExecutor(connection.executor())
    assert dict(jobs.run(import_module("own_jobs").triple, [1, 2], lambda running: None, tmp_path)) == {1: 3, 2: 6}
