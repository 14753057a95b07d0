"""Methods of a user's own file, through every command; worker processes know them, too."""

import os
import sys
from pathlib import Path

import pytest

from coterie.core.registry import Registered
from coterie.methods import Method
from coterie.plugins import loading as plugins

SOURCE = '''
"""FedAvg with a factor on the learning rate of the server."""

from dataclasses import dataclass, replace
from typing import ClassVar

import coterie
from coterie.extend import SingleGroup, option
from coterie.methods import TieredMethod
from coterie.tiers import SingleCluster


@coterie.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(TieredMethod):
    """One global model whose changes are multiplied by a factor."""

    boost: float = option(1.0, "factor on the change of the global model", above=0)

    summary: ClassVar[str] = "one global model, boosted"
    citation: ClassVar[str] = "nobody"
    groups: ClassVar = SingleGroup()
    twin: ClassVar = None
    no_twin: ClassVar = "it has one cluster by definition"
    refuses: ClassVar = frozenset({"restarts", "averaging", "divide_by"})

    def tiers(self):
        server = replace(self.server, lr=self.server.lr * self.boost)
        return self.compose(assignment=SingleCluster(), K=1, server=server)
'''
DATA = ("rotated-digits", "--clients", "4", "--rounds", "2", "--learner", "logistic")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A plugin file; what it registers is forgotten after the test."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    path = tmp_path / "my_method.py"
    path.write_text(SOURCE)
    yield path
    forget("mine", "coterie_plugin_my_method")


def forget(name: str, module: str) -> None:
    for family in (Method, *(base for base in Registered.__subclasses__())):
        family.members.pop(name, None)
    sys.modules.pop(module, None)
    plugins.load_installed.cache_clear()


@pytest.mark.parametrize("place", ["before", "after", "joined"])
def test_a_plugin_may_be_named_before_or_after_the_command(coterie, plugin, tmp_path, place):
    run = ["run", *DATA, "--method", "mine", "--boost", "0.5", "--out", "run"]
    calls = {
        "before": ["--plugin", plugin, *run],
        "after": [*run, "--plugin", plugin],
        "joined": [*run, f"--plugin={plugin}"],
    }
    code, out, err = coterie(*calls[place])
    assert code == 0, err
    assert "accuracy" in out
    assert "boost = 0.5" in (tmp_path / "run" / "config.toml").read_text()


def test_the_settings_of_a_plugin_decide_the_result(coterie, plugin, tmp_path):
    for boost in (1, 0.5):
        common = [*DATA, "--method", "mine", "--plugin", plugin]
        assert coterie("run", *common, "--boost", boost, "--out", f"run-{boost}")[0] == 0
    assert coterie("run", *DATA, "--method", "fedavg", "--out", "fedavg")[0] == 0
    models = {name: (tmp_path / name / "models.safetensors").read_bytes() for name in ("run-1", "run-0.5", "fedavg")}
    assert models["run-1"] == models["fedavg"] != models["run-0.5"]


def test_a_plugin_is_compared_in_worker_processes(coterie, plugin, tmp_path):
    call = ["compare", *DATA, "--methods", "mine,fedavg", "--seeds", "1", "--plugin", plugin, "--out", "both"]
    code, out, err = coterie(*call, "--jobs", 1)
    assert code == 0, err
    assert {line.split()[0] for line in out.splitlines() if line.startswith(("mine", "fedavg"))} == {"mine", "fedavg"}
    assert "one global model, boosted" in (tmp_path / "both" / "report.html").read_text()


def test_an_option_of_a_plugin_is_swept_in_worker_processes(coterie, plugin):
    call = ["sweep", *DATA, "--method", "mine", "--over", "boost=0.001,1", "--plugin", plugin, "--out", "swept"]
    code, out, err = coterie(*call, "--jobs", 1)
    assert code == 0, err
    assert "--boost 1" in out


def test_a_run_of_a_plugin_is_resumed_and_reported(coterie, plugin, tmp_path, monkeypatch):
    run = ["run", *DATA, "--method", "mine", "--plugin", plugin, "--out", "run"]
    assert coterie(*run)[0] == 0
    before = (tmp_path / "run" / "models.safetensors").read_bytes()
    for name in ("result.json", "models.safetensors"):
        (tmp_path / "run" / name).unlink()
    forget("mine", "coterie_plugin_my_method")
    monkeypatch.setenv(plugins.VARIABLE, "")
    code, _, err = coterie("resume", "run")
    assert code == 2
    assert "unknown method 'mine'" in err
    code, _, err = coterie("resume", "run", "--plugin", plugin)
    assert code == 0, err
    assert (tmp_path / "run" / "models.safetensors").read_bytes() == before
    assert coterie("report", "run", "--plugin", plugin)[0] == 0


def test_a_plugin_is_listed_and_described(coterie, plugin):
    assert "mine" not in coterie("methods")[1]
    assert "one global model, boosted" in coterie("methods", "--plugin", plugin)[1]
    _, out, _ = coterie("describe", "mine", "--plugin", plugin)
    assert "factor on the change of the global model" in out
    assert "Mine(boost=1.0, local=AutoTraining(" in out
    assert "--boost" in coterie("run", "--plugin", plugin, "--help")[1]
    assert "single-cluster" in coterie("tiers", "--plugin", plugin)[1]


def test_plugins_of_the_environment_are_known(coterie, plugin, monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join([str(plugin)]))
    plugins.load_installed.cache_clear()
    code, _, err = coterie("run", *DATA, "--method", "mine", "--boost", "2", "--out", "run")
    assert code == 0, err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no plugin file"),
        ("import nothing_at_all", "cannot be imported (ModuleNotFoundError"),
        ("def broken(:", "cannot be imported (SyntaxError"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_plugin_is_one_sentence(coterie, tmp_path, text, message, first):
    path = Path(tmp_path / "bad.py")
    if text is not None:
        path.write_text(text)
    call = ["--plugin", path, "methods"] if first else ["methods", "--plugin", path]
    code, out, err = coterie(*call)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
