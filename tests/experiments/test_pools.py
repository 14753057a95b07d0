"""Jobs on executors of `concurrent.futures`: the same results, and clear errors when workers are lost."""

from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest

import coterie
from coterie.cluster.executor import WorkerCall
from coterie.errors import ConfigError, RunError, TrainingError, WorkerError
from coterie.experiments.pools import OnExecutor, Processes, chosen_pool
from coterie.report.reading import read_run
from tests.experiments.work import Raises


class Scripted(Executor):
    """An executor that answers at once, or fails with the given errors, one for each job."""

    def __init__(self, *failures, sees=True):
        self.failures, self.sees = list(failures), sees

    def submit(self, work, /, *args):
        future = Future()
        if not isinstance(work, WorkerCall):
            future.set_result(self.sees and work(*args))
        elif self.failures and (error := self.failures.pop(0)) is not None:
            future.set_exception(error)
        else:
            future.set_result(work(*args))
        return future


class KilledWorker(Exception):  # noqa: N818 the name of Dask's error
    pass


def double(job):
    return 2 * job


def ran(executor, jobs, folder, work=double):
    return dict(OnExecutor(executor).run(work, jobs, lambda running: None, folder))


def test_a_lost_job_is_the_outcome_of_this_job_only(tmp_path):
    found = ran(Scripted(None, KilledWorker("1 worker"), None), [1, 2, 3], tmp_path)
    assert isinstance(found.pop(2), RunError)
    assert found == {1: 2, 3: 6}
    assert list(tmp_path.iterdir()) == []  # the file that workers had to see is gone


def test_a_lost_executor_ends_all_jobs(tmp_path):
    with pytest.raises(WorkerError, match=r"the workers have ended \(BrokenExecutor\): start them again"):
        ran(Scripted(BrokenExecutor("gone")), [1], tmp_path)
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    with pytest.raises(WorkerError, match="the executor takes no jobs"):
        ran(ended, [1], tmp_path)


def test_errors_of_jobs_are_outcomes_and_bugs_are_raised(tmp_path):
    with ThreadPoolExecutor(2) as executor:
        assert isinstance(ran(executor, ["memory"], tmp_path, Raises())["memory"], TrainingError)
        with pytest.raises(KeyError):
            ran(executor, ["unknown"], tmp_path, Raises())


def test_workers_must_see_the_folder(tmp_path):
    with pytest.raises(RunError, match=r"the workers do not see .*: choose a folder \(out\) on a disk"):
        ran(Scripted(sees=False), [1], tmp_path)


def test_there_is_one_place_where_jobs_run():
    assert chosen_pool(3, None) == Processes(3)
    with pytest.raises(ConfigError, match="jobs is the number of processes on this machine"):
        chosen_pool(2, "local:2")
    with pytest.raises(ConfigError, match="give only one of them"):
        chosen_pool(None, "local:2", ThreadPoolExecutor(1))
    with pytest.raises(ConfigError, match=r"must be a concurrent.futures.Executor, got 4"):
        chosen_pool(None, None, 4)


def test_comparisons_and_sweeps_give_the_same_on_an_executor(tmp_path):
    options = {"clients": 6, "rounds": 2}
    with ThreadPoolExecutor(2) as executor:
        coterie.compare("mixed-regression", ["fedavg"], seeds=2, out=tmp_path / "there", executor=executor, **options)
        over = {"lr": [0.01, 0.1]}
        there = coterie.sweep("mixed-regression", "ifca", over=over, executor=executor, clusters=2, **options)
    for seed in range(2):
        alone = coterie.fit(coterie.scenario("mixed-regression", clients=6, seed=seed), "fedavg", rounds=2, seed=seed)
        stored = read_run(tmp_path / "there" / "jobs" / f"fedavg-seed{seed}").metrics
        assert stored["rmse"] == pytest.approx(alone.metrics["rmse"], rel=1e-9)
    data = coterie.scenario("mixed-regression", clients=6)
    here = coterie.sweep(data, "ifca", over=over, clusters=2, rounds=2)
    assert there.cells[0].score.mean == pytest.approx(here.cells[0].score.mean, rel=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trial_runs_give_the_same_on_an_executor_for_named_and_for_own_data():
    named = coterie.scenario("rotated-digits", clients=8)
    arrays = {
        client: (named.train.x[a:b].numpy(), named.train.y[a:b].numpy())
        for client, a, b in zip(named.clients, named.train.starts, named.train.stops, strict=True)
    }
    options = {"clusters": "auto", "max_clusters": 2, "choose_seeds": 1, "choose_rounds": 2, "rounds": 2, "lr": 0.1}
    for data in (named, coterie.from_arrays(arrays)):
        with ThreadPoolExecutor(2) as executor:
            there = coterie.fit(data, "ifca", learner="logistic", executor=executor, **options)
        here = coterie.fit(data, "ifca", learner="logistic", **options)
        tables = [[row["loss"] for row in run.metrics["chosen"]["table"]] for run in (there, here)]
        assert tables[0] == pytest.approx(tables[1], rel=1e-9)
        assert there.metrics["chosen"]["bytes_up"] == here.metrics["chosen"]["bytes_up"]


def test_what_cannot_be_shared_is_said(tmp_path):
    data = coterie.scenario("mixed-regression", clients=6)
    executor = Scripted()
    for call in (
        lambda: coterie.compare(data, ["fedavg"], out=tmp_path / "c", executor=executor),
        lambda: coterie.sweep(data, over={"lr": [1.0]}, executor=executor),
    ):
        with pytest.raises(ConfigError, match="share the runs of a scenario, which every process can build"):
            call()
    with pytest.raises(ConfigError, match="engine=dask spreads one run over workers"):
        coterie.compare("mixed-regression", ["fedavg"], out=tmp_path / "c", executor=executor, engine="dask")
    assert list(tmp_path.iterdir()) == []
