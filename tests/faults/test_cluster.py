"""Workers and schedulers of Dask that are killed, and a cluster over TLS, as real processes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import numpy as np
import pytest
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.cluster.connection import connected, disconnect
from coterie.cluster.local import LocalWorkers
from coterie.errors import ConfigError, WorkerError
from coterie.report.reading import read_run
from coterie.testing.checks import Case
from coterie.training.fitting import carry_out
from tests.cluster.test_engine import assert_identical

pytestmark = [pytest.mark.slow_processes, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture
def local():
    workers = LocalWorkers.start(2)
    yield workers
    disconnect(workers.address)
    workers.end()


def kill_one(address, generator):
    """Kill a random worker, if there is one at this moment."""
    found = connected(address).client.run(os.getpid, on_error="ignore")
    if found:
        os.kill(generator.choice(sorted(found.values())), signal.SIGKILL)


@pytest.mark.parametrize(("method", "learner"), [("fedem", "logistic"), ("ifca", "mlp")])
def test_workers_killed_in_random_rounds_change_nothing(method, learner, local):
    case, generator = Case(method, learner, {"rounds": 40, "participation": 0.6}), random.Random(1)
    fatal = set(generator.sample(range(40), 20))

    def kill(record):
        if record["round"] in fatal:
            # some die while they compute, some between rounds
            threading.Timer(generator.random() * 0.05, kill_one, (local.address, generator)).start()

    plan = case.plan(engine="dask", workers=local.address, shards=4)
    assert_identical(case.run(case.plan(shards=4)), carry_out(plan, callbacks=[kill]))


def test_a_killed_scheduler_is_a_clear_error_and_the_run_continues_on_another(local, tmp_path):
    data = coterie.scenario("mixed-regression", clients=12, seed=3)
    options = {"clusters": 2, "rounds": 12, "checkpoint_every": 3, "shards": 8, "init": "random", "seed": 3}

    def kill(record):
        if record["round"] == 7:
            os.kill(local.process.pid, signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"the scheduler of workers=tcp.* has ended or cannot be reached"):
        coterie.fit(
            data, "ifca", engine="dask", workers=local.address, callbacks=[kill], out=tmp_path / "run", **options
        )
    other = LocalWorkers.start(1)
    try:
        resumed = coterie.resume(tmp_path / "run", workers=other.address)
    finally:
        disconnect(other.address)
        other.end()
    whole = coterie.fit(data, "ifca", **options)
    assert_identical(whole, resumed)


def test_a_comparison_with_a_killed_worker_gives_the_same_figures(local, tmp_path):
    options = {"clients": 12, "rounds": 300, "checkpoint_every": 20}

    # the workers are busy with runs, so that their process ids must be known before
    pids = connected(local.address).client.run(os.getpid)
    killer = threading.Thread(target=lambda: (_when_running(tmp_path), os.kill(min(pids.values()), signal.SIGKILL)))
    killer.start()
    out = tmp_path / "killed"
    coterie.compare("mixed-regression", ["fedavg"], seeds=2, out=out, workers=local.address, **options)
    killer.join()
    for seed in range(2):
        data = coterie.scenario("mixed-regression", clients=12, seed=seed)
        alone = coterie.fit(data, "fedavg", rounds=300, seed=seed)
        assert read_run(out / "jobs" / f"fedavg-seed{seed}").metrics["rmse"] == alone.metrics["rmse"]


def test_a_comparison_whose_scheduler_is_killed_is_resumed_on_another(local, tmp_path):
    options = {"clients": 12, "rounds": 300, "checkpoint_every": 20}
    out = tmp_path / "killed"
    killer = threading.Thread(target=lambda: (_when_running(tmp_path), os.kill(local.process.pid, signal.SIGKILL)))
    killer.start()
    with pytest.raises(WorkerError, match=r"the workers have ended \(.*\): start them again, then resume"):
        coterie.compare("mixed-regression", ["fedavg"], seeds=2, out=out, workers=local.address, **options)
    killer.join()
    done = CliRunner().invoke(cli, ["resume", str(out), "--workers", "local:1"])
    disconnect("local:1")
    assert done.exit_code == 0, done.output
    coterie.compare("mixed-regression", ["fedavg"], seeds=2, out=tmp_path / "whole", **options)
    tables = [[[m["rmse"], m["bytes_up"]] for m in metrics_of(folder)] for folder in (out, tmp_path / "whole")]
    assert tables[0] == tables[1]


def metrics_of(folder):
    return [read_run(folder / "jobs" / f"fedavg-seed{seed}").metrics for seed in range(2)]


def _when_running(folder):
    jobs = folder / "killed" / "jobs"
    while not any(path.read_bytes().count(b"\n") > 50 for path in jobs.glob("*/records.jsonl")):
        time.sleep(0.05)


def certificate(folder):
    """Write a certificate that is its own authority, for the scheduler, the workers and the client."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cluster")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cluster.crt", folder / "cluster.key"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def test_a_cluster_over_tls(tmp_path, monkeypatch):
    crt, key = certificate(tmp_path)
    tls = ["--tls-ca-file", crt, "--tls-cert", crt, "--tls-key", key]
    dask, address = [sys.executable, "-m", "dask"], "tls://127.0.0.1:18786"
    started = [
        subprocess.Popen(
            [*dask, "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", "18786", "--no-dashboard", *tls],
            stderr=subprocess.DEVNULL,
        ),
        subprocess.Popen(
            [*dask, "worker", address, "--nthreads", "1", "--nworkers", "1", "--no-dashboard", *tls],
            stderr=subprocess.DEVNULL,
        ),
    ]
    try:
        with pytest.raises(ConfigError, match="needs the certificates of the cluster"):
            connected(address)
        import dask

        names = {"ca-file": crt, "client.cert": crt, "client.key": key}
        settings = {f"distributed.comm.tls.{name}": str(path) for name, path in names.items()}
        case = Case("fedavg", "linear")
        with dask.config.set(settings):
            there = case.run(case.plan(engine="dask", workers=address, shards=2))
        assert_identical(case.run(case.plan(shards=2)), there)
        assert np.isfinite(there.metrics["loss"])
    finally:
        disconnect(address)
        for process in started[::-1]:
            process.terminate()
            process.wait()
