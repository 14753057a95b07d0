"""Plugins on the server and on nodes: user-defined tasks, assignment rules and methods."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

import coterie
from coterie.client.round import ClientAlgorithm
from coterie.core.registry import Registered
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.flower.in_process import InProcessGrid
from coterie.flower.limits import RefusedError
from coterie.flower.node import make_client_app
from coterie.flower.plugins import load_plugins, origins_of
from coterie.flower.server import make_server_app
from coterie.flower.strategy import ClusteredStrategy
from coterie.flower.wire import Request, read_request, request_content
from coterie.methods import IFCA, Tiered
from coterie.plugins.loading import VARIABLE, load_installed, load_plugin
from coterie.testing.checks import Case, small_federation
from coterie.tiers import LowestLoss
from coterie.training.runs.folder import RunFolder
from tests.flower.make import NODES, part_of, terms_of

PLUGIN = Path(__file__).parent / "plugins" / "careful.py"
OPTIONS: Mapping[str, Any] = {
    "clusters": 2, "rounds": 3, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3, "init": "random",
}  # fmt: skip
NAMES: Mapping[type[Registered], str] = {Task: "target-means", ClientAlgorithm: "careful-loss"}
"""Members that the plugin registers for clients."""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore the environment variable with plugin files after each test."""
    monkeypatch.setenv(VARIABLE, "")
    load_installed.cache_clear()
    yield
    load_installed.cache_clear()


@contextmanager
def unknown() -> Iterator[None]:
    """Simulate a process that has not loaded the plugin, since all nodes of a test share the server's registry."""
    known = {family: family.members.pop(name) for family, name in NAMES.items() if name in family.members}
    module = sys.modules.pop("coterie_plugin_careful", None)
    try:
        yield
    finally:
        for family, member in known.items():
            family.members[NAMES[family]] = member
        if module is not None:
            sys.modules["coterie_plugin_careful"] = module


