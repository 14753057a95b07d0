"""Real processes with TLS and a key for every node; a run over them gives the models of a simulation."""

import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

import coterie
from coterie.errors import ConfigError, RunError, StorageError
from coterie.flower.local import child as child_module
from coterie.flower.local.app import app_name, write_app
from coterie.flower.local.bundle import make_bundle, read_project
from coterie.flower.local.certificates import Certificates, NodeKey
from coterie.flower.local.child import Child, reason, warnings_in
from coterie.flower.local.control import Control
from coterie.flower.local.private import make_private_folder, restrict, write_private
from coterie.flower.local.processes import Identity, LocalFederation, LocalRun, free_ports

NODES = 2
OPTIONS = {"clusters": 2, "local_steps": 3, "lr": 0.05, "dtype": "float64", "seed": 4}
CLIENT = """
import coterie
from coterie.flower.node import make_client_app

def load(context):
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    return coterie.scenario("opposite-labels", clients=8, seed=1).training_only().take(range(node, 8, nodes))

app = make_client_app(load, plugins=["my_fedem.py"])
"""
PLUGIN = """
from dataclasses import dataclass, replace

from coterie import register
from coterie.methods import FedEM
from coterie.tiers import EMMixture

@register("my-mixture")
@dataclass(frozen=True)
class MyMixture(EMMixture):
    pass

@register("my-fedem")
@dataclass(frozen=True, kw_only=True)
class MyFedEM(FedEM):
    def tiers(self):
        return replace(super().tiers(), assignment=MyMixture())
"""
SECONDS = 400.0
"""Longest time for a run with a few seconds of work, on a busy machine."""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    limit = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(map(alive, pids))


def start_refused_nodes(federation: LocalFederation, folder: Path) -> dict[str, Child]:
    """Start nodes with an unregistered key, without a key, and with another authority; return them by the reason."""
    ca, unknown = federation.certificates.ca, NodeKey.at(folder / "unknown").private
    identities = {
        "Failed to activate SuperNode": Identity(unknown, ca),
        "must be registered": Identity(None, ca),
        "CERTIFICATE_VERIFY_FAILED": Identity(federation.key(0).private, Certificates.at(folder / "others").ca),
    }
    return {why: federation.start_node(NODES + i, who, wait=0) for i, (why, who) in enumerate(identities.items())}