def before_the_plugin(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mod that serves every message as if the plugin had never been loaded."""
    with unknown():
        return call_next(message, context)


def grid(without: int | None = None) -> InProcessGrid:
    """Return a grid of three nodes that list the plugin, except the node `without`."""
    data = small_federation("linear")
    apps = {}
    for node, places in NODES.items():
        own = part_of(data, places)
        missing = node == without
        apps[node] = make_client_app(
            lambda context, own=own: own,
            plugins=[] if missing else [PLUGIN],
            mods=[before_the_plugin] if missing else [],
        )
    return InProcessGrid(apps)


def simulated(**more: Any) -> coterie.Result:
    load_plugin(PLUGIN)
    return coterie.fit(small_federation("linear"), "careful-ifca", **{**OPTIONS, **more})


def assert_same(one: coterie.Result, other: coterie.Result) -> None:
    for a, b in zip(one.models, other.models, strict=True):
        for name in a:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-9, atol=1e-12)
    assert one.assignments == other.assignments


def test_a_server_app_and_its_nodes_load_a_plugin(tmp_path):
    config = {**OPTIONS, "method": "careful-ifca", "margin": 0.02, "plugins": str(PLUGIN), "nodes": 3, "wait": 5.0}
    out = tmp_path / "run"
    make_server_app()(grid(), Context(1, 0, {}, RecordDict(), {**config, "out": str(out)}))
    ended = coterie.load(out)
    assert_same(simulated(margin=0.02), ended)
    assert ended.config["margin"] == 0.02
    assert len(RunFolder.open(out).findings["means"]) == 9
    assert not any(record.notes for record in ended.records)


def test_a_node_without_the_plugin_names_it_and_the_run_continues(tmp_path):
    strategy = ClusteredStrategy("careful-ifca", plugins=str(PLUGIN), nodes=3, wait=5, **OPTIONS)
    ended = strategy.start(grid(without=5), num_rounds=3, timeout=10, out=tmp_path / "run").clustered
    assert ended is not None
    assert len(RunFolder.open(tmp_path / "run").findings["means"]) == 7
    for record in ended.records:
        assert record.answered == 7
        assert sorted(record.missing) == ["site-1", "site-2"]
        (note,) = record.notes
        assert "node 5 answered with error 2: RefusedError: this node does not know the assignment" in note["reason"]
        assert "'careful-loss': load the plugin 'careful.py' here (plugins of make_client_app, or" in note["reason"]


def test_an_assignment_rule_of_a_plugin_in_a_typed_method():
    rule = load_plugin(PLUGIN).CarefulLoss(margin=0.02)
    options = {name: value for name, value in OPTIONS.items() if name not in ("clusters", "rounds")}
    strategy = ClusteredStrategy(Tiered(assignment=rule, clusters=2), nodes=3, wait=5, **options)
    found = strategy.start(grid(), num_rounds=3, timeout=10).clustered
    assert found is not None
    same = coterie.fit(
        small_federation("linear"), "tiered", assignment="careful-loss:margin=0.02", **{**OPTIONS, "rounds": 3}
    )
    assert_same(same, found)


def test_a_typed_method_equals_the_same_one_by_name():
    options = {name: value for name, value in OPTIONS.items() if name != "clusters"}
    found = ClusteredStrategy(IFCA(clusters=2), nodes=3, wait=5, **options).start(grid(), num_rounds=3, timeout=10)
    assert found.clustered is not None
    assert_same(coterie.fit(small_federation("linear"), IFCA(clusters=2), **options), found.clustered)


def request() -> RecordDict:
    load_plugin(PLUGIN)
    plan = Case("ifca", "linear", {"init": "random"}).plan()
    task = load_plugin(PLUGIN).TargetMeans(2.0)
    broadcast = coterie.core.messages.Broadcast(0, coterie.core.clusters.Clusters({}, K=1))
    return request_content(Request(terms_of(plan), task, broadcast, ("site-1",), (-1,)))


def test_a_request_names_the_plugins_of_its_task_and_of_the_members_in_it():
    plugin, plan = load_plugin(PLUGIN), Case("ifca", "linear", {"init": "random"}).plan()
    assert origins_of(plugin.TargetMeans()) == {"target-means": "careful.py"}
    assert origins_of(plan.tiers.task(3, 1)) == {}
    composed = Tiered(assignment=plugin.CarefulLoss(), clusters=2).tiers().task(3, 1)
    assert origins_of(composed) == {"careful-loss": "careful.py"}
    assert origins_of(Tiered(assignment=LowestLoss(), clusters=2).tiers().task(3, 1)) == {}
    assert read_request(request()).task == plugin.TargetMeans(2.0)


def test_a_node_loads_the_plugins_of_the_environment_for_an_unknown_name(monkeypatch):
    content = request()
    app = make_client_app(lambda context: part_of(small_federation("linear"), NODES[5]))
    for named in ("", str(PLUGIN)):
        monkeypatch.setenv(VARIABLE, named)
        load_installed.cache_clear()
        with unknown():
            one = InProcessGrid({5: app})
            (answer,) = one.pull_messages(one.push_messages([Message(content, 5, "train")]))
        assert answer.has_error() == (not named)
        if not named:
            assert answer.error.reason.startswith(RefusedError.__name__)
            assert "does not know the client task 'target-means': load the plugin 'careful.py'" in answer.error.reason


def test_an_unknown_name_without_a_plugin_is_explained_by_different_versions():
    content = request()
    header = content["config"]["header"].replace('"plugins": {"target-means": "careful.py"}', '"plugins": {}')
    content["config"]["header"] = header
    with unknown(), pytest.raises(coterie.InputError, match="install the same version of coterie on the server"):
        read_request(content)


def test_a_plugin_with_a_relative_path_is_searched_in_the_folder_of_the_app(tmp_path, monkeypatch):
    app = tmp_path / "app"
    app.mkdir()
    (app / "mine.py").write_text("FOUND = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no plugin file"):
        load_plugins(["mine.py"])
    monkeypatch.syspath_prepend(str(app))  # as Flower does before it loads an app
    load_plugins(["mine.py"])
    assert sys.modules["coterie_plugin_mine"].FOUND == 3
    load_plugins(["mine.py", "mine"], [app])
    with pytest.raises(ConfigError, match="there is no plugin file"):
        load_plugins(["mine.py"], [tmp_path])
    with pytest.raises(ConfigError, match="neither a Python file nor an importable module"):
        make_client_app(lambda context: small_federation("linear"), plugins=["no_such_module_at_all"])


def test_a_node_without_listed_plugins_loads_none_until_a_name_is_unknown():
    """The search for installed plugins takes time, and Flower starts a process at the node for every message."""
    code = "from coterie.flower.node import make_client_app; make_client_app(None)"
    code += "; from coterie.plugins.loading import load_installed; print(load_installed.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_trackers_are_named_in_the_run_config(tmp_path):
    out, table = tmp_path / "run", tmp_path / "rounds.csv"
    seen: list[int] = []
    config = {**OPTIONS, "nodes": 3, "wait": 5.0, "out": str(out), "track": f"csv:path={table}"}
    app = make_server_app(callbacks=[lambda record: seen.append(record.round)])
    app(grid(), Context(1, 0, {}, RecordDict(), config))
    assert len(table.read_text().splitlines()) == 1 + 3
    assert seen == [0, 1, 2]
    with pytest.raises(ConfigError, match="unknown tracker 'mlfow': did you mean 'mlflow'"):
        app(grid(), Context(1, 0, {}, RecordDict(), {**config, "track": "mlfow", "out": str(tmp_path / "other")}))