def too_open(folder: Path) -> list[str]:
    """Return the files and folders that others may read; apps are unpacked in a private folder."""
    found = [path for path in (folder, *folder.rglob("*")) if (folder / "flower" / "apps") not in (path, *path.parents)]
    return [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_run_over_processes_equals_the_simulation_and_leaves_no_process(tmp_path):
    """The method is `fedem`, whose clients keep a state that matters from the second round on.

    A plugin of the app, which the server and the nodes load, registers it under another name.
    """
    app, out = tmp_path / "app", tmp_path / "run"
    write_app(app)
    (app / "client_app.py").write_text(CLIENT)
    (app / "my_fedem.py").write_text(PLUGIN)
    data = coterie.scenario("opposite-labels", clients=8, seed=1).training_only()
    children, pids = [], []
    with LocalFederation(app, NODES, tmp_path / "work") as federation:
        named = {"method": "my-fedem", "plugins": "my_fedem.py"}
        run = federation.submit(
            {"learner": "logistic", "nodes": NODES, "out": str(out), **named, "rounds": 2, **OPTIONS}
        )
        refused = start_refused_nodes(federation, tmp_path)  # they end while the run continues
        expected = coterie.fit(data, "fedem", learner="logistic", rounds=2, **OPTIONS)
        assert run.wait(SECONDS).completed, run.tail(20)
        found = coterie.load(out)
        for a, b in zip(expected.models, found.models, strict=True):
            for name in a:
                np.testing.assert_allclose(b[name], a[name], rtol=1e-9, atol=1e-12)
        assert (out / "report.html").is_file()
        assert any(federation.states(0).rglob("*.safetensors")), "soft weights are not stored at the node"
        assert (tmp_path / "work" / "superlink.db").is_file()
        assert too_open(tmp_path / "work") == []
        assert stat.S_IMODE(out.stat().st_mode) & 0o077, "the run folder is private, unlike other run folders"
        for why, child in refused.items():
            assert child.exit_code() not in (None, 0), f"a node that should be refused ({why}) has not ended"
            assert why in child.log.read_text()
        assert federation.online() == set(range(NODES))
        assert federation.ended() == list(refused.values())
        children = [federation.superlink, federation.superexec, *(federation.nodes[i] for i in range(NODES))]
        pids = [pid for child in children for pid in child.members()]
        assert len(pids) >= 2 + 2 * NODES  # every node has another process that starts its app
    assert all(child.exit_code() is not None for child in children)
    assert gone(pids)


def test_a_program_is_ended_with_all_processes_that_it_has_started(tmp_path):
    shell = ["/bin/sh", "-c", "sleep 60 & sleep 60"]
    for end in (Child.kill, lambda one: one.end(1.0)):
        one = Child("shell", shell, tmp_path / "log", dict(os.environ))
        while len(one.members()) < 3:
            time.sleep(0.01)
        pids = list(one.members())
        end(one)
        assert one.exit_code() is not None
        assert gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not end a process with its killed parent")
def test_the_programs_of_a_killed_parent_are_killed(tmp_path):
    """The parent reads a single file, because importing the package would take seconds."""
    source = (
        "import os, runpy, sys, time\n"
        f"Child = runpy.run_path({str(child_module.__file__)!r})['Child']\n"
        f"print(Child('x', ['/bin/sleep', '60'], __import__('pathlib').Path({str(tmp_path / 'log')!r}), {{}}).pid)\n"
        "sys.stdout.flush(); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone([pid])


def test_the_reason_is_flowers_text_next_to_the_exit_code(tmp_path):
    log = tmp_path / "log"
    log.write_text("\x1b[91mERROR\x1b[0m: Exit Code: 305\n[code: 2004] No.\n\nFor more information, visit\nDone\n")
    assert reason(log) == "[code: 2004] No."
    log.write_text("ERROR: [Errno 98] address already in use\nDone\n")
    assert reason(log) == "ERROR: [Errno 98] address already in use"


def test_private_files_are_private_and_created_once(tmp_path):
    files, key = Certificates.at(tmp_path / "tls"), NodeKey.at(tmp_path / "keys" / "node")
    assert too_open(tmp_path / "tls") == too_open(tmp_path / "keys") == []
    before = files.key.read_bytes(), key.private.read_bytes()
    Certificates.at(tmp_path / "tls"), NodeKey.at(tmp_path / "keys" / "node")
    assert (files.key.read_bytes(), key.private.read_bytes()) == before
    load_ssh_public_key(key.public.read_bytes())
    key.private.unlink()  # as after a kill between the two files
    assert NodeKey.at(tmp_path / "keys" / "node").private.read_bytes() != before[1]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)  # the key belongs to the certificate


def test_an_open_folder_of_an_earlier_version_is_made_private(tmp_path):
    for part in ("work", "work/logs", "work/keys"):
        (tmp_path / part).mkdir(mode=0o755)
    make_private_folder(tmp_path / "work")
    assert stat.S_IMODE((tmp_path / "work").stat().st_mode) == 0o700
    (tmp_path / "work" / "superlink.db").write_bytes(b"")
    restrict(tmp_path / "work" / "superlink.db")
    assert stat.S_IMODE((tmp_path / "work" / "superlink.db").stat().st_mode) == 0o600


def test_an_unwritable_file_is_an_error_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for call in (make_private_folder, lambda path: write_private(path, b"x"), Certificates.at, NodeKey.at):
        with pytest.raises(StorageError, match="cannot be written"):
            call(tmp_path / "file" / "below")


def test_a_superlink_that_has_ended_is_an_error_in_one_sentence(tmp_path):
    key = NodeKey.at(tmp_path / "node").public
    control = Control(f"127.0.0.1:{free_ports(1)[0]}", Certificates.at(tmp_path / "tls").ca)
    assert not control.answers()
    run = LocalRun(7, tmp_path / "log", control)
    calls = (control.nodes, lambda: control.register(key), lambda: control.start(b""), run.stop, run.status)
    for call in (*calls, lambda: run.wait(1.0)):
        with pytest.raises(RunError, match=r"the SuperLink did not .*refused$"):
            call()

    def watch() -> None:
        raise RunError("superlink has ended")

    with pytest.raises(RunError, match="superlink has ended"):
        run.wait(1.0, watch)
    control.close()


def test_warnings_are_read_from_a_log_of_flower(tmp_path):
    log = tmp_path / "log"
    assert warnings_in(log) == []
    log.write_text("\x1b[92mINFO \x1b[0m:  a\n\x1b[93mWARNING \x1b[0m:   node 3: no\nWARNING : not yet at its e")
    assert warnings_in(log) == ["node 3: no"]


def test_an_app_is_written_once_and_accepts_any_setting(tmp_path):
    write_app(tmp_path / "my fed")
    assert read_project(tmp_path / "my fed")["project"]["name"] == "my-fed"
    assert make_bundle(tmp_path / "my fed", {"restarts": 3}) != make_bundle(tmp_path / "my fed", {"restarts": 4})
    with pytest.raises(ConfigError, match="already exists"):
        write_app(tmp_path / "my fed")
    with pytest.raises(ConfigError, match="coterie flower init"):
        read_project(tmp_path)
    assert app_name("7 wards") == "app-7-wards"
    assert len(app_name("w" * 50)) <= 32


def test_the_app_declares_neither_torch_nor_coterie(tmp_path):
    write_app(tmp_path / "app")
    assert read_project(tmp_path / "app")["project"]["dependencies"] == []
